package main

import (
	"slices"
	"time"
)

// step is a target, opened once, and what is measured on it.
type step struct {
	target target
	delay  time.Duration
	loads  []load
}

// inFlight is how many requests are under way at once.
func (s step) inFlight() int {
	n := 1
	for _, l := range s.loads {
		n = max(n, l.jobs*l.depth)
	}
	return n
}

// Parts of a run. Each has a guest of its own.
const (
	accuracyPart   = "accuracy"   // delays; on uml with one CPU, which gives the cleanest times
	classicPart    = "classic"    // the classic five; as accuracy
	throughputPart = "throughput" // IOPS without delay, zero copy, many devices; with two CPUs
)

// guestParts are those that are measured in a guest.
var guestParts = []string{accuracyPart, classicPart, throughputPart}

var allDelays = []time.Duration{
	0, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond,
}

var quickDelays = []time.Duration{0, 100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond}

// scope is how much is measured.
type scope struct {
	rounds   int
	delays   []time.Duration
	shortest time.Duration // of a measurement
	longest  time.Duration
	both     bool          // each op at each depth; else reads at depth 1 and writes at 32
	classic  int           // rounds of the classic five
	classics time.Duration // of one of them
	limit    time.Duration // after which no second round is begun or gone on with; 0: none
}

func scopeOf(quick bool) scope {
	if quick {
		return scope{rounds: 2, delays: quickDelays, shortest: 300 * time.Millisecond, longest: 500 * time.Millisecond,
			classic: 1, classics: 600 * time.Millisecond, limit: 85 * time.Second}
	}
	return scope{rounds: 3, delays: allDelays, shortest: 500 * time.Millisecond, longest: 2 * time.Second,
		both: true, classic: 3, classics: 2 * time.Second}
}

// overhead is about what a request takes beyond its delay.
const overhead = 150 * time.Microsecond

// runtime is long enough for twice as many requests as a 99.9th percentile needs,
// within the scope's bounds.
func (s scope) runtime(delay time.Duration, depth int) time.Duration {
	// A deep queue is bound by the way through the server, not by the delay alone.
	each := max((delay+overhead)/time.Duration(depth), overhead/2)
	return min(max(2*enough*each, s.shortest), s.longest)
}

// small are the loads of 4 KiB for one delay.
func (s scope) small(part string, delay time.Duration) []load {
	var loads []load
	for _, depth := range []int{1, 32} {
		for _, op := range []string{"read", "write"} {
			if !s.both && (op == "write") != (depth == 32) {
				continue
			}
			if !s.both && depth == 32 && delay > time.Millisecond {
				continue
			}
			loads = append(loads, load{op: op, bytes: 4096, jobs: 1, depth: depth, span: span,
				runtime: s.runtime(delay, depth), single: true,
				// What is compared with a delay, and what is taken off it.
				exact: part == accuracyPart && (delay > 0 || depth == 1)})
		}
	}
	return loads
}

// large are sequential reads of 128 KiB at depth 8, where copying shows.
func (s scope) large() load {
	return load{op: "read", sequential: true, bytes: 128 << 10, jobs: 1, depth: 8, span: span,
		runtime: s.shortest, single: true}
}

// classicFive are the runs with which dm-delay's rounding was first shown in
// public, those of one delay.
func (s scope) classicFive(delay time.Duration) []load {
	one := load{bytes: 4096, jobs: 1, depth: 1, runtime: s.classics, span: "100%", single: true}
	read, write, many := one, one, one
	read.op, read.buffered = "read", true
	write.op = "write"
	many.op, many.jobs, many.depth, many.single = "write", 32, 64, false
	if delay == 10*time.Millisecond {
		return []load{read, write, many}
	}
	return []load{read, write}
}

// plan is what one round of a part measures, in order: a delay's targets one
// after the other.
func (s scope) plan(part string, round int, targets []target) []step {
	var steps []step
	if part == accuracyPart {
		for _, d := range s.delays {
			for _, t := range targets {
				if t.can(d) {
					steps = append(steps, step{t, d, s.small(part, d)})
				}
			}
		}
		return steps
	}
	if part == classicPart {
		return s.classicSteps(round, targets)
	}
	copying := []string{rawTarget, loopTarget, kublkTarget, kublkCopyTarget, delaydTarget, delaydCopyTarget}
	for _, t := range targets {
		if !t.can(0) {
			continue
		}
		loads := s.small(part, 0)
		if slices.Contains(copying, t.name) {
			loads = append(loads, s.large())
		}
		steps = append(steps, step{t, 0, loads})
	}
	return steps
}

// classicSteps are the classic five, in the rounds that have them.
func (s scope) classicSteps(round int, targets []target) (steps []step) {
	if round > s.classic {
		return nil
	}
	for _, d := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
		for _, t := range targets {
			if t.classic && t.can(d) {
				steps = append(steps, step{t, d, s.classicFive(d)})
			}
		}
	}
	return steps
}

// What a step and a load cost beyond the load's time: making and removing the
// device, starting fio.
const (
	stepCost = 400 * time.Millisecond
	loadCost = 500 * time.Millisecond
)

func (s step) estimate() time.Duration {
	d := stepCost
	for _, l := range s.loads {
		d += loadCost + l.runtime
	}
	return d
}
