package main

import (
	"slices"
	"testing"
	"time"
)

func named(name string, can func(time.Duration) bool, classic bool) target {
	return target{name: name, can: can, classic: classic}
}

func TestAccuracyPlan(t *testing.T) {
	s := scopeOf(false)
	steps := s.plan(accuracyPart, 1, []target{named(rawTarget, noDelay, false), named(dmTarget, milliseconds, true), named(delaydTarget, anyDelay, true)})
	count := map[string]int{}
	for i, step := range steps {
		count[step.target.name]++
		if i > 0 && step.delay < steps[i-1].delay {
			t.Errorf("%v after %v: a delay's targets are not side by side", step.delay, steps[i-1].delay)
		}
		if len(step.loads) != 4 {
			t.Errorf("%s %v has %d loads, want read and write at two depths", step.target.name, step.delay, len(step.loads))
		}
		for _, l := range step.loads {
			if l.runtime < s.shortest || l.runtime > s.longest || !l.single {
				t.Errorf("%s %v: %+v", step.target.name, step.delay, l)
			}
			if l.exact != (step.delay > 0 || l.depth == 1) {
				t.Errorf("%s %v, depth %d: exact is %v", step.target.name, step.delay, l.depth, l.exact)
			}
		}
	}
	if count[rawTarget] != 1 || count[dmTarget] != 8 || count[delaydTarget] != 12 {
		t.Errorf("%v: dm-delay takes whole milliseconds, raw none, delayd all", count)
	}
}

func TestClassicPlanHasTheClassicFive(t *testing.T) {
	s := scopeOf(false)
	targets := []target{named(rawTarget, noDelay, false), named(delaydTarget, anyDelay, true)}
	type run struct {
		delay time.Duration
		op    string
		jobs  int
		depth int
	}
	var got []run
	for _, step := range s.plan(classicPart, s.classic, targets) {
		for _, l := range step.loads {
			got = append(got, run{step.delay, l.opName(), l.jobs, l.depth})
		}
		if step.delay == 10*time.Millisecond && step.inFlight() != 2048 {
			t.Errorf("%d in flight, want 32 × 64", step.inFlight())
		}
	}
	if len(got) != len(classicPoints) {
		t.Errorf("%d runs: %v", len(got), got)
	}
	for _, c := range classicPoints {
		if !slices.Contains(got, run{c.delay, c.op, c.jobs, c.depth}) {
			t.Errorf("no %+v among %v", c, got)
		}
	}
	if more := s.plan(classicPart, s.classic+1, targets); len(more) > 0 {
		t.Errorf("a round too many of the classic five: %d steps", len(more))
	}
}

func TestRuntimeFollowsTheDelay(t *testing.T) {
	s := scopeOf(false)
	if short, long := s.runtime(100*time.Microsecond, 1), s.runtime(time.Millisecond, 1); short >= long || long > s.longest {
		t.Errorf("%v for 100 µs, %v for 1 ms", short, long)
	}
	if d := s.runtime(100*time.Millisecond, 1); d != s.longest {
		t.Errorf("%v for 100 ms", d)
	}
}
