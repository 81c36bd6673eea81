package ublkdev

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestPaths(t *testing.T) {
	if got := BlockPath(3); got != "/dev/ublkb3" {
		t.Errorf("BlockPath(3) = %q", got)
	}
	if got := CharPath(12); got != "/dev/ublkc12" {
		t.Errorf("CharPath(12) = %q", got)
	}
}

func TestOpenCharWaitsForTheNode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ublkc0")
	go func() {
		time.Sleep(30 * time.Millisecond)
		_ = os.WriteFile(path, nil, 0o600)
	}()
	f, err := openChar(context.Background(), path, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags of the descriptor: %#x, %v: not close-on-exec", flags, err)
	}
}

func TestOpenCharGivesUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ublkc0")
	start := time.Now()
	_, err := openChar(context.Background(), path, 30*time.Millisecond)
	if !errors.Is(err, unix.ENOENT) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), path) {
		t.Errorf("limit passed: %v, want ENOENT, DeadlineExceeded and the path", err)
	}
	if took := time.Since(start); took < 30*time.Millisecond || took > 5*time.Second {
		t.Errorf("gave up after %v, want 30 ms", took)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := openChar(ctx, path, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("context ended: %v, want Canceled", err)
	}

	// What will not get better by waiting.
	if _, err := openChar(context.Background(), t.TempDir(), time.Hour); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory: %v, want EISDIR at once", err)
	}
}

func TestListNames(t *testing.T) {
	class, dev := t.TempDir(), t.TempDir()
	for _, name := range []string{"ublkc10", "ublkc2", "ublkc0", "ublkcx", "ublkc", "ublkc007", "ublkb5", "null", "ublkc-1"} {
		if err := os.WriteFile(filepath.Join(class, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := list(class, dev)
	if diff := cmp.Diff([]int{0, 2, 10}, got); diff != "" || err != nil {
		t.Errorf("list: %v (-want +got):\n%s", err, diff)
	}
	// Without sysfs, /dev tells.
	if err := os.WriteFile(filepath.Join(dev, "ublkc4"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err = list(filepath.Join(class, "missing"), dev)
	if diff := cmp.Diff([]int{4}, got); diff != "" || err != nil {
		t.Errorf("list without sysfs: %v (-want +got):\n%s", err, diff)
	}
	if _, err := list(filepath.Join(class, "missing"), filepath.Join(dev, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("list of nothing: %v, want ErrNotExist", err)
	}
}
