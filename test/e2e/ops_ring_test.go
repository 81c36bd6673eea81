package e2e

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/uring"
)

// appRing is an application with many requests in flight at once. It belongs to
// one goroutine.
type appRing struct {
	t testing.TB
	r *uring.Ring
}

// newAppRing makes a ring for so many requests, which lives until the test ends.
func newAppRing(t testing.TB, depth int) *appRing {
	t.Helper()
	r, err := uring.New(uring.Config{Entries: uint32(depth), CQEntries: uint32(2 * depth)})
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return &appRing{t, r}
}

// queue prepares a write of p, which is outside the Go heap; id comes back with
// its answer.
func (r *appRing) queue(d *disk, p []byte, offset int64, flags int, id uint64) {
	r.t.Helper()
	sqe := r.r.Next()
	if sqe == nil {
		r.t.Fatal("the ring is full")
	}
	sqe.Opcode = uring.OpWrite
	sqe.FD = int32(d.fd)
	sqe.Off = uint64(offset)
	sqe.Addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p))))
	sqe.Len = uint32(len(p))
	sqe.OpFlags = uint32(flags)
	sqe.UserData = id
}

func (r *appRing) submit() {
	r.t.Helper()
	for r.r.Pending() > 0 {
		must(r.t, r.r.Submit())
	}
}

// reap calls f with n answers. It returns how many were missing when the limit
// had passed.
func (r *appRing) reap(n int, limit time.Duration, f func(id uint64, res int32)) (missing int) {
	r.t.Helper()
	done := make([]uring.CQE, 64)
	for end := time.Now().Add(limit); n > 0; {
		got := r.r.Reap(done[:min(n, len(done))])
		for _, c := range done[:got] {
			f(c.UserData, c.Res)
		}
		n -= got
		if got == 0 {
			if time.Now().After(end) {
				break
			}
			must(r.t, r.r.Wait(1, 10*time.Millisecond, uring.ReleaseP))
		}
	}
	runtime.KeepAlive(r)
	return n
}

// write is one write, answered: bytes or -errno.
func (r *appRing) write(d *disk, p []byte, offset int64, flags int) int {
	r.t.Helper()
	r.queue(d, p, offset, flags, 0)
	r.submit()
	answer := -int(unix.ETIME)
	r.reap(1, time.Minute, func(_ uint64, res int32) { answer = int(res) })
	return answer
}
