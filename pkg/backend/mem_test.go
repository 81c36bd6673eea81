package backend

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/test/fixture"
)

// smallMemory makes mem: backings live in a tmpfs of so many bytes.
func smallMemory(t *testing.T, sizeBytes string) string {
	t.Helper()
	m, err := fixture.NewMount("tmpfs", "", "tmpfs", 0, "size="+sizeBytes)
	if err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	old := memDir
	memDir = m.Dir
	t.Cleanup(func() {
		memDir = old
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m.Dir
}

func TestMemoryFile(t *testing.T) {
	b, err := Open("mem:1000000", Options{Name: "slow0", Owner: "test"})
	if err != nil {
		t.Fatal(err)
	}
	const path = "/dev/shm/delayd-test:slow0"
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode() != 0o600 || fi.Size() != 1000000 {
		t.Errorf("%s: mode %v, %d bytes, want -rw------- and 1000000", path, fi.Mode(), fi.Size())
	}
	if l := b.Limits(); l.Size != 999936 || l.VolatileCache || l.Rotational || l.Discard.MaxBytes != 1<<32-4096 {
		t.Errorf("limits %+v", l)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after Close: %v, want that it does not exist", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestMemoryDiscardGivesPagesBack(t *testing.T) {
	b := open(t, "mem:4M", Options{Name: "pages"})
	d := newDriver(t, 1<<20)
	blocks := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(b.FD(), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	for at := int64(0); at < 4<<20; at += 1 << 20 {
		if res := d.write(b, at, pattern(1<<20, 1), false); res != 1<<20 {
			t.Fatal(errno(res))
		}
	}
	if n := blocks(); n != 4<<20 {
		t.Errorf("%d bytes taken after writing 4 MiB", n)
	}
	for _, r := range []Request{
		{Op: op.Discard, Length: 1 << 20},
		{Op: op.WriteZeroes, Offset: 1 << 20, Length: 1 << 20},
		{Op: op.WriteZeroes, NoUnmap: true, Offset: 2 << 20, Length: 1 << 20},
	} {
		if res := d.do(b, &r); res != 0 {
			t.Errorf("%v: %v", r.Op, errno(res))
		}
	}
	if n := blocks(); n != 2<<20 {
		t.Errorf("%d bytes taken, want 2 MiB: discard and unmap give back, nounmap keeps", n)
	}
	got, _ := d.read(b, 2<<20, 1<<20)
	if !bytes.Equal(got, make([]byte, 1<<20)) {
		t.Error("zeroed memory is not zero")
	}
}

// TestMemoryFull touches pages that shared memory has no room for: the fault
// must become ENOSPC for what writes, and zeroes for what reads.
func TestMemoryFull(t *testing.T) {
	dir := smallMemory(t, "1M")
	b := open(t, "mem:512K", Options{Name: "full"})
	d := newDriver(t, 128<<10)
	if res := d.write(b, 0, pattern(64<<10, 3), false); res != 64<<10 {
		t.Fatal(errno(res))
	}
	// All that is left, to the last page.
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if res := d.write(b, 256<<10, pattern(128<<10, 4), false); errno(res) != unix.ENOSPC {
		t.Errorf("write: %d (%v), want ENOSPC", res, errno(res))
	}
	r := Request{Op: op.WriteZeroes, NoUnmap: true, Offset: 256 << 10, Length: 128 << 10}
	if res := d.do(b, &r); errno(res) != unix.ENOSPC {
		t.Errorf("write-zeroes: %d (%v), want ENOSPC", res, errno(res))
	}
	got, res := d.read(b, 384<<10, 128<<10)
	if res != 128<<10 || !bytes.Equal(got, make([]byte, 128<<10)) {
		t.Errorf("read of what was never written: %d (%v), want zeroes", res, errno(res))
	}
	got, res = d.read(b, 0, 64<<10)
	if res != 64<<10 || !bytes.Equal(got, pattern(64<<10, 3)) {
		t.Errorf("read of what was written before: %d (%v), or differs", res, errno(res))
	}
	// Room again: the same write goes through.
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if res := d.write(b, 256<<10, pattern(128<<10, 4), false); res != 128<<10 {
		t.Errorf("write with room again: %v", errno(res))
	}
}

func TestMemoryRefused(t *testing.T) {
	dir := smallMemory(t, "1M")
	fds := openFDs(t)
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "delayd-link")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		spec string
		o    Options
		want []string
	}{
		{"mem:2M", Options{Name: "a"}, []string{"mem:2M", "1MiB free of 1MiB", dir}},
		{"mem:", Options{Name: "a"}, []string{"backing mem:"}},
		{"mem:-1", Options{Name: "a"}, []string{"-1"}},
		{"mem:0", Options{Name: "a"}, []string{"is empty"}},
		{"mem:511", Options{Name: "a"}, []string{"511 bytes", "512"}},
		{"mem:1M", Options{}, []string{`device name ""`}},
		{"mem:1M", Options{Name: "../a"}, []string{`"../a"`}},
		{"mem:1M", Options{Name: "link"}, []string{"delayd-link", "symbolic links"}},
		{"mem:64K", Options{Name: "a", Offset: 64 << 10}, []string{"offset 64KiB is not inside it"}},
	} {
		_, err := Open(tc.spec, tc.o)
		wantError(t, err, tc.want...)
	}
	if n := openFDs(t); n != fds {
		t.Errorf("%d descriptors open, were %d", n, fds)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestMemoryOfALivingAndOfADeadDaemon(t *testing.T) {
	dir := smallMemory(t, "1M")
	first := open(t, "mem:64K", Options{Name: "a"})
	d := newDriver(t, 4096)
	if res := d.write(first, 0, pattern(4096, 5), false); res != 4096 {
		t.Fatal(errno(res))
	}
	_, err := Open("mem:64K", Options{Name: "a"})
	wantError(t, err, "in use", "by this process", "another name")

	// One that nobody locks was left by a dead daemon.
	dead := filepath.Join(dir, "delayd-b")
	if err := os.WriteFile(dead, pattern(8192, 1), 0o666); err != nil {
		t.Fatal(err)
	}
	b := open(t, "mem:64K", Options{Name: "b"})
	got, _ := d.read(b, 0, 4096)
	if !bytes.Equal(got, make([]byte, 4096)) {
		t.Error("the dead daemon's bytes are still there")
	}
	if fi, err := os.Stat(dead); err != nil || fi.Mode() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", fi.Mode(), err)
	}
	// A name that somebody else has taken over is not removed.
	if err := os.Rename(dead, dead+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dead); err != nil {
		t.Errorf("Close removed another's file: %v", err)
	}
}

// TestMemoryFromSeveralThreads is for the race detector.
func TestMemoryFromSeveralThreads(t *testing.T) {
	b := open(t, "mem:1M", Options{Name: "threads"})
	var wg sync.WaitGroup
	for i := range 4 {
		d := newDriver(t, 64<<10)
		wg.Go(func() {
			at := int64(i) * (256 << 10)
			for n := range 50 {
				want := pattern(64<<10, byte(i*50+n))
				if res := d.write(b, at, want, false); res != 64<<10 {
					t.Errorf("write: %v", errno(res))
				}
				if got, _ := d.read(b, at, 64<<10); !bytes.Equal(got, want) {
					t.Errorf("thread %d, turn %d: read differs", i, n)
				}
				r := Request{Op: op.Discard, Offset: at, Length: 64 << 10}
				if res := d.do(b, &r); res != 0 {
					t.Errorf("discard: %v", errno(res))
				}
			}
		})
	}
	wg.Wait()
}

// TestFaultsOfOthersPass: only a memory fault is caught.
func TestFaultsOfOthersPass(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a panic that is no memory fault was swallowed")
		}
	}()
	func() {
		defer recoverFault()
		panic("mine")
	}()
}

func TestBadBufferIsAnError(t *testing.T) {
	b := open(t, "mem:64K", Options{Name: "bad"})
	d := newDriver(t, 4096)
	gone, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(gone)
	r := Request{Op: op.Read, Length: 4096, Buf: unsafe.Pointer(&gone[0])}
	if res := d.do(b, &r); errno(res) != unix.EFAULT {
		t.Errorf("read into memory that is not there: %d (%v), want EFAULT", res, errno(res))
	}
}

// What a dead daemon left goes; what a live one uses stays, and so does what is
// of another kind.
func TestRemoveLeft(t *testing.T) {
	o := Options{Name: "left", Owner: "test"}
	b, err := Open("mem:64K", o)
	if err != nil {
		t.Fatal(err)
	}
	if err := RemoveLeft("mem:64K", o); !errors.Is(err, ErrInUse) {
		t.Errorf("of a live one: %v, want ErrInUse", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := RemoveLeft("mem:64K", o); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	if err := os.WriteFile(memPath(o), []byte("left"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveLeft("/dev/null", o); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(memPath(o)); err != nil {
		t.Errorf("removed for a backing of another kind: %v", err)
	}
	if err := RemoveLeft("mem:64K", o); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(memPath(o)); err == nil {
		t.Error("what a dead daemon left is still there")
	}
}
