package device

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/uring"
)

// What the tests of this package that need a kernel with ublk have in common.

// newHost gives a test a Host of its own, and checks that it leaves nothing.
func newHost(t testing.TB) *Host { return newHostOf(t, HostOptions{}) }

// newHostOf is newHost with options of the test's own.
func newHostOf(t testing.TB, o HostOptions) *Host {
	t.Helper()
	if _, err := os.Stat("/dev/ublk-control"); err != nil {
		if os.Getenv("DELAYD_REQUIRE_UBLK") == "1" {
			t.Fatalf("no ublk here: %v", err)
		}
		t.Skipf("needs a kernel with ublk (run it with test/vm/run): %v", err)
	}
	dir := t.TempDir()
	o.Owner, o.RunDir, o.Log = "test", dir, slog.New(slog.NewTextHandler(t.Output(), nil))
	h, err := NewHost(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left in the run directory: %v", left)
		}
		if left, _ := filepath.Glob("/dev/shm/delayd-*"); len(left) > 0 {
			t.Errorf("left in /dev/shm: %v", left)
		}
	})
	return h
}

// limit bounds what should take a moment.
func limit(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t testing.TB, h *Host, spec Spec) *Device {
	t.Helper()
	if spec.Name == "" {
		spec.Name = strings.NewReplacer("/", "-", "=", "-", ",", "-").Replace(t.Name())
		spec.Name = spec.Name[max(0, len(spec.Name)-MaxNameLen):]
	}
	d, err := h.Start(limit(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(limit(t)); err != nil {
			t.Error(err)
		}
	})
	return d
}

// tempFile makes a file of n bytes to be a backing.
func tempFile(t testing.TB, n int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backing")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, n); err != nil {
		t.Fatal(err)
	}
	return path
}

// disk is a device opened as an application does, past the page cache.
type disk struct {
	t    testing.TB
	fd   int
	ring *uring.Ring
	mem  []byte
}

const block = 4096

func openDisk(t testing.TB, path string, depth int) *disk {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	ring, err := uring.New(uring.Config{Entries: uint32(depth)})
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(-1, 0, depth*block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{t: t, fd: fd, ring: ring, mem: mem}
	return d
}

func (d *disk) close() {
	if err := unix.Close(d.fd); err != nil {
		d.t.Error(err)
	}
	if err := d.ring.Close(); err != nil {
		d.t.Error(err)
	}
	_ = unix.Munmap(d.mem)
}

// buf is the i-th block of the disk's own memory.
func (d *disk) buf(i int) []byte { return d.mem[i*block : (i+1)*block] }

// queue queues the i-th read or write of a block.
func (d *disk) queue(i int, write bool, offset int64) {
	sqe := d.ring.Next()
	sqe.Opcode = uring.OpRead
	if write {
		sqe.Opcode = uring.OpWrite
	}
	sqe.FD = int32(d.fd)
	sqe.Off = uint64(offset)
	sqe.Addr = uint64(uintptr(unsafe.Pointer(&d.buf(i)[0])))
	sqe.Len = block
	sqe.UserData = uint64(i)
}

// submit sends what was queued.
func (d *disk) submit() {
	for d.ring.Pending() > 0 {
		if err := d.ring.Submit(); err != nil {
			d.t.Error(err)
			return
		}
	}
}

// reap waits for n answers and gives each to f. It gives up at a limit.
func (d *disk) reap(n int, wait time.Duration, f func(i int, res int32)) error {
	var done [64]uring.CQE
	for end := time.Now().Add(wait); n > 0; {
		got := d.ring.Reap(done[:min(n, len(done))])
		for _, c := range done[:got] {
			f(int(c.UserData), c.Res)
		}
		if n -= got; got > 0 {
			continue
		}
		left := time.Until(end)
		if left <= 0 {
			return fmt.Errorf("%d answers are missing after %v", n, wait)
		}
		if err := d.ring.Wait(1, left, uring.ReleaseP); err != nil {
			return err
		}
	}
	return nil
}

// must fails the test with err.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rangeIoctl is BLKDISCARD or BLKZEROOUT.
func rangeIoctl(fd int, request uint, offset, length int64) error {
	bounds := [2]uint64{uint64(offset), uint64(length)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&bounds)))
	if errno != 0 {
		return errno
	}
	return nil
}

// noMerges keeps the block layer from making one request of several neighbours,
// for tests that count requests.
func noMerges(t testing.TB, d *Device) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join("/sys/block", filepath.Base(d.Info().Path), "queue/nomerges"), []byte("2"), 0))
}
