package ublkdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/uring"
)

func TestVMUnknownDevice(t *testing.T) {
	c := needUblk(t)
	ctx := t.Context()
	const id = 77777
	for name, err := range map[string]error{
		"Info":          second(c.Info(ctx, id)),
		"GetParams":     second(c.GetParams(ctx, id)),
		"SetParams":     c.SetParams(ctx, id, testParams()),
		"Start":         c.Start(ctx, id, os.Getpid()),
		"Stop":          c.Stop(ctx, id),
		"Delete":        c.Delete(ctx, id),
		"DeleteAsync":   c.DeleteAsync(ctx, id),
		"Affinity":      second(c.Affinity(ctx, id, 0)),
		"StartRecovery": c.StartRecovery(ctx, id),
		"EndRecovery":   c.EndRecovery(ctx, id, os.Getpid()),
		"Stop of -1":    c.Stop(ctx, -1),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
		if want := fmt.Sprintf("device %d", id); name != "Stop of -1" && !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %q does not say %q", name, err, want)
		}
	}
	if _, err := OpenChar(expired(t), id); !errors.Is(err, unix.ENOENT) {
		t.Errorf("OpenChar: %v, want ENOENT", err)
	}
}

func second[T any](_ T, err error) error { return err }

// A kernel either limits all devices, and says so, or none of root's.
func TestVMMoreThanTheLimit(t *testing.T) {
	c := needUblk(t)
	b, err := os.ReadFile(ublksMaxPath)
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	existing, err := List()
	if err != nil {
		t.Fatal(err)
	}
	// Deleted without a wait for each, which takes the kernel a grace period.
	var ids []int
	t.Cleanup(func() {
		for _, id := range ids {
			if err := c.DeleteAsync(context.Background(), id); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
		waitFor(t, "the devices to go", func() bool {
			now, err := List()
			return err == nil && len(now) == len(existing)
		})
	})
	for n := len(existing); n <= limit; n++ {
		info, err := c.Add(t.Context(), AddOptions{ID: -1, Queues: 1, Depth: 1, MaxIOBytes: 4096})
		if err == nil {
			ids = append(ids, info.ID)
			continue
		}
		checkTooMany(t, err, limit)
		if n < limit {
			t.Errorf("refused with %d devices of %d", n, limit)
		}
	}
	t.Logf("%s: %d devices where ublks_max is %d", release(t), len(ids), limit)
}

func checkTooMany(t *testing.T, err error, limit int) {
	t.Helper()
	if !errors.Is(err, ErrTooMany) {
		t.Errorf("%v, want ErrTooMany", err)
	}
	checkTooManyText(t, fmt.Sprint(err), limit)
}

func checkTooManyText(t *testing.T, text string, limit int) {
	t.Helper()
	for _, want := range []string{"too many ublk devices", fmt.Sprintf("limit is %d;", limit), ublksMaxPath, "ublks_max=N"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}

// What a user who is not root is told: by a child that gave root up, with the
// limit set to none.
func TestVMNotRoot(t *testing.T) {
	needUblk(t)
	if out := mustChild(t, "as-nobody", "open"); !strings.Contains(out, "not permitted: ublk devices are made by root") {
		t.Errorf("open without permission: %q", out)
	}

	setting(t, ublksMaxPath, "0")
	if err := os.Chmod(controlPath, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(controlPath, 0o600) })
	if out := mustChild(t, "as-nobody", "add"); !strings.Contains(out, "not permitted: ublk devices are made by root") {
		t.Errorf("add without permission: %q", out)
	}
	checkTooManyText(t, mustChild(t, "as-nobody", "add-unprivileged"), 0)
}

// setting writes a kernel setting, and the old value when the test ends. Only
// in the VM: elsewhere other programs would feel it.
func setting(t *testing.T, path, value string) {
	t.Helper()
	if os.Getenv("DELAYD_REQUIRE_UBLK") != "1" {
		t.Skipf("changes %s: only in the VM (DELAYD_REQUIRE_UBLK=1)", path)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, before, 0o644); err != nil {
			t.Errorf("put back %s: %v", path, err)
		}
	})
}

// io_uring may be forbidden as a whole: Open says what to change.
func TestVMIoUringDisabled(t *testing.T) {
	needUblk(t)
	const path = "/proc/sys/kernel/io_uring_disabled"
	setting(t, path, "2")
	c, err := Open()
	if err == nil {
		_ = c.Close()
		t.Fatal("opened although io_uring is disabled")
	}
	for _, want := range []string{"open the ublk driver", "kernel.io_uring_disabled"} {
		if !errors.Is(err, uring.ErrForbidden) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q, or is not uring.ErrForbidden", err, want)
		}
	}
}
