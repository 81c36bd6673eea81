package uring

import (
	"testing"
	"unsafe"
)

// Sizes and offsets are those of include/uapi/linux/io_uring.h on 64-bit
// machines (pahole -C NAME vmlinux).
func TestABI(t *testing.T) {
	var (
		sqe   SQE
		cqe   CQE
		big   BigCQE
		p     params
		sq    sqRingOffsets
		cq    cqRingOffsets
		ge    geteventsArg
		reg   rsrcRegister
		up    rsrcUpdate
		up2   rsrcUpdate2
		probe probe
		op    probeOp
	)
	for _, c := range []struct {
		what      string
		got, want uintptr
	}{
		{"io_uring_sqe", unsafe.Sizeof(sqe), 64},
		{"io_uring_sqe.flags", unsafe.Offsetof(sqe.Flags), 1},
		{"io_uring_sqe.ioprio", unsafe.Offsetof(sqe.IOPrio), 2},
		{"io_uring_sqe.fd", unsafe.Offsetof(sqe.FD), 4},
		{"io_uring_sqe.off", unsafe.Offsetof(sqe.Off), 8},
		{"io_uring_sqe.addr", unsafe.Offsetof(sqe.Addr), 16},
		{"io_uring_sqe.len", unsafe.Offsetof(sqe.Len), 24},
		{"io_uring_sqe.rw_flags", unsafe.Offsetof(sqe.OpFlags), 28},
		{"io_uring_sqe.user_data", unsafe.Offsetof(sqe.UserData), 32},
		{"io_uring_sqe.buf_index", unsafe.Offsetof(sqe.BufIndex), 40},
		{"io_uring_sqe.personality", unsafe.Offsetof(sqe.Personality), 42},
		{"io_uring_sqe.file_index", unsafe.Offsetof(sqe.FileIndex), 44},
		{"io_uring_sqe.addr3", unsafe.Offsetof(sqe.Addr3), 48},
		{"io_uring_sqe.cmd", cmdOffset, 48},
		{"io_uring_cqe", unsafe.Sizeof(cqe), 16},
		{"io_uring_cqe.res", unsafe.Offsetof(cqe.Res), 8},
		{"io_uring_cqe.flags", unsafe.Offsetof(cqe.Flags), 12},
		{"io_uring_cqe of 32 bytes", unsafe.Sizeof(big), 32},
		{"io_uring_cqe.big_cqe", unsafe.Offsetof(big.Extra), 16},
		{"io_uring_params", unsafe.Sizeof(p), 120},
		{"io_uring_params.features", unsafe.Offsetof(p.features), 20},
		{"io_uring_params.sq_off", unsafe.Offsetof(p.sqOff), 40},
		{"io_uring_params.cq_off", unsafe.Offsetof(p.cqOff), 80},
		{"io_sqring_offsets", unsafe.Sizeof(sq), 40},
		{"io_sqring_offsets.flags", unsafe.Offsetof(sq.flags), 16},
		{"io_sqring_offsets.array", unsafe.Offsetof(sq.array), 24},
		{"io_cqring_offsets", unsafe.Sizeof(cq), 40},
		{"io_cqring_offsets.overflow", unsafe.Offsetof(cq.overflow), 16},
		{"io_cqring_offsets.cqes", unsafe.Offsetof(cq.cqes), 20},
		{"io_uring_getevents_arg", unsafe.Sizeof(ge), 24},
		{"io_uring_getevents_arg.ts", unsafe.Offsetof(ge.ts), 16},
		{"io_uring_rsrc_register", unsafe.Sizeof(reg), 32},
		{"io_uring_clock_register", unsafe.Sizeof(clockRegister{}), 16},
		{"io_uring_rsrc_register.data", unsafe.Offsetof(reg.data), 16},
		{"io_uring_rsrc_update", unsafe.Sizeof(up), 16},
		{"io_uring_rsrc_update2", unsafe.Sizeof(up2), 32},
		{"io_uring_rsrc_update2.nr", unsafe.Offsetof(up2.nr), 24},
		{"io_uring_probe", unsafe.Offsetof(probe.ops), 16},
		{"io_uring_probe_op", unsafe.Sizeof(op), 8},
		{"io_uring_probe_op.flags", unsafe.Offsetof(op.flags), 2},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, the kernel says %d", c.what, c.got, c.want)
		}
	}
}

func TestCommandArea(t *testing.T) {
	s := SQE{Off: ^uint64(0)}
	s.SetCmdOp(0xc0207512)
	if s.Off != 0xc0207512 {
		t.Errorf("SetCmdOp left off = %#x", s.Off)
	}
	*(*uint64)(s.Cmd()) = 1
	*(*uint64)(unsafe.Add(s.Cmd(), 8)) = 2
	if s.Addr3 != 1 || s.Pad != 2 {
		t.Errorf("Cmd is at %#x and %#x of the entry", s.Addr3, s.Pad)
	}
}
