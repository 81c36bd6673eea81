package uring

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The main goroutine keeps the main thread to itself, since that thread does not
// end with a goroutine that is locked to it (runtime.mexit), which some tests
// need of theirs.
func init() { runtime.LockOSThread() }

// TestMain runs a part of the test in a process of its own where the
// environment says so.
func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children[name](); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// configs are the kinds of ring that the tests go through.
var configs = map[string]Config{
	"plain":            {Entries: 64},
	"submit all":       {Entries: 64, SubmitAll: true},
	"coop":             {Entries: 64, CoopTaskrun: true},
	"coop, flag":       {Entries: 64, CoopTaskrun: true, TaskrunFlag: true},
	"single issuer":    {Entries: 64, SingleIssuer: true},
	"defer":            {Entries: 64, SingleIssuer: true, DeferTaskrun: true},
	"defer, flag":      {Entries: 64, SingleIssuer: true, DeferTaskrun: true, TaskrunFlag: true},
	"registered":       {Entries: 64, RegisterRing: true},
	"queue":            {Entries: 64, SingleIssuer: true, DeferTaskrun: true, TaskrunFlag: true, RegisterRing: true, SubmitAll: true},
	"queue, large":     {Entries: 64, SingleIssuer: true, DeferTaskrun: true, TaskrunFlag: true, RegisterRing: true, SubmitAll: true, SQE128: true, CQE32: true},
	"large SQEs":       {Entries: 64, SQE128: true},
	"large CQEs":       {Entries: 64, CQE32: true},
	"small CQ":         {Entries: 64, CQEntries: 64},
	"iopoll":           {Entries: 64, IOPoll: true},
	"odd sizes":        {Entries: 33, CQEntries: 65, SQE128: true},
	"smallest":         {Entries: 1, CQEntries: 1},
	"queue, as device": {Entries: 256, CQEntries: 4096, SingleIssuer: true, DeferTaskrun: true, TaskrunFlag: true, RegisterRing: true},
}

// queueConfig is the ring of a queue thread.
var queueConfig = configs["queue"]

// eachConfig runs f on a ring of every kind.
func eachConfig(t *testing.T, f func(t *testing.T, r *Ring)) {
	for name, c := range configs {
		t.Run(name, func(t *testing.T) { f(t, open(t, c)) })
	}
}

// open makes a ring for the test's thread, to which the test stays locked.
func open(t testing.TB, c Config) *Ring {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	r, err := New(c)
	if errors.Is(err, ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// memory is n bytes outside the Go heap.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// must fails the test for an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// next is r.Next, which the test needs to succeed.
func next(t testing.TB, r *Ring) *SQE {
	t.Helper()
	s := r.Next()
	if s == nil {
		t.Fatalf("no SQE left: %d pending of %d", r.Pending(), r.Config().Entries)
	}
	return s
}

// collect waits until n completions are reaped.
func collect(t testing.TB, r *Ring, n int) []CQE {
	t.Helper()
	all := make([]CQE, n)
	got := 0
	for got < n {
		must(t, r.Wait(1, -1, ReleaseP))
		got += r.Reap(all[got:])
	}
	return all
}

// one submits what is pending and returns the only completion.
func one(t testing.TB, r *Ring) CQE {
	t.Helper()
	return collect(t, r, 1)[0]
}

// mappings returns how many bytes of io_uring the process has mapped.
func mappings(t testing.TB) (bytes uint64) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, "io_uring") {
			continue
		}
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		bytes += to - from
	}
	return bytes
}

// openFiles returns how many descriptors the process has.
func openFiles(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(d)
}

// inVM reports whether this is a kernel that only this test uses.
func inVM() bool {
	name, _ := os.ReadFile("/proc/sys/kernel/hostname")
	return strings.TrimSpace(string(name)) == "delayd-vm"
}
