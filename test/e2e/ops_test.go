package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

const (
	opsSize        = 8 * mib
	opsAt, opsLong = 3 * mib, 2 * mib // of the range that is discarded or zeroed
)

// zeroCase is a backing of which a range is made zero, and how that is seen.
type zeroCase struct {
	name string
	// open makes the backing: what the daemon is given, and the file whose
	// space is looked at ("" for none).
	open func(t *testing.T) (b backing, file string)
	// command is run on the device, with the range and the path behind it.
	command []string

	discards bool // the backing counts a discard of the range
	writes   bool // the backing counts a write of so many sectors
	frees    bool // the file takes less space by the range
}

// `blkdiscard`, `blkdiscard -z` and a punched hole arrive at the backing, where
// the range then reads as zeroes and all else as before.
func TestDiscardAndZeroesReachTheBacking(t *testing.T) {
	nullBlk := func(t *testing.T) (backing, string) { return newBacking(t, "block", opsSize), "" }
	scsi := func(options ...string) func(t *testing.T) (backing, string) {
		return func(t *testing.T) (backing, string) {
			options = append(options, "dev_size_mb=8", "delay=0", "lbprz=1")
			return backing{"block", fixture.For(t).ScsiDebug(options...).Path, opsSize}, ""
		}
	}
	loop := func(t *testing.T) (backing, string) {
		file := newBacking(t, "file", opsSize).spec
		return backing{"block", fixture.For(t).Loop(file, fixture.LoopOptions{}).Path, opsSize}, file
	}
	file := func(kind string) func(t *testing.T) (backing, string) {
		return func(t *testing.T) (backing, string) {
			b := newBacking(t, kind, opsSize)
			return b, b.spec
		}
	}
	discard, zero := []string{"blkdiscard"}, []string{"blkdiscard", "-z"}
	punch := []string{"fallocate", "--punch-hole"}
	d := startDaemon(t)
	for _, c := range []zeroCase{
		{"null_blk", nullBlk, discard, true, false, false},
		{"null_blk", nullBlk, zero, false, true, false},
		{"scsi_debug", scsi("lbpu=1"), discard, true, false, false},
		{"scsi_debug", scsi("lbpws=1", "lbpu=1"), zero, false, true, false},
		{"scsi_debug", scsi("lbpws=1", "lbpu=1"), punch, false, true, false},
		{"loop", loop, discard, true, false, true},
		{"loop", loop, zero, false, true, false},
		{"loop", loop, punch, false, true, true},
		{"file", file("file"), discard, false, false, true},
		{"file", file("file"), zero, false, false, false},
		{"file", file("file"), punch, false, false, true},
		{"tmpfs", file("tmpfs"), discard, false, false, true},
		{"tmpfs", file("tmpfs"), zero, false, false, false},
		{"tmpfs", file("tmpfs"), punch, false, false, true},
		{"mem", file("mem"), discard, false, false, true},
		{"mem", file("mem"), zero, false, false, false},
		{"mem", file("mem"), punch, false, false, true},
	} {
		if testing.Short() && c.name == "tmpfs" {
			continue // mem: is the same file system
		}
		t.Run(c.name+"/"+strings.Join(c.command, " "), func(t *testing.T) { c.run(t, d.with(t)) })
	}
}

func (c zeroCase) run(t *testing.T, d *daemon) {
	b, file := c.open(t)
	name := shortName(t)
	path := d.add(name, "--backing", b.spec, "--delay", "2ms")
	want := make([]byte, opsSize)
	fillImage(t, path, want)
	held := b.path(d, name) // what holds the bytes
	if c.name == "mem" {
		file = held
	}
	same(t, "the backing before", want, imageOf(t, held))

	var space int64
	if file != "" {
		space = allocated(t, file)
	}
	stat := diskStat{}
	if b.kind == "block" {
		stat = statOf(t, b.spec)
	}
	args := append(c.command[1:len(c.command):len(c.command)], "-o", "3145728", "-l", "2097152", path)
	if _, err := fixture.Command(c.command[0], args...); err != nil {
		t.Fatal(err)
	}
	clear(want[opsAt : opsAt+opsLong])

	if b.kind == "block" {
		done := statOf(t, b.spec).since(stat)
		if got := done.discardSectors * 512; c.discards != (got == opsLong) || !c.discards && got != 0 {
			t.Errorf("the backing counts %d bytes of discards in %d requests, %d were discarded", got, done.discards, opsLong)
		}
		if got := done.writeSectors * 512; c.writes != (got == opsLong) || !c.writes && got != 0 {
			t.Errorf("the backing counts %d bytes of writes in %d requests, %d were zeroed", got, done.writes, opsLong)
		}
	}
	if file != "" {
		want := int64(0)
		if c.frees {
			want = opsLong
		}
		if freed := space - allocated(t, file); freed != want {
			t.Errorf("%s takes %d bytes less, want %d", file, freed, want)
		}
	}
	same(t, "the device", want, imageOf(t, path))
	if b.kind == "mem" {
		same(t, "the backing", want, imageOf(t, held))
	}
	d.del(name)
	if b.kind != "mem" {
		same(t, "the backing", want, imageOf(t, held))
	}
}

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

// A backing that cannot be written makes a device that cannot, and nothing that
// is tried on it arrives.
func TestReadOnlyBackingReadOnlyDevice(t *testing.T) {
	setReadOnly := func(t *testing.T) (string, string) {
		path := newBacking(t, "block", opsSize).spec
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, unix.IoctlSetPointerInt(fd, unix.BLKROSET, 1))
		return path, path
	}
	scsi := func(t *testing.T) (string, string) {
		path := fixture.For(t).ScsiDebug("dev_size_mb=8", "delay=0", "wp=1").Path
		return path, path
	}
	file := func(t *testing.T) (string, string) {
		f := fixture.For(t)
		n := f.NullBlk(fixture.MemoryBacked(64))
		f.Mkfs("ext4", n.Path, "-q")
		m := f.Mount(n.Path, "ext4")
		spec := newFile(t, m.Dir, opsSize)
		must(t, unix.Mount("", m.Dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		return spec, n.Path
	}
	asked := func(t *testing.T) (string, string) {
		path := newBacking(t, "block", opsSize).spec
		return path, path
	}
	d := startDaemon(t)
	for _, c := range []struct {
		name  string
		open  func(t *testing.T) (spec, disk string)
		flags []string
	}{
		{"blockdev --setro", setReadOnly, nil},
		{"write-protected scsi_debug", scsi, nil},
		{"file on a read-only file system", file, []string{"--read-only"}},
		{"asked for", asked, []string{"--read-only"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := d.with(t)
			spec, disk := c.open(t)
			before := imageOf(t, spec)
			path := d.add(shortName(t), append([]string{"--backing", spec, "--delay", "1ms"}, c.flags...)...)
			if !d.show(shortName(t)).ReadOnly {
				t.Error("show does not say that it is read-only")
			}
			name, err := fixture.SysfsName(path)
			must(t, err)
			if ro := readAttr(t, "/sys/block/"+name+"/ro"); ro != "1" {
				t.Errorf("/sys/block/%s/ro is %q, want 1", name, ro)
			}
			stat := statOf(t, disk)
			tryToWrite(t, path)
			if done := statOf(t, disk).since(stat); done.writes != 0 || done.discards != 0 {
				t.Errorf("%+v has arrived at a read-only backing", done)
			}
			same(t, "the device", before, imageOf(t, path))
			d.del(shortName(t))
			same(t, "the backing", before, imageOf(t, spec))
		})
	}
}

// tryToWrite fails the test if a device can be opened for writing and then
// written in any way.
func tryToWrite(t *testing.T, path string) {
	t.Helper()
	// The last is for what a device says that it cannot do at all.
	refusals := []error{unix.EACCES, unix.EPERM, unix.EROFS, unix.EOPNOTSUPP}
	refused := func(err error) bool {
		for _, r := range refusals {
			if errors.Is(err, r) {
				return true
			}
		}
		return false
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		if !refused(err) {
			t.Errorf("open for writing: %v, want one of %v", err, refusals)
		}
		return
	}
	k := &disk{t: t, path: path, fd: fd, size: opsSize}
	defer k.close()
	for what, err := range map[string]error{
		"write":   k.write(alignedMemory(t, 4096), 0, 0),
		"discard": k.discard(0, mib),
		"zero":    k.zero(0, mib),
		"punch":   k.punch(0, mib),
	} {
		if !refused(err) {
			t.Errorf("%s: %v, want one of %v", what, err, refusals)
		}
	}
}
