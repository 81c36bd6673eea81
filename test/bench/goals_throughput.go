package main

import (
	"fmt"
	"time"
)

// classicPoints are the classic five.
var classicPoints = []struct {
	delay time.Duration
	op    string
	jobs  int
	depth int
}{
	{time.Millisecond, "buffered read", 1, 1},
	{10 * time.Millisecond, "buffered read", 1, 1},
	{time.Millisecond, "write", 1, 1},
	{10 * time.Millisecond, "write", 1, 1},
	{10 * time.Millisecond, "write", 32, 64},
}

// classic is the measurement of one of them.
func (d *data) classic(i int, target string) (Measurement, bool) {
	c := classicPoints[i]
	return d.results.summary(point{Part: classicPart, Target: target, DelayUS: us(c.delay), Op: c.op, Jobs: c.jobs, Depth: c.depth, Bytes: 4096})
}

func classicFive(d *data) goal {
	g := goal{number: 4, words: "Classic five, compensated: ≥ 0.97 × the limit's IOPS; the fifth ≥ 0.9 × dm-delay's"}
	for i, c := range classicPoints {
		name := fmt.Sprintf("%v %s, %s", c.delay, c.op, shape(point{Jobs: c.jobs, Depth: c.depth}))
		target, peer, share := delaydCompTarget, limitTarget, 0.97
		if i == 4 {
			peer, share = dmTarget, 0.9
		}
		mine, ok1 := d.classic(i, target)
		theirs, ok2 := d.classic(i, peer)
		if !ok1 || !ok2 {
			g.lack("%s", name)
			continue
		}
		g.atLeast(name, mine.IOPS, share*theirs.IOPS, " IOPS")
	}
	return g
}

// Modes of the two ublk servers; each side competes in its best.
var (
	delaydModes = []string{delaydTarget, delaydCopyTarget, delaydWideTarget}
	kublkModes  = []string{kublkTarget, kublkCopyTarget, kublkWideTarget, kublkBatchTarget}
)

// best is the best of a side's modes.
func (d *data) best(part string, modes []string, op string, depth int, better func(a, b Measurement) bool) (best Measurement, ok bool) {
	for _, target := range modes {
		m, measured := d.small(part, target, 0, op, depth)
		if measured && (!ok || better(m, best)) {
			best, ok = m, true
		}
	}
	return best, ok
}

func undelayed(d *data) goal {
	g := goal{number: 5, words: "No delay, each side in its best mode: depth-1 median ≤ 1.1 × and depth-32 IOPS ≥ 0.95 × the C server's"}
	quicker := func(a, b Measurement) bool { return a.P50 < b.P50 }
	more := func(a, b Measurement) bool { return a.IOPS > b.IOPS }
	for _, op := range ops {
		// With one CPU and the kernel's clock, whose cost is in both; and with two
		// and fio's own.
		for _, part := range []string{accuracyPart, throughputPart} {
			mine, ok1 := d.best(part, delaydModes, op, 1, quicker)
			theirs, ok2 := d.best(part, kublkModes, op, 1, quicker)
			if !ok1 || !ok2 {
				g.lack("%s, %s, depth 1", part, op)
				continue
			}
			g.atMost(fmt.Sprintf("%s, %s, depth 1, median (%s against %s)", part, op, mine.Target, theirs.Target), mine.P50, 1.1*theirs.P50, " µs")
		}
		mine, ok1 := d.best(throughputPart, delaydModes, op, 32, more)
		theirs, ok2 := d.best(throughputPart, kublkModes, op, 32, more)
		if ok1 && ok2 {
			g.atLeast(fmt.Sprintf("%s, depth 32 (%s against %s)", op, mine.Target, theirs.Target), mine.IOPS, 0.95*theirs.IOPS, " IOPS")
		} else {
			g.lack("%s, depth 32", op)
		}
	}
	return g
}

func waiterCPU(d *data) goal {
	g := goal{number: 6, words: "CPU: at depth 1 the queue thread uses ≤ 25 % of a CPU at 1 ms and ≤ 5 % at 10 ms (the waiter, on this machine)"}
	for i, delay := range waiterDelays {
		percent := []float64{25, 5}[i]
		if v, ok := d.figure(waiterFigure(waits[1], delay, "cpu")); ok {
			g.atMost(fmt.Sprintf("the waiter, spin, %v", delay), 100*v, percent, " %")
		} else {
			g.lack("the waiter at %v", delay)
		}
	}
	return g
}

func eightAtOnce(d *data) goal {
	g := goal{number: 7, words: "Eight devices at depth 1 and 10 ms reach ≥ 90 % of eight times what one alone reaches"}
	for _, target := range eightTargets {
		p := point{Part: throughputPart, Target: target, DelayUS: us(eightDelay), Op: "read", Jobs: 1, Depth: 1, Bytes: 4096}
		one, ok1 := d.results.summary(p)
		p.Jobs = eight
		all, ok2 := d.results.summary(p)
		if !ok1 || !ok2 {
			g.lack("%s", target)
			continue
		}
		g.atLeast(target, all.IOPS, 0.9*eight*one.IOPS, " IOPS")
	}
	return g
}

func nativeCosts(d *data) goal {
	g := goal{number: 8, words: "Heap push + pop with 4096 held ≤ 150 ns, 0 allocations; the waiter with spin: median lateness ≤ 1 µs"}
	ns, ok1 := d.figure(benchmarkFigure("Heap/4095", "ns"))
	allocs, ok2 := d.figure(benchmarkFigure("Heap/4095", "allocs"))
	if ok1 && ok2 {
		g.atMost("push + pop, the 4096th", ns, 150, " ns")
		g.atMost("push + pop, the 4096th", allocs, 0, " allocations")
	} else {
		g.lack("the heap")
	}
	for _, delay := range waiterDelays {
		if v, ok := d.figure(waiterFigure(waits[1], delay, "p50_us")); ok {
			g.atMost(fmt.Sprintf("the waiter, spin, %v, median lateness", delay), v, 1, " µs")
		} else {
			g.lack("the waiter at %v", delay)
		}
	}
	return g
}

// largeReads is the measurement of sequential reads of 128 KiB at depth 8.
func (d *data) largeReads(target string) (Measurement, bool) {
	return d.results.summary(point{Part: throughputPart, Target: target, Op: "read", Jobs: 1, Depth: 8, Bytes: 128 << 10})
}

func zeroCopy(d *data) goal {
	g := goal{number: 9, words: "Zero copy: 128 KiB sequential reads at depth 8 ≥ 1.7 × copying and ≥ 0.9 × the raw device"}
	zero, ok := d.largeReads(delaydTarget)
	copying, ok1 := d.largeReads(delaydCopyTarget)
	raw, ok2 := d.largeReads(rawTarget)
	if !ok || !ok1 || !ok2 {
		g.lack("zero copy beside copying")
		return g
	}
	g.atLeast("against copying", zero.IOPS, 1.7*copying.IOPS, " IOPS")
	g.atLeast("against raw", zero.IOPS, 0.9*raw.IOPS, " IOPS")
	return g
}

func idleDevices(d *data) goal {
	g := goal{number: 10, words: "Depth 4096, idle: ≤ 8 MiB resident a device; 32 devices started in under 2 s"}
	if v, ok := d.figure(figureResident); ok {
		g.atMost("resident, a device", v/(1<<20), 8, " MiB")
	} else {
		g.lack("memory")
	}
	for _, start := range []struct{ what, figure string }{
		{"added one by one, " + accuracyPart, figureStartOne},
		{"added one by one, " + throughputPart, figureStart},
		{"of one file, " + accuracyPart, figureFileOne},
		{"of one file, " + throughputPart, figureFile},
	} {
		if v, ok := d.figure(start.figure); ok {
			g.below("start of 32 devices "+start.what, v, 2, " s")
		} else {
			g.lack("start of 32 devices %s", start.what)
		}
	}
	return g
}
