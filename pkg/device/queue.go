package device

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/ublkdev"
	"github.com/delayd/delayd/pkg/uring"
)

// batch bounds what one turn reaps and what it dispatches (promise 3: neither a
// flood of arrivals nor one of deadlines keeps the rest from its turn).
const batch = 64

// Slots of the ring's file table. The char device is there even where no
// command would need it: a ring that holds it is freed, and the device can be
// taken over, only when the ring's last I/O has landed (the fence).
const (
	slotChar = iota
	slotBacking
	slots
)

// request is one tag's request. queue thread only.
type request struct {
	io         backend.Request
	arrival    int64 // when it was fetched
	deadline   int64 // arrival + delay, less the compensation
	dispatched int64 // when it was handed to the backing
	answer     bool  // hold = complete: held after the backing's answer, not before
	timed      bool  // the turn of its arrival looked at the clock
	pages      pages // with zero copy: what is to be done about them
}

// policy is what decides a request's delay. It is replaced as a whole.
type policy struct {
	delays       [op.Count]int64 // ns, less the compensation
	hold         Hold
	compensation int64 // ns
	passes       bool  // nothing is held
}

// undelayed is in force until a device is announced and from its stop on.
var undelayed = newPolicy(&Spec{}, 0)

// queue is one ublk queue: one thread, one ring, one heap.
type queue struct {
	// Written once, before the thread starts.
	id       int
	depth    int
	char     int // fd of /dev/ublkcN
	policy   *atomic.Pointer[policy]
	ublk     *ublkdev.Queue
	back     backend.Backend
	mem      *buffers // nil: zero copy
	mail     *mailbox
	clock    scheduler.Clock
	origin   int64 // CLOCK_MONOTONIC at the clock's 0
	budget   *scheduler.SpinBudget
	spinning scheduler.SpinMode
	tune     tuning
	cells    *counters.Queue
	over     chan struct{} // closed when the loop has ended

	unpolled *unpolled // nil: polling is not asked for

	// Queue thread only.
	tid      int // of the thread; readable when it has started
	ring     *uring.Ring
	polled   polling
	requests []request // by tag
	heap     *scheduler.Heap
	wait     waiting
	now      int64   // monotonic ns, read once a turn
	clocked  clocked // which turns read it
	deferred bool    // the ring has DEFER_TASKRUN
	law      *policy // the policy of this turn, read after the reap
	fetching int     // tags that the driver has not taken back
	busy     int     // requests fetched and not committed
	full     int64   // when busy came to depth
	backing  int     // requests at the backing
	touched  int64   // bytes of buffers used since they were last given back
	letting  letting // a release or a fail that is under way
	done     [batch]uring.CQE
	err      error // the first thing that went wrong beyond repair
}

// letting is an order that is being carried out, batch by batch.
type letting struct {
	active bool
	what   order
	count  int
	reply  chan<- int
}

// run is the loop of the design page. It returns when the driver has taken back
// every tag, or with the error that makes going on impossible.
func (q *queue) run() error {
	for q.fetching > 0 && q.err == nil {
		more := q.reap()
		more = q.dispatchDue() || more
		if err := q.rest(more); err != nil {
			return err
		}
	}
	return q.err
}

// reap takes at most one batch of completions off the ring. It reports whether
// there may be more.
func (q *queue) reap() (more bool) {
	n := q.ring.Reap(q.done[:])
	// After the reap: a policy that was in force before a request was sent
	// applies to it.
	q.law = q.policy.Load()
	q.readClock(n)
	for i := range n {
		c := &q.done[i]
		switch kind, tag := split(c.UserData); kind {
		case kindFetch:
			q.fetched(tag, c.Res)
		case kindBacking:
			q.completed(tag, c.Res)
		case kindPages:
			q.pagesMoved(tag, c.Res)
		case kindMail:
			q.readMail(c.Res)
		}
	}
	if n > 0 {
		q.wait.quiet = 0
		q.cells.Batch(n)
	}
	more = n == len(q.done)
	if q.polled.flying > 0 {
		more = q.reapPolled() || more
	}
	return more
}

// fetched takes a request from the driver, or learns that the driver wants its
// tag back.
func (q *queue) fetched(tag uint16, res int32) {
	if res != ublkdev.ResOK {
		q.fetching--
		if res != ublkdev.ResAbort {
			q.fault(fmt.Errorf("fetch tag %d: %w", tag, unix.Errno(-res)))
		}
		return
	}
	d := q.ublk.Desc(tag)
	o, known := op.FromUblk(d.Op)
	r := &q.requests[tag]
	r.io = backend.Request{
		Op:      o,
		FUA:     d.Flags&ublkdev.FlagFUA != 0,
		NoUnmap: d.Flags&ublkdev.FlagNoUnmap != 0,
		Offset:  int64(d.StartSector) << 9,
		Length:  d.Sectors << 9,
		Buf:     q.mem.at(tag),
		Fixed:   q.mem == nil,
		Slot:    tag,
	}
	r.pages = pagesOf(d.Flags)
	if q.busy++; q.busy == q.depth {
		q.full = q.time()
	}
	if r.timed = !q.clocked.blind; r.timed {
		q.clocked.timed++
	}
	r.arrival = q.now
	if !known {
		r.io.Result = -int32(unix.EOPNOTSUPP)
		q.commit(tag, r)
		return
	}
	q.arrived(tag, r)
}

// arrived gives a request its deadline, and holds or dispatches it.
func (q *queue) arrived(tag uint16, r *request) {
	q.cells.Arrived(r.io.Op, uint64(r.io.Length))
	if q.mem != nil && (r.io.Op == op.Read || r.io.Op == op.Write) {
		q.touched += int64(r.io.Length)
	}
	delay := q.law.delays[r.io.Op]
	r.deadline = r.arrival + delay
	r.answer = q.law.hold == HoldComplete && delay > 0
	if delay > 0 && !r.answer {
		q.hold(tag, r)
		return
	}
	q.dispatch(tag, r)
}

func (q *queue) hold(tag uint16, r *request) {
	q.heap.Push(r.deadline, tag)
	q.cells.AddHeld(r.io.Op, 1)
}

// dispatchDue lets at most one batch of held requests go: those whose deadline
// has passed, and all of them while an order says so. It reports whether it
// stopped at the bound.
func (q *queue) dispatchDue() (more bool) {
	for range batch {
		deadline, held := q.heap.Min()
		if !held {
			return q.obeyed()
		}
		if deadline > q.now && !q.letting.active {
			return false
		}
		tag, _ := q.heap.Pop()
		r := &q.requests[tag]
		q.cells.AddHeld(r.io.Op, -1)
		if q.letting.active {
			q.letting.count++
		}
		switch {
		case r.answer:
			q.cells.Observe(counters.Lateness, r.io.Op, max(0, q.now-r.deadline))
			q.commit(tag, r)
		case q.letting.active && q.letting.what == fail:
			r.io.Result = -int32(unix.EIO)
			q.commit(tag, r)
		default:
			q.cells.Observe(counters.Held, r.io.Op, q.now-r.arrival)
			q.cells.Observe(counters.Lateness, r.io.Op, max(0, q.now-r.deadline))
			q.dispatch(tag, r)
		}
	}
	return true
}

// obeyed answers whoever gave the order that has just been carried out, and
// takes the next one. It reports whether there is one.
func (q *queue) obeyed() bool {
	if !q.letting.active {
		return false
	}
	q.letting.reply <- q.letting.count
	q.letting = letting{}
	return q.nextOrder()
}

// nextOrder takes an order from the mailbox unless one is being carried out.
func (q *queue) nextOrder() bool {
	if q.letting.active {
		return false // the next is taken when this one is done
	}
	select {
	case m := <-q.mail.letters:
		q.letting = letting{active: true, what: m.what, reply: m.reply}
		return true
	default:
		return false
	}
}

// dispatch hands a request to the backing.
func (q *queue) dispatch(tag uint16, r *request) {
	r.dispatched = q.now
	q.cells.AddInFlight(r.io.Op, 1)
	q.backing++
	if q.back.Inline(&r.io) {
		if r.timed {
			q.now = q.clock.Now()
		}
		q.answered(tag, r)
		return
	}
	q.submit(tag, r)
}

// submit queues the next piece of a request's I/O.
func (q *queue) submit(tag uint16, r *request) {
	switch {
	case r.pages == pagesMissing:
		q.lend(tag)
	case q.polls(r):
		q.submitPolled(tag, r)
	default:
		q.submitMain(tag, r)
	}
}

func (q *queue) submitMain(tag uint16, r *request) { q.prepare(q.ring.Next(), tag, r) }

func (q *queue) prepare(sqe *uring.SQE, tag uint16, r *request) {
	q.back.Prepare(&r.io, sqe)
	if q.back.FD() >= 0 && sqe.FD == int32(q.back.FD()) {
		sqe.FD = slotBacking
		sqe.Flags |= uring.FlagFixedFile
	}
	sqe.UserData = join(kindBacking, tag)
}

// completed takes one completion of a request's I/O; a short one is continued.
func (q *queue) completed(tag uint16, res int32) {
	r := &q.requests[tag]
	if !q.back.Complete(&r.io, res) {
		q.submit(tag, r)
		return
	}
	if r.pages == pagesLent {
		q.takeBack(tag)
		return
	}
	q.answered(tag, r)
}

// answered takes the backing's answer, and commits it or holds it.
func (q *queue) answered(tag uint16, r *request) {
	q.backing--
	q.cells.AddInFlight(r.io.Op, -1)
	if r.timed {
		q.cells.Observe(counters.Backing, r.io.Op, q.now-r.dispatched)
	}
	if r.answer && r.deadline > q.now && q.law != undelayed {
		q.hold(tag, r)
		return
	}
	q.commit(tag, r)
}

// commit answers the kernel, exactly once, and asks for the tag's next request.
func (q *queue) commit(tag uint16, r *request) {
	errno := uint16(0)
	if r.io.Result < 0 {
		errno = uint16(-r.io.Result)
	}
	q.cells.Done(r.io.Op, uint64(r.io.Length), errno)
	if r.timed {
		q.cells.Observe(counters.Total, r.io.Op, q.now-r.arrival)
		q.clocked.timed--
	}
	if q.busy == q.depth {
		q.cells.NoTags(q.time() - q.full)
	}
	q.busy--
	sqe := q.ring.Next()
	q.ublk.CommitAndFetch(sqe, tag, r.io.Result, uintptr(r.io.Buf))
	q.fetchFrom(sqe, tag)
}

// fetchFrom addresses a fetch to the registered char device.
func (q *queue) fetchFrom(sqe *uring.SQE, tag uint16) {
	sqe.FD = slotChar
	sqe.Flags |= uring.FlagFixedFile
	if q.mem == nil {
		sqe.Addr = q.place(tag)
	}
	sqe.UserData = join(kindFetch, tag)
}

// readMail takes the orders that were posted.
func (q *queue) readMail(res int32) {
	if res < 0 && res != -int32(unix.EINTR) && res != -int32(unix.EAGAIN) {
		q.fault(fmt.Errorf("read the eventfd: %w", unix.Errno(-res)))
		return
	}
	q.listen()
	q.nextOrder()
}

// listen keeps a read of the eventfd in flight.
func (q *queue) listen() {
	sqe := q.ring.Next()
	q.mail.read(sqe)
	sqe.UserData = join(kindMail, 0)
}

func (q *queue) fault(err error) {
	if q.err == nil {
		q.err = err
	}
}

// A completion's user data is its kind and its tag.
const (
	kindFetch uint32 = iota + 1
	kindBacking
	kindPages
	kindMail
)

func join(kind uint32, tag uint16) uint64 { return uint64(kind)<<32 | uint64(tag) }

func split(userData uint64) (kind uint32, tag uint16) {
	return uint32(userData >> 32), uint16(userData)
}
