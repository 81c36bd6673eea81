package uring

import "unsafe"

// SQE is one submission queue entry: struct io_uring_sqe of
// include/uapi/linux/io_uring.h, the 64 bytes that every ring has. The unions
// of the C struct are named for the member that is used most; what else shares
// the bytes is said beside each.
//
// An SQE is written in place, in the memory that the kernel reads: what
// [Ring.Next] returns is valid until the Submit or Wait that follows.
type SQE struct {
	Opcode      uint8  // Op…
	Flags       uint8  // Flag…
	IOPrio      uint16 // also: flags of some operations
	FD          int32  // a file descriptor; with FlagFixedFile a slot of RegisterFiles
	Off         uint64 // byte offset; also: addr2, cmd_op (see SetCmdOp)
	Addr        uint64 // address of a buffer; must not be in the Go heap
	Len         uint32 // bytes, or a count
	OpFlags     uint32 // rw_flags, fsync_flags, poll32_events, timeout_flags, uring_cmd_flags, …
	UserData    uint64 // comes back in CQE.UserData
	BufIndex    uint16 // slot of RegisterBuffers, for OpReadFixed and OpWriteFixed
	Personality uint16 // unused here
	FileIndex   int32  // also: splice_fd_in, addr_len
	Addr3       uint64 // the first 8 bytes of the command area, see Cmd
	Pad         uint64 // the second 8 bytes of the command area
}

// sqeSize is the size of an SQE; a ring with Config.SQE128 keeps them
// sqeSize<<1 apart.
const sqeSize = unsafe.Sizeof(SQE{})

// cmdOffset is where the command area of an OpURingCmd begins: offsetof(struct
// io_uring_sqe, cmd).
const cmdOffset = unsafe.Offsetof(SQE{}.Addr3)

// Cmd returns the command area of an OpURingCmd: 16 bytes, 8-byte aligned, or
// 80 bytes on a ring with Config.SQE128. It belongs to the SQE and is zero
// when [Ring.Next] hands it out.
func (s *SQE) Cmd() unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(s), cmdOffset)
}

// SetCmdOp sets cmd_op, the command of an OpURingCmd. It shares its bytes with
// Off: the low 32 bits on a little-endian machine, the first four bytes
// everywhere; the other four (__pad1) must be zero, and are made so.
func (s *SQE) SetCmdOp(op uint32) {
	s.Off = 0
	*(*uint32)(unsafe.Pointer(&s.Off)) = op
}

// Operations, IORING_OP_* of include/uapi/linux/io_uring.h, with the kernel
// that brought each where that is later than the 5.11 that this package needs
// anyway. [Probe] asks the running kernel.
const (
	OpNop         uint8 = 0
	OpReadv       uint8 = 1
	OpWritev      uint8 = 2
	OpFsync       uint8 = 3
	OpReadFixed   uint8 = 4
	OpWriteFixed  uint8 = 5
	OpPollAdd     uint8 = 6
	OpPollRemove  uint8 = 7
	OpTimeout     uint8 = 11
	OpAsyncCancel uint8 = 14
	OpFallocate   uint8 = 17
	OpRead        uint8 = 22
	OpWrite       uint8 = 23
	OpMsgRing     uint8 = 40 // Linux 5.18
	OpURingCmd    uint8 = 46 // Linux 5.19
)

// Flags of an SQE, IOSQE_* of include/uapi/linux/io_uring.h.
const (
	FlagFixedFile  uint8 = 1 << 0 // FD is a slot of RegisterFiles
	FlagIODrain    uint8 = 1 << 1 // start only when all before it are done
	FlagIOLink     uint8 = 1 << 2 // the next SQE starts when this one is done, and not if it failed
	FlagIOHardlink uint8 = 1 << 3 // the next SQE starts when this one is done or has failed
	FlagAsync      uint8 = 1 << 4 // hand it to a kernel worker at once
	FlagCQESkip    uint8 = 1 << 6 // no completion if it succeeds; Linux 5.17
)

// Values for SQE.OpFlags.
const (
	FsyncDatasync uint32 = 1 << 0 // IORING_FSYNC_DATASYNC, for OpFsync
	URingCmdFixed uint32 = 1 << 0 // IORING_URING_CMD_FIXED, for OpURingCmd: BufIndex names the buffer; Linux 6.1
)

// MsgData is the SQE.Addr of an OpMsgRing that posts a completion on the ring
// whose descriptor is SQE.FD: its Res is SQE.Len, its UserData is SQE.Off
// (IORING_MSG_DATA).
const MsgData uint64 = 0
