package main

import (
	"fmt"
	"slices"
	"time"
)

// check is one comparison of a goal, as it came out.
type check struct {
	what    string
	got     string
	bound   string
	reached bool
}

// goal is what delayd is to reach, and how the run compares with it.
type goal struct {
	number int
	words  string
	checks []check
	lacks  []string // what was not measured
}

// verdict is reached, missed, or that it cannot be told.
func (g *goal) verdict() string {
	for _, c := range g.checks {
		if !c.reached {
			return "missed"
		}
	}
	switch {
	case len(g.checks) == 0:
		return "not measured"
	case len(g.lacks) > 0:
		return "reached, as far as it was measured"
	}
	return "reached"
}

// lack notes a thing that was not measured.
func (g *goal) lack(format string, args ...any) {
	g.lacks = append(g.lacks, fmt.Sprintf(format, args...))
}

// check compares got with what it must be at least (a lower bound) or at most.
func (g *goal) atLeast(what string, got, bound float64, unit string) {
	g.checks = append(g.checks, check{what, number(got) + unit, "≥ " + number(bound) + unit, got >= bound})
}

func (g *goal) atMost(what string, got, bound float64, unit string) {
	g.checks = append(g.checks, check{what, number(got) + unit, "≤ " + number(bound) + unit, got <= bound})
}

func (g *goal) below(what string, got, bound float64, unit string) {
	g.checks = append(g.checks, check{what, number(got) + unit, "< " + number(bound) + unit, got < bound})
}

// number writes a figure with as many digits as it deserves.
func number(v float64) string {
	switch a := max(v, -v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1 || a == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// judge computes every goal from one run.
func judge(d *data) []goal {
	return []goal{
		neverEarly(d), excess(d), compensated(d), classicFive(d), undelayed(d),
		waiterCPU(d), eightAtOnce(d), nativeCosts(d), zeroCopy(d), idleDevices(d),
	}
}

var errorDelays = []time.Duration{
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond,
	5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
}

var ops = []string{"read", "write"}

// small is a point of 4 KiB requests of one job.
func (d *data) small(part, target string, delay time.Duration, op string, depth int) (Measurement, bool) {
	return d.results.summary(point{Part: part, Target: target, DelayUS: us(delay), Op: op, Jobs: 1, Depth: depth, Bytes: 4096})
}

// e is p50(target, D) − p50(target without delay) − D, in µs.
func (d *data) e(target string, delay time.Duration, op string) (float64, bool) {
	with, ok1 := d.small(accuracyPart, target, delay, op, 1)
	without, ok2 := d.small(accuracyPart, target, 0, op, 1)
	return with.P50 - without.P50 - us(delay), ok1 && ok2
}

func neverEarly(d *data) goal {
	g := goal{number: 1, words: "Never early: minimum latency ≥ the delay asked, every delay, op and depth, compensation off"}
	for _, p := range d.results.order {
		// The classic five are timed by a clock that is not exact.
		if p.DelayUS == 0 || !(p.Target == delaydTarget && p.Part == accuracyPart || slices.Contains(eightTargets, p.Target)) {
			continue
		}
		m, _ := d.results.summary(p)
		g.atLeast(fmt.Sprintf("%s %v %s, %s, minimum of %d requests", p.Target, duration(p.DelayUS), p.Op, shape(p), m.Requests),
			m.Min, p.DelayUS, " µs")
	}
	if len(g.checks) == 0 {
		g.lack("delayd with a delay")
	}
	return g
}

func excess(d *data) goal {
	g := goal{number: 2, words: "e(delayd, D) ≤ e(limit, D) + 40 µs from 100 µs to 100 ms at depth 1, and < e(limit, D) from 5 ms up; p99 ≤ 3 × the limit's"}
	for _, delay := range errorDelays {
		for _, op := range ops {
			mine, ok1 := d.e(delaydTarget, delay, op)
			limit, ok2 := d.e(limitTarget, delay, op)
			if !ok1 || !ok2 {
				g.lack("%v %s", delay, op)
				continue
			}
			g.atMost(fmt.Sprintf("e(delayd, %v) %s", delay, op), mine, limit+40, " µs")
			if delay >= 5*time.Millisecond {
				g.below(fmt.Sprintf("e(delayd, %v) %s", delay, op), mine, limit, " µs")
			}
			m, _ := d.small(accuracyPart, delaydTarget, delay, op, 1)
			l, _ := d.small(accuracyPart, limitTarget, delay, op, 1)
			g.atMost(fmt.Sprintf("p99 at %v %s", delay, op), m.P99, 3*l.P99, " µs")
		}
	}
	return g
}

func compensated(d *data) goal {
	g := goal{number: 3, words: "Compensated: p50(delayd, D) − p50(raw) − D between −30 µs and e(limit, D), for D ≥ 500 µs"}
	for _, delay := range errorDelays {
		if delay < 500*time.Microsecond {
			continue
		}
		for _, op := range ops {
			m, ok1 := d.small(accuracyPart, delaydCompTarget, delay, op, 1)
			raw, ok2 := d.small(accuracyPart, rawTarget, 0, op, 1)
			limit, ok3 := d.e(limitTarget, delay, op)
			if !ok1 || !ok2 || !ok3 {
				g.lack("%v %s", delay, op)
				continue
			}
			over := m.P50 - raw.P50 - us(delay)
			g.atLeast(fmt.Sprintf("%v %s", delay, op), over, -30, " µs")
			g.atMost(fmt.Sprintf("%v %s", delay, op), over, limit, " µs")
		}
	}
	return g
}
