package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// badStart and badLong are the range, in bytes, that a bad disk has no more.
const badStart, badLong = 4 * mib, 48 << 10

// badDisk is a disk that answers EIO in the bad range and nowhere else.
func badDisk(t *testing.T) string {
	f := fixture.For(t)
	disk := f.NullBlk(fixture.MemoryBacked(opsSize / mib)).Path
	end := badStart + badLong
	// Made whole, then changed: a table on the command line has one line.
	dm := f.DM(fmt.Sprintf("0 %d linear %s 0", opsSize/512, disk))
	table := filepath.Join(t.TempDir(), "table")
	must(t, os.WriteFile(table, fmt.Appendf(nil, "0 %d linear %s 0\n%d %d error\n%d %d linear %s %d\n",
		badStart/512, disk, badStart/512, badLong/512, end/512, (opsSize-end)/512, disk, end/512), 0o600))
	for _, step := range [][]string{
		{"reload", dm.Name, table}, {"suspend", "--noudevsync", dm.Name}, {"resume", "--noudevsync", dm.Name},
	} {
		if _, err := fixture.Command("dmsetup", step...); err != nil {
			t.Fatal(err)
		}
	}
	return dm.Path
}

// An application sees the backing's own error, for the very blocks that the
// backing gives it for.
func TestErrorsOfTheBackingArePassedThrough(t *testing.T) {
	d := startDaemon(t)
	for _, hold := range []string{"submit", "complete"} {
		for _, delay := range []string{"0s", "2ms"} {
			if testing.Short() && (hold == "submit") == (delay == "0s") {
				continue // one of each is enough
			}
			t.Run(hold+"/"+delay, func(t *testing.T) {
				d := d.with(t)
				bad := badDisk(t)
				name := shortName(t)
				k := openDisk(t, d.add(name, "--backing", bad, "--delay", delay, "--hold", hold), unix.O_RDWR)
				defer k.close()
				buf := alignedMemory(t, 4096)
				const around = 16 << 10
				for at := int64(badStart - around); at < badStart+badLong+around; at += 4096 {
					var want error
					if at >= badStart && at < badStart+badLong {
						want = unix.EIO
					}
					stamp(buf, at, 9)
					if err := k.write(buf, at, 0); !errors.Is(err, want) {
						t.Errorf("write at %d: %v, want %v", at, err, want)
					}
					if err := k.write(buf, at, unix.RWF_DSYNC); !errors.Is(err, want) {
						t.Errorf("write with FUA at %d: %v, want %v", at, err, want)
					}
					if err := k.read(buf, at); !errors.Is(err, want) {
						t.Errorf("read at %d: %v, want %v", at, err, want)
					}
					if err := k.zero(at, 4096); !errors.Is(err, want) {
						t.Errorf("zero at %d: %v, want %v", at, err, want)
					}
					stamp(buf, at, 10)
					if err := k.write(buf, at, 0); !errors.Is(err, want) {
						t.Errorf("write after zeroing at %d: %v, want %v", at, err, want)
					}
				}
				// One that is half in the bad range fails too; the device goes on.
				wide := alignedMemory(t, 16<<10)
				failsWith(t, "read into the bad range", k.read(wide, badStart-8192), unix.EIO)
				failsWith(t, "read out of the bad range", k.read(wide, badStart+badLong-8192), unix.EIO)
				must(t, k.read(wide, badStart+badLong))
				k.close()
				d.del(name)

				b := openDisk(t, bad, unix.O_RDONLY)
				defer b.close()
				got := alignedMemory(t, 4096)
				for at := int64(badStart - around); at < badStart+badLong+around; at += 4096 {
					if at >= badStart && at < badStart+badLong {
						continue
					}
					stamp(buf, at, 10)
					must(t, b.read(got, at))
					same(t, fmt.Sprintf("the backing at %d", at), buf, got)
				}
			})
		}
	}
}

// A backing that has no space left says so to the application, keeps what it
// has, and goes on when there is space again.
func TestNoSpaceLeftIsPassedThrough(t *testing.T) {
	// Twice as much as there is room for.
	const room, size = 8 * mib, 16 * mib
	for _, c := range []struct {
		name string
		// open makes a backing, and takes up what space there is beyond room.
		open func(t *testing.T) (spec, dir string)
	}{
		{"tmpfs", func(t *testing.T) (string, string) {
			m, err := fixture.NewMount("tmpfs", "", "tmpfs", 0, fmt.Sprintf("size=%d", room))
			must(t, err)
			t.Cleanup(func() { must(t, m.Close()) })
			return newFile(t, m.Dir, size), m.Dir
		}},
		{"ext4", func(t *testing.T) (string, string) {
			f := fixture.For(t)
			disk := f.NullBlk(fixture.MemoryBacked(room/mib + 4)).Path
			f.Mkfs("ext4", disk, "-q", "-m", "0")
			dir := f.Mount(disk, "ext4").Dir
			return newFile(t, dir, size), dir
		}},
		{"mem", func(t *testing.T) (string, string) {
			// Over the machine's own, so that nobody else runs out of it.
			m, err := fixture.NewMount("tmpfs", "/dev/shm", "tmpfs", 0, fmt.Sprintf("size=%d", size+mib))
			must(t, err)
			t.Cleanup(func() { must(t, m.Close()) })
			return fmt.Sprintf("mem:%d", int64(size)), m.Dir
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec, dir := c.open(t)
			d := startDaemon(t)
			k := openDisk(t, d.add("full", "--backing", spec, "--delay", "1ms"), unix.O_RDWR)
			defer k.close()
			// A mem: device is refused unless there is room; it goes later.
			if c.name == "mem" {
				must(t, os.WriteFile(filepath.Join(dir, "other"), make([]byte, size+mib-room), 0o600))
			}
			buf := alignedMemory(t, 64<<10)
			written, failed := []int64{}, []int64{}
			for at := int64(0); at < size; at += int64(len(buf)) {
				stamp(buf, at, 4)
				switch err := k.write(buf, at, 0); {
				case err == nil:
					written = append(written, at)
				case errors.Is(err, unix.ENOSPC):
					failed = append(failed, at)
				default:
					t.Fatalf("%v, want either success or %q", err, unix.ENOSPC)
				}
			}
			if len(written) == 0 || len(failed) == 0 {
				t.Fatalf("%d writes of 64 KiB went well and %d failed, want some of each", len(written), len(failed))
			}
			got := alignedMemory(t, len(buf))
			for _, at := range written {
				stamp(buf, at, 4)
				must(t, k.read(got, at))
				same(t, fmt.Sprintf("what was written at %d", at), buf, got)
			}
			// What could not be written reads as it did: as nothing.
			last := failed[len(failed)-1]
			must(t, k.read(got, last))
			same(t, fmt.Sprintf("what was not written at %d", last), make([]byte, len(got)), got)

			// There is space again.
			must(t, k.discard(written[0], 2*int64(len(buf))))
			stamp(buf, last, 5)
			must(t, k.write(buf, last, 0))
			must(t, k.sync())
			must(t, k.read(got, last))
			same(t, "what was written when there was space again", buf, got)
			k.close()
			d.del("full")
		})
	}
}
