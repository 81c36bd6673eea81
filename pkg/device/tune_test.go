package device

import (
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a thread cannot be is an error that says what was asked and what to do.
func TestTuningThatIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		tune tuning
		want []string
	}{
		"no such CPU":      {tuning{cpu: 8000}, []string{"CPU 8000", "invalid argument", "Leave pin out"}},
		"no such priority": {tuning{cpu: -1, realtime: 1000}, []string{"priority 1000", "invalid argument", "CAP_SYS_NICE"}},
	} {
		refused := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread is spoilt
			refused <- c.tune.apply()
		}()
		err := <-refused
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want an error with %q", name, err, want)
			}
		}
	}
}

// Memory that is locked, as with delayd --mlock, is given back all the same.
func TestBuffersGiveBackLockedMemory(t *testing.T) {
	for name, locked := range map[string]bool{"locked": true, "not locked": false} {
		b, err := newBuffers(16, 4096)
		must(t, err)
		if locked {
			must(t, unix.Mlock(b.mem))
		}
		for i := range b.mem {
			b.mem[i] = 1
		}
		if n := resident(t, b.mem); n != 16 {
			t.Fatalf("%s: %d pages of 16 are there when all are written", name, n)
		}
		b.giveBack()
		if n := resident(t, b.mem); n != 0 {
			t.Errorf("%s: %d pages of 16 are kept", name, n)
		}
		must(t, b.close())
	}
}

// resident counts the pages of mem that are in memory.
func resident(t *testing.T, mem []byte) int {
	t.Helper()
	pages := make([]byte, len(mem)/unix.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	n := 0
	for _, p := range pages {
		n += int(p & 1)
	}
	return n
}
