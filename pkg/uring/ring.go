package uring

import (
	"sync/atomic"
	"unsafe"
)

// Ring is one io_uring. Its methods are for one thread at a time, and on a
// ring with SingleIssuer, DeferTaskrun or RegisterRing for one thread only: the
// one that called [New], which therefore holds [runtime.LockOSThread]. Config
// and FD may be called from anywhere, and so may [Ring.Close] once no other
// method is running or will be called.
type Ring struct {
	fd     int    // what setup returned; -1 once closed
	config Config // what was got; written once in New
	feats  uint32 // IORING_FEAT_*; written once in New

	enterFD    uintptr // fd, or the index of the registered ring
	enterFlags uintptr // for every enter: 0 or IORING_ENTER_REGISTERED_RING
	idleFlags  uintptr // for waits that give the P away: 0 or IORING_ENTER_NO_IOWAIT
	absolute   bool    // WaitUntil has timers of its own
	owner      int     // thread that registered the ring, 0 if it is not registered

	sq submission
	cq completion

	args    *args  // in argsMem
	rings   []byte // mapping of both queues
	sqes    []byte // mapping of the SQEs
	argsMem []byte // mapping of args
}

// submission is the application's view of the submission queue. The kernel
// takes entries at head, the application adds them at tail; both count up for
// ever and wrap at 2³², so their difference is the number of entries between.
type submission struct {
	head  *uint32 // kernel writes, we read
	tail  *uint32 // we write, kernel reads
	flags *uint32 // kernel writes, we read: IORING_SQ_*

	localTail uint32 // tail with what Next handed out; runs ahead of *tail until the next enter
	entries   uint32 // a power of two
	mask      uint32 // entries - 1
	shift     uint8  // log2 of the distance between two SQEs: 6 or 7
	base      unsafe.Pointer
}

// completion is the application's view of the completion queue: the kernel
// adds at tail, the application takes at head.
type completion struct {
	head     *uint32 // we write, kernel reads
	tail     *uint32 // kernel writes, we read
	overflow *uint32 // kernel writes, we read: completions that are lost

	localHead uint32 // *head, which only we write
	mask      uint32
	shift     uint8 // log2 of the distance between two CQEs: 4 or 5
	big       bool  // shift == 5
	base      unsafe.Pointer
}

// Config returns what was got: the sizes of the queues as the kernel rounded
// them, and the flags that this kernel has.
func (r *Ring) Config() Config { return r.config }

// FD returns the ring's file descriptor, to poll it or to send it an
// OpMsgRing. It is -1 after Close. The ring keeps ownership.
func (r *Ring) FD() int { return r.fd }

// Next returns the next SQE, zeroed, or nil if the submission queue is full:
// then Submit and call again. The kernel sees it at the next Submit or Wait.
func (r *Ring) Next() *SQE {
	q := &r.sq
	// Load-acquire of head: the kernel has copied out of every SQE before it
	// moves head past it (IORING_FEAT_SUBMIT_STABLE), and must not see what we
	// write from here on in an entry that it is still reading.
	if q.localTail-atomic.LoadUint32(q.head) >= q.entries {
		return nil
	}
	p := unsafe.Add(q.base, uintptr(q.localTail&q.mask)<<q.shift)
	if q.shift == 7 {
		*(*[2]SQE)(p) = [2]SQE{}
	} else {
		*(*SQE)(p) = SQE{}
	}
	q.localTail++
	return (*SQE)(p)
}

// Pending returns how many SQEs Next has handed out that the kernel has not
// taken. It is normally 0 after a Submit or Wait; more if the kernel was short
// of memory or refused to go on with completions waiting to be reaped.
func (r *Ring) Pending() int {
	return int(r.sq.localTail - atomic.LoadUint32(r.sq.head))
}

// Space returns how many more SQEs Next can hand out before a Submit.
func (r *Ring) Space() int {
	return int(r.sq.entries) - r.Pending()
}

// Ready reports whether a Reap would find a completion, or whether the kernel
// waits for a Submit or Wait to produce one: because task work is pending
// (IORING_SQ_TASKRUN) or because completions have overflowed the queue and can
// be brought back (IORING_SQ_CQ_OVERFLOW). It only loads memory, and is meant
// for a spin.
//
// Task work shows only with Config.TaskrunFlag. On a ring with DeferTaskrun and
// without TaskrunFlag, a spin on Ready would never end.
func (r *Ring) Ready() bool {
	return atomic.LoadUint32(r.cq.tail) != r.cq.localHead ||
		atomic.LoadUint32(r.sq.flags)&(sqTaskrun|sqCQOverflow) != 0
}

// Lost returns how many completions the kernel has had to drop because it had
// no memory to keep them after the completion queue was full. Anything but
// zero means that requests wait for ever; Submit and Wait then fail once with
// [ErrLost].
func (r *Ring) Lost() uint32 { return atomic.LoadUint32(r.cq.overflow) }

// completions returns how many CQEs can be read, at most limit.
func (r *Ring) completions(limit int) int {
	// Load-acquire of tail: the kernel fills a CQE, then moves tail past it with
	// a store-release. Were the CQE read before tail, we could copy what the
	// entry held one lap ago.
	return min(int(atomic.LoadUint32(r.cq.tail)-r.cq.localHead), limit)
}

// cqe returns the CQE at a position of the completion queue.
func (r *Ring) cqe(at uint32) *CQE {
	return (*CQE)(unsafe.Add(r.cq.base, uintptr(at&r.cq.mask)<<r.cq.shift))
}

// release gives n CQEs back to the kernel.
func (r *Ring) release(n int) {
	r.cq.localHead += uint32(n)
	// Store-release of head: the copies out of the CQEs come before it. Were head
	// seen to move first, the kernel could overwrite what is still being copied.
	atomic.StoreUint32(r.cq.head, r.cq.localHead)
}

// publish shows the kernel the SQEs that Next has handed out and returns how
// many it has not taken.
func (r *Ring) publish() uint32 {
	// Store-release of tail: the kernel reads tail with a load-acquire and then
	// the SQEs before it (io_get_sqe, io_sqring_entries in io_uring/io_uring.c),
	// so their content has to be written before tail says that it is there.
	atomic.StoreUint32(r.sq.tail, r.sq.localTail)
	return r.sq.localTail - atomic.LoadUint32(r.sq.head)
}
