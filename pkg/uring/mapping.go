package uring

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapRings maps the memory that the ring shares with the kernel, and a page of
// our own for the arguments of an enter.
func (r *Ring) mapRings(p *params) error {
	cqe, sqe := cqeSize, sqeSize
	if r.config.CQE32 {
		cqe = bigCQESize
	}
	if r.config.SQE128 {
		sqe *= 2
	}
	// IORING_FEAT_SINGLE_MMAP: one mapping holds both queues, the later end of
	// which is its size.
	size := max(
		uintptr(p.sqOff.array)+uintptr(p.sqEntries)*unsafe.Sizeof(uint32(0)),
		uintptr(p.cqOff.cqes)+uintptr(p.cqEntries)*cqe)
	var err error
	if r.rings, err = r.mmap(offSQRing, size); err != nil {
		return fmt.Errorf("map the queues of io_uring %d: %w", r.fd, err)
	}
	if r.sqes, err = r.mmap(offSQEs, uintptr(p.sqEntries)*sqe); err != nil {
		return fmt.Errorf("map the entries of io_uring %d: %w", r.fd, err)
	}
	// Some arguments hold the address of others, as a number that the garbage
	// collector does not follow: a goroutine's stack may move between taking that
	// address and the call, this page does not.
	r.argsMem, err = unix.Mmap(-1, 0, int(unsafe.Sizeof(args{})),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map the arguments of io_uring %d: %w", r.fd, err)
	}
	r.args = (*args)(unsafe.Pointer(unsafe.SliceData(r.argsMem)))
	r.args.getevents.ts = uint64(uintptr(unsafe.Pointer(&r.args.ts)))

	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sq = submission{
		head:      at(p.sqOff.head),
		tail:      at(p.sqOff.tail),
		flags:     at(p.sqOff.flags),
		localTail: *at(p.sqOff.tail),
		entries:   p.sqEntries,
		mask:      p.sqEntries - 1,
		shift:     uint8(bits.TrailingZeros64(uint64(sqe))),
		base:      unsafe.Pointer(unsafe.SliceData(r.sqes)),
	}
	r.cq = completion{
		head:      at(p.cqOff.head),
		tail:      at(p.cqOff.tail),
		overflow:  at(p.cqOff.overflow),
		localHead: *at(p.cqOff.head),
		mask:      p.cqEntries - 1,
		shift:     uint8(bits.TrailingZeros64(uint64(cqe))),
		big:       r.config.CQE32,
		base:      unsafe.Pointer(&r.rings[p.cqOff.cqes]),
	}
	// Each place of the submission queue names the SQE with its own number, once
	// and for all: SQEs are submitted in the order in which they were handed out.
	// The first publish orders these stores before the kernel's reads.
	array := unsafe.Slice(at(p.sqOff.array), p.sqEntries)
	for i := range array {
		array[i] = uint32(i)
	}

	r.enterFD = uintptr(r.fd)
	if r.feats&featNoIowait != 0 {
		r.idleFlags = enterNoIowait
	}
	return nil
}

func (r *Ring) mmap(off int64, size uintptr) ([]byte, error) {
	return unix.Mmap(r.fd, off, int(size),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
}

// unmapRings undoes mapRings, also a half-done one. Afterwards both queues are
// empty and have no room, so that a late Next or Reap finds nothing rather than
// memory that is somebody else's.
func (r *Ring) unmapRings() error {
	none := new(uint32)
	r.sq = submission{head: none, tail: none, flags: none}
	r.cq = completion{head: none, tail: none, overflow: none}
	r.args = nil
	var errs []error
	for _, m := range []*[]byte{&r.rings, &r.sqes, &r.argsMem} {
		if *m == nil {
			continue
		}
		if err := unix.Munmap(*m); err != nil {
			errs = append(errs, fmt.Errorf("unmap io_uring %d: %w", r.fd, err))
		}
		*m = nil
	}
	return errors.Join(errs...)
}
