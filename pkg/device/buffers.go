package device

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// buffers is the memory of one queue's requests: for each tag as many bytes as
// the largest request. It is outside the Go heap, because the kernel copies to
// and from it while a command is pending, page-aligned for O_DIRECT, and takes
// pages only when they are touched.
type buffers struct {
	mem  []byte
	each uintptr // bytes per tag, a multiple of the page size
}

// keepBytes is what a queue may keep after a burst; what it touched beyond that
// goes back to the machine when the queue falls idle.
const keepBytes = 4 << 20

func newBuffers(depth int, each uint32) (*buffers, error) {
	page := uintptr(unix.Getpagesize())
	size := (uintptr(each) + page - 1) &^ (page - 1)
	mem, err := unix.Mmap(-1, 0, int(size)*depth, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d request buffers of %d bytes: %w", depth, size, err)
	}
	// A huge page for a 4 KiB request would undo the lazy faulting.
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE)
	return &buffers{mem: mem, each: size}, nil
}

// at returns the buffer of tag; nil with zero copy.
func (b *buffers) at(tag uint16) unsafe.Pointer {
	if b == nil {
		return nil
	}
	return unsafe.Pointer(&b.mem[uintptr(tag)*b.each])
}

// giveBack returns every page to the machine, also where the daemon has locked
// its memory. No request may be under way.
func (b *buffers) giveBack() {
	if unix.Madvise(b.mem, unix.MADV_DONTNEED) == unix.EINVAL {
		_ = unix.Madvise(b.mem, unix.MADV_DONTNEED_LOCKED) // Linux 5.18
	}
}

func (b *buffers) close() error {
	if b == nil {
		return nil
	}
	return unix.Munmap(b.mem)
}
