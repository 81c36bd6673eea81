package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// traces are what a daemon has of which something could be left after a
// refusal, or after a device has gone.
type traces struct {
	Devices  []string // of ublk, in sysfs and as nodes
	Files    []string // in the run directory, in /dev/shm and beside the socket
	FDs      []string // of the daemon: what each is
	Mapped   []string // of the daemon: mappings of files
	Children []string // of the daemon

	rings   int   // of the daemon: io_urings
	threads int   // of the daemon, those of io_uring among them
	memory  int64 // of the daemon's address space, bytes
}

// ring is what /proc calls an io_uring.
const ring = "anon_inode:[io_uring]"

// look takes the traces of a daemon.
func look(t testing.TB, d *daemon) (tr traces) {
	t.Helper()
	for _, pattern := range []string{"/sys/class/ublk-char/*", "/sys/block/ublkb*", "/dev/ublk[bc]*"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		tr.Devices = append(tr.Devices, found...)
	}
	for _, dir := range []string{d.runDir, filepath.Dir(d.socket)} {
		must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil // went meanwhile
			}
			tr.Files = append(tr.Files, path)
			return err
		}))
	}
	shm, err := filepath.Glob("/dev/shm/delayd*")
	must(t, err)
	tr.Files = append(tr.Files, shm...)

	proc := fmt.Sprintf("/proc/%d", d.pid())
	fds, err := os.ReadDir(proc + "/fd")
	must(t, err)
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		switch kind, _, _ := strings.Cut(to, "["); { // socket:[1234]
		case to == ring:
			tr.rings++
		case strings.HasPrefix(to, "anon_inode:"):
			tr.FDs = append(tr.FDs, to)
		default:
			tr.FDs = append(tr.FDs, kind)
		}
	}
	tr.Mapped, tr.memory = mappings(t, proc)
	tr.Children, tr.threads = tasks(t, d.pid())
	for _, list := range []*[]string{&tr.Devices, &tr.Files, &tr.FDs, &tr.Mapped, &tr.Children} {
		slices.Sort(*list)
	}
	return tr
}

// mappings reads the mappings of files, and how long all are together.
func mappings(t testing.TB, proc string) (files []string, total int64) {
	t.Helper()
	text, err := os.ReadFile(proc + "/maps")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		// 7f2a8c000000-7f2a8c021000 rw-p 00000000 00:00 0 [heap]
		var from, to int64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			t.Fatalf("%s/maps: %q: %v", proc, line, err)
		}
		if w := strings.Fields(line); len(w) > 5 && !strings.HasPrefix(w[5], "[") && w[5] != ring {
			files = append(files, w[5])
		}
		total += to - from
	}
	return files, total
}

// tasks returns the children of a process, and how many threads it has.
func tasks(t testing.TB, pid int) (children []string, threads int) {
	t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	must(t, err)
	for _, task := range all {
		text, err := os.ReadFile(task + "/children")
		if err == nil {
			children = append(children, strings.Fields(string(text))...)
		}
	}
	return children, len(all)
}

// settle is how long what is closed asynchronously may take: connections of
// clients that have gone, io_uring's files.
const settle = 15 * time.Second

// sameTraces fails the test unless the daemon has, within a time, no more than it
// had before: device, file, descriptor, mapping and child for the same. It may
// have less: a connection of a client that had just gone may have been there
// before. Threads, the rings of control commands and the memory of Go's heap come
// as they are needed and stay, so they are compared with a tolerance by [grown].
func sameTraces(t testing.TB, d *daemon, before traces) (after traces) {
	t.Helper()
	for end := time.Now().Add(settle); ; time.Sleep(20 * time.Millisecond) {
		after = look(t, d)
		more := slices.Concat(
			beyond(before.Devices, after.Devices), beyond(before.Files, after.Files), beyond(before.FDs, after.FDs),
			beyond(before.Mapped, after.Mapped), beyond(before.Children, after.Children))
		if len(more) == 0 {
			return after
		}
		if time.Now().After(end) {
			t.Errorf("left behind: %q", more)
			return after
		}
	}
}

// beyond returns what after has and before has not, counting equal ones.
func beyond(before, after []string) (more []string) {
	had := map[string]int{}
	for _, s := range before {
		had[s]++
	}
	for _, s := range after {
		if had[s]--; had[s] < 0 {
			more = append(more, s)
		}
	}
	return more
}

// grown fails the test if the daemon has so many more rings or threads or so much
// more memory that something must be leaking: not one for each of n times, at
// which clients of them were served at once.
func grown(t testing.TB, before, after traces, n, clients int) {
	t.Helper()
	// Rings for control commands are kept for the next ones, at most four.
	if more := after.rings - before.rings; more > 4 {
		t.Errorf("%d rings more after %d times (%d, then %d)", more, n, before.rings, after.rings)
	}
	// The runtime makes a thread where all others are in system calls, and keeps
	// it: with one client after the other that is a handful in all, with several
	// at once one more for each, if they happen to meet there as they have not
	// before. And the kernel keeps a worker (iou-wrk) for each thread that has
	// sent it a command.
	someThreads := 12 + 2*(clients-1)
	if more := after.threads - before.threads; more > someThreads {
		t.Errorf("%d threads more after %d times (%d, then %d): at most %d are explained",
			more, n, before.threads, after.threads, someThreads)
	}
	// Go reserves its heap in arenas of 64 MiB. The buffers of one device of
	// the default depth are 1 GiB.
	const someMemory = 256 << 20
	if more := after.memory - before.memory; more > someMemory {
		t.Errorf("%d MiB more of address space after %d times: at most %d are explained", more>>20, n, someMemory>>20)
	}
}

// warm has the daemon open what it keeps: the network poller, a second ring
// for control commands, a goroutine's thread or two.
func (d *daemon) warm() {
	d.t.Helper()
	for range 2 {
		d.add("warm", "--backing", "mem:1M")
		if _, errOut, code := d.ctl("add", "cold", "--backing", "/nonexistent"); code != 1 {
			d.t.Fatalf("add of a backing that is missing: %d, %s", code, errOut)
		}
		d.del("warm")
	}
}

// says fails the test unless text has each of the words.
func says(t testing.TB, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s says %q, without %q", what, text, w)
		}
	}
}
