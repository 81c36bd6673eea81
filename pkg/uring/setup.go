package uring

import (
	"errors"
	"fmt"
	"math/bits"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Config is what a ring is asked to be ([New]) and what it is ([Ring.Config]).
// Each flag is named for the IORING_SETUP_* that it stands for.
type Config struct {
	// Entries is the size of the submission queue, 1 to 32768, rounded up to a
	// power of two: how many SQEs one Submit can carry.
	Entries uint32
	// CQEntries is the size of the completion queue, rounded up to a power of
	// two: Entries to 65536, or 0 for twice Entries. Completions that do not fit
	// are kept by the kernel, and cost it memory and a slower path.
	CQEntries uint32

	// SQE128 gives each SQE 128 bytes, for commands of more than 16 bytes.
	// Linux 5.19. No fall-back.
	SQE128 bool
	// CQE32 gives each CQE 32 bytes. Linux 5.19. No fall-back.
	CQE32 bool
	// IOPoll makes the kernel poll the device for completions. Only for
	// operations on O_DIRECT files whose driver can. Waits on such a ring have no
	// time limit. No fall-back.
	IOPoll bool

	// SingleIssuer promises that only the thread that calls New submits and
	// registers; for another the kernel answers EEXIST. Linux 6.0.
	SingleIssuer bool
	// DeferTaskrun makes completions appear only when that thread enters the
	// kernel to get them, so that nothing interrupts it meanwhile. It implies
	// SingleIssuer. Linux 6.1.
	DeferTaskrun bool
	// CoopTaskrun makes completions wait for the next time the thread enters the
	// kernel for whatever reason. Linux 5.19.
	CoopTaskrun bool
	// TaskrunFlag makes [Ring.Ready] tell that completions wait so. It needs one
	// of the two before, and implies CoopTaskrun if neither is asked for.
	// Linux 5.19.
	TaskrunFlag bool
	// SubmitAll makes the kernel go on with the rest after an SQE that it refuses.
	// Linux 5.18.
	SubmitAll bool
	// RegisterRing enters the kernel through a ring descriptor registered for the
	// calling thread, which saves a look-up in the process's file table each
	// time. The registration is the thread's: Submit and Wait from another would
	// enter whatever ring that thread has registered in the same place.
	// Linux 5.18.
	RegisterRing bool
}

// Limits of the queues, IORING_MAX_ENTRIES and IORING_MAX_CQ_ENTRIES of
// io_uring/io_uring.c.
const (
	maxEntries   = 32768
	maxCQEntries = 2 * maxEntries
)

// New makes a ring for the calling thread. Flags that the running kernel lacks
// are given up, one group after the other, in this order:
//
//  1. SingleIssuer and DeferTaskrun (then CoopTaskrun stands in for DeferTaskrun)
//  2. CoopTaskrun and TaskrunFlag
//  3. SubmitAll
//  4. RegisterRing, by itself
//
// [Ring.Config] says what was got. The other flags and the sizes are taken as
// they are or refused.
//
// Errors: [ErrNotSupported] where the kernel has no io_uring, or one older than
// Linux 5.11, or lacks SQE128, CQE32 or IOPoll; [ErrForbidden] where it has one
// that this process may not use; otherwise the errno of io_uring_setup(2) or
// mmap(2).
func New(c Config) (*Ring, error) {
	return newRing(c, setup)
}

// setupFunc is io_uring_setup(2). Tests put a kernel in its place that refuses
// some flags.
type setupFunc func(entries uint32, p *params) (fd int, errno syscall.Errno)

func setup(entries uint32, p *params) (int, syscall.Errno) {
	fd, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP,
		uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	return int(fd), errno
}

func newRing(c Config, setup setupFunc) (*Ring, error) {
	c, err := c.normalise()
	if err != nil {
		return nil, err
	}
	r, p, err := c.open(setup)
	if err != nil {
		return nil, err
	}
	if missing := neededFeatures &^ p.features; missing != 0 {
		return nil, errors.Join(fmt.Errorf(
			"make an io_uring: the kernel lacks features %#x of it, Linux 5.11 has them: %w",
			missing, ErrNotSupported), r.Close())
	}
	if err := r.mapRings(p); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if c.RegisterRing {
		r.config.RegisterRing = r.registerRing() == nil
	}
	r.absolute = r.registerClock() == nil
	return r, nil
}

// normalise checks c and adds what its flags imply.
func (c Config) normalise() (Config, error) {
	if c.Entries < 1 || c.Entries > maxEntries {
		return c, fmt.Errorf("make an io_uring with %d entries: want 1 to %d", c.Entries, maxEntries)
	}
	if c.CQEntries > maxCQEntries || (c.CQEntries != 0 && roundUp(c.CQEntries) < roundUp(c.Entries)) {
		return c, fmt.Errorf("make an io_uring with %d completion entries: want %d to %d, or 0 for %d",
			c.CQEntries, roundUp(c.Entries), maxCQEntries, 2*roundUp(c.Entries))
	}
	c.SingleIssuer = c.SingleIssuer || c.DeferTaskrun
	c.CoopTaskrun = c.CoopTaskrun || (c.TaskrunFlag && !c.DeferTaskrun)
	return c, nil
}

// roundUp returns the smallest power of two that is n or more.
func roundUp(n uint32) uint32 { return 1 << bits.Len32(n-1) }

// open makes the kernel's side of the ring, with fewer flags each time that the
// kernel answers EINVAL.
func (c Config) open(setup setupFunc) (*Ring, *params, error) {
	for {
		p := &params{flags: c.flags(), cqEntries: c.CQEntries}
		fd, errno := setup(c.Entries, p)
		if errno == 0 {
			c.Entries, c.CQEntries = p.sqEntries, p.cqEntries
			return &Ring{fd: fd, config: c, feats: p.features}, p, nil
		}
		less, ok := c.giveUp()
		if errno != unix.EINVAL || !ok {
			return nil, nil, setupError(c, errno)
		}
		c = less
	}
}

// giveUp returns c without the first group of optional flags that it has, and
// false if it has none.
func (c Config) giveUp() (Config, bool) {
	switch {
	case c.SingleIssuer || c.DeferTaskrun:
		c.CoopTaskrun = c.CoopTaskrun || c.DeferTaskrun
		c.SingleIssuer, c.DeferTaskrun = false, false
	case c.CoopTaskrun || c.TaskrunFlag:
		c.CoopTaskrun, c.TaskrunFlag = false, false
	case c.SubmitAll:
		c.SubmitAll = false
	default:
		return c, false
	}
	return c, true
}

// flags returns the IORING_SETUP_* that c stands for.
func (c Config) flags() uint32 {
	var f uint32
	for _, s := range []struct {
		on   bool
		flag uint32
	}{
		{c.IOPoll, setupIOPoll},
		{c.CQEntries != 0, setupCQSize},
		{c.SubmitAll, setupSubmitAll},
		{c.CoopTaskrun, setupCoopTaskrun},
		{c.TaskrunFlag, setupTaskrunFlag},
		{c.SQE128, setupSQE128},
		{c.CQE32, setupCQE32},
		{c.SingleIssuer, setupSingleIssuer},
		{c.DeferTaskrun, setupDeferTaskrun},
	} {
		if s.on {
			f |= s.flag
		}
	}
	return f
}

// Close gives the ring back. Operations still in flight are cancelled or
// finished by the kernel some time after it, so memory that they use has to
// outlive them: reap them first. Close may be called twice, and from any
// thread as long as no other method is running.
//
// A ring with RegisterRing is registered with the thread that called New. On
// that thread Close undoes it. On another it cannot, and the kernel keeps the
// ring, with its registered files and buffers, until the first thread exits. It
// does when a goroutine ends without [runtime.UnlockOSThread], but the process's
// main thread never does (runtime.mexit): lock the main goroutine to it in an
// init function, so that no other goroutine gets it.
func (r *Ring) Close() error {
	if r.fd < 0 {
		return nil
	}
	var errs []error
	if r.owner != 0 && r.owner == unix.Gettid() {
		errs = append(errs, r.unregisterRing())
	}
	errs = append(errs, r.unmapRings())
	if err := unix.Close(r.fd); err != nil {
		errs = append(errs, fmt.Errorf("close io_uring %d: %w", r.fd, err))
	}
	r.fd, r.owner = -1, 0
	return errors.Join(errs...)
}
