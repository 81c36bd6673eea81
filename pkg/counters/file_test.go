package counters

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestNextDaemonContinues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slow0.counters")
	first := create(t, path, 2)
	since := first.Snapshot().Since
	play(first.Queue(0))
	play(first.Queue(1))
	// The first is not closed: it was killed, and its mapping is what is left.
	second := create(t, path, 2)
	if d := diff(played(2, 0, since), second.Snapshot()); d != "" {
		t.Errorf("continued (-want +got):\n%s", d)
	}
	play(second.Queue(1))
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if d := diff(played(3, 1, since), second.Snapshot()); d != "" {
		t.Errorf("a closed Set (-want +got):\n%s", d)
	}
	third := create(t, path, 2)
	if d := diff(played(3, 0, since), third.Snapshot()); d != "" {
		t.Errorf("continued after Close (-want +got):\n%s", d)
	}
}

func TestAnotherLayoutStartsAfresh(t *testing.T) {
	edit := func(at int, b byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte{b}, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, spoil := range map[string]func(t *testing.T, path string){
		"magic":   edit(0, 'X'),
		"version": edit(int(unsafe.Offsetof(header{}.version)), version+1),
		"layout":  edit(int(unsafe.Offsetof(header{}.layout)), byte(layoutHash())+1),
		"ops":     edit(int(unsafe.Offsetof(header{}.ops)), 99),
		"queues":  func(t *testing.T, path string) { create(t, path, 1).Close() },
		"shorter": func(t *testing.T, path string) {
			if err := os.Truncate(path, int64(mapSize(2))-1); err != nil {
				t.Fatal(err)
			}
		},
		"empty": func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		},
		"removed": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"left-over of a crash": func(t *testing.T, path string) {
			edit(0, 'X')(t, path)
			if err := os.WriteFile(path+".new", []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "slow0.counters")
			first := create(t, path, 2)
			play(first.Queue(0))
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			spoil(t, path)
			next := create(t, path, 2)
			got := next.Snapshot()
			if d := diff(&Snapshot{Since: got.Since}, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			play(next.Queue(1))
			again := create(t, path, 2)
			if d := diff(played(1, 0, got.Since), again.Snapshot()); d != "" {
				t.Errorf("continued (-want +got):\n%s", d)
			}
			onlyFile(t, dir, "slow0.counters")
		})
	}
}

// TestReplacedUnderItsWriter: a daemon that is still dying writes on into its old
// file, without a SIGBUS and without a trace in the new one.
func TestReplacedUnderItsWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slow0.counters")
	old := create(t, path, 4)
	next := create(t, path, 1)
	for i := range 4 {
		play(old.Queue(i))
	}
	got := next.Snapshot()
	if d := diff(&Snapshot{Since: got.Since}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestFile(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "slow0.counters")
	fds := countFDs(t)
	set := create(t, path, 2)
	check := func() {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode != unix.S_IFREG|0o600 || st.Size != int64(mapSize(2)) {
			t.Errorf("mode %o, %d bytes", st.Mode, st.Size)
		}
	}
	check()
	set.Close()
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	set = create(t, path, 2)
	check()
	if n := countFDs(t); n != fds {
		t.Errorf("%d fds before, %d after", fds, n)
	}
	if err := set.Remove(); err != nil {
		t.Error(err)
	}
	onlyFile(t, dir)
	if err := set.Remove(); err != nil {
		t.Errorf("second Remove: %v", err)
	}
	play(set.Queue(0)) // the mapping is still there
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if err := create(t, "", 1).Remove(); err != nil {
		t.Errorf("anonymous: %v", err)
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Symlink(at("elsewhere"), at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path   string
		queues int
		says   string
		is     error
	}{
		{at("x"), 0, "0 queues, which is not 1 to 4096", nil},
		{"", MaxQueues + 1, "4097 queues, which is not 1 to 4096", nil},
		{at("missing/x"), 1, "counters " + at("missing/x") + ": create " + at("missing/x.new") + ": no such file", unix.ENOENT},
		{at("file/x"), 1, "counters " + at("file/x") + ": open: not a directory", unix.ENOTDIR},
		{at("link"), 1, "open: is a symbolic link; remove it", unix.ELOOP},
		{at("dir"), 1, "open: is a directory", unix.EISDIR},
		{at("fifo"), 1, "not a regular file; remove it, or choose another directory", nil},
	} {
		set, err := Create(c.path, c.queues)
		if err == nil {
			set.Close()
			t.Errorf("%q: no error", c.path)
			continue
		}
		if !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%q says %q, which lacks %q", c.path, err, c.says)
		}
	}
}

// TestFullFileSystem: what has no room is refused, and leaves nothing behind.
func TestFullFileSystem(t *testing.T) {
	// The limit of the process stands in for that of a file system.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = uint64(headerSize + queueSize/2)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &low); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &limit)
	dir := t.TempDir()
	set, err := Create(filepath.Join(dir, "x"), 1)
	if !errors.Is(err, unix.EFBIG) {
		t.Errorf("%v, %v", set, err)
	}
	onlyFile(t, dir)
}

// onlyFile checks that dir has these files and no others.
func onlyFile(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
