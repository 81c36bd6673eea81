package backend

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// direct is what direct I/O to a file must be aligned to, in bytes: powers of
// two, at most a page.
type direct struct {
	offset uint32 // of positions and lengths, at least 512
	memory uint32 // of buffers
}

// goDirect makes an open file's I/O direct, if its file system can and asks for
// no more alignment than a ublk device's block can have; otherwise the file
// stays buffered. It asks statx (STATX_DIOALIGN, Linux 6.1), and, since some
// file systems do not say, reads the first block.
func goDirect(fd int) (direct, bool) {
	page := os.Getpagesize()
	d := direct{offset: sector, memory: sector}
	var stx unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stx) == nil && stx.Mask&unix.STATX_DIOALIGN != 0 {
		if !isPowerOf2(stx.Dio_offset_align) || !isPowerOf2(stx.Dio_mem_align) || stx.Dio_mem_align > uint32(page) {
			return d, false
		}
		d = direct{offset: max(stx.Dio_offset_align, sector), memory: stx.Dio_mem_align}
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return d, false
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_DIRECT); err != nil {
		return d, false
	}
	buf, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil {
		defer unix.Munmap(buf)
		for ; d.offset <= uint32(page); d.offset *= 2 {
			if _, err := unix.Pread(fd, buf[:d.offset], 0); !errors.Is(err, unix.EINVAL) {
				return d, true
			}
		}
	}
	// Back to where it was; a file that was opened without it takes this.
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return d, false
}
