package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cpuTime is how much CPU a process has used, user and system, all threads: the
// clock that clock_getcpuclockid(3) finds. It counts ns where the utime and stime
// of /proc/PID/stat count ticks of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED, include/linux/posix-timers_types.h
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &ts); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// cpuOf is the CPU time of several processes.
func cpuOf(pids []int) (time.Duration, error) {
	sum := time.Duration(0)
	for _, pid := range pids {
		d, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// resident is how many bytes of memory a process occupies.
func resident(pid int) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kB, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kB * 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no VmRSS", path)
}

// fill writes the part of a disk that is measured. Many requests at once: the
// disk may be one that delays.
func fill(path string) error {
	const chunk, writers = 128 << 10, 32
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	mem, err := unix.Mmap(-1, 0, chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("map a buffer: %w", err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	errs := make([]error, writers)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for at := w * chunk; at < spanMiB<<20; at += writers * chunk {
				n, err := unix.Pwrite(fd, mem, int64(at))
				if err == nil && n < chunk {
					err = fmt.Errorf("%d of %d bytes done", n, chunk)
				}
				if err != nil {
					errs[w] = fmt.Errorf("write to %s at byte %d: %w", path, at, err)
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// flushCache writes back and drops what the page cache has of a disk.
func flushCache(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("write %s back: %w", path, err)
	}
	var none uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKFLSBUF, uintptr(unsafe.Pointer(&none))); errno != 0 {
		return fmt.Errorf("drop the cache of %s: %w", path, errno)
	}
	return nil
}
