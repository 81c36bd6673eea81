package backend

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// zeroes is read-only memory outside the Go heap, from which zeroes are written
// where a file system cannot do it by itself. It is the kernel's one zero page
// many times over, so it costs page tables only, and it stays until the end.
var zeroes []byte

const zeroesLen = 1 << 20

// mapZeroes makes zeroes, once.
var mapZeroes = sync.OnceValue(func() error {
	mem, err := unix.Mmap(-1, 0, zeroesLen, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map %d bytes of zeroes: %w", zeroesLen, err)
	}
	zeroes = mem
	return nil
})
