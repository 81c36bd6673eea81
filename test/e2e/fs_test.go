package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// A file system that was made, filled, emptied in part and checked through a
// delayed device is the same on the backing itself, and through another delayed
// device.
func TestFileSystem(t *testing.T) {
	files := 120
	if testing.Short() {
		files = 30
	}
	d := startDaemon(t)
	for _, c := range []struct {
		fstype string
		size   int      // MiB; mkfs.xfs wants 300, and of a null_blk only what is written takes memory
		check  []string // changes nothing, and fails if there is anything to repair
		again  string   // options of a mount that does not write
	}{
		{"ext4", 96, []string{"fsck.ext4", "-f", "-n"}, "noload"},
		{"xfs", 304, []string{"xfs_repair", "-n"}, "norecovery"},
	} {
		t.Run(c.fstype, func(t *testing.T) {
			f, d := fixture.For(t), d.with(t)
			backing := f.NullBlk(fixture.MemoryBacked(c.size).With("cache_size", 8).With("discard", true)).Path
			path := d.add("first", "--backing", backing, "--delay", "500us")
			f.Mkfs(c.fstype, path, "-q")

			m := f.Mount(path, c.fstype)
			fillTree(t, m.Dir, files)
			written := sumTree(t, m.Dir)
			if len(written) < files/2 {
				t.Fatalf("%d files are there, too few to prove anything", len(written))
			}
			must(t, m.Close())
			checkFS(t, path, c.check)

			// Mounted again, so that the sums are of the device, not of the
			// page cache; discards of what is free; more files.
			m = f.Mount(path, c.fstype)
			sameTree(t, "mounted again", written, sumTree(t, m.Dir))
			trim(t, m.Dir)
			more := filepath.Join(m.Dir, "more")
			must(t, os.Mkdir(more, 0o755))
			fillTree(t, more, files/3)
			written = sumTree(t, m.Dir)
			must(t, m.Close())
			checkFS(t, path, c.check)
			through := sparseImageOf(t, path)
			d.del("first")

			through.isOn(t, backing, "the backing")
			checkFS(t, backing, c.check)
			m = f.Mount(backing, c.fstype)
			sameTree(t, "on the backing", written, sumTree(t, m.Dir))
			must(t, m.Close())
			before := sparseImageOf(t, backing)

			path = d.add("second", "--backing", backing, "--delay", "500us", "--read-only")
			ro, err := fixture.NewMount(path, "", c.fstype, unix.MS_RDONLY, c.again)
			must(t, err)
			t.Cleanup(func() { _ = ro.Close() })
			sameTree(t, "through a read-only device", written, sumTree(t, ro.Dir))
			if err := os.WriteFile(filepath.Join(ro.Dir, "new"), nil, 0o600); err == nil {
				t.Error("a file was made on a read-only file system")
			}
			must(t, ro.Close())
			d.del("second")
			before.isOn(t, backing, "the backing after it was mounted read-only")
		})
	}
}

// checkFS runs a checker that changes nothing.
func checkFS(t testing.TB, device string, command []string) {
	t.Helper()
	out, err := fixture.Command(command[0], append(command[1:len(command):len(command)], device)...)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// sparseImage is what is on a disk, by its MiB, of which those that are all zero
// are left out.
type sparseImage map[int64][]byte

func sparseImageOf(t testing.TB, path string) sparseImage {
	t.Helper()
	d := openDisk(t, path, unix.O_RDONLY)
	defer d.close()
	image := sparseImage{}
	buf, zero := alignedMemory(t, mib), make([]byte, mib)
	for at := int64(0); at < d.size; at += mib {
		must(t, d.read(buf, at))
		if !bytes.Equal(buf, zero) {
			image[at] = bytes.Clone(buf)
		}
	}
	return image
}

// isOn fails the test unless the disk at path holds the image.
func (image sparseImage) isOn(t testing.TB, path, what string) {
	t.Helper()
	got, zero := sparseImageOf(t, path), make([]byte, mib)
	all := maps.Clone(image)
	maps.Copy(all, got)
	for _, at := range slices.Sorted(maps.Keys(all)) {
		w, g := zero, zero
		if b, ok := image[at]; ok {
			w = b
		}
		if b, ok := got[at]; ok {
			g = b
		}
		if diff := difference(w, g); diff != "" {
			t.Errorf("%s, in the MiB at %d: %s", what, at, diff)
			return
		}
	}
}

// trim asks the file system to discard what is free.
func trim(t testing.TB, dir string) {
	t.Helper()
	_, err := fixture.Command("fstrim", "-v", dir)
	must(t, err)
}

// fillTree makes n files of random bytes in folders below dir, some of them
// synced, and overwrites, cuts, renames and deletes some of them.
func fillTree(t testing.TB, dir string, n int) {
	t.Helper()
	seed := modelSeed(t)
	t.Logf("%s: seed %d", filepath.Base(dir), seed)
	random := rand.New(rand.NewPCG(seed, 0))
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	path := func(i int) string { return filepath.Join(dir, fmt.Sprintf("dir%d", i%7), fmt.Sprintf("file%d", i)) }
	data := make([]byte, mib)
	write := func(f *os.File, at int64, n int, sync bool) {
		_, _ = source.Read(data[:n])
		_, err := f.WriteAt(data[:n], at)
		must(t, err)
		if sync {
			must(t, f.Sync())
		}
	}
	for i := range n {
		must(t, os.MkdirAll(filepath.Dir(path(i)), 0o755))
		f, err := os.Create(path(i))
		must(t, err)
		size := random.IntN(16 << 10)
		if i%5 == 0 {
			size = random.IntN(len(data))
		}
		write(f, int64(random.IntN(2)*random.IntN(100<<10)), size, i%4 == 0)
		must(t, f.Close())
	}
	for i := range n {
		switch i % 6 {
		case 0:
			must(t, os.Remove(path(i)))
		case 1:
			f, err := os.OpenFile(path(i), os.O_RDWR, 0)
			must(t, err)
			write(f, int64(random.IntN(64<<10)), random.IntN(64<<10), true)
			must(t, f.Close())
		case 2:
			must(t, os.Truncate(path(i), int64(random.IntN(8<<10))))
		case 3:
			must(t, os.Rename(path(i), path(i)+".renamed"))
		}
	}
}

// sumTree is the sum of every file below dir, by its path there.
func sumTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		sums[name] = fmt.Sprintf("%d bytes, %x", len(data), sha256.Sum256(data))
		return err
	}))
	return sums
}

func sameTree(t testing.TB, what string, want, got map[string]string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the files %s (-want +got):\n%s", what, d)
	}
}
