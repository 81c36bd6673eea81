package uring

import (
	"errors"
	"fmt"
	"math"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// register is io_uring_register(2). What arg points to, and what that in turn
// holds the address of, is read before the call returns; the kernel keeps no
// address of ours. On a ring with SingleIssuer only its thread may call it.
func (r *Ring) register(op uintptr, arg unsafe.Pointer, nr int) (int, error) {
	if r.fd < 0 {
		return 0, errClosed
	}
	for {
		n, _, errno := syscall.Syscall6(unix.SYS_IO_URING_REGISTER,
			uintptr(r.fd), op, uintptr(arg), uintptr(nr), 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
			// Quiescing the ring was interrupted and nothing is done yet.
		default:
			return 0, errno
		}
	}
}

// RegisterFiles makes fds the ring's file table: an SQE with FlagFixedFile
// names a file by its index. -1 leaves a slot empty. The ring holds its own
// reference to each file until it is replaced, unregistered, or the ring is
// gone with its last operation in flight.
//
// Errors: EBUSY if there is a table already, EBADF for a closed descriptor,
// EMFILE for more than the process may open.
func (r *Ring) RegisterFiles(fds []int32) error {
	if len(fds) == 0 {
		return errors.New("register no files with an io_uring: want one or more, -1 for an empty slot")
	}
	_, err := r.register(registerFiles, unsafe.Pointer(unsafe.SliceData(fds)), len(fds))
	return wrap(err, "register %d files with io_uring %d", len(fds), r.fd)
}

// UpdateFile puts fd into a slot of the file table, or empties it for -1. An
// operation in flight keeps the file it began with.
//
// Errors: ENXIO without a table, EINVAL for a slot beyond it, EBADF for a
// closed descriptor.
func (r *Ring) UpdateFile(slot int, fd int32) error {
	if slot < 0 || slot > math.MaxInt32 {
		return fmt.Errorf("put file %d into slot %d of io_uring %d: %w", fd, slot, r.fd, unix.EINVAL)
	}
	if r.fd < 0 {
		return errClosed
	}
	// The kernel gets the address of fd as a number, hence from the page that does
	// not move.
	r.args.fd = fd
	u := rsrcUpdate{offset: uint32(slot), data: uint64(uintptr(unsafe.Pointer(&r.args.fd)))}
	_, err := r.register(registerFilesUpdate, unsafe.Pointer(&u), 1)
	return wrap(err, "put file %d into slot %d of io_uring %d", fd, slot, r.fd)
}

// UnregisterFiles takes the file table away. ENXIO if there is none.
func (r *Ring) UnregisterFiles() error {
	_, err := r.register(unregisterFiles, nil, 0)
	return wrap(err, "unregister the files of io_uring %d", r.fd)
}

// RegisterBuffers makes bufs the ring's buffer table, for OpReadFixed and
// OpWriteFixed: the kernel pins their pages now instead of at each operation.
// They must be outside the Go heap and stay mapped.
//
// Errors: EBUSY if there is a table already, EFAULT for memory that is not
// mapped, ENOMEM if that much may not be locked (RLIMIT_MEMLOCK).
func (r *Ring) RegisterBuffers(bufs []unix.Iovec) error {
	if len(bufs) == 0 {
		return errors.New("register no buffers with an io_uring: want one or more")
	}
	_, err := r.register(registerBuffers, unsafe.Pointer(unsafe.SliceData(bufs)), len(bufs))
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("register %d buffers with io_uring %d: no memory, or locked memory limited "+
			"(ulimit -l, LimitMEMLOCK=): %w", len(bufs), r.fd, err)
	}
	return wrap(err, "register %d buffers with io_uring %d", len(bufs), r.fd)
}

// RegisterBuffersSparse makes a buffer table of n empty slots, to be filled by
// UpdateBuffer or by a driver. Linux 5.19; before that ErrNotSupported.
func (r *Ring) RegisterBuffersSparse(n int) error {
	if n < 1 || n > math.MaxInt32 {
		return fmt.Errorf("register %d empty buffers with io_uring %d: want one or more", n, r.fd)
	}
	reg := rsrcRegister{nr: uint32(n), flags: rsrcRegisterSparse}
	_, err := r.register(registerBuffers2, unsafe.Pointer(&reg), int(unsafe.Sizeof(reg)))
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("register %d empty buffers with io_uring %d: more than the kernel allows, "+
			"or older than Linux 5.19: %w (%w)", n, r.fd, ErrNotSupported, err)
	}
	return wrap(err, "register %d empty buffers with io_uring %d", n, r.fd)
}

// UpdateBuffer puts buf into a slot of the buffer table; a zero Iovec empties
// it. The same holds for buf as in RegisterBuffers. Linux 5.13.
//
// Errors: ENXIO without a table, EINVAL for a slot beyond it, EFAULT, ENOMEM.
func (r *Ring) UpdateBuffer(slot int, buf unix.Iovec) error {
	if slot < 0 || slot > math.MaxInt32 {
		return fmt.Errorf("put a buffer into slot %d of io_uring %d: %w", slot, r.fd, unix.EINVAL)
	}
	if r.fd < 0 {
		return errClosed
	}
	r.args.buf = buf
	u := rsrcUpdate2{offset: uint32(slot), data: uint64(uintptr(unsafe.Pointer(&r.args.buf))), nr: 1}
	_, err := r.register(registerBuffersUpdate, unsafe.Pointer(&u), int(unsafe.Sizeof(u)))
	return wrap(err, "put a buffer into slot %d of io_uring %d", slot, r.fd)
}

// UnregisterBuffers takes the buffer table away. ENXIO if there is none.
func (r *Ring) UnregisterBuffers() error {
	_, err := r.register(unregisterBuffers, nil, 0)
	return wrap(err, "unregister the buffers of io_uring %d", r.fd)
}

// registerRing registers the ring's descriptor with the calling thread
// (IORING_REGISTER_RING_FDS, Linux 5.18): an enter then names it by an index
// into a table of the task (current->io_uring->registered_rings, 16 places),
// and dies with the task.
func (r *Ring) registerRing() error {
	u := rsrcUpdate{offset: math.MaxUint32, data: uint64(r.fd)} // any free place
	if _, err := r.register(registerRingFDs, unsafe.Pointer(&u), 1); err != nil {
		return wrap(err, "register io_uring %d with thread %d", r.fd, unix.Gettid())
	}
	r.owner = unix.Gettid()
	r.enterFD, r.enterFlags = uintptr(u.offset), enterRegisteredRing
	return nil
}

// unregisterRing undoes registerRing, on the same thread.
func (r *Ring) unregisterRing() error {
	u := rsrcUpdate{offset: uint32(r.enterFD)}
	_, err := r.register(unregisterRingFDs, unsafe.Pointer(&u), 1)
	r.enterFD, r.enterFlags, r.owner = uintptr(r.fd), 0, 0
	return wrap(err, "unregister io_uring %d from thread %d", r.fd, unix.Gettid())
}

// wrap says what failed. It returns nil for a nil error.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// registerClock has waits go by CLOCK_MONOTONIC, which they do anyhow: the
// kernels that know the call are those that know IORING_ENTER_ABS_TIMER.
func (r *Ring) registerClock() error {
	c := clockRegister{clockID: unix.CLOCK_MONOTONIC}
	_, err := r.register(registerClock, unsafe.Pointer(&c), 0)
	return err
}
