package device

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
)

// Promise 1: a hold is the delay less the compensation, and never less than
// nothing.
func TestPromise1HoldOfAPolicy(t *testing.T) {
	s := Spec{Hold: HoldComplete, Delays: scheduler.Delays{
		op.Read: 0, op.Write: 100 * time.Microsecond, op.Flush: 100*time.Microsecond + 1,
		op.Discard: time.Millisecond, op.WriteZeroes: scheduler.MaxDelay,
	}}
	for compensation, want := range map[time.Duration][op.Count]int64{
		0:                      {0, 100_000, 100_001, 1_000_000, int64(scheduler.MaxDelay)},
		100 * time.Microsecond: {0, 0, 1, 900_000, int64(scheduler.MaxDelay) - 100_000},
		time.Second:            {0, 0, 0, 0, int64(scheduler.MaxDelay - time.Second)},
	} {
		got := newPolicy(&s, compensation)
		if got.delays != want || got.hold != HoldComplete || got.compensation != int64(compensation) {
			t.Errorf("%v: %+v, want holds of %v", compensation, *got, want)
		}
	}
}

func TestPathOf(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name                   string
		hold                   Hold
		held, woken            time.Duration
		device, backing        time.Duration // medians
		quickDevice, quickBack time.Duration
		leastWoken             time.Duration
		want                   time.Duration
	}{
		{"undelayed", HoldSubmit, 0, 0, 120 * us, 40 * us, 90 * us, 35 * us, 0, 80 * us},
		{"a backing without latency", HoldSubmit, 0, 0, 70 * us, 0, 60 * us, 0, 0, 70 * us},
		{"a backing that is slower alone", HoldSubmit, 0, 0, 30 * us, 40 * us, 20 * us, 35 * us, 0, 0},
		{"held", HoldSubmit, 1000 * us, 20 * us, 1140 * us, 40 * us, 1100 * us, 35 * us, 0, 100 * us},
		{"held, and woken late", HoldSubmit, 1000 * us, 450 * us, 1540 * us, 40 * us, 1110 * us, 35 * us, 0, 100 * us},
		{"others wake late while ours is not held", HoldSubmit, 0, 500 * us, 120 * us, 40 * us, 90 * us, 35 * us, 0, 80 * us},
		{"later by count than by the clock", HoldSubmit, 1000 * us, 5800 * us, 6000 * us, 40 * us, 1110 * us, 35 * us, 0, 75 * us},
		{"a busy machine", HoldSubmit, 1000 * us, 50 * us, 4000 * us, 40 * us, 1110 * us, 35 * us, 0, 150 * us},
		{"a long sleep", HoldSubmit, 1000 * us, 8000 * us, 9400 * us, 40 * us, 6085 * us, 35 * us, 5000 * us, 200 * us},
		{"answer held", HoldComplete, 1000 * us, 50 * us, 1130 * us, 40 * us, 1070 * us, 35 * us, 0, 130 * us},
		{"answer held, and woken late", HoldComplete, 1000 * us, 450 * us, 1530 * us, 40 * us, 1100 * us, 35 * us, 0, 130 * us},
		{"answer later than the hold", HoldComplete, 1000 * us, 0, 2080 * us, 2000 * us, 1950 * us, 1900 * us, 0, 80 * us},
	} {
		var reads counters.OpCounts
		if c.woken > 0 {
			reads.Latency[counters.Lateness] = counters.Histogram{Count: 1, Min: int64(c.leastWoken), Max: int64(c.woken)}
			reads.Latency[counters.Lateness].Buckets[counters.Bucket(int64(c.woken))] = 1
		}
		if got := pathOf(c.hold, c.held, measured{sample{c.device, c.quickDevice}, sample{c.backing, c.quickBack}, 1}, reads); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestAMeasurementIsReadBack(t *testing.T) {
	m := measurement{3, 1 << 40, 4096, 8, 300, 250 * time.Millisecond, "/proc/1/fd/9", 1 << 41}
	if got, err := parseMeasurement(m.args()); err != nil || got != m {
		t.Errorf("%+v, %v, want %+v", got, err, m)
	}
	for i, wrong := range []string{"-1", "x", "", "1.5", "-2", "1", "", "y"} {
		args := m.args()
		if args[i] = wrong; i == 6 {
			args = args[1:]
		}
		if _, err := parseMeasurement(args); err == nil {
			t.Errorf("argument %d is taken as %q", i, wrong)
		}
	}
	n := measured{sample{120 * time.Microsecond, 99}, sample{41, 40}, 7}
	if got, err := parseMeasured(n.String()); err != nil || got != n {
		t.Errorf("%+v, %v, want %+v", got, err, n)
	}
	if _, err := parseMeasured("no idea"); err == nil || !strings.Contains(err.Error(), `"no idea"`) {
		t.Errorf("got %v", err)
	}
}

func TestSample(t *testing.T) {
	for want, of := range map[sample][]time.Duration{{4, 1}: {9, 4, 1}, {6, 1}: {9, 8, 4, 1}, {5, 5}: {5}} {
		if got := sampleOf(slices.Clone(of)); got != want {
			t.Errorf("%v: %v, want %v", of, got, want)
		}
	}
}

func TestReader(t *testing.T) {
	buf, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	defer unix.Munmap(buf)
	path := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(path, []byte(strings.Repeat("abcdefgh", 1024)), 0o600))
	r, err := openReader(path, 4096, buf)
	must(t, err)
	defer unix.Close(r.fd)
	clear(buf)
	if took, err := r.read(buf); err != nil || took <= 0 || string(buf[:8]) != "abcdefgh" {
		t.Errorf("%v, %v, read %q", took, err, buf[:8])
	}
	if _, err := openReader(path, 8192, buf); err == nil || !strings.Contains(err.Error(), "at byte 8192: 0 of 4096 bytes") {
		t.Errorf("past the end: %v", err)
	}
	if _, err := openReader(path+"x", 0, buf); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no file: %v", err)
	}
}
