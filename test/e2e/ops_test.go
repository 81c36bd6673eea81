package e2e

import (
	"strings"
	"testing"

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
			return backing{kind: "block", spec: fixture.For(t).ScsiDebug(options...).Path, size: opsSize}, ""
		}
	}
	loop := func(t *testing.T) (backing, string) {
		file := newBacking(t, "file", opsSize).spec
		return backing{kind: "block", spec: fixture.For(t).Loop(file, fixture.LoopOptions{}).Path, size: opsSize}, file
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
		// A hole may cost a file system on disk a block more for its map of the file.
		slack := int64(4096)
		if c.name == "mem" || c.name == "tmpfs" {
			slack = 0
		}
		if freed := space - allocated(t, file); freed < want-slack || freed > want {
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
