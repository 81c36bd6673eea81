package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// span is a partition, in sectors of 512 bytes.
type span struct{ start, sectors uint32 }

// mbr is a partition table of DOS.
func mbr(_ int64, parts ...span) map[int64][]byte {
	table := make([]byte, 512)
	for i, p := range parts {
		entry := table[446+16*i:]
		entry[4] = 0x83 // Linux
		binary.LittleEndian.PutUint32(entry[8:], p.start)
		binary.LittleEndian.PutUint32(entry[12:], p.sectors)
	}
	table[510], table[511] = 0x55, 0xaa
	return map[int64][]byte{0: table}
}

// gpt is a GUID partition table of a disk of so many bytes, with its protective
// MBR and its second copy at the end (UEFI specification, 5.3).
func gpt(size int64, parts ...span) map[int64][]byte {
	const entries, entrySize = 128, 128
	last := uint64(size/512 - 1)
	table := make([]byte, entries*entrySize)
	for i, p := range parts {
		e := table[i*entrySize:]
		// Linux file system data, 0FC63DAF-8483-4772-8E79-3D69D8477DE4.
		copy(e, []byte{0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4})
		e[16], e[31] = byte(i+1), 0x5a // its own GUID
		binary.LittleEndian.PutUint64(e[32:], uint64(p.start))
		binary.LittleEndian.PutUint64(e[40:], uint64(p.start+p.sectors-1))
		for j, u := range utf16.Encode([]rune(fmt.Sprintf("part%d", i+1))) {
			binary.LittleEndian.PutUint16(e[56+2*j:], u)
		}
	}
	header := func(mine, other, entriesAt uint64) []byte {
		h := make([]byte, 512)
		copy(h, "EFI PART")
		binary.LittleEndian.PutUint32(h[8:], 0x10000)
		binary.LittleEndian.PutUint32(h[12:], 92)
		binary.LittleEndian.PutUint64(h[24:], mine)
		binary.LittleEndian.PutUint64(h[32:], other)
		binary.LittleEndian.PutUint64(h[40:], 34)
		binary.LittleEndian.PutUint64(h[48:], last-33)
		h[56] = 0x77 // the disk's GUID
		binary.LittleEndian.PutUint64(h[72:], entriesAt)
		binary.LittleEndian.PutUint32(h[80:], entries)
		binary.LittleEndian.PutUint32(h[84:], entrySize)
		binary.LittleEndian.PutUint32(h[88:], crc32.ChecksumIEEE(table))
		binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
		return h
	}
	protective := mbr(size, span{1, uint32(last)})[0]
	protective[450] = 0xee
	return map[int64][]byte{
		0:                    protective,
		512:                  header(1, last, 2),
		1024:                 table,
		int64(last-32) * 512: table,
		int64(last) * 512:    header(last, 1, last-32),
	}
}

// writeTable puts a partition table on a disk or into a file, unread.
func writeTable(t testing.TB, path string, kind func(int64, ...span) map[int64][]byte, parts ...span) {
	t.Helper()
	size, err := fixture.Size(path)
	must(t, err)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	for at, text := range kind(size, parts...) {
		_, err := f.WriteAt(text, at)
		must(t, err)
	}
	must(t, f.Sync())
	must(t, f.Close())
}

// partition makes one partition on a disk and returns its path.
func partition(t testing.TB, disk string, kind func(int64, ...span) map[int64][]byte, part span) string {
	t.Helper()
	writeTable(t, disk, kind, part)
	f, err := os.Open(disk)
	must(t, err)
	must(t, unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0))
	must(t, f.Close())
	path, err := fixture.WaitDisk(partName(disk, 1), 0)
	must(t, err)
	return path
}

// partName is the kernel's name of a partition: a "p" comes between two digits
// (block/partitions/core.c, add_partition).
func partName(disk string, n int) string {
	name := filepath.Base(disk)
	if last := name[len(name)-1]; last >= '0' && last <= '9' {
		name += "p"
	}
	return fmt.Sprintf("%s%d", name, n)
}

// fill writes random bytes over all of a disk or file, and returns them.
func fill(t testing.TB, path string) []byte {
	t.Helper()
	size, err := fixture.Size(path)
	must(t, err)
	text := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1, 2, 3, byte(size >> 20)})
	_, _ = source.Read(text) // never fails
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.Write(text)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
	return text
}

// Promise 6: offset and size select a part: its capacity is right, it shows the
// bytes that are there, and what is written goes there and nowhere else.
func TestPromise6Part(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	f := fixture.For(t)
	const MiB = 1 << 20
	for i, b := range []struct {
		name, path string
		block      int64
	}{
		{"disk of 512-byte blocks", f.NullBlk(fixture.MemoryBacked(8).With("discard", true)).Path, 512},
		{"disk of 4096-byte blocks", f.NullBlk(fixture.MemoryBacked(8).With("blocksize", 4096)).Path, 4096},
		{"file", emptyFile(t, 8*MiB+100), 512},
		{"partition", partition(t, f.NullBlk(fixture.MemoryBacked(16)).Path, mbr, span{2048, 16384}), 512},
	} {
		if testing.Short() && i%2 == 0 {
			continue // two kinds will do
		}
		t.Run(b.name, func(t *testing.T) {
			bytesThere := fill(t, b.path)
			total := int64(len(bytesThere)) / b.block * b.block
			for _, c := range []struct {
				offset, size string
				at, length   int64
			}{
				{"0", "0", 0, total},
				{"1M", "4MiB", MiB, 4 * MiB},
				{"4096", "0", 4096, total - 4096},
				{"0", "1000000", 0, 1000000 / b.block * b.block}, // rounded down
				{fmt.Sprint(total - b.block), "0", total - b.block, b.block},
				{fmt.Sprint(3 * b.block), fmt.Sprint(total - 3*b.block), 3 * b.block, total - 3*b.block},
			} {
				if i > 1 && c.size == "0" && c.offset != "4096" {
					continue // as with the disks
				}
				t.Run(c.offset+"+"+c.size, func(t *testing.T) {
					device := d.add("a", "--backing", b.path, "--offset", c.offset, "--size", c.size)
					defer d.del("a")
					if n, err := fixture.Size(device); n != c.length || err != nil {
						t.Fatalf("size %d, %v; want %d", n, err, c.length)
					}
					if s := d.show("a"); s.Size != c.length || s.Offset != c.at {
						t.Errorf("show says %d bytes at %d, want %d at %d", s.Size, s.Offset, c.length, c.at)
					}
					fixture.For(t).Compare(fixture.Area{Path: device}, fixture.Area{Path: b.path, Offset: c.at, Length: c.length})
				})
			}
			writtenInside(t, d, b.path, bytesThere)
		})
	}
}

// writtenInside overwrites the whole of a part and looks for what changed.
func writtenInside(t *testing.T, d *daemon, path string, before []byte) {
	const at, length = 2 << 20, 1 << 20
	device := d.add("a", "--backing", path, "--offset", "2MiB", "--size", "1MiB")
	text := fill(t, device)
	d.del("a")
	after, err := os.ReadFile(path)
	must(t, err)
	want := slices.Concat(before[:at], text, before[at+length:])
	if len(text) != length || !bytes.Equal(after, want) {
		t.Errorf("%d bytes written to the part at %d; the backing is not what it was with those in it", len(text), at)
	}
}

// `add` with a delay of a minute does not wait for it, although the partitions
// of the backing are read meanwhile, and they are there when it returns.
func TestAddDoesNotWaitForTheDelay(t *testing.T) {
	needUblk(t)
	// The figure that is promised is 2 s. Under TCG a process alone takes some
	// 100 ms to start, and delayctl, delayd and two children of it take part.
	limit := 2 * time.Second
	if k, err := fixture.ThisKernel(); err == nil && k.Machine == "TCG" {
		limit = 8 * time.Second
	}
	d := startDaemon(t)
	f := fixture.For(t)
	parts := []span{{2048, 4096}, {8192, 8192}}
	table := func(kind func(int64, ...span) map[int64][]byte) string {
		n := f.NullBlk(fixture.MemoryBacked(16))
		writeTable(t, n.Path, kind, parts...)
		return n.Path
	}
	file := emptyFile(t, 16<<20)
	writeTable(t, file, gpt, parts...)
	for _, c := range []struct {
		name, backing string
		parts         []span
	}{
		{"MBR on a disk", table(mbr), parts},
		{"GPT on a disk", table(gpt), parts},
		{"GPT in a file", file, parts},
		{"no table", f.NullBlk(fixture.MemoryBacked(16)).Path, nil},
		{"memory", "mem:16M", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			device := d.add("a", "--backing", c.backing, "--delay", "60s")
			if took := time.Since(began); took > limit {
				t.Errorf("add took %v, more than %v", took, limit)
			} else {
				t.Logf("add took %v", took)
			}
			for i, p := range c.parts {
				name := partName(device, i+1)
				for attr, want := range map[string]uint32{"start": p.start, "size": p.sectors} {
					text, err := os.ReadFile(filepath.Join("/sys/class/block", name, attr))
					if got := strings.TrimSpace(string(text)); err != nil || got != fmt.Sprint(want) {
						t.Errorf("%s of %s is %q, %v; want %d", attr, name, got, err, want)
					}
				}
				if _, err := fixture.WaitDisk(name, 5*time.Second); err != nil {
					t.Error(err)
				}
			}
			if all, _ := filepath.Glob("/sys/class/block/" + filepath.Base(device) + "p*"); len(all) != len(c.parts) {
				t.Errorf("partitions %v, want %d", all, len(c.parts))
			}
			// The delay is in force: a read is still held when this looks.
			answered := readOnce(device)
			select {
			case err := <-answered:
				t.Errorf("a read was answered at once, %v", err)
			case <-time.After(300 * time.Millisecond):
			}
			// And is answered when the device goes: --force, for it is open.
			began = time.Now()
			d.mustCtl("del", "a", "--force")
			select {
			case err := <-answered:
				if err == nil {
					t.Error("a read that was held when its device was removed by force has succeeded")
				}
			case <-time.After(10 * time.Second):
				t.Error("a read that was held is not answered when its device is gone")
			}
			if took := time.Since(began); took > 2*limit {
				t.Errorf("del --force took %v", took)
			}
		})
	}
}

// readOnce reads a block past the cache in a process of its own, so that one
// that hangs does not keep the test from ending.
func readOnce(device string) <-chan error {
	answer := make(chan error, 1)
	go func() {
		_, err := fixture.Command("dd", "if="+device, "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
		answer <- err
	}()
	return answer
}
