package uring

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Block is how a thread blocks in [Ring.Wait], seen from the Go scheduler.
type Block uint8

const (
	// HoldP keeps the thread's P (the right to run Go code) while it waits: the
	// call is a [syscall.RawSyscall6], which the Go scheduler knows nothing of. It
	// is the fastest way in and out. For waits of up to some ms: the P is missing
	// elsewhere meanwhile, garbage collection has to interrupt the wait with a
	// signal to get through, and beyond 10 ms the runtime's monitor sends one
	// again and again.
	HoldP Block = iota
	// ReleaseP gives the P away: the call is a [syscall.Syscall6]. Nothing wakes
	// the thread but what it waits for, but both ways cost more: the monitor may
	// have to be woken on the way in, and a P found on the way out. Where the
	// kernel can (Linux 6.15) such a wait does not count as waiting for I/O, so
	// that an idle thread does not look like a busy disk in the load statistics.
	ReleaseP
)

// Submit hands the pending SQEs to the kernel, runs the completions that wait
// for this thread to enter the kernel (DeferTaskrun) and brings back those that
// overflowed the completion queue. It does not wait, and always keeps the P.
//
// Nil does not mean that all was taken: the kernel may be short of memory
// (EAGAIN), or want completions reaped first (EBUSY). [Ring.Pending] tells;
// Reap and call again.
//
// Errors: [ErrLost]; EEXIST when called from another thread than the one that
// SingleIssuer promised; others of io_uring_enter(2) are programmer errors.
// What the kernel thinks of a single SQE is in its completion.
func (r *Ring) Submit() error {
	return r.enter(0, limit{}, HoldP)
}

// Wait is Submit, and then waits until there are at least minimum completions
// to reap, counting those that are there already. A timeout ≥ 0 limits the
// wait; it counts from when the wait begins in the kernel, after the SQEs are
// submitted, and is a high-resolution timer without the thread's timer slack
// (io_cqring_schedule_timeout in io_uring/io_uring.c). It is ignored on a ring
// with IOPoll. A timeout < 0 is none.
//
// Nil does not mean that minimum was reached: the time may be up (ETIME), a
// signal may have come (EINTR; the Go runtime sends them), and all that is said
// of Submit holds. Reap, look at the clock, and call again.
func (r *Ring) Wait(minimum int, timeout time.Duration, b Block) error {
	if timeout == 0 {
		// Without a wait there is no need for a timer.
		minimum = 0
	}
	return r.enter(uintptr(max(minimum, 0)), after(timeout), b)
}

// WaitUntil is [Ring.Wait] with a time instead of a length: the wait ends when
// CLOCK_MONOTONIC shows at, in nanoseconds, so that what it takes to submit does
// not make it end later. Only where [Ring.Absolute] is true; elsewhere it
// returns [ErrNotSupported].
func (r *Ring) WaitUntil(minimum int, at int64, b Block) error {
	if !r.absolute {
		return fmt.Errorf("wait on io_uring %d until a time: %w (Linux 6.12 has it)", r.fd, ErrNotSupported)
	}
	return r.enter(uintptr(max(minimum, 0)), limit{kind: untilTime, ns: max(at, 0)}, b)
}

// Absolute reports whether the kernel has [Ring.WaitUntil]
// (IORING_ENTER_ABS_TIMER, Linux 6.12).
func (r *Ring) Absolute() bool { return r.absolute }

// limit is how long a wait may take.
type limit struct {
	kind limitKind
	ns   int64
}

type limitKind uint8

const (
	noLimit   limitKind = iota
	afterTime           // ns from the begin of the wait
	untilTime           // ns of CLOCK_MONOTONIC
)

// after is the limit that a timeout stands for.
func after(timeout time.Duration) limit {
	if timeout < 0 {
		return limit{}
	}
	return limit{kind: afterTime, ns: int64(timeout)}
}

// enter makes what goes by on its own out of what attempt says.
func (r *Ring) enter(minimum uintptr, l limit, b Block) error {
	if r.fd < 0 {
		return errClosed
	}
	switch errno := r.attempt(minimum, l, b); errno {
	case 0, unix.ETIME, unix.EINTR, unix.EAGAIN, unix.EBUSY:
		return nil
	default:
		return r.enterError(errno)
	}
}

// attempt is io_uring_enter(2), as often as it takes to submit what is pending,
// and with one wait at the end. The kernel tells either how many SQEs it took or
// why it stopped waiting, so the errno is that of the wait only if nothing was
// pending.
func (r *Ring) attempt(minimum uintptr, l limit, b Block) syscall.Errno {
	// GETEVENTS always, also when there is nothing to wait for: with DEFER_TASKRUN
	// only an enter that has it runs task work, and with any ring only that flushes
	// what has overflowed.
	flags := r.enterFlags | enterGetevents
	var arg, size uintptr
	if minimum > 0 && l.kind != noLimit {
		r.args.ts = unix.NsecToTimespec(l.ns)
		flags |= enterExtArg
		if l.kind == untilTime {
			flags |= enterAbsTimer
		}
		arg, size = uintptr(unsafe.Pointer(r.args)), unsafe.Sizeof(r.args.getevents)
	}
	if b == ReleaseP {
		flags |= r.idleFlags
	}
	pending := uintptr(r.publish())
	for {
		var n uintptr
		var errno syscall.Errno
		if b == HoldP {
			n, _, errno = syscall.RawSyscall6(unix.SYS_IO_URING_ENTER,
				r.enterFD, pending, minimum, flags, arg, size)
		} else {
			n, _, errno = syscall.Syscall6(unix.SYS_IO_URING_ENTER,
				r.enterFD, pending, minimum, flags, arg, size)
		}
		if errno != 0 {
			return errno
		}
		if n == 0 || n >= pending {
			return 0
		}
		// The kernel stopped at an SQE that it refused, whose completion it has
		// posted, or for want of memory; either way it did not go on to wait. Hand it
		// the rest. Each turn takes at least one, so there is an end.
		pending -= n
	}
}
