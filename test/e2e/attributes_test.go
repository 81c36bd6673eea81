package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// attribute is one file of a disk in sysfs, and what a device in front of a
// backing should have in it.
type attribute struct {
	name string // below /sys/class/block/DISK
	// want says what the device should show, given all that the backing shows;
	// nil: the same.
	want func(backing map[string]string) string
	// since is the kernel from which on ublk can say it; before, it is not
	// compared ("What ublk cannot say" in docs/design.md).
	since [2]int
}

// attributes are what promise 6 is about.
var attributes = []attribute{
	{name: "size"},
	{name: "ro"},
	{name: "queue/logical_block_size"},
	{name: "queue/physical_block_size"},
	{name: "queue/minimum_io_size"},
	{name: "queue/optimal_io_size", want: optimal},
	// What the disk is given in one request now. Were the device to take more,
	// its requests would be split below it.
	{name: "queue/max_sectors_kb"},
	{name: "queue/max_hw_sectors_kb", want: func(b map[string]string) string { return b["queue/max_sectors_kb"] }},
	{name: "queue/max_segments", since: [2]int{6, 15}},
	{name: "queue/max_segment_size", since: [2]int{6, 15}},
	{name: "queue/chunk_sectors"},
	{name: "queue/virt_boundary_mask"},
	{name: "queue/dma_alignment", since: [2]int{6, 13}},
	{name: "queue/write_cache"},
	{name: "queue/fua"},
	{name: "queue/rotational"},
	{name: "queue/zoned"},
	{name: "queue/discard_max_bytes", want: func(b map[string]string) string { return wholeBlocks(b, "queue/discard_max_hw_bytes") }},
	{name: "queue/discard_max_hw_bytes", want: func(b map[string]string) string { return wholeBlocks(b, "queue/discard_max_hw_bytes") }},
	{name: "queue/discard_granularity", want: func(b map[string]string) string {
		if wholeBlocks(b, "queue/discard_max_hw_bytes") == "0" {
			return "" // says nothing where there are no discards
		}
		return b["queue/discard_granularity"]
	}},
	{name: "queue/write_zeroes_max_bytes", want: func(b map[string]string) string { return wholeBlocks(b, "queue/write_zeroes_max_bytes") }},
	// A policy, not a limit: one thread's neighbours are merged, and no more.
	{name: "queue/scheduler", want: func(map[string]string) string { return "none" }},
}

// optimal is the backing's own, or the largest power of two that divides it:
// ublk has only those.
func optimal(b map[string]string) string {
	n := atoi(b["queue/optimal_io_size"])
	return strconv.FormatInt(n&-n, 10)
}

// wholeBlocks is an attribute of bytes as ublk can say it: in 32 bits, whole
// blocks; none at all for a device that is not written to.
func wholeBlocks(b map[string]string, name string) string {
	if b["ro"] == "1" {
		return "0"
	}
	n, block := min(atoi(b[name]), 1<<32-1), atoi(b["queue/logical_block_size"])
	return strconv.FormatInt(n/block*block, 10)
}

func atoi(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err) // an attribute of the kernel that is a number
	}
	return n
}

// attributesOf reads all attributes of a disk or partition. Those of the queue
// are its disk's.
func attributesOf(t testing.TB, path string) map[string]string {
	t.Helper()
	name, err := fixture.SysfsName(path)
	must(t, err)
	dir, err := filepath.EvalSymlinks("/sys/class/block/" + name)
	must(t, err)
	disk := dir
	if _, err := os.Stat(dir + "/partition"); err == nil {
		disk = filepath.Dir(dir)
	}
	all := map[string]string{}
	for _, a := range attributes {
		from := dir
		if strings.HasPrefix(a.name, "queue/") {
			from = disk
		}
		text, err := os.ReadFile(filepath.Join(from, a.name))
		if a.name == "queue/scheduler" && os.IsNotExist(err) {
			continue // bio-based, as most of device mapper
		}
		must(t, err)
		all[a.name] = strings.TrimSpace(string(text))
	}
	// "[none] mq-deadline": what is in force.
	if _, rest, ok := strings.Cut(all["queue/scheduler"], "["); ok {
		all["queue/scheduler"], _, _ = strings.Cut(rest, "]")
	}
	return all
}

// expected are the attributes that a device on a backing should have on this
// kernel.
func expected(backing map[string]string, k [2]int) map[string]string {
	want := map[string]string{}
	for _, a := range attributes {
		if k[0] < a.since[0] || k[0] == a.since[0] && k[1] < a.since[1] {
			continue
		}
		value := backing[a.name]
		if a.want != nil {
			value = a.want(backing)
		}
		if value != "" {
			want[a.name] = value
		}
	}
	return want
}

// kernelVersion is the running kernel's, such as {6, 12}.
func kernelVersion(t testing.TB) (v [2]int) {
	t.Helper()
	k, err := fixture.ThisKernel()
	must(t, err)
	if _, err := fmt.Sscanf(k.Release, "%d.%d", &v[0], &v[1]); err != nil {
		t.Fatalf("kernel %q: %v", k.Release, err)
	}
	return v
}

// compareAttributes holds a device to what want says, and to no more.
func compareAttributes(t testing.TB, device string, want map[string]string) {
	t.Helper()
	have := attributesOf(t, device)
	maps.DeleteFunc(have, func(name, _ string) bool { _, ok := want[name]; return !ok })
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("attributes of %s (-want +have):\n%s", device, diff)
	}
}

// Promise 6, attribute by attribute, for block devices with different limits.
func TestPromise6FaithfulAttributes(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	kernel := kernelVersion(t)
	nullBlk := func(name string, value any) func(t *testing.T) string {
		return func(t *testing.T) string {
			return fixture.For(t).NullBlk(fixture.MemoryBacked(16).With(name, value)).Path
		}
	}
	memory := fixture.MemoryBacked(16)
	for _, c := range []struct {
		name    string
		backing func(t *testing.T) string
		// is what the backing must be for the case to test anything.
		is map[string]string
	}{
		{"512-byte blocks", nullBlk("blocksize", 512),
			map[string]string{"queue/logical_block_size": "512", "queue/write_cache": "write through", "queue/discard_max_bytes": "0", "ro": "0"}},
		{"4096-byte blocks", nullBlk("blocksize", 4096),
			map[string]string{"queue/logical_block_size": "4096", "queue/physical_block_size": "4096"}},
		{"discard", nullBlk("discard", true), nil},
		{"discard of 4096-byte blocks", func(t *testing.T) string {
			return fixture.For(t).NullBlk(memory.With("discard", true).With("blocksize", 4096)).Path
		}, map[string]string{"queue/discard_granularity": "4096"}},
		{"write-back with FUA", func(t *testing.T) string {
			return fixture.For(t).NullBlk(memory.With("cache_size", 4).With("fua", true)).Path
		}, map[string]string{"queue/write_cache": "write back", "queue/fua": "1"}},
		{"write-back without FUA", func(t *testing.T) string {
			return fixture.For(t).NullBlk(memory.With("cache_size", 4).With("fua", false)).Path
		}, map[string]string{"queue/write_cache": "write back", "queue/fua": "0"}},
		{"rotational", withQueueAttr("rotational", "1"), map[string]string{"queue/rotational": "1"}},
		{"not rotational", withQueueAttr("rotational", "0"), map[string]string{"queue/rotational": "0"}},
		{"read-only", readOnlyDisk, map[string]string{"ro": "1"}},
		{"requests of at most 32 KiB", nullBlk("max_sectors", 64), map[string]string{"queue/max_hw_sectors_kb": "32"}},
		{"requests of at most a page", nullBlk("max_sectors", 8), map[string]string{"queue/max_hw_sectors_kb": "4"}},
		{"requests that are not whole pages", nullBlk("max_sectors", 255), map[string]string{"queue/max_hw_sectors_kb": "127"}},
		{"requests of at most 2 MiB", nullBlk("max_sectors", 4096), map[string]string{"queue/max_hw_sectors_kb": "2048"}},
		{"requests limited by hand", withQueueAttr("max_sectors_kb", "16"), map[string]string{"queue/max_sectors_kb": "16"}},
		{"virtual boundary", nullBlk("virt_boundary", true), map[string]string{"queue/virt_boundary_mask": "4095"}},
		{"loop of 4096-byte blocks", func(t *testing.T) string {
			return fixture.For(t).Loop(emptyFile(t, 32<<20), fixture.LoopOptions{BlockSize: 4096}).Path
		}, map[string]string{"queue/logical_block_size": "4096", "queue/write_cache": "write back"}},
		{"two stripes of 64 KiB", stripes(2),
			map[string]string{"queue/minimum_io_size": "65536", "queue/optimal_io_size": "131072"}},
		{"three stripes, an optimal size that is no power of two", stripes(3),
			map[string]string{"queue/minimum_io_size": "65536", "queue/optimal_io_size": "196608"}},
		{"SCSI with physical blocks and an optimal size", scsi("physblk_exp=3", "opt_blks=128", "opt_xferlen_exp=6", "lbpu=1", "lbpws=1", "unmap_granularity=16"),
			map[string]string{"queue/logical_block_size": "512", "queue/physical_block_size": "4096", "queue/minimum_io_size": "32768", "queue/optimal_io_size": "65536", "queue/write_cache": "write back"}},
		{"SCSI of 4096-byte blocks", scsi("sector_size=4096", "lbpu=1"),
			map[string]string{"queue/logical_block_size": "4096"}},
		{"SCSI write-protected", scsi("wp=1"), map[string]string{"ro": "1"}},
		{"partition", func(t *testing.T) string {
			n := fixture.For(t).NullBlk(memory.With("discard", true))
			return partition(t, n.Path, mbr, span{start: 2048, sectors: 8192})
		}, map[string]string{"size": "8192"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := c.backing(t)
			backing := attributesOf(t, path)
			for name, value := range c.is {
				if backing[name] != value {
					t.Fatalf("the backing's %s is %q, want %q: the case tests nothing", name, backing[name], value)
				}
			}
			if strings.HasPrefix(c.name, "discard") && backing["queue/discard_max_bytes"] == "0" {
				t.Fatal("the backing has no discards: the case tests nothing")
			}
			device := d.add("a", "--backing", path)
			defer d.del("a")
			compareAttributes(t, device, expected(backing, kernel))
		})
	}
}

// Promise 6 for what is not a disk.
func TestPromise6FaithfulFileAndMemory(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	f := fixture.For(t)
	// A file system on a rotational disk of 4096-byte blocks, and one on a disk
	// of 512: what direct I/O must be aligned to is the disk's business.
	inFileSystem := func(attrs fixture.NullBlkAttrs) string {
		n := f.NullBlk(attrs)
		must(t, os.WriteFile("/sys/block/"+n.Name+"/queue/rotational", []byte("1"), 0))
		f.Mkfs("ext4", n.Path)
		file := filepath.Join(f.Mount(n.Path, "ext4").Dir, "file")
		must(t, os.WriteFile(file, nil, 0o600))
		must(t, os.Truncate(file, 16<<20))
		return file
	}
	durable := map[string]string{"queue/write_cache": "write back", "queue/fua": "1", "ro": "0", "queue/scheduler": "none", "size": "32768"}
	with := func(a map[string]string, more ...string) map[string]string {
		b := maps.Clone(a)
		for i := 0; i < len(more); i += 2 {
			b[more[i]] = more[i+1]
		}
		return b
	}
	for _, c := range []struct {
		name, backing string
		flags         []string
		want          map[string]string
	}{
		{"file on a disk of 4096-byte blocks", inFileSystem(fixture.MemoryBacked(64).With("blocksize", 4096)), nil,
			with(durable, "queue/logical_block_size", "4096", "queue/physical_block_size", "4096", "queue/rotational", "1", "queue/discard_granularity", "4096")},
		{"file on a disk of 512-byte blocks", inFileSystem(fixture.MemoryBacked(64)), nil,
			with(durable, "queue/logical_block_size", "512", "queue/rotational", "1")},
		{"file read-only", inFileSystem(fixture.MemoryBacked(64)), []string{"--read-only"},
			with(durable, "ro", "1", "queue/discard_max_bytes", "0", "queue/write_zeroes_max_bytes", "0")},
		{"memory", "mem:16M", nil, map[string]string{
			"size": "32768", "ro": "0", "queue/logical_block_size": "512", "queue/write_cache": "write through", "queue/fua": "0",
			"queue/rotational": "0", "queue/scheduler": "none", "queue/max_sectors_kb": "1024"}},
		{"memory read-only", "mem:16M", []string{"--read-only"}, map[string]string{"size": "32768", "ro": "1"}},
		{"null", "null:1T", nil, map[string]string{
			"size": "2147483648", "ro": "0", "queue/logical_block_size": "512", "queue/write_cache": "write through",
			"queue/rotational": "0", "queue/scheduler": "none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			device := d.add("a", append([]string{"--backing", c.backing}, c.flags...)...)
			defer d.del("a")
			compareAttributes(t, device, c.want)
		})
	}
}

// withQueueAttr is a null_blk whose attribute was set by an administrator.
func withQueueAttr(name, value string) func(t *testing.T) string {
	return func(t *testing.T) string {
		n := fixture.For(t).NullBlk(fixture.MemoryBacked(16))
		must(t, os.WriteFile(filepath.Join("/sys/block", n.Name, "queue", name), []byte(value), 0))
		return n.Path
	}
}

// readOnlyDisk is a null_blk, with discards, after blockdev --setro.
func readOnlyDisk(t *testing.T) string {
	n := fixture.For(t).NullBlk(fixture.MemoryBacked(16).With("discard", true))
	f, err := os.Open(n.Path)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, 1))
	must(t, f.Close())
	return n.Path
}

// stripes is a device mapper's stripe over n null_blk devices, 64 KiB each.
func stripes(n int) func(t *testing.T) string {
	return func(t *testing.T) string {
		f := fixture.For(t)
		const chunk = 128 // sectors
		table := fmt.Sprintf("0 %d striped %d %d", 256*chunk*n, n, chunk)
		for range n {
			table += " " + f.NullBlk(fixture.MemoryBacked(16)).Path + " 0"
		}
		return f.DM(table).Path
	}
}

func scsi(options ...string) func(t *testing.T) string {
	return func(t *testing.T) string {
		return fixture.For(t).ScsiDebug(append([]string{"dev_size_mb=16", "delay=0"}, options...)...).Path
	}
}

// emptyFile makes a file of n zero bytes.
func emptyFile(t testing.TB, n int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, n))
	return path
}
