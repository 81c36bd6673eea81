package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/ublkdev"
	"github.com/delayd/delayd/test/fixture"
)

// Promise 1: with a compensation nothing is dispatched, or answered, before
// arrival + delay − compensation, and what has a shorter delay is not held.
func TestPromise1NeverEarlyCompensated(t *testing.T) {
	const compensation = 30 * time.Millisecond
	delays := scheduler.Delays{op.Read: 35 * time.Millisecond, op.Write: 33 * time.Millisecond, op.Flush: 29 * time.Millisecond}
	for _, hold := range []Hold{HoldSubmit, HoldComplete} {
		t.Run(hold.String(), func(t *testing.T) {
			h := newHost(t)
			d := start(t, h, Spec{Backing: tempFile(t, 64<<20), Delays: delays, Hold: hold, Compensate: compensation})
			if got := d.Info().Compensation; got != compensation {
				t.Errorf("in force is %v, want %v", got, compensation)
			}
			fd, err := unix.Open(d.Info().Path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(fd)
			for _, o := range []op.Op{op.Read, op.Write, op.Flush} {
				const n = 15
				quickest := time.Hour
				for i := range n {
					took := doOne(t, fd, o, int64(i)*1<<20)
					if quickest = min(quickest, took); took < delays[o]-compensation {
						t.Errorf("%v %d took %v, asked %v less %v", o, i, took, delays[o], compensation)
					}
				}
				// Else nothing was taken off.
				if quickest >= delays[o] {
					t.Errorf("no %v took less than %v, its delay of %v less %v", o, quickest, delays[o], compensation)
				}
				c := d.Counters().Snapshot().Ops[o]
				held, late := &c.Latency[counters.Held], &c.Latency[counters.Lateness]
				switch {
				case delays[o] < compensation:
					if held.Count != 0 || late.Count != 0 {
						t.Errorf("%v: %d held, although the delay is shorter than the compensation", o, held.Count)
					}
				case hold == HoldSubmit && (held.Count < n || held.Min < int64(delays[o]-compensation)):
					t.Errorf("%v: %d held, the shortest for %v", o, held.Count, time.Duration(held.Min))
				case hold == HoldSubmit && held.Sum-late.Sum != held.Count*uint64(delays[o]-compensation):
					t.Errorf("%v: held for %d ns and %d ns late: not against the deadline in force", o, held.Sum, late.Sum)
				}
			}
		})
	}
}

// autoBound is more than the path takes on an emulated machine that is busy.
const autoBound = 50 * time.Millisecond

func TestCompensationIsMeasured(t *testing.T) {
	f := fixture.For(t)
	null := f.NullBlk(fixture.MemoryBacked(64))
	for name, spec := range map[string]Spec{
		"block":     {Backing: null.Path},
		"read-only": {Backing: null.Path, ReadOnly: true},
		"part":      {Backing: null.Path, Offset: 1 << 20, Size: 4096},
		"complete":  {Backing: null.Path, Hold: HoldComplete},
		"file":      {Backing: tempFile(t, 16<<20)},
		"mem":       {Backing: "mem:16M"},
		"null":      {Backing: "null:16M"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			// An hour: the device is read before its delays are in force.
			spec.Compensate, spec.Delays = CompensateAuto, scheduler.Constant(time.Hour)
			d := start(t, h, spec)
			info := d.Info()
			t.Logf("%s: %v", name, info.Compensation)
			if info.Compensation <= 0 || info.Compensation > autoBound || len(info.Remarks) > 0 {
				t.Errorf("in force is %v, %q", info.Compensation, info.Remarks)
			}
			if got := d.Spec().Compensate; got != CompensateAuto {
				t.Errorf("asked for %v", got)
			}
			if c := d.Counters().Snapshot(); c.Ops[op.Read].Done < enoughReads || c.Ops[op.Write].Arrived > 0 {
				t.Errorf("%d reads and %d writes were made", c.Ops[op.Read].Done, c.Ops[op.Write].Arrived)
			}
		})
	}
}

// helperThat is the command of a helper that runs a line of shell before it
// measures.
func helperThat(t *testing.T, line string) []string {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	return []string{"/bin/sh", "-c", `if [ "$1" = measure ]; then ` + line + `; fi; exec "$0" helper "$@"`, self}
}

// A device whose path cannot be measured is no less a device, and says so.
func TestMeasurementThatFails(t *testing.T) {
	h := newHostOf(t, HostOptions{Helper: helperThat(t, "echo no such luck; exit 1")})
	const delay = 5 * time.Millisecond
	d := start(t, h, Spec{Backing: "mem:16M", Delays: scheduler.Constant(delay), Compensate: CompensateAuto})
	info := d.Info()
	if info.Compensation != 0 || len(info.Remarks) != 1 || !strings.Contains(info.Remarks[0], "could not be measured") ||
		!strings.Contains(info.Remarks[0], "no such luck") {
		t.Errorf("in force is %v, %q", info.Compensation, info.Remarks)
	}
	if err := d.Compensate(limit(t), CompensateAuto); err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("measured again: %v", err)
	}
	l, err := fixture.Measure(info.Path, fixture.Load{Op: op.Read, Count: 10})
	must(t, err)
	if l.Min() < delay {
		t.Errorf("a read took %v", l.Min())
	}
	must(t, d.Compensate(limit(t), time.Millisecond))
	if info := d.Info(); info.Compensation != time.Millisecond || len(info.Remarks) > 0 {
		t.Errorf("after a given one: %v, %q", info.Compensation, info.Remarks)
	}
}

// A backing that hangs while it is measured keeps neither the start nor its end.
func TestBackingThatHangsWhileItIsMeasured(t *testing.T) {
	f := fixture.For(t)
	null := f.NullBlk(fixture.MemoryBacked(64))
	dm := f.DM(fmt.Sprintf("0 %d linear %s 0", 64<<20/512, null.Path))
	h := newHostOf(t, HostOptions{Helper: helperThat(t, "dmsetup suspend --noflush --nolockfs "+dm.Path)})
	spec := Spec{Name: "hangs", Backing: dm.Path, Delays: scheduler.Constant(time.Millisecond), Compensate: CompensateAuto}

	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	d, err := h.Start(short, spec)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("given up: %v, %v", d, err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("given up after %v", took)
	}
	if ids, err := ublkdev.List(); err != nil || len(ids) > 0 {
		t.Errorf("devices %v are left, %v", ids, err)
	}
	must(t, dm.Resume())
	awaitNoHelper(t)

	began = time.Now()
	d = start(t, h, spec)
	if took := time.Since(began); took > measureLimit+20*time.Second {
		t.Errorf("started after %v", took)
	}
	if r := d.Info().Remarks; len(r) != 1 || !strings.Contains(r[0], "take longer than 5s") {
		t.Errorf("remarks %q", r)
	}
	must(t, dm.Resume())
	awaitNoHelper(t)
	if l, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 3}); err != nil || l.Min() < time.Millisecond {
		t.Errorf("afterwards: %v, %v", l, err)
	}
}

// awaitNoHelper waits until no process measures.
func awaitNoHelper(t *testing.T) {
	t.Helper()
	var left []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left = nil
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), "\x00measure\x00") {
				left = append(left, strings.ReplaceAll(string(text), "\x00", " "))
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("processes are left: %q", left)
}

// A live device is measured while it delays, and changed without a break.
func TestCompensateLive(t *testing.T) {
	for _, hold := range []Hold{HoldSubmit, HoldComplete} {
		t.Run(hold.String(), func(t *testing.T) {
			h := newHost(t)
			const delay = 40 * time.Millisecond
			d := start(t, h, Spec{Backing: tempFile(t, 16<<20), Delays: scheduler.Constant(delay), Hold: hold})
			quickest := func() time.Duration {
				l, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 12})
				must(t, err)
				return l.Min()
			}
			must(t, d.Compensate(limit(t), CompensateAuto))
			auto := d.Info().Compensation
			t.Logf("auto: %v", auto)
			if auto <= 0 || auto > autoBound || d.Spec().Compensate != CompensateAuto {
				t.Errorf("in force is %v, asked %v", auto, d.Spec().Compensate)
			}
			if got := quickest(); got < delay-auto {
				t.Errorf("with %v a read took %v", auto, got)
			}
			must(t, d.Compensate(limit(t), 30*time.Millisecond))
			if got := quickest(); got < 10*time.Millisecond || got >= delay {
				t.Errorf("with 30ms a read took %v, asked %v", got, delay)
			}
			must(t, d.Compensate(limit(t), 0))
			if got := quickest(); got < delay {
				t.Errorf("with nothing a read took %v, asked %v", got, delay)
			}
			awaitNoHelper(t)
			if err := d.Compensate(limit(t), -2); err == nil || d.Info().Compensation != 0 {
				t.Errorf("-2: %v, in force is %v", err, d.Info().Compensation)
			}
			must(t, d.Stop(limit(t)))
			if err := d.Compensate(limit(t), 0); !errors.Is(err, ErrNotDelaying) {
				t.Errorf("of a stopped device: %v", err)
			}
		})
	}
	h := newHost(t)
	d := start(t, h, Spec{Backing: "mem:1M", Delays: scheduler.Constant(2 * time.Second), Compensate: time.Millisecond})
	if err := d.Compensate(limit(t), CompensateAuto); !errors.Is(err, ErrHeldTooLong) || !strings.Contains(err.Error(), "held for 1.999s") {
		t.Errorf("held for long: %v", err)
	}
	if d.Spec().Compensate != time.Millisecond || d.Info().Compensation != time.Millisecond {
		t.Errorf("changed: %v, %v", d.Spec().Compensate, d.Info().Compensation)
	}
}
