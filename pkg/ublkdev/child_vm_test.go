package ublkdev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A process that serves a device must not use it: a thread of it that waits for
// its own device cannot be killed. So the tests' I/O is done by this binary,
// started again with childEnv set.
const childEnv = "DELAYD_UBLKDEV_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := childMain(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child runs one of childMain's jobs on a device and returns what it printed.
func child(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func mustChild(t *testing.T, args ...string) string {
	t.Helper()
	out, err := child(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// childMain does JOB DEVICE [ARGUMENT…].
func childMain(args []string) error {
	job, dev, rest := args[0], args[1], args[2:]
	if job == "as-nobody" {
		return childAsNobody(dev)
	}
	flags := unix.O_RDWR | unix.O_DIRECT | unix.O_CLOEXEC
	fd, err := unix.Open(dev, flags, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dev, err)
	}
	defer unix.Close(fd)
	switch job {
	case "scribble": // SEED SIZE COUNT
		return childScribble(fd, rest)
	case "read": // prints the errno of a read of 4096 bytes
		buf, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		_, err = unix.Pread(fd, buf, 0)
		var errno unix.Errno
		if errors.As(err, &errno) {
			fmt.Print(unix.ErrnoName(errno))
		}
		return nil
	case "flush":
		return unix.Fsync(fd)
	case "fua": // one write that is durable when it returns
		buf, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		sync, err := unix.Open(dev, flags|unix.O_DSYNC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(sync)
		_, err = unix.Pwrite(sync, buf, 0)
		return err
	case "discard": // the second 64 KiB
		return childRange(fd, unix.BLKDISCARD)
	case "zeroout":
		return childRange(fd, unix.BLKZEROOUT)
	case "hold": // keeps it open until killed
		fmt.Println("open")
		time.Sleep(time.Hour)
	}
	return fmt.Errorf("unknown job %s", job)
}

func childRange(fd int, request uintptr) error {
	span := [2]uint64{64 << 10, 64 << 10}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&span))); errno != 0 {
		return errno
	}
	return nil
}

// childAsNobody gives root up and prints the error of what it then may not do.
func childAsNobody(what string) error {
	const nobody = 65534
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
		return err
	}
	c, err := Open()
	if what == "open" {
		fmt.Print(err)
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	o := AddOptions{ID: -1, Queues: 1, Depth: 1, MaxIOBytes: 4096}
	if what == "add-unprivileged" {
		o.Flags = FeatureUnprivilegedDev
	}
	_, err = c.Add(context.Background(), o)
	fmt.Print(err)
	return nil
}

// scribble changes model as the child's job of the same name changes the
// device: count writes of random blocks at random places.
func scribble(seed uint64, count int, model []byte, write func(off int, data []byte) error) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range count {
		length := 512 * (1 + rng.IntN(min(600, len(model)/512)))
		off := 512 * rng.IntN((len(model)-length)/512+1)
		data := model[off : off+length]
		for i := 0; i < length; i += 8 {
			v := rng.Uint64()
			for j := range 8 {
				data[i+j] = byte(v >> (8 * j))
			}
		}
		if err := write(off, data); err != nil {
			return err
		}
	}
	return nil
}

func childScribble(fd int, args []string) error {
	var n [3]int
	for i := range n {
		v, err := strconv.Atoi(args[i])
		if err != nil {
			return err
		}
		n[i] = v
	}
	seed, size, count := uint64(n[0]), n[1], n[2]
	mapped, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	model, back := mapped[:size], mapped[size:]
	if err := childReadAll(fd, model); err != nil {
		return fmt.Errorf("read before: %w", err)
	}
	err = scribble(seed, count, model, func(off int, data []byte) error {
		if n, err := unix.Pwrite(fd, data, int64(off)); err != nil || n != len(data) {
			return fmt.Errorf("write %d bytes at %d: %d, %w", len(data), off, n, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := childReadAll(fd, back); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if !bytes.Equal(model, back) {
		return errors.New("what was read is not what was written")
	}
	return nil
}

func childReadAll(fd int, dst []byte) error {
	for off := 0; off < len(dst); off += 64 << 10 {
		end := min(off+64<<10, len(dst))
		if n, err := unix.Pread(fd, dst[off:end], int64(off)); err != nil || n != end-off {
			return fmt.Errorf("read %d bytes at %d: %d, %w", end-off, off, n, err)
		}
	}
	return nil
}
