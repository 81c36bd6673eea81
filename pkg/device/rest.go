package device

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/uring"
)

// How the thread blocks decides the latency of the next request. A system call
// that keeps the thread's P returns at once but is interrupted every 10 ms by
// the runtime's monitor; one that gives the P back sleeps undisturbed but pays
// the Go scheduler on its return. So a queue that had work a moment ago waits
// in short slices that keep the P, and one that has been quiet for some of them
// gives it back and sleeps for as long as it takes, but for the last stretch
// before a deadline: what it takes to get a P again is over by then, and what is
// learned of late sleeps is learned of those that keep it.
const (
	slice       = int64(20 * time.Millisecond) // the monitor interrupts it after 10
	quietSlices = 3
	lastStretch = int64(5 * time.Millisecond)
)

// stolen is a gap between two looks at the clock, while spinning, that a loaded
// or a virtual machine can cause, but only seldom a quiet one: a reason to ask
// the kernel whether the thread was switched out.
const stolen = int64(200 * time.Microsecond)

// waiting is what a queue remembers from one rest to the next. queue thread only.
type waiting struct {
	waiter  *scheduler.Waiter
	backoff scheduler.Backoff
	quiet   int   // slices without an event
	nivcsw  int64 // involuntary switches when last asked
	usage   unix.Rusage
}

// rest ends a turn: it submits what the turn has queued, and waits for the next
// completion or the next deadline, whichever is first.
func (q *queue) rest(more bool) error {
	if q.polled.flying > 0 {
		return q.restPolling(more)
	}
	if more {
		return q.ring.Submit()
	}
	deadline, held := q.heap.Min()
	if !held {
		deadline = scheduler.NoDeadline
	}
	switch d := q.wait.waiter.Decide(q.now, deadline, q.maySpin()); d.Kind {
	case scheduler.Due:
		return q.ring.Submit()
	case scheduler.Spin:
		if q.budget.TryAcquire() {
			defer q.budget.Release()
			return q.spin(deadline)
		}
		return q.sleep(deadline - q.now) // the last place went this moment
	case scheduler.Sleep:
		return q.sleep(int64(d.Timeout))
	default:
		return q.sleep(-1)
	}
}

// maySpin reports whether a CPU is free for this queue to spin on.
func (q *queue) maySpin() bool { return q.wait.backoff.Allowed(q.now) && q.budget.Free() }

// sleep blocks in the ring until a completion, or for timeout ns (< 0: without
// end). It may return early.
func (q *queue) sleep(timeout int64) error {
	block, asked := uring.HoldP, timeout
	if timeout < 0 || timeout > slice {
		if q.wait.quiet < quietSlices {
			asked = slice
		} else {
			block = uring.ReleaseP
			if timeout > 0 {
				asked = timeout - lastStretch
			}
			if timeout < 0 && q.touched > keepBytes && q.busy == 0 && q.deferred {
				if awake, err := q.giveBack(); awake || err != nil {
					return err
				}
			}
		}
	}
	slept := q.now
	err := q.block(asked, block)
	if !q.ring.Ready() {
		q.wait.quiet++
	}
	if q.clocked.blind && block == uring.HoldP {
		q.cells.Slept(0) // how long is not known
		return err
	}
	q.look()
	q.cells.Slept(q.now - slept)
	if block == uring.HoldP && asked >= 0 && q.now-slept >= asked && !q.ring.Ready() {
		q.wait.waiter.Learn(slept+asked, q.now)
	}
	return err
}

// block waits in the ring for a completion, or for timeout ns (< 0: without
// end) from now: by the clock where the kernel can, so that what is submitted
// first does not make it end later.
func (q *queue) block(timeout int64, how uring.Block) error {
	if timeout > 0 && !q.clocked.blind && q.ring.Absolute() {
		return q.ring.WaitUntil(1, q.origin+q.now+timeout, how)
	}
	return q.ring.Wait(1, time.Duration(timeout), how)
}

// giveBack gives the buffers' memory back before a sleep that may be long. No
// request may be at the backing or held. The kernel copies the data of a read
// out of its buffer when it takes the commit, so what this turn has queued is
// submitted first; and with DEFER_TASKRUN it copies the data of a write in only
// while this thread is in it, so that if nothing has come by then, nothing is in
// the buffers. It reports whether something has come instead.
func (q *queue) giveBack() (awake bool, err error) {
	if err := q.ring.Submit(); err != nil {
		return false, err
	}
	if q.ring.Pending() > 0 || q.ring.Ready() {
		return true, nil
	}
	q.mem.giveBack()
	q.touched = 0
	return false, nil
}

// spin looks at the clock and at the ring until the deadline has come or a
// completion has. It makes one system call at most: to submit what the turn has
// queued, and to let the kernel run the completions that it says are waiting.
func (q *queue) spin(deadline int64) error {
	if q.ring.Pending() > 0 || q.ring.Ready() {
		if err := q.ring.Submit(); err != nil {
			return err
		}
	}
	began, gap := q.now, int64(0)
	for q.now < deadline && !q.ring.Ready() {
		last := q.now
		q.look()
		gap = max(gap, q.now-last)
	}
	q.cells.Spun(q.now - began)
	if gap > stolen && q.switchedOut() {
		q.wait.backoff.Penalise(q.now)
		q.cells.Penalised()
	}
	return nil
}

// switchedOut reports whether the kernel has taken the CPU from this thread
// since it last asked: somebody else wants it, so spinning costs him.
func (q *queue) switchedOut() bool {
	if unix.Getrusage(unix.RUSAGE_THREAD, &q.wait.usage) != nil {
		return false
	}
	was := q.wait.nivcsw
	q.wait.nivcsw = q.wait.usage.Nivcsw
	return q.wait.usage.Nivcsw > was
}
