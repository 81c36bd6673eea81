package uring

import "golang.org/x/sys/unix"

// What follows is of include/uapi/linux/io_uring.h; names in the comments are
// those of the C header.

// params is struct io_uring_params.
type params struct {
	sqEntries    uint32
	cqEntries    uint32
	flags        uint32 // IORING_SETUP_*
	sqThreadCPU  uint32
	sqThreadIdle uint32
	features     uint32 // IORING_FEAT_*
	wqFD         uint32
	resv         [3]uint32
	sqOff        sqRingOffsets
	cqOff        cqRingOffsets
}

// sqRingOffsets is struct io_sqring_offsets: bytes from the begin of the mapping.
type sqRingOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, resv1 uint32
	userAddr                                                        uint64
}

// cqRingOffsets is struct io_cqring_offsets.
type cqRingOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, resv1 uint32
	userAddr                                                        uint64
}

// geteventsArg is struct io_uring_getevents_arg.
type geteventsArg struct {
	sigmask     uint64
	sigmaskSize uint32
	minWaitUsec uint32
	ts          uint64 // address of a struct __kernel_timespec
}

// args is what the kernel is given the address of, other than as an argument
// of the system call itself.
type args struct {
	getevents geteventsArg  // for IORING_ENTER_EXT_ARG
	ts        unix.Timespec // its time limit; struct __kernel_timespec on 64-bit machines
	fd        int32         // for IORING_REGISTER_FILES_UPDATE
	buf       unix.Iovec    // for IORING_REGISTER_BUFFERS_UPDATE
}

// clockRegister is struct io_uring_clock_register.
type clockRegister struct {
	clockID uint32
	resv    [3]uint32
}

// rsrcRegister is struct io_uring_rsrc_register.
type rsrcRegister struct {
	nr    uint32
	flags uint32 // IORING_RSRC_REGISTER_*
	resv2 uint64
	data  uint64
	tags  uint64
}

// rsrcUpdate is struct io_uring_rsrc_update, which struct
// io_uring_files_update equals byte by byte.
type rsrcUpdate struct {
	offset uint32
	resv   uint32
	data   uint64
}

// rsrcUpdate2 is struct io_uring_rsrc_update2.
type rsrcUpdate2 struct {
	offset uint32
	resv   uint32
	data   uint64
	tags   uint64
	nr     uint32
	resv2  uint32
}

// probe is struct io_uring_probe with room for every opcode.
type probe struct {
	lastOp uint8
	opsLen uint8
	resv   uint16
	resv2  [3]uint32
	ops    [256]probeOp
}

// probeOp is struct io_uring_probe_op.
type probeOp struct {
	op    uint8
	resv  uint8
	flags uint16 // IO_URING_OP_SUPPORTED
	resv2 uint32
}

const (
	setupIOPoll       = 1 << 0  // IORING_SETUP_IOPOLL
	setupCQSize       = 1 << 3  // IORING_SETUP_CQSIZE
	setupSubmitAll    = 1 << 7  // IORING_SETUP_SUBMIT_ALL
	setupCoopTaskrun  = 1 << 8  // IORING_SETUP_COOP_TASKRUN
	setupTaskrunFlag  = 1 << 9  // IORING_SETUP_TASKRUN_FLAG
	setupSQE128       = 1 << 10 // IORING_SETUP_SQE128
	setupCQE32        = 1 << 11 // IORING_SETUP_CQE32
	setupSingleIssuer = 1 << 12 // IORING_SETUP_SINGLE_ISSUER
	setupDeferTaskrun = 1 << 13 // IORING_SETUP_DEFER_TASKRUN

	featSingleMmap   = 1 << 0  // IORING_FEAT_SINGLE_MMAP, Linux 5.4
	featNoDrop       = 1 << 1  // IORING_FEAT_NODROP, Linux 5.5
	featSubmitStable = 1 << 2  // IORING_FEAT_SUBMIT_STABLE, Linux 5.5
	featExtArg       = 1 << 8  // IORING_FEAT_EXT_ARG, Linux 5.11
	featNoIowait     = 1 << 17 // IORING_FEAT_NO_IOWAIT, Linux 6.15

	// neededFeatures is what this package cannot do without.
	neededFeatures = featSingleMmap | featNoDrop | featSubmitStable | featExtArg

	offSQRing = 0          // IORING_OFF_SQ_RING
	offSQEs   = 0x10000000 // IORING_OFF_SQES

	sqCQOverflow = 1 << 1 // IORING_SQ_CQ_OVERFLOW
	sqTaskrun    = 1 << 2 // IORING_SQ_TASKRUN

	enterGetevents      = 1 << 0 // IORING_ENTER_GETEVENTS
	enterExtArg         = 1 << 3 // IORING_ENTER_EXT_ARG
	enterRegisteredRing = 1 << 4 // IORING_ENTER_REGISTERED_RING
	enterAbsTimer       = 1 << 5 // IORING_ENTER_ABS_TIMER, Linux 6.12
	enterNoIowait       = 1 << 7 // IORING_ENTER_NO_IOWAIT

	registerBuffers       = 0  // IORING_REGISTER_BUFFERS
	unregisterBuffers     = 1  // IORING_UNREGISTER_BUFFERS
	registerFiles         = 2  // IORING_REGISTER_FILES
	unregisterFiles       = 3  // IORING_UNREGISTER_FILES
	registerFilesUpdate   = 6  // IORING_REGISTER_FILES_UPDATE
	registerProbe         = 8  // IORING_REGISTER_PROBE
	registerBuffers2      = 15 // IORING_REGISTER_BUFFERS2
	registerBuffersUpdate = 16 // IORING_REGISTER_BUFFERS_UPDATE
	registerRingFDs       = 20 // IORING_REGISTER_RING_FDS
	unregisterRingFDs     = 21 // IORING_UNREGISTER_RING_FDS
	registerClock         = 29 // IORING_REGISTER_CLOCK, Linux 6.12

	rsrcRegisterSparse = 1 << 0 // IORING_RSRC_REGISTER_SPARSE

	opSupported = 1 << 0 // IO_URING_OP_SUPPORTED
)
