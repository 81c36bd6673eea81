package e2e

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// refusal is something that must not be done, and what the user is told.
type refusal struct {
	name string
	args []string // of delayctl
	code int
	says []string // what was wrong, with what value, what to do
}

// refused runs each, and looks for what is left after it.
func refused(t *testing.T, d *daemon, refusals []refusal) {
	t.Helper()
	before := look(t, d)
	after := before
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			out, errOut, code := d.ctl(r.args...)
			if code != r.code || out != "" {
				t.Errorf("exit code %d and output %q, want %d and none; it says %q", code, out, r.code, errOut)
			}
			if !strings.HasPrefix(errOut, "delayctl: ") || strings.Count(errOut, "\n") > 2 {
				t.Errorf("it says %q: want one line, and one with a hint", errOut)
			}
			says(t, "delayctl", errOut, r.says...)
			after = sameTraces(t, d, before)
		})
	}
	grown(t, before, after, len(refusals), 1)
}

// add is the command line of an addition.
func add(name string, flags ...string) []string { return append([]string{"add", name}, flags...) }

// Promise 8: values that are wrong whatever the backing is.
func TestPromise8WrongValues(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	d.add("taken", "--backing", "mem:1M")
	long := strings.Repeat("n", 65)
	manyQueues := strconv.Itoa(runtime.NumCPU() + 1)
	const hintName = "want 1 to 64 of A-Z a-z 0-9 . _ - and neither a dot nor a dash first"
	const hintDepth = "want 1 to 4096"
	mem := func(flags ...string) []string { return add("a", append([]string{"--backing", "mem:1M"}, flags...)...) }
	refused(t, d, []refusal{
		{"zero copy of what the daemon copies", mem("--zero-copy", "on"), 1, []string{"zero copy on", "use auto or off"}},
		{"zero copy and polling", mem("--zero-copy", "on", "--poll"), 2, []string{`--zero-copy "on": cannot be had together with poll`, "drop one of the two"}},
		{"name taken", add("taken", "--backing", "mem:1M"), 1, []string{`"taken" exists`, "choose another name", "delayctl del taken"}},
		{"name taken, another backing", add("taken", "--backing", "null:1M"), 1, []string{`"taken" exists`}},
		{"name empty", add("", "--backing", "mem:1M"), 2, []string{"name: empty", hintName}},
		{"name with a slash", add("a/b", "--backing", "mem:1M"), 2, []string{`name "a/b": has "/" in it`, hintName}},
		{"name of 65 characters", add(long, "--backing", "mem:1M"), 2, []string{long, "65 characters long", hintName}},
		{"name with a dot first", add(".a", "--backing", "mem:1M"), 2, []string{`name ".a": starts with "."`, hintName}},
		{"name with a newline", add("a\nb", "--backing", "mem:1M"), 2, []string{`"a\nb"`, hintName}},

		{"delay negative", mem("--delay=-5ms"), 2, []string{`--delay "-5ms": negative`, "0 to 24h"}},
		{"delay huge", mem("--delay", "25h"), 2, []string{`--delay "25h": too long`, "0 to 24h"}},
		{"delay beyond numbers", mem("--delay", "9999999999h"), 2, []string{`--delay "9999999999h"`, "24h"}},
		{"delay without a unit", mem("--write", "5"), 2, []string{`--write "5": unit missing`, "did you mean 5ms"}},
		{"delay unreadable", mem("--flush", "soon"), 2, []string{`--flush "soon": not a duration`, "1.5ms"}},
		{"delay empty", mem("--read="), 2, []string{"--read: no value", "leave --read out"}},

		{"size negative", mem("--size=-1"), 2, []string{"--size -1: negative"}},
		{"size huge", mem("--size", "99999999999T"), 2, []string{`--size "99999999999T": too large`, "9223372036854775807"}},
		{"size unreadable", mem("--size", "much"), 2, []string{`--size "much"`, "K, M, G, T"}},
		{"size of another unit", mem("--size", "1Q"), 2, []string{`--size "1Q"`, "K, M, G, T"}},
		{"size beyond the end", mem("--size", "2M"), 1, []string{"mem:1M", "2MiB", "beyond its end", "at most 1MiB"}},
		{"size below a block", mem("--size", "100"), 1, []string{"mem:1M", "size 100", "512"}},
		{"offset negative", mem("--offset=-4K"), 2, []string{"--offset", "-4K", "negative"}},
		{"offset unreadable", mem("--offset", "far"), 2, []string{`--offset "far"`, "K, M, G, T"}},
		{"offset at the end", mem("--offset", "1M"), 1, []string{"mem:1M", "offset 1MiB is not inside it", "it has 1MiB"}},
		{"offset beyond the end", mem("--offset", "1G"), 1, []string{"mem:1M", "offset 1GiB is not inside it", "it has 1MiB"}},
		{"offset not of a block", mem("--offset", "1000"), 1, []string{"mem:1M", "offset 1000", "not a multiple", "512 or 1024"}},
		{"offset and size beyond the end", mem("--offset", "512K", "--size", "600K"), 1, []string{"offset 512KiB + size 600KiB", "beyond its end", "at most 512KiB"}},

		{"no queues", mem("--queues", "0"), 2, []string{"--queues", "leave --queues out"}},
		{"queues negative", mem("--queues=-1"), 2, []string{"--queues", "-1", "negative", "1 to the number of CPUs"}},
		{"too many queues", mem("--queues", manyQueues), 1, []string{"queues " + manyQueues, "more than the daemon has CPUs", "want auto, or 1 to " + strconv.Itoa(runtime.NumCPU())}},
		{"queues unreadable", mem("--queues", "two"), 2, []string{`--queues "two": neither auto nor a whole number`}},
		{"depth of nothing", mem("--depth", "0"), 2, []string{"--depth", "leave --depth out"}},
		{"depth 5000", mem("--depth", "5000"), 2, []string{`--depth`, "5000", "out of range", hintDepth}},
		{"depth negative", mem("--depth=-3"), 2, []string{`--depth`, "-3", "out of range", hintDepth}},
		{"hold unknown", mem("--hold", "later"), 2, []string{`--hold "later": there is no such mode`, "submit", "complete"}},
		{"hold nearly right", mem("--hold", "submitt"), 2, []string{`--hold "submitt"`, "did you mean submit?"}},

		{"flag unknown", mem("--speed", "9"), 2, []string{"unknown flag: --speed", "delayctl add --help"}},
		{"command unknown", []string{"remove", "a"}, 2, []string{`unknown command "remove"`, "delayctl --help"}},
		{"command nearly right", []string{"lst"}, 2, []string{`unknown command "lst"`, "list"}},
		{"no command", nil, 2, []string{"no command given", "delayctl --help"}},
		{"no name", []string{"add", "--backing", "mem:1M"}, 2, []string{"no NAME given", "delayctl add --help"}},
		{"two names", []string{"del", "a", "b"}, 2, []string{"one NAME is wanted, not 2: a b", "delayctl del --help"}},
		{"output unknown", []string{"list", "-o", "yaml"}, 2, []string{`--output "yaml"`, "table, json"}},

		{"device unknown", []string{"del", "nothing"}, 1, []string{`no device "nothing"`, "the devices are taken"}},
		{"device nearly right", []string{"del", "takn"}, 1, []string{`no device "takn"`, "did you mean taken?"}},
		{"device unknown, shown", []string{"show", "nothing"}, 1, []string{`no device "nothing"`}},
	})
	if s := d.show("taken"); s.State != "delaying" {
		t.Errorf("the device whose name was asked for again is %s", s.State)
	}
}

// Promise 8: backings that cannot be used.
func TestPromise8WrongBacking(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	f := fixture.For(t)
	dir := t.TempDir()
	file := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, os.Truncate(path, size))
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	must(t, unix.Mkfifo(pipe, 0o600))
	dangling := filepath.Join(dir, "dangling")
	must(t, os.Symlink("nowhere", dangling))
	disk := f.NullBlk(fixture.MemoryBacked(8).With("blocksize", 4096))
	const kinds = "a block device, a file, mem:SIZE or null:SIZE"
	with := func(backing string, flags ...string) []string {
		return add("a", append([]string{"--backing", backing}, flags...)...)
	}
	refusals := []refusal{
		{"none", add("a"), 2, []string{"--backing: missing", "mem:SIZE"}},
		{"missing", with(dir + "/none"), 1, []string{dir + "/none", "no such file or directory", kinds}},
		{"a device that is missing", with("/dev/sdzz9"), 1, []string{"/dev/sdzz9", "no such file or directory", kinds}},
		{"a link to nothing", with(dangling), 1, []string{dangling, "no such file or directory"}},
		{"below a file", with(file("plain", 1<<20) + "/x"), 1, []string{"plain/x", "not a directory"}},
		{"a directory", with(dir), 1, []string{dir, "it is a directory", kinds}},
		{"a character device", with("/dev/null"), 1, []string{"/dev/null", "it is a character device", kinds}},
		{"a pipe", with(pipe), 1, []string{pipe, "it is a named pipe", kinds}},
		{"an empty file", with(file("empty", 0)), 1, []string{"empty", "is empty", "truncate -s"}},
		{"a file below a block", with(file("short", 511)), 1, []string{"short", "511 bytes", "at least one block of 512", "truncate -s"}},
		{"memory without a size", with("mem:"), 2, []string{`--backing "mem:"`, "mem:64M"}},
		{"no memory", with("mem:0"), 2, []string{`--backing "mem:0": no bytes`, "mem:64M"}},
		{"memory unreadable", with("mem:lots"), 2, []string{`--backing "mem:lots"`, "mem:64M"}},
		{"more memory than there is", with("mem:900T"), 1, []string{"mem:900T", "/dev/shm", "ask for less"}},
		{"memory below a block", with("mem:100"), 1, []string{"mem:100", "at least one block of 512"}},
		{"a kind that there is not", with("nbd:host"), 1, []string{"nbd:host", "no such file or directory", kinds}},
		{"an offset that is half a block", with(disk.Path, "--offset", "512"), 1, []string{disk.Path, "offset 512", "logical block of 4096", "0 or 4096"}},
		{"a size below a block", with(disk.Path, "--size", "512"), 1, []string{disk.Path, "size 512", "4096"}},
		{"an offset beyond the end of a disk", with(disk.Path, "--offset", "9M"), 1, []string{disk.Path, "offset 9MiB is not inside it", "it has 8MiB"}},
		{"more buffers than allowed", with("null:1G", "--depth", "4096", "--queues", strconv.Itoa(runtime.NumCPU())), 1, nil},
	}
	// Buffers: 4096 × 1 MiB a queue. With two queues it is just what is allowed.
	if runtime.NumCPU() > 2 {
		refusals[len(refusals)-1].says = []string{"depth 4096", "over the limit of 8GiB", "--queues", "--depth"}
	} else {
		refusals = refusals[:len(refusals)-1]
	}
	refused(t, d, refusals)
}

// Promise 8: a zoned disk.
func TestPromise8ZonedBacking(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	n := fixture.For(t).NullBlk(fixture.MemoryBacked(16).With("zoned", 1).With("zone_size", 4))
	refused(t, d, []refusal{
		{"zoned", add("a", "--backing", n.Path), 1, []string{n.Path, "zoned", "host-managed", "use a conventional device"}},
		{"zoned, shared", add("a", "--backing", n.Path, "--shared"), 1, []string{n.Path, "zoned"}},
	})
}

// Promise 8: a file that even root may not write to.
func TestPromise8NotPermittedBacking(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	f := fixture.For(t)
	n := f.NullBlk(fixture.MemoryBacked(32))
	f.Mkfs("ext4", n.Path)
	m := f.Mount(n.Path, "ext4")
	fixed := filepath.Join(m.Dir, "fixed")
	must(t, os.WriteFile(fixed, make([]byte, 1<<20), 0o600))
	if _, err := fixture.Command("chattr", "+i", fixed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := fixture.Command("chattr", "-i", fixed); err != nil {
			t.Error(err)
		}
	})
	refused(t, d, []refusal{
		{"immutable", add("a", "--backing", fixed), 1, []string{fixed, "operation not permitted", "--read-only"}},
	})
	// What it says to do does it.
	d.add("a", "--backing", fixed, "--read-only")
	d.del("a")

	frozen := filepath.Join(m.Dir, "frozen")
	must(t, os.WriteFile(frozen, make([]byte, 1<<20), 0o600))
	must(t, unix.Mount("", m.Dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	refused(t, d, []refusal{
		{"on a read-only file system", add("a", "--backing", frozen), 1, []string{frozen, "read-only file system", "--read-only"}},
	})
	d.add("a", "--backing", frozen, "--read-only")
	d.del("a")
	must(t, unix.Mount("", m.Dir, "", unix.MS_REMOUNT, ""))
}
