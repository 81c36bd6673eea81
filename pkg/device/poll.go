package device

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/uring"
)

// A polled backing's reads and writes go through a second ring, whose
// completions appear only when the kernel is asked to look at the device. While
// there are any in it a turn of the loop ends with one such look (restPolling)
// instead of a rest: the loop itself is what polls, so that fetches, deadlines
// and orders have their turn as ever (promise 3). With nothing in it the queue
// rests as if there were no second ring (promise 4).
const (
	// polledPatience is how long looks follow each other without a pause when
	// nothing comes and nothing is sent. Whoever answers later gets less of the
	// CPU: a pause of a part of the time waited so far, which is by how much the
	// answer is late.
	polledPatience = int64(time.Millisecond)
	polledLateness = 8
	longestPause   = int64(50 * time.Millisecond)
	// breath is the pause after a look where no CPU is free for polling.
	breath = int64(50 * time.Microsecond)
	// refusals is how many polled requests the backing may refuse in a row
	// before it is not polled any more.
	refusals = 8
)

// unpolled says why the backing of a device that asked for polling is not
// polled. One for all queues of a device; any thread may use it.
type unpolled struct {
	why  atomic.Pointer[string] // nil: it is polled
	lost chan struct{}          // closed with the first reason
	gone atomic.Bool            // lost is closed, or about to be
}

func newUnpolled() *unpolled { return &unpolled{lost: make(chan struct{})} }

// lose records a reason; the first one stays.
func (u *unpolled) lose(why *string) {
	if u.gone.CompareAndSwap(false, true) {
		u.why.Store(why)
		close(u.lost)
	}
}

// refused is the reason that a queue finds while it serves. Recording it, once
// in a device's life, allocates nothing.
var refused = "the backing refuses polled requests, although its queue says that it can: it is not polled any more"

// polling is a queue's second ring. queue thread only.
type polling struct {
	ring   *uring.Ring // nil: the backing is not polled
	flying int         // requests in the ring
	denied int         // refused in a row
	since  int64       // when the last one came or was sent
}

// openPolled makes the second ring, if there is to be one. A kernel that has no
// such ring serves the device without.
func (q *queue) openPolled(files []int32) error {
	if q.unpolled == nil || q.unpolled.why.Load() != nil {
		return nil
	}
	// One tag has at most one request in it.
	config := ringConfig(q.depth)
	config.IOPoll = true
	ring, err := uring.New(config)
	if err != nil {
		why := fmt.Sprintf("not polled: %v", err)
		q.unpolled.lose(&why)
		return nil
	}
	q.polled.ring = ring
	// The same table as the other ring's, the char device included: this one
	// carries the backing's I/O too (the fence).
	if err := ring.RegisterFiles(files); err != nil {
		return fmt.Errorf("queue %d: register files for polling: %w", q.id, err)
	}
	return nil
}

// polls reports whether r's I/O goes through the second ring. A write with FUA
// does: it comes only if the backing's device knows FUA itself, and is one
// polled request then.
func (q *queue) polls(r *request) bool {
	return q.polled.ring != nil && (r.io.Op == op.Read || r.io.Op == op.Write) &&
		q.unpolled.why.Load() == nil
}

// submitPolled queues the next piece of a read or a write.
func (q *queue) submitPolled(tag uint16, r *request) {
	q.polled.flying++
	q.polled.since = q.now
	q.prepare(q.polled.ring.Next(), tag, r)
}

// reapPolled takes at most one batch of completions off the second ring. It
// reports whether there may be more.
func (q *queue) reapPolled() (more bool) {
	p := &q.polled
	n := p.ring.Reap(q.done[:])
	for i := range n {
		_, tag := split(q.done[i].UserData)
		p.flying--
		if res := q.done[i].Res; q.accepted(res) {
			q.completed(tag, res)
		} else {
			q.submitMain(tag, &q.requests[tag])
		}
	}
	if n > 0 {
		p.since = q.now
		q.wait.quiet = 0
		q.cells.Batch(n)
	}
	return n == len(q.done)
}

// accepted reports whether res is the backing's answer, and not one to its
// being polled: those requests are sent again through the other ring, whose
// answer counts. EAGAIN is what a device without a free tag says to a polled
// request, but says nothing against the next one.
func (q *queue) accepted(res int32) bool {
	switch -res {
	case int32(unix.EAGAIN):
		return false
	case int32(unix.EOPNOTSUPP), int32(unix.EINVAL):
		if q.polled.denied++; q.polled.denied == refusals {
			q.unpolled.lose(&refused)
		}
		return false
	}
	q.polled.denied = 0
	return true
}

// restPolling ends a turn while the second ring has requests: it submits what
// the turn has queued, and looks once for completions. A pause follows only if
// there is nothing to do and no leave to look again at once.
func (q *queue) restPolling(more bool) error {
	p, began := &q.polled, q.now
	if q.ring.Pending() > 0 || q.ring.Ready() {
		if err := q.ring.Submit(); err != nil {
			return err
		}
	}
	// The place is taken for each look anew, so that who spins before a deadline
	// is not kept from it for as long as there is I/O.
	leave := q.wait.backoff.Allowed(q.now) && q.budget.TryAcquire()
	err := p.ring.Submit()
	q.look()
	if leave {
		q.budget.Release()
	}
	if err != nil || more || p.ring.Ready() || q.ring.Ready() {
		return err
	}
	if q.now-began > stolen && q.switchedOut() {
		q.wait.backoff.Penalise(q.now)
		q.cells.Penalised()
		leave = false
	}
	if pause := q.pause(leave); pause > 0 {
		return q.sleep(pause)
	}
	q.cells.Spun(q.now - began)
	return nil
}

// pause is how long the queue sleeps, unless the other ring wakes it, before it
// looks for polled completions again; not beyond what a deadline asks for.
func (q *queue) pause(leave bool) int64 {
	pause := int64(0)
	if waited := q.now - q.polled.since; waited > polledPatience {
		pause = min(waited/polledLateness, longestPause)
	}
	if !leave {
		pause = max(pause, breath)
	}
	deadline, held := q.heap.Min()
	if !held || pause == 0 {
		return pause
	}
	switch d := q.wait.waiter.Decide(q.now, deadline, leave); d.Kind {
	case scheduler.Sleep:
		return min(pause, int64(d.Timeout))
	default:
		return 0
	}
}

// closePolled frees the second ring. What is in flight, after an error, is
// polled to its end by the kernel.
func (q *queue) closePolled() error {
	if q.polled.ring == nil {
		return nil
	}
	return q.polled.ring.Close()
}

// wantsPoll finds out whether the backing can be polled, if that was asked for.
func (d *Device) wantsPoll() {
	if !d.spec.Poll {
		return
	}
	d.unpolled = newUnpolled()
	if err := backend.Pollable(d.back); err != nil {
		why := fmt.Sprintf("not polled: %v", err)
		d.unpolled.lose(&why)
	}
}

// polled reports whether the backing is polled, and, if it is not although that
// was asked for, why.
func (d *Device) polled() (yes bool, remark string) {
	if d.unpolled == nil {
		return false, ""
	}
	if why := d.unpolled.why.Load(); why != nil {
		return false, *why
	}
	return true, ""
}

// watchPolling logs that the backing is not polled, or not any more: the queue
// that finds out has no time to.
func (d *Device) watchPolling() {
	if d.unpolled == nil {
		return
	}
	select {
	case <-d.unpolled.lost:
		_, why := d.polled()
		d.log.Warn("the backing is not polled", "reason", why)
	case <-d.done:
	}
}
