package ublkdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// controlPath is the driver's one control file (ublk_drv.c, ublk_misc).
const controlPath = "/dev/ublk-control"

// The limits that [Open] sets.
const (
	DefaultLimit     = 10 * time.Second
	DefaultLongLimit = 30 * time.Second
)

// maxIdle is how many channels are kept for the next commands. More than that
// many commands at once make their own and drop them again.
const maxIdle = 4

// Control sends commands to the ublk driver. It may be used from several
// goroutines, but never on the thread that serves a queue: the completion of a
// command is work of the thread that submitted it, and START_DEV waits for the
// queues.
//
// Every command ends when the kernel has answered, when its context ends, or
// when its limit has passed, whichever is first. A command that was given up
// may still take effect.
type Control struct {
	// Limit is the longest that a command may take. Set before the first use.
	Limit time.Duration
	// LongLimit is the same for the commands that wait for other people's
	// requests: Start, Stop, TryStop, Delete, EndRecovery and Quiesce.
	LongLimit time.Duration

	fd int // of controlPath; written once by Open

	mu     sync.Mutex
	closed bool
	active int        // commands that use fd
	idle   []*channel // free for the next command
	aside  []*channel // their command was given up and has not been answered
}

// Open opens the ublk driver. The error wraps [ErrNoDriver] or [ErrPermission]
// where they apply, or is that of package uring where io_uring is not allowed.
// The caller calls Close.
func Open() (*Control, error) { return open(controlPath) }

func open(path string) (*Control, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the ublk driver: %w", openError(&os.PathError{Op: "open", Path: path, Err: err}))
	}
	// Made now, so that a kernel that forbids io_uring is known at once.
	ch, err := newChannel()
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open the ublk driver: %w", err)
	}
	return &Control{Limit: DefaultLimit, LongLimit: DefaultLongLimit, fd: fd, idle: []*channel{ch}}, nil
}

// Close frees what the Control holds. Commands under way keep what they need
// until they end; later ones fail with [os.ErrClosed].
func (c *Control) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return os.ErrClosed
	}
	c.closed = true
	c.sweep()
	var errs []error
	for _, ch := range c.idle {
		errs = append(errs, ch.close())
	}
	for _, ch := range c.aside {
		errs = append(errs, ch.abandon())
	}
	c.idle, c.aside = nil, nil
	if c.active == 0 {
		errs = append(errs, unix.Close(c.fd))
	}
	return errors.Join(errs...)
}

// take returns a channel for one command.
func (c *Control) take() (*channel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, os.ErrClosed
	}
	c.sweep()
	if n := len(c.idle); n > 0 {
		ch := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.active++
		return ch, nil
	}
	ch, err := newChannel()
	if err == nil {
		c.active++
	}
	return ch, err
}

// give takes a channel back after its command.
func (c *Control) give(ch *channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	switch {
	case c.closed && ch.outstanding > 0:
		_ = ch.abandon()
	case c.closed:
		_ = ch.close()
	case ch.outstanding > 0:
		c.aside = append(c.aside, ch)
	default:
		c.keep(ch)
	}
	if c.closed && c.active == 0 {
		_ = unix.Close(c.fd)
	}
}

// sweep takes back the channels set aside whose commands have been answered in
// the meantime. c.mu is held.
func (c *Control) sweep() {
	rest := c.aside[:0]
	for _, ch := range c.aside {
		ch.drain()
		if ch.outstanding > 0 {
			rest = append(rest, ch)
		} else {
			c.keep(ch)
		}
	}
	clear(c.aside[len(rest):])
	c.aside = rest
}

// keep stores a free channel, or closes it if there are enough. c.mu is held.
func (c *Control) keep(ch *channel) {
	if len(c.idle) >= maxIdle {
		_ = ch.close()
		return
	}
	c.idle = append(c.idle, ch)
}

// Unanswered returns how many commands were given up and are still in the
// kernel. Each holds an io_uring and a page of memory.
func (c *Control) Unanswered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	return len(c.aside)
}

// call sends one command and waits for its answer. fill completes the command
// and the buffer before, read takes the buffer's content after; either may be
// nil. They may not keep the buffer.
func (c *Control) call(ctx context.Context, op command, id int, fill func(*ctrlCmd, []byte), read func([]byte)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", op.target(id), err)
	}
	ch, err := c.take()
	if err != nil {
		return fmt.Errorf("%s: %w", op.target(id), err)
	}
	defer c.give(ch)

	clear(ch.buf)
	cmd := ctrlCmd{devID: uint32(id), queueID: noQueue}
	if fill != nil {
		fill(&cmd, ch.buf)
	}
	if cmd.len > 0 {
		cmd.addr = uint64(ch.bufAddr())
	}
	limit := c.Limit
	if op.long {
		limit = c.LongLimit
	}

	// The kernel answers on the thread that submitted, so stay on it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	res, err := ch.run(ctx, c.fd, op.code, &cmd, limit)
	switch {
	case err == nil && res >= 0:
		if read != nil {
			read(ch.buf)
		}
		return nil
	case err == nil:
		return commandError(op, id, unix.Errno(-res))
	case errors.Is(err, ErrTimeout):
		return fmt.Errorf("%s: %w within %v: see the kernel log (dmesg)", op.target(id), ErrTimeout, limit)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: given up before the kernel answered: %w; if it seems stuck see the kernel log (dmesg)",
			op.target(id), ctx.Err())
	}
	return fmt.Errorf("%s: %w", op.target(id), err)
}
