package device

import (
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/ublkdev"
	"github.com/delayd/delayd/pkg/uring"
)

// lendingQueue is a queue whose one request is with the backing and has lent
// pages, or is about to, as was says. Its ring goes nowhere.
func lendingQueue(t *testing.T, was pages) *queue {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	set, err := counters.Create(filepath.Join(t.TempDir(), "cells"), 1)
	must(t, err)
	ring, err := uring.New(uring.Config{Entries: 4})
	must(t, err)
	back, err := backend.Open(tempFile(t, 1<<20), backend.Options{})
	must(t, err)
	t.Cleanup(func() {
		must(t, ring.Close())
		must(t, back.Close())
		must(t, set.Close())
	})
	q := &queue{depth: 1, policy: new(atomic.Pointer[policy]), ublk: &ublkdev.Queue{}, back: back, clock: scheduler.Monotonic(),
		cells: set.Queue(0), ring: ring, requests: make([]request, 1), heap: scheduler.NewHeap(1), law: undelayed, backing: 1, busy: 1}
	q.requests[0] = request{pages: was, io: backend.Request{Op: op.Write, Length: block, Fixed: true, Result: block}}
	t.Cleanup(func() {
		snapshot := set.Snapshot().Ops[op.Write]
		if q.busy == 0 && snapshot.Done != 1 {
			t.Errorf("%d requests are counted as answered, want 1", snapshot.Done)
		}
	})
	return q
}

// Pages that cannot be lent either end a request with the driver's own error;
// pages that cannot be taken back end the queue, for the driver would wait for
// them.
func TestPagesMoved(t *testing.T) {
	for _, c := range []struct {
		name   string
		was    pages
		res    int32
		then   pages
		answer int32
		busy   int
		queued int // SQEs
		fault  bool
	}{
		{"lent", pagesMissing, 0, pagesLent, block, 1, 1, false},
		{"not lent", pagesMissing, -int32(unix.ENOMEM), pagesDriver, -int32(unix.ENOMEM), 0, 1, false},
		{"taken back", pagesLent, 0, pagesDriver, block, 0, 1, false},
		{"not taken back", pagesLent, -int32(unix.EINVAL), pagesLent, block, 1, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := lendingQueue(t, c.was)
			q.pagesMoved(0, c.res)
			r := &q.requests[0]
			if r.pages != c.then || r.io.Result != c.answer || q.busy != c.busy || q.ring.Pending() != c.queued || (q.err != nil) != c.fault {
				t.Errorf("pages %d, result %d, %d busy, %d queued, fault %v", r.pages, r.io.Result, q.busy, q.ring.Pending(), q.err)
			}
		})
	}
}
