package ublkdev

import "unsafe"

// The structures of include/uapi/linux/ublk_cmd.h that this package exchanges
// with the kernel. uapi_test.go holds their sizes and offsets to the header's.

// ctrlCmd is struct ublksrv_ctrl_cmd: the command area of a control command's
// SQE, which must be 128 bytes long.
type ctrlCmd struct {
	devID      uint32
	queueID    uint16 // noQueue: not for a queue
	len        uint16 // bytes at addr
	addr       uint64 // buffer, in or out
	data       uint64 // data[1], the command's inline argument
	devPathLen uint16 // GET_DEV_INFO2: bytes of device path at the head of the buffer
	_          uint16
	_          uint32
}

// noQueue is ublksrv_ctrl_cmd.queue_id of a command that is not for a queue.
const noQueue = ^uint16(0)

// devInfo is struct ublksrv_ctrl_dev_info.
type devInfo struct {
	nrHWQueues    uint16
	queueDepth    uint16
	state         uint16
	ioDescSize    uint16 // padding before UBLK_F_IO_DESC_SIZE
	maxIOBufBytes uint32
	devID         uint32
	ublksrvPID    int32
	_             uint32
	flags         uint64
	ublksrvFlags  uint64 // the server's own, kept by the driver
	ownerUID      uint32
	ownerGID      uint32
	_             uint64
	_             uint64
}

// ioDesc is struct ublksrv_io_desc, written by the driver into the memory that
// [NewQueue] maps.
type ioDesc struct {
	opFlags     uint32 // op: bits 0-7, UBLK_IO_F_*: bits 8-31
	nrSectors   uint32
	startSector uint64
	addr        uint64
}

// ioCmd is struct ublksrv_io_cmd: the command area of a data command's SQE, 64
// or 128 bytes long.
type ioCmd struct {
	qID    uint16
	tag    uint16
	result int32
	addr   uint64
}

// paramBasic is struct ublk_param_basic.
type paramBasic struct {
	attrs            uint32
	logicalBSShift   uint8
	physicalBSShift  uint8
	ioOptShift       uint8
	ioMinShift       uint8
	maxSectors       uint32
	chunkSectors     uint32
	devSectors       uint64
	virtBoundaryMask uint64
}

// paramDiscard is struct ublk_param_discard.
type paramDiscard struct {
	discardAlignment      uint32
	discardGranularity    uint32
	maxDiscardSectors     uint32
	maxWriteZeroesSectors uint32
	maxDiscardSegments    uint16
	_                     uint16
}

// paramDevt is struct ublk_param_devt, which only the driver fills.
type paramDevt struct {
	charMajor, charMinor uint32
	diskMajor, diskMinor uint32
}

// paramZoned is struct ublk_param_zoned. It is here for the offsets of what
// follows it.
type paramZoned struct {
	maxOpenZones         uint32
	maxActiveZones       uint32
	maxZoneAppendSectors uint32
	_                    [20]uint8
}

// paramDMAAlign is struct ublk_param_dma_align.
type paramDMAAlign struct {
	alignment uint32
	_         [4]uint8
}

// paramSegment is struct ublk_param_segment.
type paramSegment struct {
	segBoundaryMask uint64
	maxSegmentSize  uint32
	maxSegments     uint16
	_               [2]uint8
}

// paramIntegrity is struct ublk_param_integrity. It is here for the size of
// params.
type paramIntegrity struct {
	flags                uint32
	maxIntegritySegments uint16
	intervalExp          uint8
	metadataSize         uint8
	piOffset             uint8
	csumType             uint8
	tagSize              uint8
	_                    [5]uint8
}

// params is struct ublk_params. A driver that knows a shorter one reads and
// writes no more than its own length.
type params struct {
	len       uint32
	types     uint32
	basic     paramBasic
	discard   paramDiscard
	devt      paramDevt
	zoned     paramZoned
	dma       paramDMAAlign
	seg       paramSegment
	integrity paramIntegrity
}

// UBLK_PARAM_TYPE_*: which parts of params are valid.
const (
	paramTypeBasic    = 1 << 0
	paramTypeDiscard  = 1 << 1
	paramTypeDevt     = 1 << 2
	paramTypeDMAAlign = 1 << 4
	paramTypeSegment  = 1 << 5
)

// The direction bits of an ioctl number, include/uapi/asm-generic/ioctl.h
// (_IOC_WRITE, _IOC_READ).
const (
	iocWrite = 1 << 30
	iocRead  = 2 << 30
)

// ublkIoctl encodes command nr of type 'u' whose argument has size bytes, as
// _IOC does.
const ublkIoctl = uint32('u') << 8

// Control commands, UBLK_U_CMD_*. Only the ioctl-encoded ones: a kernel built
// without CONFIG_BLKDEV_UBLK_LEGACY_OPCODES knows no others.
const (
	ctrlR  = iocRead | uint32(unsafe.Sizeof(ctrlCmd{}))<<16 | ublkIoctl
	ctrlWR = iocWrite | ctrlR

	cmdGetQueueAffinity  = ctrlR | 0x01
	cmdGetDevInfo        = ctrlR | 0x02
	cmdAddDev            = ctrlWR | 0x04
	cmdDelDev            = ctrlWR | 0x05
	cmdStartDev          = ctrlWR | 0x06
	cmdStopDev           = ctrlWR | 0x07
	cmdSetParams         = ctrlWR | 0x08
	cmdGetParams         = ctrlR | 0x09
	cmdStartUserRecovery = ctrlWR | 0x10
	cmdEndUserRecovery   = ctrlWR | 0x11
	cmdGetDevInfo2       = ctrlR | 0x12
	cmdGetFeatures       = ctrlR | 0x13
	cmdDelDevAsync       = ctrlR | 0x14
	cmdUpdateSize        = ctrlWR | 0x15
	cmdQuiesceDev        = ctrlWR | 0x16
	cmdTryStopDev        = ctrlWR | 0x17
)

// Data commands, UBLK_U_IO_*.
const (
	ioWR = iocWrite | iocRead | uint32(unsafe.Sizeof(ioCmd{}))<<16 | ublkIoctl

	cmdFetch          = ioWR | 0x20
	cmdCommitAndFetch = ioWR | 0x21
	cmdRegisterBuf    = ioWR | 0x23
	cmdUnregisterBuf  = ioWR | 0x24
)

// What the completion of a data command says, UBLK_IO_RES_*.
const (
	// ResOK: the tag's descriptor holds a request.
	ResOK = 0
	// ResNeedGetData: only with FeatureNeedGetData, which delayd does not use.
	ResNeedGetData = 1
	// ResAbort (-ENODEV): the device is stopping or quiescing; the tag must not
	// be fetched again.
	ResAbort = -19
)

const (
	// MaxDepth is UBLK_MAX_QUEUE_DEPTH, the most requests a queue can have.
	MaxDepth = 4096
	// MaxQueues is UBLK_MAX_NR_QUEUES. The driver also limits the queues of a
	// device to the number of CPUs.
	MaxQueues = 1 << 12

	cmdBufOffset = 0          // UBLKSRV_CMD_BUF_OFFSET
	ioBufOffset  = 0x80000000 // UBLKSRV_IO_BUF_OFFSET
	ioBufBits    = 25         // UBLK_IO_BUF_BITS: a request has at most 32 MiB
	tagBits      = 16         // UBLK_TAG_BITS
)

// UserCopyOffset returns the offset in /dev/ublkcN at which pread and pwrite
// reach the data of a request of a device with [FeatureUserCopy]
// (UBLKSRV_IO_BUF_OFFSET, UBLK_TAG_OFF, UBLK_QID_OFF).
func UserCopyOffset(queue int, tag uint16) int64 {
	return ioBufOffset + int64(queue)<<(ioBufBits+tagBits) + int64(tag)<<ioBufBits
}

// AutoBufFallback (UBLK_AUTO_BUF_REG_FALLBACK), a flag of [AutoBuf]: deliver the
// request with FlagNeedRegBuf when its buffer cannot be registered, instead of
// failing it.
const AutoBufFallback uint8 = 1 << 0

// AutoBuf encodes where the driver shall register a request's buffer, for the
// SQE's Addr of a data command with [FeatureAutoBufReg]
// (ublk_auto_buf_reg_to_sqe_addr).
func AutoBuf(index uint16, flags uint8) uint64 {
	return uint64(index) | uint64(flags)<<16
}
