package uring

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	// ErrNotSupported is wrapped by every error that says that the running kernel
	// lacks something; the message names the kernel that has it.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrForbidden is wrapped by the error of [New] where the kernel has io_uring
	// but does not let this process use it; the message says what to change.
	ErrForbidden = errors.New("io_uring is forbidden")
	// ErrLost is wrapped by an error of [Ring.Submit] or [Ring.Wait] after the
	// kernel had no memory to keep a completion (EBADR). The ring works on, the
	// completion does not come any more.
	ErrLost = errors.New("a completion was lost")
)

var errClosed = fmt.Errorf("use an io_uring: %w", os.ErrClosed)

// disabledPath is the sysctl kernel.io_uring_disabled (Linux 6.6): 0 for all, 1
// for CAP_SYS_ADMIN and the group kernel.io_uring_group, 2 for nobody.
const disabledPath = "/proc/sys/kernel/io_uring_disabled"

// setupError says why io_uring_setup failed and what to do about it.
func setupError(c Config, errno syscall.Errno) error {
	switch errno {
	case unix.ENOSYS:
		return fmt.Errorf("make an io_uring: want Linux 5.11 or later with CONFIG_IO_URING: %w (%w)",
			ErrNotSupported, errno)
	case unix.EPERM, unix.EACCES:
		value, _ := os.ReadFile(disabledPath)
		return forbidden(strings.TrimSpace(string(value)), errno)
	case unix.EINVAL:
		var lacks []string
		for _, f := range []struct {
			on   bool
			what string
		}{
			{c.SQE128, "128-byte SQEs (Linux 5.19)"},
			{c.CQE32, "32-byte CQEs (Linux 5.19)"},
			{c.IOPoll, "polling (Linux 5.1)"},
		} {
			if f.on {
				lacks = append(lacks, f.what)
			}
		}
		if lacks != nil {
			return fmt.Errorf("make an io_uring with %s: %w (%w)",
				strings.Join(lacks, ", "), ErrNotSupported, errno)
		}
	case unix.EMFILE:
		return fmt.Errorf("make an io_uring: no file descriptor left, raise the limit (ulimit -n, LimitNOFILE=): %w", errno)
	case unix.ENOMEM:
		return fmt.Errorf("make an io_uring with %d entries: no memory, or locked memory limited "+
			"(ulimit -l, LimitMEMLOCK=): %w", c.Entries, errno)
	}
	return fmt.Errorf("make an io_uring with %d entries and flags %#x: %w", c.Entries, c.flags(), errno)
}

// forbidden explains an EPERM of io_uring_setup; disabled is the content of
// disabledPath, empty if the kernel has no such sysctl.
func forbidden(disabled string, errno syscall.Errno) error {
	switch disabled {
	case "2":
		return fmt.Errorf("make an io_uring: %w: sysctl kernel.io_uring_disabled is 2 (nobody may); "+
			"set it with `sysctl kernel.io_uring_disabled=0`, or to 1 for root only: %w", ErrForbidden, errno)
	case "1":
		return fmt.Errorf("make an io_uring: %w: sysctl kernel.io_uring_disabled is 1 (only root and the group "+
			"kernel.io_uring_group may); run as root, or set it with `sysctl kernel.io_uring_disabled=0`: %w",
			ErrForbidden, errno)
	}
	return fmt.Errorf("make an io_uring: %w: a security policy denies io_uring_setup(2) to this process; "+
		"allow it in the seccomp profile of its container or unit (SystemCallFilter=), or in SELinux: %w",
		ErrForbidden, errno)
}

// enterError says why io_uring_enter failed for good.
func (r *Ring) enterError(errno syscall.Errno) error {
	if tid := unix.Gettid(); errno == unix.EEXIST || (r.owner != 0 && r.owner != tid) {
		return fmt.Errorf("enter io_uring %d: it belongs to the thread that made it, this is thread %d "+
			"(hold runtime.LockOSThread from New on): %w", r.fd, tid, errno)
	}
	if errno == unix.EBADR {
		return fmt.Errorf("enter io_uring %d: %w for want of memory, %d so far: %w",
			r.fd, ErrLost, r.Lost(), errno)
	}
	return fmt.Errorf("enter io_uring %d: %w", r.fd, errno)
}
