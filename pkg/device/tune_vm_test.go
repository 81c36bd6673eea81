package device

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/test/fixture"
)

// Each queue's thread runs on one of the CPUs that the driver sends the queue's
// requests from, no two on one while there are others, and with the priority
// asked for; the threads of another device do not.
func TestPinAndRealtime(t *testing.T) {
	h := newHost(t)
	plain := start(t, h, Spec{Name: "plain", Backing: "mem:16M"})
	d := start(t, h, Spec{Name: "tuned", Backing: "mem:16M", Queues: runtime.NumCPU(), Pin: true, Realtime: 3,
		Delays: scheduler.Constant(time.Millisecond)})
	var taken []int
	for i, q := range d.queues {
		want, err := h.control.Affinity(limit(t), d.id, i)
		must(t, err)
		got := cpusOf(t, q.tid)
		if len(got) != 1 || !slices.Contains(want, got[0]) || slices.Contains(taken, got[0]) {
			t.Errorf("queue %d runs on CPUs %v, its requests come from %v, and %v are taken", i, got, want, taken)
		}
		taken = append(taken, got...)
		attr, err := unix.SchedGetAttr(q.tid, 0)
		must(t, err)
		if attr.Policy != unix.SCHED_FIFO || attr.Priority != 3 {
			t.Errorf("queue %d has the scheduling policy %d with priority %d", i, attr.Policy, attr.Priority)
		}
	}
	tid := plain.queues[0].tid
	attr, err := unix.SchedGetAttr(tid, 0)
	must(t, err)
	if got := cpusOf(t, tid); len(got) != runtime.NumCPU() || attr.Policy != unix.SCHED_NORMAL {
		t.Errorf("a device that asked for nothing runs on CPUs %v with the policy %d", got, attr.Policy)
	}
	l, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Write, Count: 50})
	must(t, err)
	if l.Min() < time.Millisecond {
		t.Errorf("a write took %v, asked 1ms", l.Min())
	}
}

// cpusOf are the CPUs that a thread may run on.
func cpusOf(t *testing.T, tid int) (cpus []int) {
	t.Helper()
	var set unix.CPUSet
	must(t, unix.SchedGetaffinity(tid, &set))
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// Spinning is what was asked for: all of a wait, as much as was learned, or
// none, and none where the daemon has no budget for it; promise 1 holds in each.
func TestPromise1HoldsHoweverItSpins(t *testing.T) {
	const delay, n = 2 * time.Millisecond, 60
	for name, c := range map[string]struct {
		mode     scheduler.SpinMode
		spinners int
		spins    bool
		sleeps   bool // before a deadline
	}{
		"auto":           {mode: scheduler.SpinAuto, spins: true, sleeps: true},
		"off":            {mode: scheduler.SpinOff, sleeps: true},
		"all the time":   {mode: scheduler.SpinMode(time.Second), spins: true},
		"without budget": {mode: scheduler.SpinAuto, spinners: -1, sleeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			if c.spinners != 0 {
				h.budget = scheduler.NewSpinBudget(c.spinners)
			}
			d := start(t, h, Spec{Backing: "mem:16M", Delays: scheduler.Constant(delay), Spin: c.mode})
			l, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: n})
			must(t, err)
			loop := d.Counters().Snapshot().Loop
			t.Logf("median %v; %d spins of %v, %d of them penalised, %d waits of %v", l.Median(), loop.Spins, loop.Spun, loop.Penalties, loop.Sleeps, loop.Slept)
			if l.Min() < delay {
				t.Errorf("a read took %v, asked %v", l.Min(), delay)
			}
			if (loop.Spins > 0) != c.spins {
				t.Errorf("it spun %d times", loop.Spins)
			}
			// A backing in memory is asked for nothing: what is waited for is the
			// next request and, asleep, the deadline.
			// On a busy machine it loses its CPU, and then does not spin for a while.
			if c.spins && !c.sleeps && loop.Spun < n*delay/2 && loop.Penalties == 0 {
				t.Errorf("it spun for %v in %d delays of %v", loop.Spun, n, delay)
			}
			if c.sleeps && loop.Slept < n*delay/2 {
				t.Errorf("it slept for %v in %d delays of %v", loop.Slept, n, delay)
			}
		})
	}
}

// Every request is counted. Its latency is measured too, except that of most
// undelayed ones where a look at the clock is a system call.
func TestLatenciesAreSampledWhereTheClockIsDear(t *testing.T) {
	const n = 2000
	for name, dear := range map[string]bool{"cheap": false, "dear": true} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.dearClock = &dear
			for _, backing := range []string{"mem:16M", tempFile(t, 16<<20)} {
				d := start(t, h, Spec{Name: "undelayed", Backing: backing})
				begun := d.Counters().Snapshot().Ops[op.Write]
				_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Write, Count: n})
				must(t, err)
				c := d.Counters().Snapshot().Ops[op.Write]
				done, measured := c.Done-begun.Done, c.Latency[0].Count
				for _, kind := range c.Latency {
					measured = max(measured, kind.Count)
				}
				if done != n {
					t.Errorf("%s: %d requests are counted, %d were made", backing, done, n)
				}
				if !dear && measured != n {
					t.Errorf("%s: the latency of %d of %d requests was measured", backing, measured, n)
				}
				// One turn in sampleTurns, at two turns or one for each request.
				if dear && (measured < n/sampleTurns/2 || measured > n/2) {
					t.Errorf("%s: the latency of %d of %d requests was measured, one turn in %d is to be", backing, measured, n, sampleTurns)
				}
				must(t, d.Stop(limit(t)))
				if left := d.queues[0].clocked.timed; left != 0 {
					t.Errorf("%s: %d timed requests are said to be under way when there are none", backing, left)
				}
			}
		})
	}
}

// A delay is never guessed: with a clock that is looked at seldom, a device that
// delays one op only is early with none.
func TestPromise1WithADearClock(t *testing.T) {
	h := newHost(t)
	dear := true
	h.dearClock = &dear
	const delay = 3 * time.Millisecond
	d := start(t, h, Spec{Backing: "mem:16M", Delays: scheduler.Delays{op.Write: delay}})
	for range 5 {
		_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 50})
		must(t, err)
		l, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Write, Count: 10})
		must(t, err)
		if l.Min() < delay {
			t.Errorf("a write took %v, asked %v", l.Min(), delay)
		}
	}
}
