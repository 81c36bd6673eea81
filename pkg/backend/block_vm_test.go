package backend

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/test/fixture"
)

// These tests need null_blk and friends. Where DELAYD_REQUIRE_UBLK is set, as
// in the VM, a kernel without them is a failure and not a skip.

// disk makes a null_blk device.
func disk(t *testing.T, a fixture.NullBlkAttrs) *fixture.NullBlk {
	t.Helper()
	n, err := fixture.NewNullBlk(a)
	if err != nil {
		lacking(t, err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// lacking skips for want of null_blk itself, but not in the VM.
func lacking(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("DELAYD_REQUIRE_UBLK") == "" && (errors.Is(err, fixture.ErrNotAvailable) || errors.Is(err, os.ErrPermission)) {
		t.Skip(err)
	}
	t.Fatal(err)
}

// optional skips for want of an attribute or a driver that only some kernels
// have; null_blk itself must be there.
func optional(t *testing.T, a fixture.NullBlkAttrs) *fixture.NullBlk {
	t.Helper()
	disk(t, fixture.MemoryBacked(1))
	return fixture.For(t).NullBlk(a)
}

func TestBlockModel(t *testing.T) {
	for _, tc := range []struct {
		name  string
		attrs fixture.NullBlkAttrs
		o     Options
	}{
		{"512", fixture.MemoryBacked(1).With("blocksize", 512).With("discard", true), Options{}},
		{"4096", fixture.MemoryBacked(1).With("blocksize", 4096).With("discard", true), Options{}},
		{"no discard, shared", fixture.MemoryBacked(1).With("blocksize", 1024), Options{Shared: true}},
		{"write-back, a part", fixture.MemoryBacked(1).With("cache_size", 1).With("discard", true), Options{Offset: 64 << 10, Size: 512<<10 + 100}},
		{"small requests, late answers", fixture.MemoryBacked(1).With("max_sectors", 16).With("irqmode", 2).With("completion_nsec", 10000), Options{}},
	} {
		t.Run(tc.name, func(t *testing.T) { modelCheck(t, disk(t, tc.attrs).Path, tc.o) })
	}
}

// TestBlockLimits compares with what sysfs says, attribute by attribute.
func TestBlockLimits(t *testing.T) {
	mb := fixture.MemoryBacked(8)
	for _, tc := range []struct {
		name     string
		attrs    fixture.NullBlkAttrs
		optional bool
		check    func(Limits) bool
	}{
		{"512", mb.With("blocksize", 512), false, func(l Limits) bool { return l.LogicalBlock == 512 && l.Discard == Discard{} && !l.VolatileCache }},
		{"4096", mb.With("blocksize", 4096), false, func(l Limits) bool { return l.LogicalBlock == 4096 && l.PhysicalBlock == 4096 }},
		{"discard", mb.With("discard", true), false, func(l Limits) bool { return l.Discard.MaxBytes > 0 && l.Discard.MaxSegments == 1 }},
		{"write-back", mb.With("cache_size", 1), false, func(l Limits) bool { return l.VolatileCache }},
		{"64 KiB at most", mb.With("max_sectors", 128), false, func(l Limits) bool { return l.MaxIOBytes == 64<<10 }},
		{"virtual boundary", mb.With("virt_boundary", true), false, func(l Limits) bool { return l.VirtBoundaryMask == 4095 }},
		{"no FUA", mb.With("cache_size", 1).With("fua", false), true, func(l Limits) bool { return l.VolatileCache && !l.FUA }},
		{"FUA", mb.With("cache_size", 1).With("fua", true), true, func(l Limits) bool { return l.VolatileCache && l.FUA }},
		{"rotational", mb.With("rotational", true), true, func(l Limits) bool { return l.Rotational }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var n *fixture.NullBlk
			if tc.optional {
				n = optional(t, tc.attrs)
			} else {
				n = disk(t, tc.attrs)
			}
			l := open(t, n.Path, Options{}).Limits()
			if !tc.check(l) || l.Size != 8<<20 || l.ReadOnly {
				t.Errorf("limits %+v", l)
			}
			for name, got := range map[string]int64{
				"logical_block_size": int64(l.LogicalBlock), "physical_block_size": int64(l.PhysicalBlock),
				"minimum_io_size": int64(l.IOMin), "optimal_io_size": int64(l.IOOpt),
				"max_segments": int64(l.MaxSegments), "max_segment_size": int64(l.MaxSegmentSize),
				"chunk_sectors": int64(l.ChunkSectors), "virt_boundary_mask": int64(l.VirtBoundaryMask),
				"dma_alignment": int64(l.DMAAlignment), "max_sectors_kb": int64(l.MaxSectors / 2),
				"rotational": bit(l.Rotational), "fua": bit(l.FUA),
			} {
				want, err := fixture.QueueNumber(n.Path, name)
				if err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("%s: %d, sysfs has %d", name, got, want)
				}
			}
		})
	}
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// stat reads counters of the disk itself (Documentation/block/stat.rst).
func stat(t *testing.T, name string, field int) int64 {
	t.Helper()
	text, err := os.ReadFile("/sys/block/" + name + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(text))[field], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const (
	statWriteSectors   = 6
	statDiscards       = 11
	statDiscardSectors = 13
	statFlushes        = 15
)

// TestBlockSeesEveryOp looks at the disk's own counters.
func TestBlockSeesEveryOp(t *testing.T) {
	n := optional(t, fixture.MemoryBacked(8).With("cache_size", 4).With("discard", true).With("fua", false))
	b := open(t, n.Path, Options{Offset: 1 << 20})
	d := newDriver(t, 64<<10)
	delta := func(field int, f func() int32) int64 {
		t.Helper()
		before := stat(t, n.Name, field)
		if res := f(); res < 0 {
			t.Fatal(errno(res))
		}
		return stat(t, n.Name, field) - before
	}
	write := func(fua bool) func() int32 {
		return func() int32 { return d.write(b, 0, pattern(4096, 1), fua) }
	}
	if got := delta(statFlushes, write(false)); got != 0 {
		t.Errorf("a write flushed %d times", got)
	}
	if got := delta(statFlushes, func() int32 { return d.do(b, &Request{Op: op.Flush}) }); got != 1 {
		t.Errorf("a flush flushed %d times", got)
	}
	if got := delta(statFlushes, write(true)); got < 1 {
		t.Errorf("a FUA write to a disk without FUA flushed %d times, want at least once", got)
	}
	discard := func() int32 { return d.do(b, &Request{Op: op.Discard, Length: 1 << 20}) }
	if got := delta(statDiscardSectors, discard); got != 1<<20/512 {
		t.Errorf("a discard of 1 MiB: %d sectors", got)
	}
	if got := delta(statDiscards, discard); got < 1 {
		t.Errorf("a discard: %d discards", got)
	}
	zero := func() int32 { return d.do(b, &Request{Op: op.WriteZeroes, NoUnmap: true, Length: 1 << 20}) }
	if got := delta(statWriteSectors, zero); got != 1<<20/512 {
		t.Errorf("write-zeroes of 1 MiB: %d sectors written", got)
	}
}

// TestBlockZeroesWithoutACommand: null_blk has none, so a hole is refused and
// zeroes are written; the device remembers.
func TestBlockZeroesWithoutACommand(t *testing.T) {
	n := disk(t, fixture.MemoryBacked(1))
	b := open(t, n.Path, Options{})
	if max := b.Limits().WriteZeroesMaxBytes; max != 0 {
		t.Skipf("this null_blk has write-zeroes of %d bytes", max)
	}
	d := newDriver(t, 4096)
	for i, want := range []int{2, 1} {
		d.sqes = 0
		if res := d.do(b, &Request{Op: op.WriteZeroes, Length: 4096}); res != 0 || d.sqes != want {
			t.Errorf("turn %d: %v, %d entries, want %d", i, errno(res), d.sqes, want)
		}
	}
}

func TestBlockNoAllocation(t *testing.T) {
	b := open(t, disk(t, fixture.MemoryBacked(1).With("discard", true)).Path, Options{})
	d := newDriver(t, 64<<10)
	for _, o := range op.All() {
		r := &Request{Op: o, Offset: 4096, Length: 64 << 10, Buf: unsafe.Pointer(&d.buf[0])}
		if n := testing.AllocsPerRun(20, func() { d.do(b, r) }); n != 0 || r.Result < 0 {
			t.Errorf("%v: %v allocations, result %d", o, n, r.Result)
		}
	}
}

// TestBlockErrorsPass: the errno is the block layer's own.
func TestBlockErrorsPass(t *testing.T) {
	n := disk(t, fixture.MemoryBacked(1).With("badblocks", "+8-15"))
	b := open(t, n.Path, Options{})
	d := newDriver(t, 16<<10)
	if _, res := d.read(b, 4096, 4096); errno(res) != unix.EIO {
		t.Errorf("read of a bad block: %d (%v)", res, errno(res))
	}
	if res := d.write(b, 0, pattern(16<<10, 1), false); errno(res) != unix.EIO {
		t.Errorf("write over a bad block: %d (%v)", res, errno(res))
	}
	if _, res := d.read(b, 8192, 4096); res != 4096 {
		t.Errorf("read beside it: %d (%v)", res, errno(res))
	}
	// No discard is advertised; one that comes all the same is refused by the disk.
	if res := d.do(b, &Request{Op: op.Discard, Length: 4096}); errno(res) != unix.EOPNOTSUPP {
		t.Errorf("discard: %d (%v), want EOPNOTSUPP", res, errno(res))
	}
}

func TestBlockProbeHarmsNothing(t *testing.T) {
	n := disk(t, fixture.MemoryBacked(1).With("discard", true))
	want := pattern(1<<20, 9)
	if err := os.WriteFile(n.Path, want, 0); err != nil {
		t.Fatal(err)
	}
	b := open(t, n.Path, Options{})
	if b.Limits().Discard.MaxBytes == 0 {
		t.Error("a kernel with ublk's 6.12 or later has discards through a ring")
	}
	if got := stat(t, n.Name, statDiscards); got != 0 {
		t.Errorf("opening it made %d discards", got)
	}
	(&mirror{d: newDriver(t, 256<<10), b: b, bytes: want}).check(t)
}

func TestBlockReadOnly(t *testing.T) {
	n := disk(t, fixture.MemoryBacked(1))
	setRO := func(ro int) {
		fd, err := unix.Open(n.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.IoctlSetPointerInt(fd, unix.BLKROSET, ro); err != nil {
			t.Fatal(err)
		}
	}
	setRO(1)
	b, err := Open(n.Path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !b.Limits().ReadOnly {
		t.Error("a read-only device gives a writable backing")
	}
	d := newDriver(t, 4096)
	if res := d.write(b, 0, pattern(4096, 1), false); errno(res) != unix.EROFS {
		t.Errorf("write: %v", errno(res))
	}
	if _, res := d.read(b, 0, 4096); res != 4096 {
		t.Errorf("read: %v", errno(res))
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	setRO(0)
	if open(t, n.Path, Options{ReadOnly: true}).Limits().ReadOnly != true {
		t.Error("--read-only gives a writable backing")
	}
}

func TestBlockZoned(t *testing.T) {
	n, err := fixture.NewNullBlk(fixture.MemoryBacked(64).With("zoned", true).With("zone_size", 4))
	if errors.Is(err, unix.EINVAL) {
		t.Skip("this kernel is built without CONFIG_BLK_DEV_ZONED")
	}
	if err != nil {
		lacking(t, err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, err = Open(n.Path, Options{})
	wantError(t, err, n.Path, "zoned block devices are not supported", "host-managed", "conventional")
	if !errors.Is(err, ErrZoned) {
		t.Errorf("%v is not ErrZoned", err)
	}
}
