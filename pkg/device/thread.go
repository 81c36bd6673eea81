package device

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/uring"
)

// serve is the whole life of a queue's thread. It tells d when all fetches are
// with the driver and when the driver has taken back every tag, and returns
// when the ublk device is gone: the kernel ties a tag to the thread that
// fetched it, and takes that thread's end for the daemon's.
func (q *queue) serve(d *Device) {
	// Never unlocked: the thread ends with this goroutine.
	runtime.LockOSThread()
	d.host.thread(1)
	defer d.host.thread(-1)
	err := q.open()
	d.started <- err
	if err == nil {
		err = q.run()
		if err == nil && State(d.state.Load()) != Stopping {
			err = errors.New("the driver has taken the device back: somebody else stopped it")
		}
		if err != nil {
			d.fail(fmt.Errorf("queue %d: %w", q.id, err))
		}
	}
	close(q.over)
	d.ended <- q.close()
	<-d.gone
}

// open makes the ring, on the thread that will use it, and sends the driver a
// fetch for each tag.
func (q *queue) open() error {
	q.tid = unix.Gettid()
	prepareThread()
	if err := q.tune.apply(); err != nil {
		return fmt.Errorf("queue %d: %w", q.id, err)
	}
	// A tag has at most one SQE and one CQE outstanding: a fetch or a piece of
	// its I/O. One more is for the mailbox. So neither ring can overflow.
	ring, err := uring.New(ringConfig(q.depth + 1))
	if err != nil {
		return fmt.Errorf("queue %d: make its ring: %w", q.id, err)
	}
	q.ring = ring
	q.deferred = ring.Config().DeferTaskrun
	files := [slots]int32{slotChar: int32(q.char), slotBacking: int32(q.back.FD())}
	if err := ring.RegisterFiles(files[:]); err != nil {
		return fmt.Errorf("queue %d: register files: %w", q.id, err)
	}
	if q.mem == nil {
		if err := ring.RegisterBuffersSparse(q.depth); err != nil {
			return fmt.Errorf("queue %d: %w", q.id, err)
		}
	}
	if err := q.openPolled(files[:]); err != nil {
		return err
	}
	q.requests = make([]request, q.depth)
	q.heap = scheduler.NewHeap(q.depth)
	q.wait.waiter = scheduler.NewWaiter()
	q.wait.waiter.SetSpin(q.spinning)
	q.origin = scheduler.Origin()
	q.fetching = q.depth
	q.listen()
	for tag := range q.depth {
		sqe := ring.Next()
		q.ublk.Fetch(sqe, uint16(tag), uintptr(q.mem.at(uint16(tag))))
		q.fetchFrom(sqe, uint16(tag))
	}
	for ring.Pending() > 0 {
		if err := ring.Submit(); err != nil {
			return fmt.Errorf("queue %d: fetch: %w", q.id, err)
		}
	}
	return nil
}

// ringConfig is what both of a queue's rings are asked to be.
func ringConfig(entries int) uring.Config {
	return uring.Config{
		Entries:      uint32(entries),
		SingleIssuer: true,
		DeferTaskrun: true,
		TaskrunFlag:  true,
		RegisterRing: true,
		SubmitAll:    true,
	}
}

// close frees the rings. The mailbox read is cancelled with its ring.
func (q *queue) close() error {
	if q.ring == nil {
		return nil
	}
	return errors.Join(q.closePolled(), q.ring.Close())
}

// prepareThread sets what a thread that serves a block device needs. None of it
// is essential, so a refusal is not an error.
func prepareThread() {
	// Timers at the nanosecond asked, not up to 50 µs later.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	// Memory that this thread allocates must not be reclaimed by writing to
	// the device that it serves (needs CAP_SYS_RESOURCE).
	_ = unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0)
}
