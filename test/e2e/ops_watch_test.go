package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// What the kernel knows of a backing by itself.

// diskStat is what a disk has done, by the kernel's own count
// (Documentation/block/stat.rst).
type diskStat struct {
	reads, writes, writeSectors, discards, discardSectors, flushes int64
}

func statOf(t testing.TB, path string) diskStat {
	t.Helper()
	name, err := fixture.SysfsName(path)
	must(t, err)
	text, err := os.ReadFile(filepath.Join("/sys/class/block", name, "stat"))
	must(t, err)
	fields := strings.Fields(string(text))
	if len(fields) < 17 {
		t.Fatalf("stat of %s has %d fields, want 17: %s", path, len(fields), text)
	}
	n := func(i int) int64 {
		v, err := strconv.ParseInt(fields[i], 10, 64)
		must(t, err)
		return v
	}
	return diskStat{reads: n(0), writes: n(4), writeSectors: n(6), discards: n(11), discardSectors: n(13), flushes: n(15)}
}

// since is what was done between two looks.
func (s diskStat) since(before diskStat) diskStat {
	return diskStat{
		s.reads - before.reads, s.writes - before.writes, s.writeSectors - before.writeSectors,
		s.discards - before.discards, s.discardSectors - before.discardSectors, s.flushes - before.flushes,
	}
}

// diskTrace is the kernel's trace of the requests that a disk was given.
type diskTrace struct {
	t   testing.TB
	dir string // of a tracing instance of its own; "" if the kernel has no such trace
}

// traceDisk begins to trace. Where the kernel has no block tracing, have is
// false and nothing is seen.
func traceDisk(t testing.TB, path string) *diskTrace {
	t.Helper()
	const root = "/sys/kernel/tracing"
	if _, err := os.Stat(root + "/events/block/block_rq_issue"); err != nil {
		_ = unix.Mount("tracefs", root, "tracefs", 0, "")
	}
	if _, err := os.Stat(root + "/events/block/block_rq_issue"); err != nil {
		t.Logf("no trace of what %s is given, only its counts: %v", path, err)
		return &diskTrace{t: t}
	}
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	tr := &diskTrace{t, filepath.Join(root, "instances", fmt.Sprintf("e2e-%d-%d", os.Getpid(), serial.Add(1)))}
	must(t, os.Mkdir(tr.dir, 0o755))
	t.Cleanup(func() {
		tr.set("events/block/block_rq_issue/enable", "0")
		must(t, unix.Rmdir(tr.dir))
	})
	// The kernel's dev_t is of 12 and 20 bits.
	tr.set("events/block/block_rq_issue/filter", fmt.Sprintf("dev == %d", unix.Major(st.Rdev)<<20|unix.Minor(st.Rdev)))
	tr.set("events/block/block_rq_issue/enable", "1")
	return tr
}

func (tr *diskTrace) have() bool { return tr.dir != "" }

func (tr *diskTrace) set(file, value string) {
	tr.t.Helper()
	must(tr.t, os.WriteFile(filepath.Join(tr.dir, file), []byte(value), 0))
}

// traced is a request: its rwbs, such as "WFS" (include/trace/events/block.h:
// an F before the W is a flush before it, one after it is FUA), and where.
type traced struct {
	rwbs            string
	sector, sectors int64
}

func (r traced) fua() bool { return strings.Contains(strings.TrimPrefix(r.rwbs, "F"), "F") }

// take is what was traced since the last take.
func (tr *diskTrace) take() (requests []traced) {
	tr.t.Helper()
	if !tr.have() {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(tr.dir, "trace"))
	must(tr.t, err)
	tr.set("trace", "")
	for line := range strings.Lines(string(text)) {
		_, event, ok := strings.Cut(line, " block_rq_issue: ")
		if !ok {
			continue
		}
		// 259,0 WFS 4096 () 128 + 8 none,0,0 [fio]
		head, tail, _ := strings.Cut(event, ") ")
		f := strings.Fields(head)
		var r traced
		if _, err := fmt.Sscanf(tail, "%d + %d", &r.sector, &r.sectors); err != nil || len(f) < 2 {
			tr.t.Fatalf("cannot read the trace line %q", line)
		}
		r.rwbs = f[1]
		requests = append(requests, r)
	}
	return requests
}

// holds says whether the disk at path has the bytes on it anywhere, at a
// multiple of 512.
func holds(t testing.TB, path string, pattern []byte) bool {
	t.Helper()
	image := imageOf(t, path)
	for at := 0; at+len(pattern) <= len(image); at += 512 {
		if bytes.Equal(image[at:at+len(pattern)], pattern) {
			return true
		}
	}
	return false
}

// allocated is the space that a file takes, in bytes, once what is to be
// written is.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	must(t, f.Sync())
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	return st.Blocks * 512
}

// failsWith fails the test unless err is the errno.
func failsWith(t testing.TB, what string, err error, want unix.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func readAttr(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return strings.TrimSpace(string(text))
}
