package ublkdev

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/uring"
)

// Flags of a request, UBLK_IO_F_*, at the bits that they have in
// ublksrv_io_desc.op_flags.
const (
	FlagFailfastDev       uint32 = 1 << 8
	FlagFailfastTransport uint32 = 1 << 9
	FlagFailfastDriver    uint32 = 1 << 10
	FlagMeta              uint32 = 1 << 11
	FlagFUA               uint32 = 1 << 13 // a write is durable when it is answered
	FlagNoUnmap           uint32 = 1 << 15 // write-zeroes may not free the space
	FlagSwap              uint32 = 1 << 16
	FlagNeedRegBuf        uint32 = 1 << 17 // see AutoBufFallback
)

// IODesc describes one request.
type IODesc struct {
	Op          uint8  // UBLK_IO_OP_*, see op.FromUblk
	Flags       uint32 // Flag…
	Sectors     uint32 // length in sectors of 512 bytes
	StartSector uint64
}

// Queue is one hardware queue of a device: the descriptors of its requests, and
// the commands that fetch and answer them. Nothing in it allocates or makes a
// system call but NewQueue and Close. It has no lock: it belongs to the thread
// that fetches.
type Queue struct {
	fd    int32
	id    uint16
	depth int
	descs []byte // the driver's memory, read-only, rounded up to pages
}

// NewQueue maps the descriptors of queue id of the device whose /dev/ublkcN is
// charFD. depth is [Info].Depth.
func NewQueue(charFD int, id, depth int) (*Queue, error) {
	if id < 0 || id >= MaxQueues || depth < 1 || depth > MaxDepth {
		return nil, fmt.Errorf("queue %d of depth %d: want 0 to %d and 1 to %d", id, depth, MaxQueues-1, MaxDepth)
	}
	// The driver compares the length with its own (ublk_drv.c, ublk_ch_mmap).
	const descSize = int(unsafe.Sizeof(ioDesc{}))
	page := int(pageSize)
	length := (depth*descSize + page - 1) &^ (page - 1)
	stride := (MaxDepth*descSize + page - 1) &^ (page - 1)
	descs, err := unix.Mmap(charFD, cmdBufOffset+int64(id)*int64(stride), length,
		unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map the descriptors of queue %d (depth %d): %w", id, depth, err)
	}
	return &Queue{fd: int32(charFD), id: uint16(id), depth: depth, descs: descs}, nil
}

// Desc returns the descriptor of tag. It is valid from when the completion of
// the tag's command was reaped ([ResOK]) until the tag is committed: the driver
// writes it before it posts the completion, and the ring's Reap is the acquire
// that orders this read after it.
func (q *Queue) Desc(tag uint16) IODesc {
	d := (*ioDesc)(unsafe.Pointer(&q.descs[int(tag)*int(unsafe.Sizeof(ioDesc{}))]))
	return IODesc{
		Op:          uint8(d.opFlags),
		Flags:       d.opFlags &^ 0xff,
		Sectors:     d.nrSectors,
		StartSector: d.startSector,
	}
}

// Fetch makes sqe the first command of tag: it completes when the driver has a
// request, whose data (of a write) then are at buf, an address outside the Go
// heap with room for Info.MaxIOBytes. buf is 0 for a device with
// [FeatureUserCopy], [FeatureSupportZeroCopy] or [FeatureAutoBufReg]; with the
// last, the caller sets the SQE's Addr to an [AutoBuf]. The caller sets UserData,
// and FIXED_FILE with its slot if the file is registered. All commands of a tag
// come from the thread that fetched it first.
func (q *Queue) Fetch(sqe *uring.SQE, tag uint16, buf uintptr) {
	q.prepare(sqe, cmdFetch, tag, 0, buf)
}

// CommitAndFetch makes sqe the answer to tag's request and the fetch of its
// next one. result is the number of bytes done or a negative errno; of a read
// that many bytes are taken from buf.
func (q *Queue) CommitAndFetch(sqe *uring.SQE, tag uint16, result int32, buf uintptr) {
	q.prepare(sqe, cmdCommitAndFetch, tag, result, buf)
}

// RegisterBuf makes sqe put the pages of tag's request into a slot of the buffer
// table of the ring that sqe is of, for a device with [FeatureSupportZeroCopy].
// It completes with 0 or a negative errno. The request ends only after both its
// commit and UnregisterBuf.
func (q *Queue) RegisterBuf(sqe *uring.SQE, tag, slot uint16) {
	q.prepare(sqe, cmdRegisterBuf, tag, 0, uintptr(slot))
}

// UnregisterBuf makes sqe empty that slot again. I/O on it that is under way is
// not disturbed.
func (q *Queue) UnregisterBuf(sqe *uring.SQE, tag, slot uint16) {
	q.prepare(sqe, cmdUnregisterBuf, tag, 0, uintptr(slot))
}

func (q *Queue) prepare(sqe *uring.SQE, code uint32, tag uint16, result int32, buf uintptr) {
	sqe.Opcode = uring.OpURingCmd
	sqe.FD = q.fd
	sqe.SetCmdOp(code)
	*(*ioCmd)(sqe.Cmd()) = ioCmd{qID: q.id, tag: tag, result: result, addr: uint64(buf)}
}

// ID returns the number of the queue.
func (q *Queue) ID() int { return int(q.id) }

// Depth returns how many requests the queue can have: its tags are 0 to
// Depth−1.
func (q *Queue) Depth() int { return q.depth }

// Close unmaps the descriptors. No Desc may follow. It does not close the file.
func (q *Queue) Close() error {
	if q.descs == nil {
		return nil
	}
	err := unix.Munmap(q.descs)
	q.descs = nil
	if err != nil {
		return fmt.Errorf("unmap the descriptors of queue %d: %w", q.id, err)
	}
	return nil
}
