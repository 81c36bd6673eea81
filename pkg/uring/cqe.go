package uring

import "unsafe"

// CQE is one completion: struct io_uring_cqe of
// include/uapi/linux/io_uring.h, without the 16 bytes that a ring with
// Config.CQE32 adds (see [BigCQE]).
type CQE struct {
	UserData uint64 // SQE.UserData, or what an OpMsgRing sent
	Res      int32  // the operation's result, or -errno
	Flags    uint32 // CQE…
}

// BigCQE is a completion of a ring with Config.CQE32, whole.
type BigCQE struct {
	CQE
	Extra [2]uint64 // big_cqe
}

const (
	cqeSize    = unsafe.Sizeof(CQE{})
	bigCQESize = unsafe.Sizeof(BigCQE{})
)

// Flags of a CQE, IORING_CQE_F_* of include/uapi/linux/io_uring.h.
const (
	CQEBuffer uint32 = 1 << 0 // the upper 16 bits name the buffer that was taken
	CQEMore   uint32 = 1 << 1 // the same SQE will have more completions
	CQENotif  uint32 = 1 << 3 // a notification, not a result
)

// Reap copies at most len(dst) completions to dst, oldest first, frees their
// places in the completion queue and returns how many there were. It makes no
// system call, so it neither runs the kernel's task work nor brings back what
// overflowed the queue: a Submit or Wait does, and [Ring.Ready] says when one
// is due.
//
// On a ring with Config.CQE32 the additional 16 bytes are dropped; see
// [Ring.ReapBig].
func (r *Ring) Reap(dst []CQE) int {
	n := r.completions(len(dst))
	if n == 0 {
		return 0
	}
	for i := range dst[:n] {
		dst[i] = *r.cqe(r.cq.localHead + uint32(i))
	}
	r.release(n)
	return n
}

// ReapBig is [Ring.Reap] for a ring with Config.CQE32. On any other ring Extra
// is zero.
func (r *Ring) ReapBig(dst []BigCQE) int {
	n := r.completions(len(dst))
	if n == 0 {
		return 0
	}
	for i := range dst[:n] {
		p := r.cqe(r.cq.localHead + uint32(i))
		if r.cq.big {
			dst[i] = *(*BigCQE)(unsafe.Pointer(p))
		} else {
			dst[i] = BigCQE{CQE: *p}
		}
	}
	r.release(n)
	return n
}
