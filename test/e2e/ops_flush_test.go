package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// A flush arrives at a backing that has a volatile cache, each time and only
// then; one that has none is never asked.
func TestFlushReachesTheBacking(t *testing.T) {
	writeBack := func(t *testing.T) (spec, disk string) {
		n := fixture.For(t).NullBlk(fixture.MemoryBacked(opsSize/mib).With("cache_size", 4))
		return n.Path, n.Path
	}
	writeThrough := func(t *testing.T) (spec, disk string) {
		n := fixture.For(t).NullBlk(fixture.MemoryBacked(opsSize / mib))
		return n.Path, n.Path
	}
	scsi := func(t *testing.T) (spec, disk string) {
		s := fixture.For(t).ScsiDebug("dev_size_mb=8", "delay=0")
		return s.Path, s.Path
	}
	file := func(t *testing.T) (spec, disk string) {
		f := fixture.For(t)
		n := f.NullBlk(fixture.MemoryBacked(64).With("cache_size", 4))
		f.Mkfs("ext4", n.Path, "-q")
		spec = newFile(t, f.Mount(n.Path, "ext4").Dir, opsSize)
		fillImage(t, spec, make([]byte, opsSize))
		return spec, n.Path
	}
	d := startDaemon(t)
	for _, c := range []struct {
		name  string
		open  func(t *testing.T) (spec, disk string)
		cache string // the device's write_cache
	}{
		{"write back", writeBack, "write back"},
		{"write through", writeThrough, "write through"},
		{"scsi_debug", scsi, "write back"},
		{"file on a write-back disk", file, "write back"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := d.with(t)
			spec, disk := c.open(t)
			path := d.add(shortName(t), "--backing", spec, "--delay", "1ms")
			if got, err := fixture.QueueAttr(path, "write_cache"); got != c.cache || err != nil {
				t.Fatalf("the device is %q (%v), want %q", got, err, c.cache)
			}
			k := openDisk(t, path, unix.O_RDWR)
			buf := alignedMemory(t, 4096)
			for i := range int64(5) {
				stamp(buf, i*8192, 7)
				before := statOf(t, disk)
				must(t, k.write(buf, i*8192, 0))
				if done := statOf(t, disk).since(before); done.flushes != 0 {
					t.Errorf("write %d: %d flushes arrived before one was asked for", i, done.flushes)
				}
				before = statOf(t, disk)
				must(t, k.sync())
				switch done := statOf(t, disk).since(before); {
				case c.cache == "write back" && done.flushes == 0:
					t.Errorf("fsync %d: no flush has arrived at the backing", i)
				case c.cache == "write through" && done.flushes != 0:
					t.Errorf("fsync %d: %d flushes have arrived at a backing that has no cache", i, done.flushes)
				}
			}
			k.close()
			d.del(shortName(t))
			image := imageOf(t, spec)
			for i := range 5 {
				stamp(buf, int64(i)*8192, 7)
				same(t, "block", buf, image[i*8192:i*8192+4096])
			}
		})
	}
}

// A backing file whose writes stay in the page cache: what was written is not
// on the disk beneath until it is flushed, and is at once with FUA. (ext4 that
// journals data has no direct I/O, and says so to nobody.)
func TestCachedUntilFlushed(t *testing.T) {
	f := fixture.For(t)
	n := f.NullBlk(fixture.MemoryBacked(48))
	f.Mkfs("ext4", n.Path, "-q")
	m, err := fixture.NewMount(n.Path, "", "ext4", 0, "data=journal,commit=600")
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	spec := newFile(t, m.Dir, 4*mib)
	fillImage(t, spec, make([]byte, 4*mib))

	d := startDaemon(t)
	k := openDisk(t, d.add("cached", "--backing", spec, "--delay", "1ms"), unix.O_RDWR)
	buf := alignedMemory(t, 4096)

	stamp(buf, 0, 0xf1005)
	must(t, k.write(buf, 64<<10, 0))
	if holds(t, n.Path, buf) {
		t.Fatal("a write is on the disk before it was flushed: the file is not cached here, and proves nothing")
	}
	must(t, k.sync())
	if !holds(t, n.Path, buf) {
		t.Error("what was flushed is not on the disk")
	}
	stamp(buf, 0, 0xf0a)
	must(t, k.write(buf, 128<<10, unix.RWF_DSYNC))
	if !holds(t, n.Path, buf) {
		t.Error("what was written with FUA is not on the disk")
	}
	k.close()
	d.del("cached")
}

// When the power of a backing with a volatile cache fails, what was flushed or
// written with FUA through the device is there, and the rest is not: null_blk
// drops its cache when it is switched off (drivers/block/null_blk/main.c,
// null_del_dev). Of a page that it holds already it caches nothing
// (null_insert_page), so the disk is empty at first.
func TestPowerLossOfTheBacking(t *testing.T) {
	d := startDaemon(t)
	for _, fua := range []bool{true, false} {
		t.Run(fmt.Sprintf("fua=%v", fua), func(t *testing.T) {
			d := d.with(t)
			n := fixture.For(t).NullBlk(fixture.MemoryBacked(opsSize/mib).With("cache_size", 4).With("fua", fua))
			want := make([]byte, opsSize)
			buf := alignedMemory(t, 4096)
			// write is a write of the block at offset by a device that is then
			// removed, and a power failure after it.
			write := func(offset int64, flags int, flush bool) {
				t.Helper()
				k := openDisk(t, d.add(shortName(t), "--backing", n.Path, "--delay", "1ms"), unix.O_RDWR)
				stamp(buf, offset, 0xdead)
				if res := newAppRing(t, 1).write(k, buf, offset, flags); res != len(buf) {
					t.Fatalf("write at %d: %v", offset, unix.Errno(-res))
				}
				if flush {
					must(t, k.sync())
				}
				k.close()
				d.del(shortName(t))
				cutPower(t, n)
			}
			write(mib, 0, false)
			same(t, "after a write without a flush", want, imageOf(t, n.Path))
			write(2*mib, 0, true)
			copy(want[2*mib:], buf)
			same(t, "after a flush", want, imageOf(t, n.Path))
			write(3*mib, unix.RWF_DSYNC, false)
			copy(want[3*mib:], buf)
			same(t, "after a write with FUA", want, imageOf(t, n.Path))
		})
	}
}

// cutPower switches a null_blk off and on.
func cutPower(t testing.TB, n *fixture.NullBlk) {
	t.Helper()
	power := filepath.Join("/sys/kernel/config/nullb", n.Name, "power")
	must(t, os.WriteFile(power, []byte("0"), 0))
	must(t, os.WriteFile(power, []byte("1"), 0))
	_, err := fixture.WaitDisk(n.Name, 0)
	must(t, err)
}

// A write that is to be durable when it is answered arrives as one: with FUA
// where the backing has it, else followed by a flush.
func TestFUAReachesTheBacking(t *testing.T) {
	nullBlk := func(fua bool) func(t *testing.T) string {
		return func(t *testing.T) string {
			return fixture.For(t).NullBlk(fixture.MemoryBacked(opsSize/mib).With("cache_size", 4).With("fua", fua)).Path
		}
	}
	scsi := func(t *testing.T) string {
		return fixture.For(t).ScsiDebug("dev_size_mb=8", "delay=0").Path
	}
	d := startDaemon(t)
	for _, c := range []struct {
		name string
		open func(t *testing.T) string
		fua  int64 // the backing's and the device's queue attribute
	}{
		{"with FUA", nullBlk(true), 1},
		{"without FUA", nullBlk(false), 0},
		{"scsi_debug", scsi, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := d.with(t)
			spec := c.open(t)
			path := d.add(shortName(t), "--backing", spec, "--delay", "1ms")
			for _, p := range []string{spec, path} {
				if got, err := fixture.QueueNumber(p, "fua"); got != c.fua || err != nil {
					t.Errorf("fua of %s is %d (%v), want %d", p, got, err, c.fua)
				}
			}
			k := openDisk(t, path, unix.O_RDWR)
			buf := alignedMemory(t, 4096)
			trace := traceDisk(t, spec)
			ring := newAppRing(t, 1)
			for i, w := range []struct {
				flags   int
				durable bool
			}{{0, false}, {unix.RWF_DSYNC, true}, {0, false}, {unix.RWF_DSYNC, true}} {
				offset := int64(i) * 64 << 10
				stamp(buf, offset, 3)
				before := statOf(t, spec)
				// By a ring, because the kernel flushes by itself after a
				// synchronous write (block/fops.c, blkdev_write_iter).
				if res := ring.write(k, buf, offset, w.flags); res != len(buf) {
					t.Fatalf("write at %d: %v", offset, unix.Errno(-res))
				}
				done := statOf(t, spec).since(before)
				requests := trace.take()
				fua := false
				for _, r := range requests {
					if r.sector == offset/512 && r.sectors == 8 && r.fua() {
						fua = true
					}
				}
				if done.writeSectors != 8 {
					t.Errorf("write %d: the backing counts %d sectors, want 8", i, done.writeSectors)
				}
				switch {
				case !w.durable && (fua || done.flushes != 0):
					t.Errorf("write %d: it was made durable though nobody asked", i)
				case w.durable && c.fua == 0 && done.flushes == 0:
					t.Errorf("write %d: no flush has arrived at the backing", i)
				case w.durable && c.fua == 1 && trace.have() && !fua:
					t.Errorf("write %d: the backing has FUA, and got it not: %v", i, requests)
				}
			}
			k.close()
			d.del(shortName(t))
		})
	}
}
