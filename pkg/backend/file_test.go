package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/test/fixture"
)

func isDirect(t *testing.T, b Backend) bool {
	t.Helper()
	flags, err := unix.FcntlInt(uintptr(b.FD()), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	if flags&unix.O_NONBLOCK != 0 {
		t.Error("the file is open O_NONBLOCK")
	}
	return flags&unix.O_DIRECT != 0
}

func TestFileLimits(t *testing.T) {
	dir := t.TempDir()
	path := tempFile(t, dir, 1<<20+700)
	b := open(t, path, Options{})
	l := b.Limits()
	if l.Size != 1<<20+512 && l.LogicalBlock == 512 || l.Size%int64(l.LogicalBlock) != 0 {
		t.Errorf("size %d of a file of 1 MiB + 700", l.Size)
	}
	if !l.VolatileCache || !l.FUA || l.ReadOnly {
		t.Errorf("limits %+v", l)
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != 1<<20+700 {
		t.Errorf("the file's size changed: %v, %v", fi, err)
	}
	// This machine's temporary directory is on a file system that says whether
	// it does direct I/O: believe neither side alone.
	var stx unix.Statx_t
	if err := unix.Statx(b.FD(), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stx); err != nil || stx.Mask&unix.STATX_DIOALIGN == 0 {
		return
	}
	if want := stx.Dio_offset_align != 0; isDirect(t, b) != want {
		t.Errorf("direct is %v, the file system can: %v", !want, want)
	}
}

// TestFileHoles looks at the blocks of the file.
func TestFileHoles(t *testing.T) {
	path := tempFile(t, t.TempDir(), 4<<20)
	b := open(t, path, Options{})
	if b.Limits().Discard.MaxBytes == 0 {
		t.Skip("the file system makes no holes")
	}
	d := newDriver(t, 4096)
	blocks := func() int64 {
		t.Helper()
		if res := d.do(b, &Request{Op: op.Flush}); res != 0 {
			t.Fatal(errno(res))
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	full := blocks()
	for _, tc := range []struct {
		r    Request
		less int64
	}{
		{Request{Op: op.Discard, Length: 1 << 20}, 1 << 20},
		{Request{Op: op.WriteZeroes, Offset: 1 << 20, Length: 1 << 20}, 1 << 20},
		{Request{Op: op.WriteZeroes, NoUnmap: true, Offset: 2 << 20, Length: 1 << 20}, 0},
	} {
		if res := d.do(b, &tc.r); res != 0 {
			t.Fatalf("%v: %v", tc.r.Op, errno(res))
		}
		now := blocks()
		// A hole may cost the file system a block more for its map of the file.
		const slack = 4096
		if less := full - now; less < tc.less-slack || less > tc.less {
			t.Errorf("%v, nounmap %v: %d bytes given back, want %d", tc.r.Op, tc.r.NoUnmap, less, tc.less)
		}
		full = now
	}
}

// TestFileShrinksUnderUs: the end of the file is an error, not an endless loop.
func TestFileShrinksUnderUs(t *testing.T) {
	path := tempFile(t, t.TempDir(), 64<<10)
	b := open(t, path, Options{})
	d := newDriver(t, 64<<10)
	for _, left := range []int64{32<<10 + 700, 32 << 10, 100, 0} {
		if err := os.Truncate(path, left); err != nil {
			t.Fatal(err)
		}
		if _, res := d.read(b, 0, 64<<10); errno(res) != unix.EIO {
			t.Errorf("read past %d bytes: %d (%v), want EIO", left, res, errno(res))
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	good := tempFile(t, dir, 10000)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(at("empty"), nil, 0o600))
	must(os.WriteFile(at("small"), make([]byte, 511), 0o600))
	must(unix.Mkfifo(at("pipe"), 0o600))
	must(os.Symlink(at("nowhere"), at("dangling")))
	must(os.Symlink(at("loop"), at("loop")))
	l, err := net.Listen("unix", at("socket"))
	must(err)
	defer l.Close()
	fds := openFDs(t)
	lb := open(t, good, Options{Shared: true}).Limits().LogicalBlock
	size := 10000 / int64(lb) * int64(lb)
	fds++ // that one

	for _, tc := range []struct {
		spec string
		o    Options
		want []string
		is   error
	}{
		{"", Options{}, []string{"backing is empty", "a block device, a file, mem:SIZE or null:SIZE"}, nil},
		{at("nowhere"), Options{}, []string{at("nowhere"), "no such file", "mem:SIZE"}, fs.ErrNotExist},
		{"ram:64M", Options{}, []string{"ram:64M", "no such file", "mem:SIZE or null:SIZE"}, fs.ErrNotExist},
		{at("dangling"), Options{}, []string{at("dangling"), "no such file"}, fs.ErrNotExist},
		{at("loop"), Options{}, []string{at("loop"), "symbolic links"}, unix.ELOOP},
		{good + "/x", Options{}, []string{good + "/x", "not a directory"}, unix.ENOTDIR},
		{dir, Options{}, []string{dir, "it is a directory", "give a block device, a file"}, nil},
		{"/dev/null", Options{}, []string{"/dev/null", "it is a character device"}, nil},
		{at("pipe"), Options{}, []string{"it is a named pipe"}, nil},
		{at("socket"), Options{}, []string{"it is a socket"}, nil},
		{at("empty"), Options{}, []string{at("empty"), "is empty", "truncate -s 1G " + at("empty")}, nil},
		{at("small"), Options{}, []string{"has 511 bytes", "one block of", "truncate"}, nil},
		{good, Options{Offset: -1}, []string{"offset -1 is negative"}, nil},
		{good, Options{Size: -512}, []string{"size -512 is negative"}, nil},
		{good, Options{Offset: 100}, []string{"offset 100", fmt.Sprintf("%d bytes: use 0 or %d", lb, lb)}, nil},
		{good, Options{Offset: 1 << 20}, []string{"offset 1MiB is not inside it"}, nil},
		{good, Options{Offset: size}, []string{"is not inside it"}, nil},
		{good, Options{Size: 100}, []string{"size 100 is less than its logical block"}, nil},
		{good, Options{Offset: 4096, Size: 1 << 20}, []string{"offset 4KiB + size 1MiB is beyond its end"}, nil},
		{good, Options{Size: 1<<63 - 1}, []string{"beyond its end"}, nil},
		{"null:1X", Options{}, []string{"backing null:1X", "X"}, nil},
		{"null:0", Options{}, []string{"is empty"}, nil},
		{"null:4K", Options{Offset: 4096}, []string{"not inside it"}, nil},
	} {
		t.Run(tc.spec, func(t *testing.T) {
			b, err := Open(tc.spec, tc.o)
			if err == nil {
				t.Fatalf("opened, %+v", b.Limits())
			}
			wantError(t, err, tc.want...)
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%v is not %v", err, tc.is)
			}
		})
	}
	if n := openFDs(t); n != fds {
		t.Errorf("%d descriptors open, were %d", n, fds)
	}
	if _, err := os.Stat(at("nowhere")); err == nil {
		t.Error("a missing file was made")
	}
}

func TestFileNotPermitted(t *testing.T) {
	dir, err := os.MkdirTemp("", "delayd-perm-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := tempFile(t, dir, 8192)
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	said, _ := child(t, path, 65534)
	wantError(t, errors.New(said), path, "permission denied", "may not write", "--read-only")
}

func TestFileOnAReadOnlyFileSystem(t *testing.T) {
	m, err := fixture.NewMount("tmpfs", "", "tmpfs", 0, "")
	if err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	path := tempFile(t, m.Dir, 8192)
	if err := unix.Mount("", m.Dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err = Open(path, Options{})
	wantError(t, err, path, "read-only file system: pass --read-only")
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("%v is not EROFS", err)
	}
	b, err := Open(path, Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if !b.Limits().ReadOnly {
		t.Error("not read-only")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestFileLock(t *testing.T) {
	path := tempFile(t, t.TempDir(), 8192)
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	b, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []string{path, link} {
		for _, ro := range []bool{false, true} {
			_, err := Open(spec, Options{ReadOnly: ro})
			wantError(t, err, spec, "in use by this process", "--shared")
			if !errors.Is(err, ErrInUse) {
				t.Errorf("%v is not ErrInUse", err)
			}
		}
	}
	open(t, path, Options{Shared: true})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// Readers exclude writers only.
	r1, err := Open(path, Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	r2, err := Open(path, Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{}); !errors.Is(err, ErrInUse) {
		t.Errorf("a writer beside readers: %v", err)
	}
	if err := errors.Join(r1.Close(), r2.Close()); err != nil {
		t.Fatal(err)
	}
	open(t, path, Options{})
}

func TestFileLockedByAnotherProcess(t *testing.T) {
	path := tempFile(t, t.TempDir(), 8192)
	said, pid := child(t, path, 0)
	if said != "open" {
		t.Fatal(said)
	}
	_, err := Open(path, Options{})
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	wantError(t, err, fmt.Sprintf("in use by %s (pid %d)", comm[:len(comm)-1], pid))
}
