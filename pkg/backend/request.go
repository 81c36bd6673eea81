package backend

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// Request is one request to a backing. The caller owns it and its buffer until
// it is answered; it may then be used again.
type Request struct {
	Op      op.Op
	FUA     bool  // a write is durable when answered
	NoUnmap bool  // write-zeroes keeps the space allocated
	Offset  int64 // bytes from the start of the selected part
	Length  uint32
	// Buf holds Length bytes of a read or write, outside the Go heap: the
	// kernel uses the address after Prepare returned.
	Buf unsafe.Pointer
	// Fixed says that they are in buffer Slot of the ring's table instead, where
	// this process cannot see them. Buf is nil then.
	Fixed bool
	Slot  uint16

	// Result is, once answered, -errno, or Length for a read or write and 0 for
	// the rest, whose length may not fit (the driver ignores it:
	// drivers/block/ublk_drv.c, __ublk_complete_rq).
	Result int32

	done    uint32 // bytes that are through
	step    step
	retries uint8 // without progress
}

// step is how a request that has several ways is being done.
type step uint8

const (
	stepFirst     step = iota
	stepZeroRange      // write-zeroes by FALLOC_FL_ZERO_RANGE
	stepZeroWrite      // write-zeroes by writing zeroes
)

// maxRetries bounds how often EINTR and EAGAIN are tried again without any
// progress, before they are passed on.
const maxRetries = 100

// FALLOC_FL_* and IORING_FSYNC_* as they go into an entry.
const (
	punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zeroRange = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE

	fsyncDatasync = 1 // include/uapi/linux/io_uring.h, IORING_FSYNC_DATASYNC
)

// finish answers r and readies it for its next use. It returns true, for
// callers that report "done".
func (r *Request) finish(result int32) bool {
	r.Result = result
	r.done, r.step, r.retries = 0, stepFirst, 0
	return true
}

// again says whether res asks to try the same once more.
func (r *Request) again(res int32) bool {
	if res != -int32(unix.EINTR) && res != -int32(unix.EAGAIN) || r.retries == maxRetries {
		return false
	}
	r.retries++
	return true
}

// next changes how r is done.
func (r *Request) next(s step) { r.step, r.retries = s, 0 }

// moved takes the result of a read or a write of what was left. A short one
// goes on at a multiple of align, for direct I/O cannot go on elsewhere.
func (r *Request) moved(res int32, align uint32) (done bool) {
	if res < 0 {
		return !r.again(res) && r.finish(res)
	}
	n := min(uint32(res), r.Length-r.done)
	if r.done+n < r.Length {
		n = n / align * align
	}
	if n == 0 {
		// The end of the backing came before the end of the request.
		return r.finish(-int32(unix.EIO))
	}
	r.done += n
	r.retries = 0
	if r.done < r.Length {
		return false
	}
	if r.Op != op.Read && r.Op != op.Write {
		return r.finish(0)
	}
	return r.finish(int32(r.Length))
}

// finished takes the result of an operation that is done whole or not at all.
func (r *Request) finished(res int32) (done bool) {
	if res < 0 {
		return !r.again(res) && r.finish(res)
	}
	return r.finish(0)
}

// prepareMove asks for the rest of a read or a write.
func (r *Request) prepareMove(sqe *uring.SQE, fd int, start int64) {
	read, write := uring.OpRead, uring.OpWrite
	if r.Fixed {
		// The address is then an offset in the buffer: Buf is nil.
		read, write = uring.OpReadFixed, uring.OpWriteFixed
		sqe.BufIndex = r.Slot
	}
	sqe.Opcode = read
	if r.Op == op.Write {
		sqe.Opcode = write
		if r.FUA {
			sqe.OpFlags = unix.RWF_DSYNC
		}
	}
	sqe.FD = int32(fd)
	sqe.Off = uint64(start + r.Offset + int64(r.done))
	sqe.Addr = uint64(uintptr(r.Buf) + uintptr(r.done))
	sqe.Len = r.Length - r.done
}

// prepareFlush asks that what was written is made durable. Sizes never change,
// so the data and what is needed to find it is enough.
func prepareFlush(sqe *uring.SQE, fd int) {
	sqe.Opcode = uring.OpFsync
	sqe.FD = int32(fd)
	sqe.OpFlags = fsyncDatasync
}

// prepareFallocate asks for mode over the whole request; the length travels in
// the address (io_uring/sync.c, io_fallocate_prep).
func (r *Request) prepareFallocate(sqe *uring.SQE, fd int, start int64, mode uint32) {
	sqe.Opcode = uring.OpFallocate
	sqe.FD = int32(fd)
	sqe.Off = uint64(start + r.Offset)
	sqe.Addr = uint64(r.Length)
	sqe.Len = mode
}

// prepareZeroWrite asks for the next chunk of zeroes.
func (r *Request) prepareZeroWrite(sqe *uring.SQE, fd int, start int64) {
	sqe.Opcode = uring.OpWrite
	sqe.FD = int32(fd)
	sqe.Off = uint64(start + r.Offset + int64(r.done))
	sqe.Addr = uint64(uintptr(unsafe.Pointer(&zeroes[0])))
	sqe.Len = min(r.Length-r.done, uint32(len(zeroes)))
}
