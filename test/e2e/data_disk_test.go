package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/ublkdev"
	"github.com/delayd/delayd/test/fixture"
)

const mib = 1 << 20

// disk is a block device, or a file, opened directly: what is read comes from
// it and not from the page cache.
type disk struct {
	t    testing.TB
	path string
	fd   int
	size int64
}

// openDisk opens path with O_DIRECT, or through the cache if its file system
// has no direct I/O; it is closed when the test ends, if not before.
func openDisk(t testing.TB, path string, mode int) *disk {
	t.Helper()
	fd, err := unix.Open(path, mode|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.Open(path, mode|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	size, err := unix.Seek(fd, 0, io.SeekEnd)
	if err != nil {
		t.Fatalf("size of %s: %v", path, err)
	}
	d := &disk{t: t, path: path, fd: fd, size: size}
	t.Cleanup(d.close)
	return d
}

func (d *disk) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
		d.fd = -1
	}
}

// read fills p, which is aligned memory, from offset.
func (d *disk) read(p []byte, offset int64) error {
	n, err := unix.Pread(d.fd, p, offset)
	if err == nil && n != len(p) {
		err = fmt.Errorf("%d bytes: %w", n, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return fmt.Errorf("read %d bytes of %s at %d: %w", len(p), d.path, offset, err)
	}
	return nil
}

// write writes p, which is aligned memory, at offset, with RWF_* flags.
func (d *disk) write(p []byte, offset int64, flags int) error {
	n, err := unix.Pwritev2(d.fd, [][]byte{p}, offset, flags)
	if err == nil && n != len(p) {
		err = fmt.Errorf("%d bytes: %w", n, io.ErrShortWrite)
	}
	if err != nil {
		return fmt.Errorf("write %d bytes of %s at %d: %w", len(p), d.path, offset, err)
	}
	return nil
}

func (d *disk) sync() error {
	if err := unix.Fsync(d.fd); err != nil {
		return fmt.Errorf("fsync %s: %w", d.path, err)
	}
	return nil
}

func (d *disk) discard(offset, length int64) error {
	return d.rangeIoctl("discard", unix.BLKDISCARD, offset, length)
}

// zero writes zeroes, of which the space stays allocated (blkdev_issue_zeroout
// with BLKDEV_ZERO_NOUNMAP).
func (d *disk) zero(offset, length int64) error {
	return d.rangeIoctl("zero", unix.BLKZEROOUT, offset, length)
}

// punch writes zeroes that may be unmapped (block/fops.c, blkdev_fallocate).
func (d *disk) punch(offset, length int64) error {
	err := unix.Fallocate(d.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	if err != nil {
		return fmt.Errorf("punch %d bytes of %s at %d: %w", length, d.path, offset, err)
	}
	return nil
}

func (d *disk) rangeIoctl(what string, request uintptr, offset, length int64) error {
	r := [2]uint64{uint64(offset), uint64(length)}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), request, uintptr(unsafe.Pointer(&r)))
	if e != 0 {
		return fmt.Errorf("%s %d bytes of %s at %d: %w", what, length, d.path, offset, e)
	}
	return nil
}

// image is all that is on the disk.
func (d *disk) image() []byte {
	d.t.Helper()
	all := make([]byte, d.size)
	buf := alignedMemory(d.t, mib)
	for at := int64(0); at < d.size; at += int64(len(buf)) {
		n := min(int64(len(buf)), d.size-at)
		must(d.t, d.read(buf[:n], at))
		copy(all[at:], buf[:n])
	}
	return all
}

// imageOf is all that is on the device or file at path.
func imageOf(t testing.TB, path string) []byte {
	t.Helper()
	d := openDisk(t, path, unix.O_RDONLY)
	defer d.close()
	return d.image()
}

// alignedMemory is memory that O_DIRECT takes, until the test ends.
func alignedMemory(t testing.TB, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// same fails the test if got is not want, and says where they differ.
func same(t testing.TB, what string, want, got []byte) {
	t.Helper()
	if d := difference(want, got); d != "" {
		t.Errorf("%s: %s", what, d)
	}
}

// difference is "" for equal bytes, else where the first and how many differ,
// and what is there.
func difference(want, got []byte) string {
	if bytes.Equal(want, got) {
		return ""
	}
	if len(want) != len(got) {
		return fmt.Sprintf("%d bytes, want %d", len(got), len(want))
	}
	first, last, n := -1, 0, 0
	for i := range want {
		if want[i] != got[i] {
			if first < 0 {
				first = i
			}
			last = i
			n++
		}
	}
	const show = 16
	end := min(first+show, len(want))
	return fmt.Sprintf("%d bytes differ, the first at offset %d (sector %d + %d), the last at %d: there is % x, want % x",
		n, first, first/512, first%512, last, got[first:end], want[first:end])
}

// stamp fills p with bytes that tell where they belong and who wrote them.
func stamp(p []byte, offset int64, writer uint64) {
	for i := 0; i+16 <= len(p); i += 16 {
		binary.LittleEndian.PutUint64(p[i:], uint64(offset)+uint64(i))
		binary.LittleEndian.PutUint64(p[i+8:], writer)
	}
}

// backing is what the daemon is given and a test looks at from the other side.
type backing struct {
	kind string
	spec string // for --backing; "" for mem:, see path
	size int64

	flags []string // more for delayctl add
}

// path is the device or file that holds the bytes. That of mem: exists only as
// long as its device does.
func (b backing) path(d *daemon, name string) string {
	if b.kind == "mem" {
		return memFile(d, name)
	}
	return b.spec
}

// memFile is the file of a mem: device.
func memFile(d *daemon, name string) string {
	return filepath.Join("/dev/shm", "delayd-"+d.owner+":"+name)
}

// newBacking makes a backing of the kind: "block" (null_blk in memory, with a
// write-back cache and discards), "file" (on an ext4 of its own, so that its
// I/O is direct), "tmpfs" (a file whose I/O goes through the cache), "mem", or
// "polled" (null_blk with queues to poll, for a device that asks to poll it).
func newBacking(t testing.TB, kind string, size int64) backing {
	t.Helper()
	f := fixture.For(t)
	b := backing{kind: kind, size: size}
	if kind == "block" || kind == "polled" {
		b.size = int64(wholeMiB(size)) * mib
	}
	switch kind {
	case "block":
		b.spec = f.NullBlk(fixture.MemoryBacked(wholeMiB(size)).With("cache_size", 4).With("discard", true)).Path
	case "polled":
		b.spec = f.Filled(fixture.Polled(wholeMiB(size))).Path
		b.flags = []string{"--poll"}
	case "file":
		disk := f.NullBlk(fixture.MemoryBacked(wholeMiB(size) + 64))
		f.Mkfs("ext4", disk.Path, "-q")
		b.spec = newFile(t, f.Mount(disk.Path, "ext4").Dir, size)
	case "tmpfs":
		b.spec = newFile(t, f.Mount("tmpfs", "tmpfs").Dir, size)
	case "mem":
		b.spec = fmt.Sprintf("mem:%d", size)
	default:
		t.Fatalf("no such kind of backing: %q", kind)
	}
	return b
}

// wholeMiB is how many MiB it takes for so many bytes: null_blk counts in them.
func wholeMiB(size int64) int { return int((size + mib - 1) / mib) }

// wayOf names what copyFlags make of a device.
func wayOf(copying bool) string {
	if copying {
		return "copying"
	}
	return "auto"
}

// checkWay checks that the device copies if it was told to, or if its backing or
// the kernel leaves no choice, and else does without and has no buffers.
func checkWay(t testing.TB, d *daemon, name string, b backing, copying bool) {
	t.Helper()
	dev := d.show(name)
	if want := !copying && b.kind != "mem" && b.kind != "polled" && kernelZeroCopies(t); dev.ZeroCopied != want {
		t.Fatalf("a device on %s, zero copy %s: zero copied %v, want %v", b.kind, dev.ZeroCopy, dev.ZeroCopied, want)
	}
	if (dev.BufferBytes == 0) != dev.ZeroCopied {
		t.Errorf("zero copied %v, but its buffers can come to %d bytes", dev.ZeroCopied, dev.BufferBytes)
	}
}

// kernelZeroCopies asks the driver.
func kernelZeroCopies(t testing.TB) bool {
	t.Helper()
	c, err := ublkdev.Open()
	must(t, err)
	defer c.Close()
	features, err := c.Features(t.Context())
	must(t, err)
	return features.Has(ublkdev.FeatureSupportZeroCopy | ublkdev.FeatureAutoBufReg)
}

// newFile makes a sparse file.
func newFile(t testing.TB, dir string, size int64) string {
	t.Helper()
	path := filepath.Join(dir, "backing")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, size))
	return path
}

// shortName makes a device's name of a test's.
func shortName(t testing.TB) string {
	parts := strings.Split(t.Name(), "/")
	slices.Reverse(parts)
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.Join(parts, "-"))
	return strings.Trim(name[:min(len(name), 48)], "-")
}
