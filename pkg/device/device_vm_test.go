package device

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/scheduler"
)

// newHost gives a test a Host of its own, and checks that it leaves nothing.
func newHost(t *testing.T) *Host {
	t.Helper()
	if _, err := os.Stat("/dev/ublk-control"); err != nil {
		if os.Getenv("DELAYD_REQUIRE_UBLK") == "1" {
			t.Fatalf("no ublk here: %v", err)
		}
		t.Skipf("needs a kernel with ublk (run it with test/vm/run): %v", err)
	}
	h, err := NewHost(t.Context(), HostOptions{Owner: "test", RunDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func start(t *testing.T, h *Host, spec Spec) *Device {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	d, err := h.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestOne(t *testing.T) {
	h := newHost(t)
	d := start(t, h, Spec{Name: "one", Backing: "mem:64M", Delays: scheduler.Constant(time.Millisecond)})
	t.Log(d.Info())
	fd, err := unix.Open(d.Info().Path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf, _ := unix.Mmap(-1, 0, 4096, 3, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	for range 20 {
		t0 := time.Now()
		n, err := unix.Pread(fd, buf, 0)
		t.Log(n, err, time.Since(t0))
	}
}
