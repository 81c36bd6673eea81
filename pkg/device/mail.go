package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/uring"
)

// order is what a queue's thread can be told to do.
type order uint8

const (
	// release dispatches everything that is held, at once.
	release order = iota
	// fail answers everything that is held with EIO. A request whose answer is
	// there already (hold = complete) gets that answer.
	fail
)

// message carries an order; the queue's thread answers with the number of
// requests that it touched, when the last of them has been let go.
type message struct {
	what  order
	reply chan<- int // capacity ≥ 1: the queue's thread never blocks on it
}

// mailbox brings messages into a queue's ring: the queue's thread always has a
// read of the eventfd in flight, so that a message is a completion like any
// other. The channel's lock is taken only when that completion arrives.
type mailbox struct {
	letters chan message
	eventfd int
	count   []byte // what the kernel reads the eventfd into: outside the Go heap
}

func newMailbox() (*mailbox, error) {
	// Not EFD_NONBLOCK: io_uring would answer EAGAIN instead of waiting.
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map a page for an eventfd: %w", err), unix.Close(fd))
	}
	return &mailbox{letters: make(chan message, 8), eventfd: fd, count: page}, nil
}

// post hands m to the queue's thread. It gives up when over is closed, since
// then nobody reads any more. A message may be posted and still not be read, if
// the thread's loop ends meanwhile: who waits for the reply must look at over too.
func (b *mailbox) post(m message, over <-chan struct{}) {
	select {
	case b.letters <- m:
	case <-over:
		return
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	for {
		if _, err := unix.Write(b.eventfd, one[:]); err != unix.EINTR {
			return
		}
	}
}

// read prepares the read that brings the next message.
func (b *mailbox) read(sqe *uring.SQE) {
	sqe.Opcode = uring.OpRead
	sqe.FD = int32(b.eventfd)
	sqe.Addr = uint64(uintptr(unsafe.Pointer(&b.count[0])))
	sqe.Len = 8
}

// close may be called when the ring that read the mailbox is gone.
func (b *mailbox) close() error {
	return errors.Join(unix.Close(b.eventfd), unix.Munmap(b.count))
}
