package main

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseBenchmarks(t *testing.T) {
	const text = `goos: linux
BenchmarkHeap/4095-2         	 9036748	       132.9 ns/op	       0 B/op	       0 allocs/op
BenchmarkSnapshot-2   	    5163	     43985 ns/op	  114689 B/op	       1 allocs/op
BenchmarkMonotonic-2   	 5163	     40 ns/op
PASS
`
	got := map[string]float64{}
	if err := parseBenchmarks(strings.NewReader(text), func(name string, v float64) { got[name] = v }); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		benchmarkFigure("Heap/4095", "ns"): 132.9, benchmarkFigure("Heap/4095", "allocs"): 0,
		benchmarkFigure("Snapshot", "ns"): 43985, benchmarkFigure("Snapshot", "allocs"): 1,
		benchmarkFigure("Monotonic", "ns"): 40,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestVersionIn(t *testing.T) {
	for said, want := range map[string]string{
		"fio-3.33\n": "3.33", "nbdkit 1.32.5 (nbdkit-1.32.5-1)\n": "1.32.5",
		"delayd 19e3bcc-dirty\n": "19e3bcc-dirty", "delayd abc1234": "abc1234", "": "unknown",
	} {
		if got := versionIn(said); got != want {
			t.Errorf("%q is %q, want %q", said, got, want)
		}
	}
}

func TestWaiterIsNeverEarly(t *testing.T) {
	for _, w := range waits {
		res, err := waitFor(w, time.Millisecond, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if res.late[0] < 0 || !slices.IsSorted(res.late) {
			t.Errorf("%s: the least lateness is %d ns", w.name, res.late[0])
		}
		if res.cpu <= 0 || res.cpu > 1.01 {
			t.Errorf("%s: the thread used %v of a CPU", w.name, res.cpu)
		}
	}
}

func TestCPUTime(t *testing.T) {
	before, err := cpuOf([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Millisecond); time.Now().Before(end); {
		_ = before
	}
	after, err := cpuOf([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	// The machine may give this process less than all of the time, but some.
	if used := after - before; used < time.Millisecond || used > 10*time.Second {
		t.Errorf("computing for 30 ms used %v of CPU", used)
	}
	if _, err := cpuTime(1 << 22); err == nil {
		t.Error("a process that cannot be has a CPU time")
	}
	if n, err := resident(os.Getpid()); err != nil || n < 1<<20 {
		t.Errorf("this process occupies %d bytes, %v", n, err)
	}
}
