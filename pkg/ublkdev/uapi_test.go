package ublkdev

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers in this file are what a C compiler says of the structures of
// include/uapi/linux/ublk_cmd.h of Linux 7.3 on a 64-bit machine.

func TestStructSizes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"ublksrv_ctrl_cmd", unsafe.Sizeof(ctrlCmd{}), 32},
		{"ublksrv_ctrl_dev_info", unsafe.Sizeof(devInfo{}), 64},
		{"ublksrv_io_desc", unsafe.Sizeof(ioDesc{}), 24},
		{"ublksrv_io_cmd", unsafe.Sizeof(ioCmd{}), 16},
		{"ublk_param_basic", unsafe.Sizeof(paramBasic{}), 32},
		{"ublk_param_discard", unsafe.Sizeof(paramDiscard{}), 20},
		{"ublk_param_devt", unsafe.Sizeof(paramDevt{}), 16},
		{"ublk_param_zoned", unsafe.Sizeof(paramZoned{}), 32},
		{"ublk_param_dma_align", unsafe.Sizeof(paramDMAAlign{}), 8},
		{"ublk_param_segment", unsafe.Sizeof(paramSegment{}), 16},
		{"ublk_param_integrity", unsafe.Sizeof(paramIntegrity{}), 16},
		{"ublk_params", unsafe.Sizeof(params{}), 152},
	} {
		if tt.got != tt.want {
			t.Errorf("sizeof(struct %s) = %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

func TestFieldOffsets(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"ctrl_cmd.dev_id", unsafe.Offsetof(ctrlCmd{}.devID), 0},
		{"ctrl_cmd.queue_id", unsafe.Offsetof(ctrlCmd{}.queueID), 4},
		{"ctrl_cmd.len", unsafe.Offsetof(ctrlCmd{}.len), 6},
		{"ctrl_cmd.addr", unsafe.Offsetof(ctrlCmd{}.addr), 8},
		{"ctrl_cmd.data", unsafe.Offsetof(ctrlCmd{}.data), 16},
		{"ctrl_cmd.dev_path_len", unsafe.Offsetof(ctrlCmd{}.devPathLen), 24},

		{"dev_info.nr_hw_queues", unsafe.Offsetof(devInfo{}.nrHWQueues), 0},
		{"dev_info.queue_depth", unsafe.Offsetof(devInfo{}.queueDepth), 2},
		{"dev_info.state", unsafe.Offsetof(devInfo{}.state), 4},
		{"dev_info.io_desc_size", unsafe.Offsetof(devInfo{}.ioDescSize), 6},
		{"dev_info.max_io_buf_bytes", unsafe.Offsetof(devInfo{}.maxIOBufBytes), 8},
		{"dev_info.dev_id", unsafe.Offsetof(devInfo{}.devID), 12},
		{"dev_info.ublksrv_pid", unsafe.Offsetof(devInfo{}.ublksrvPID), 16},
		{"dev_info.flags", unsafe.Offsetof(devInfo{}.flags), 24},
		{"dev_info.ublksrv_flags", unsafe.Offsetof(devInfo{}.ublksrvFlags), 32},
		{"dev_info.owner_uid", unsafe.Offsetof(devInfo{}.ownerUID), 40},
		{"dev_info.owner_gid", unsafe.Offsetof(devInfo{}.ownerGID), 44},

		{"io_desc.op_flags", unsafe.Offsetof(ioDesc{}.opFlags), 0},
		{"io_desc.nr_sectors", unsafe.Offsetof(ioDesc{}.nrSectors), 4},
		{"io_desc.start_sector", unsafe.Offsetof(ioDesc{}.startSector), 8},
		{"io_desc.addr", unsafe.Offsetof(ioDesc{}.addr), 16},

		{"io_cmd.q_id", unsafe.Offsetof(ioCmd{}.qID), 0},
		{"io_cmd.tag", unsafe.Offsetof(ioCmd{}.tag), 2},
		{"io_cmd.result", unsafe.Offsetof(ioCmd{}.result), 4},
		{"io_cmd.addr", unsafe.Offsetof(ioCmd{}.addr), 8},

		{"param_basic.attrs", unsafe.Offsetof(paramBasic{}.attrs), 0},
		{"param_basic.logical_bs_shift", unsafe.Offsetof(paramBasic{}.logicalBSShift), 4},
		{"param_basic.physical_bs_shift", unsafe.Offsetof(paramBasic{}.physicalBSShift), 5},
		{"param_basic.io_opt_shift", unsafe.Offsetof(paramBasic{}.ioOptShift), 6},
		{"param_basic.io_min_shift", unsafe.Offsetof(paramBasic{}.ioMinShift), 7},
		{"param_basic.max_sectors", unsafe.Offsetof(paramBasic{}.maxSectors), 8},
		{"param_basic.chunk_sectors", unsafe.Offsetof(paramBasic{}.chunkSectors), 12},
		{"param_basic.dev_sectors", unsafe.Offsetof(paramBasic{}.devSectors), 16},
		{"param_basic.virt_boundary_mask", unsafe.Offsetof(paramBasic{}.virtBoundaryMask), 24},

		{"param_discard.discard_alignment", unsafe.Offsetof(paramDiscard{}.discardAlignment), 0},
		{"param_discard.discard_granularity", unsafe.Offsetof(paramDiscard{}.discardGranularity), 4},
		{"param_discard.max_discard_sectors", unsafe.Offsetof(paramDiscard{}.maxDiscardSectors), 8},
		{"param_discard.max_write_zeroes_sectors", unsafe.Offsetof(paramDiscard{}.maxWriteZeroesSectors), 12},
		{"param_discard.max_discard_segments", unsafe.Offsetof(paramDiscard{}.maxDiscardSegments), 16},

		{"param_segment.seg_boundary_mask", unsafe.Offsetof(paramSegment{}.segBoundaryMask), 0},
		{"param_segment.max_segment_size", unsafe.Offsetof(paramSegment{}.maxSegmentSize), 8},
		{"param_segment.max_segments", unsafe.Offsetof(paramSegment{}.maxSegments), 12},

		{"params.len", unsafe.Offsetof(params{}.len), 0},
		{"params.types", unsafe.Offsetof(params{}.types), 4},
		{"params.basic", unsafe.Offsetof(params{}.basic), 8},
		{"params.discard", unsafe.Offsetof(params{}.discard), 40},
		{"params.devt", unsafe.Offsetof(params{}.devt), 60},
		{"params.zoned", unsafe.Offsetof(params{}.zoned), 76},
		{"params.dma", unsafe.Offsetof(params{}.dma), 108},
		{"params.seg", unsafe.Offsetof(params{}.seg), 120},
		{"params.integrity", unsafe.Offsetof(params{}.integrity), 136},
	} {
		if tt.got != tt.want {
			t.Errorf("offset of %s = %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

func TestCommandNumbers(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want uint32
	}{
		{"UBLK_U_CMD_GET_QUEUE_AFFINITY", cmdGetQueueAffinity, 0x80207501},
		{"UBLK_U_CMD_GET_DEV_INFO", cmdGetDevInfo, 0x80207502},
		{"UBLK_U_CMD_ADD_DEV", cmdAddDev, 0xc0207504},
		{"UBLK_U_CMD_DEL_DEV", cmdDelDev, 0xc0207505},
		{"UBLK_U_CMD_START_DEV", cmdStartDev, 0xc0207506},
		{"UBLK_U_CMD_STOP_DEV", cmdStopDev, 0xc0207507},
		{"UBLK_U_CMD_SET_PARAMS", cmdSetParams, 0xc0207508},
		{"UBLK_U_CMD_GET_PARAMS", cmdGetParams, 0x80207509},
		{"UBLK_U_CMD_START_USER_RECOVERY", cmdStartUserRecovery, 0xc0207510},
		{"UBLK_U_CMD_END_USER_RECOVERY", cmdEndUserRecovery, 0xc0207511},
		{"UBLK_U_CMD_GET_DEV_INFO2", cmdGetDevInfo2, 0x80207512},
		{"UBLK_U_CMD_GET_FEATURES", cmdGetFeatures, 0x80207513},
		{"UBLK_U_CMD_DEL_DEV_ASYNC", cmdDelDevAsync, 0x80207514},
		{"UBLK_U_CMD_UPDATE_SIZE", cmdUpdateSize, 0xc0207515},
		{"UBLK_U_CMD_QUIESCE_DEV", cmdQuiesceDev, 0xc0207516},
		{"UBLK_U_CMD_TRY_STOP_DEV", cmdTryStopDev, 0xc0207517},
		{"UBLK_U_IO_FETCH_REQ", cmdFetch, 0xc0107520},
		{"UBLK_U_IO_COMMIT_AND_FETCH_REQ", cmdCommitAndFetch, 0xc0107521},
		{"UBLK_U_IO_REGISTER_IO_BUF", cmdRegisterBuf, 0xc0107523},
		{"UBLK_U_IO_UNREGISTER_IO_BUF", cmdUnregisterBuf, 0xc0107524},
	} {
		if tt.got != tt.want {
			t.Errorf("%s = %#x, want %#x", tt.name, tt.got, tt.want)
		}
	}
}

func TestConstants(t *testing.T) {
	if ResAbort != -int(unix.ENODEV) {
		t.Errorf("ResAbort = %d, want UBLK_IO_RES_ABORT = -ENODEV = %d", ResAbort, -int(unix.ENODEV))
	}
	for _, tt := range []struct {
		name      string
		got, want uint32
	}{
		{"UBLK_IO_F_FAILFAST_DEV", FlagFailfastDev, 0x100},
		{"UBLK_IO_F_FAILFAST_TRANSPORT", FlagFailfastTransport, 0x200},
		{"UBLK_IO_F_FAILFAST_DRIVER", FlagFailfastDriver, 0x400},
		{"UBLK_IO_F_META", FlagMeta, 0x800},
		{"UBLK_IO_F_FUA", FlagFUA, 0x2000},
		{"UBLK_IO_F_NOUNMAP", FlagNoUnmap, 0x8000},
		{"UBLK_IO_F_SWAP", FlagSwap, 0x10000},
		{"UBLK_IO_F_NEED_REG_BUF", FlagNeedRegBuf, 0x20000},
	} {
		if tt.got != tt.want {
			t.Errorf("%s = %#x, want %#x", tt.name, tt.got, tt.want)
		}
	}
}

func TestOffsetsOfData(t *testing.T) {
	for _, tt := range []struct {
		queue int
		tag   uint16
		want  int64
	}{
		{0, 0, 0x80000000},
		{0, 1, 0x80000000 + 1<<25},
		{1, 0, 0x80000000 + 1<<41},
		{4095, 4095, 0x80000000 + 4095<<41 + 4095<<25},
	} {
		if got := UserCopyOffset(tt.queue, tt.tag); got != tt.want {
			t.Errorf("UserCopyOffset(%d, %d) = %#x, want %#x", tt.queue, tt.tag, got, tt.want)
		}
	}
	if got := AutoBuf(0x1234, AutoBufFallback); got != 0x1_1234 {
		t.Errorf("AutoBuf(0x1234, fallback) = %#x, want 0x11234", got)
	}
}
