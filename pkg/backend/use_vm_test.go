package backend

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

func TestBlockInUse(t *testing.T) {
	n := disk(t, fixture.MemoryBacked(32))
	f := fixture.For(t)
	busy := func(path string, want ...string) {
		t.Helper()
		fds := openFDs(t)
		_, err := Open(path, Options{})
		wantError(t, err, append(want, "open "+path+" exclusively: device or resource busy (", "or pass --shared to insist")...)
		if !errors.Is(err, ErrInUse) || !errors.Is(err, unix.EBUSY) {
			t.Errorf("%v is not both ErrInUse and EBUSY", err)
		}
		b, err := Open(path, Options{Shared: true})
		if err != nil {
			t.Fatalf("--shared: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if got := openFDs(t); got != fds {
			t.Errorf("%d descriptors open, were %d", got, fds)
		}
	}
	b, err := Open(n.Path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	busy(n.Path, fmt.Sprintf("open in this process (pid %d)", os.Getpid()), "end that")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	f.Mkfs("ext4", n.Path, "-q", "-O", "^has_journal")
	m := f.Mount(n.Path, "ext4")
	busy(n.Path, "mounted on "+m.Dir, "unmount it")

	// A file on it knows its disk.
	file := open(t, tempFile(t, m.Dir, 1<<20), Options{})
	dev, ok := DeviceNumber(file)
	whole, err := Open(n.Path, Options{Shared: true, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	if own, _ := DeviceNumber(whole); !ok || dev != own {
		t.Errorf("file's device %v, %v; the disk is %v", dev, ok, own)
	}
}

func TestBlockInUseBySwap(t *testing.T) {
	n := disk(t, fixture.MemoryBacked(32))
	if _, err := fixture.Command("mkswap", n.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := fixture.Command("swapon", n.Path); err != nil {
		if strings.Contains(err.Error(), "not implemented") {
			t.Skip("this kernel does not swap")
		}
		t.Fatal(err)
	}
	defer func() {
		if _, err := fixture.Command("swapoff", n.Path); err != nil {
			t.Error(err)
		}
	}()
	_, err := Open(n.Path, Options{})
	wantError(t, err, "(swap): swapoff it")
}

// TestBlockStack walks from a mapped device and from a loop device down to the
// disk below.
func TestBlockStack(t *testing.T) {
	n := disk(t, fixture.MemoryBacked(32))
	f := fixture.For(t)
	own, ok := blockNode(n.Path)
	if !ok {
		t.Fatal(n.Path)
	}
	f.Mkfs("ext4", n.Path, "-q", "-O", "^has_journal")
	m := f.Mount(n.Path, "ext4")
	l := f.Loop(tempFile(t, m.Dir, 4<<20), fixture.LoopOptions{})
	loop, _ := blockNode(l.Path)
	got, err := DependsOn(loop)
	if err != nil || len(got) != 2 || got[0] != loop || got[1] != own {
		t.Errorf("loop %v on %v: %v, %v", loop, own, got, err)
	}

	dm := f.DM("0 8192 linear " + l.Path + " 0")
	mapped, _ := blockNode(dm.Path)
	got, err = DependsOn(mapped)
	if err != nil || len(got) != 3 || got[2] != own {
		t.Errorf("dm %v on loop %v on %v: %v, %v", mapped, loop, own, got, err)
	}
	_, err = Open(l.Path, Options{})
	wantError(t, err, "holder dm-", "("+dm.Name+")", "remove its holder")
}

func TestBlockPartition(t *testing.T) {
	dir := t.TempDir()
	disk(t, fixture.MemoryBacked(1)) // for the VM's requirement
	path := tempFile(t, dir, 16<<20)
	// An MBR with one partition of 4 MiB at 1 MiB.
	mbr := make([]byte, 512)
	copy(mbr[446:], []byte{0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0x20, 0, 0})
	mbr[510], mbr[511] = 0x55, 0xaa
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(mbr, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	l := fixture.For(t).Loop(path, fixture.LoopOptions{Partitions: true})
	part, err := fixture.WaitDisk(l.Name+"p1", 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(part, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if lim := b.Limits(); lim.Size != 4<<20 || lim.LogicalBlock != 512 || lim.MaxSegments == 0 {
		t.Errorf("limits %+v", lim)
	}
	if got, _ := DeviceNumber(b); got != mustDev(t, part) {
		t.Errorf("device %v, want %v", got, mustDev(t, part))
	}
	got, err := DependsOn(mustDev(t, part))
	if err != nil || len(got) < 2 || got[1] != mustDev(t, l.Path) {
		t.Errorf("a partition depends on %v, %v", got, err)
	}
	d := newDriver(t, 4096)
	if got, res := d.read(b, 0, 4096); res != 4096 || string(got) != string(pattern(16<<20, 7)[1<<20:1<<20+4096]) {
		t.Errorf("read: %d (%v), or not the partition's first bytes", res, errno(res))
	}
	// The disk is taken through its partition.
	_, err = Open(l.Path, Options{})
	wantError(t, err, "busy", fmt.Sprintf("open in this process (pid %d)", os.Getpid()))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustDev(t *testing.T, path string) DevNo {
	t.Helper()
	d, ok := blockNode(path)
	if !ok {
		t.Fatalf("%s is no block device", path)
	}
	return d
}

func TestBlockEmpty(t *testing.T) {
	disk(t, fixture.MemoryBacked(1))
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		t.Fatal(err)
	}
	path, err := fixture.WaitDisk(fmt.Sprintf("loop%d", n), 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(path, Options{})
	if err == nil {
		t.Fatal("an empty device was opened")
	}
	// A loop device without a file is empty or, from some kernel on, refused.
	if !strings.Contains(err.Error(), "is empty") && !errors.Is(err, unix.ENXIO) {
		t.Errorf("%v", err)
	}
}

// TestFileInUseByTheKernel: a loop device and swap take no lock.
func TestFileInUseByTheKernel(t *testing.T) {
	n := disk(t, fixture.MemoryBacked(64))
	f := fixture.For(t)
	f.Mkfs("ext4", n.Path, "-q", "-O", "^has_journal")
	m := f.Mount(n.Path, "ext4")
	path := tempFile(t, m.Dir, 4<<20)
	l := f.Loop(path, fixture.LoopOptions{})
	_, err := Open(path, Options{})
	wantError(t, err, path, "in use by the kernel ("+l.Name+")", "--shared")
	if !errors.Is(err, ErrInUse) {
		t.Errorf("%v is not ErrInUse", err)
	}
	open(t, path, Options{Shared: true})
}
