package ublkdev

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/uring"
)

const (
	// slice is how often a wait looks whether its context has ended.
	slice = 10 * time.Millisecond
	// grace is how long a command that is cancelled has to end.
	grace = 100 * time.Millisecond
)

// pageSize is the kernel's; buffers of the kernel's interface are rounded to it.
var pageSize = uint32(unix.Getpagesize())

// channel carries one control command at a time: an io_uring, and the page that
// a command's buffer argument lies in. The page is no Go memory, as the kernel
// may still write to it long after the command was given up.
type channel struct {
	ring        *uring.Ring
	buf         []byte // one page, mapped
	seq         uint64 // user data of the newest SQE
	outstanding int    // SQEs that have no completion yet
}

func newChannel() (*channel, error) {
	// SingleIssuer is not asked for: commands come from whichever thread the Go
	// scheduler has at hand.
	ring, err := uring.New(uring.Config{Entries: 4, SQE128: true})
	if err != nil {
		return nil, fmt.Errorf("make an io_uring for ublk commands: %w", err)
	}
	buf, err := unix.Mmap(-1, 0, int(pageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		_ = ring.Close()
		return nil, fmt.Errorf("map a buffer for ublk commands: %w", err)
	}
	return &channel{ring: ring, buf: buf}, nil
}

func (ch *channel) bufAddr() uintptr { return uintptr(unsafe.Pointer(&ch.buf[0])) }

// close frees a channel that has nothing outstanding.
func (ch *channel) close() error {
	err := ch.ring.Close()
	if uerr := unix.Munmap(ch.buf); err == nil {
		err = uerr
	}
	return err
}

// abandon frees a channel that still has something outstanding. Its page stays
// mapped: the kernel may write there.
func (ch *channel) abandon() error { return ch.ring.Close() }

// run sends one command and returns the kernel's result: 0 or more, or a
// negative errno. When ctx ends or the limit passes first, it tries to cancel
// the command and returns ctx's error or [ErrTimeout]; the channel then may have
// something outstanding. The caller stays on its thread.
func (ch *channel) run(ctx context.Context, fd int, code uint32, cmd *ctrlCmd, limit time.Duration) (int32, error) {
	sqe := ch.ring.Next()
	if sqe == nil {
		return 0, fmt.Errorf("no free submission entry")
	}
	sqe.Opcode = uring.OpURingCmd
	sqe.FD = int32(fd)
	sqe.SetCmdOp(code)
	*(*ctrlCmd)(sqe.Cmd()) = *cmd
	id := ch.push(sqe)

	deadline := time.Now().Add(limit)
	for {
		left := time.Until(deadline)
		if ctx.Done() != nil {
			left = min(left, slice)
		}
		if err := ch.ring.Wait(1, max(left, 0), uring.ReleaseP); err != nil {
			return 0, err
		}
		if res, ok := ch.answer(id); ok {
			return res, nil
		}
		if err := ctx.Err(); err != nil {
			return ch.cancel(id, err)
		}
		if !time.Now().Before(deadline) {
			return ch.cancel(id, ErrTimeout)
		}
	}
}

// cancel gives command id up. A command that waits interruptibly ends at once;
// one that succeeded in the last moment counts as done.
func (ch *channel) cancel(id uint64, cause error) (int32, error) {
	sqe := ch.ring.Next()
	if sqe == nil {
		return 0, cause
	}
	sqe.Opcode = uring.OpAsyncCancel
	sqe.FD = -1
	sqe.Addr = id
	ch.push(sqe)
	for end := time.Now().Add(grace); ch.outstanding > 0; {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		if err := ch.ring.Wait(1, left, uring.ReleaseP); err != nil {
			break
		}
		if res, ok := ch.answer(id); ok && res >= 0 {
			return res, nil
		}
	}
	return 0, cause
}

// push numbers an SQE that the next Wait submits.
func (ch *channel) push(sqe *uring.SQE) uint64 {
	ch.seq++
	ch.outstanding++
	sqe.UserData = ch.seq
	return ch.seq
}

// answer reaps completions and returns the result of command id if it is among
// them.
func (ch *channel) answer(id uint64) (res int32, ok bool) {
	var cqes [4]uring.CQE
	for {
		n := ch.ring.Reap(cqes[:])
		for _, cqe := range cqes[:n] {
			ch.outstanding--
			if cqe.UserData == id {
				res, ok = cqe.Res, true
			}
		}
		if n < len(cqes) {
			return res, ok
		}
	}
}

// drain reaps what has come in the meantime. Nothing is awaited.
func (ch *channel) drain() { ch.answer(0) }
