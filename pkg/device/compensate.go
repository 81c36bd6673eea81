package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
)

// Compensation. A request's own path, through the driver to a queue's thread and
// its answer back, takes time that comes on top of the delay. What is taken off
// every delay for it is a number that was given, or what was measured.

// compensating is what was asked of a device's compensation. What is in force is
// in the policy.
type compensating struct {
	mu     sync.Mutex
	asked  time.Duration // or CompensateAuto
	remark string        // why nothing is taken off although it was asked for
}

func (c *compensating) get() (asked time.Duration, remark string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.remark
}

func (c *compensating) set(asked time.Duration, remark string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked, c.remark = asked, remark
}

// newPolicy is what the queues' threads go by: each delay less the compensation,
// but never less than nothing.
func newPolicy(s *Spec, compensation time.Duration) *policy {
	p := &policy{hold: s.Hold, compensation: int64(compensation), passes: true}
	for _, o := range op.All() {
		p.delays[o] = max(0, s.Delays.For(o)-p.compensation)
		p.passes = p.passes && p.delays[o] == 0
	}
	return p
}

// Bounds of a measurement.
const (
	// firstHold is how long reads are held while a device that is not announced
	// yet is measured: a path costs more after a hold, in which the CPU has done
	// something else or nothing, than in reads one upon the other.
	firstHold = time.Millisecond
	// usualLateness is how much of what a queue's thread wakes late is of the
	// path. More is of a long sleep or a busy machine, and would be missing from
	// the hold of a request that does without.
	usualLateness = 50 * time.Microsecond
	// busyPath is more than a path takes even on an emulated machine, unless that
	// has other things to do: it is measured again then, and the least counts.
	busyPath = time.Millisecond

	// measureReads and measureBudget bound it: a few hundred reads.
	measureReads  = 300
	measureBudget = 400 * time.Millisecond
	longBudget    = 2 * time.Second
	// measureLimit is when it is given up. A backing that takes longer for a few
	// reads is so slow that a path of some µs does not matter.
	measureLimit = 5 * time.Second
	// LongestMeasured is the longest hold of reads on a live device that is
	// still measured.
	LongestMeasured = time.Second
)

// ErrHeldTooLong is wrapped by the error of a live device whose reads are held
// for longer than [LongestMeasured].
var ErrHeldTooLong = errors.New("too long to be measured")

// ErrNotDelaying is wrapped by the error of a device that is being stopped or has
// failed, and of one that was changed while it was measured.
var ErrNotDelaying = errors.New("not delaying")

// firstCompensation is what is to be taken off when the device is announced. A
// device that cannot be measured is no less a device.
func (d *Device) firstCompensation(ctx context.Context) (time.Duration, error) {
	asked := d.spec.Compensate
	if asked != CompensateAuto {
		return asked, nil
	}
	law := newPolicy(&Spec{Hold: d.spec.Hold, Delays: scheduler.Delays{op.Read: firstHold}}, 0)
	d.policy.Store(law)
	path, err := d.measure(ctx, law)
	d.policy.Store(undelayed)
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("measure the path: %w", ctx.Err())
	case err != nil:
		d.log.Warn("not compensated: the path could not be measured", "err", err)
		d.comp.set(asked, fmt.Sprintf("nothing is taken off the delays: the path could not be measured: %v", err))
		return 0, nil
	}
	return path, nil
}

// Compensate changes what is taken off every delay, of requests that arrive from
// now on; [CompensateAuto] measures it now, for which the device is read for up
// to some seconds: others' requests are delayed as before. On error nothing has
// changed.
func (d *Device) Compensate(ctx context.Context, c time.Duration) error {
	if c < CompensateAuto {
		return fmt.Errorf("%s: compensate %v: want 0 or more", d.spec.Name, c)
	}
	was := d.policy.Load()
	if State(d.state.Load()) != Delaying || was == undelayed {
		return fmt.Errorf("%s is %v: %w", d.spec.Name, State(d.state.Load()), ErrNotDelaying)
	}
	now := c
	if c == CompensateAuto {
		var err error
		if now, err = d.measure(ctx, was); err != nil {
			return fmt.Errorf("%s: measure the path: %w", d.spec.Name, err)
		}
	}
	// A stop that came meanwhile must not be undone.
	if !d.policy.CompareAndSwap(was, newPolicy(&d.spec, now)) {
		return fmt.Errorf("%s was changed or stopped meanwhile: %w", d.spec.Name, ErrNotDelaying)
	}
	d.comp.set(c, "")
	d.log.Info("compensated", "asked", c, "compensation", now)
	return nil
}

// measure returns what the path of a read costs while law is in force: what an
// application sees, less what it would see of the backing, less what law holds
// it for.
func (d *Device) measure(ctx context.Context, law *policy) (time.Duration, error) {
	held := time.Duration(law.delays[op.Read])
	if held > LongestMeasured {
		return 0, fmt.Errorf("reads are held for %v: %w, at most %v is", held, ErrHeldTooLong, LongestMeasured)
	}
	select {
	case d.host.measuring <- struct{}{}:
		defer func() { <-d.host.measuring }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	path, err := d.measureOnce(ctx, held)
	for tries := 1; err == nil && path > busyPath && held <= 100*firstHold && tries < 3; tries++ {
		var again time.Duration
		if again, err = d.measureOnce(ctx, held); err == nil {
			path = min(path, again)
		}
	}
	return path, err
}

func (d *Device) measureOnce(ctx context.Context, held time.Duration) (time.Duration, error) {
	m := d.measurement(held)
	bounded, cancel := context.WithTimeout(ctx, measureLimit+m.budget+time.Duration(1+m.warmup+enoughReads)*held)
	defer cancel()
	before := d.cells.Snapshot().Ops[op.Read]
	said, err := d.host.help(bounded, append([]string{"measure"}, m.args()...)...)
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return 0, fmt.Errorf("%d reads of the device and of %s take longer than %v", enoughReads, d.spec.Backing, measureLimit)
	}
	if err != nil {
		return 0, err
	}
	got, err := parseMeasured(said)
	if err != nil {
		return 0, err
	}
	after := d.cells.Snapshot().Ops[op.Read]
	path := pathOf(d.spec.Hold, held, got, since(after, before))
	d.log.Debug("measured", "device", got.device.median, "backing", got.backing.median, "reads", got.reads, "held", held, "path", path)
	return path, nil
}

// measurement is what a child is to do. The block is one in the middle: the
// partition scan has read the first, and any will do.
func (d *Device) measurement(held time.Duration) measurement {
	l := d.back.Limits()
	m := measurement{id: d.id, length: max(4096, int(l.LogicalBlock)), warmup: 10, reads: measureReads, budget: measureBudget}
	if int64(m.length) > l.Size {
		m.length = int(l.LogicalBlock)
	}
	if held > 10*firstHold {
		m.warmup, m.budget = 1, max(measureBudget, min(longBudget, 20*held))
	}
	m.at = l.Size / 2 / int64(m.length) * int64(m.length)
	if fd := d.back.FD(); fd >= 0 {
		// The daemon's own descriptor finds the very file, whatever its path
		// names by now, and needs no exclusive open.
		m.backing, m.backAt = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), d.spec.Offset+m.at
	}
	return m
}

// pathOf is the difference between what an application saw and what it is to see
// of reads that are held for so long: the backing's latency and the hold, or the
// greater of the two. How late the queue's thread woke is known from what was
// counted of the reads meanwhile, to a sixteenth. On a machine that is busy the
// medians are of its load: they count only between the path of the quickest reads
// and twice that.
func pathOf(hold Hold, held time.Duration, got measured, reads counters.OpCounts) time.Duration {
	late := func(q float64) time.Duration {
		if held == 0 {
			return 0 // others' reads may be
		}
		return max(0, reads.Latency[counters.Lateness].Quantile(q)-usualLateness)
	}
	over := func(device, held, backing time.Duration) time.Duration {
		if hold == HoldComplete {
			return device - max(held, backing)
		}
		return device - held - backing
	}
	usual := over(got.device.median, held+late(0.5), got.backing.median)
	least := max(0, over(got.device.quickest, held+late(0), got.backing.quickest))
	return min(max(usual, least), 2*least)
}

// since returns the counts of the time between two snapshots.
func since(after, before counters.OpCounts) counters.OpCounts {
	after.Done -= before.Done
	for k := range after.Latency {
		after.Latency[k].Sub(&before.Latency[k])
	}
	return after
}
