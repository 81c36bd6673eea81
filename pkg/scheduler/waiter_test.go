package scheduler

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const us = time.Microsecond

func TestDecide(t *testing.T) {
	const margin = 50 * us // what an untaught Waiter has
	for _, c := range []struct {
		name     string
		mode     SpinMode
		now      int64
		deadline int64
		maySpin  bool
		want     Decision
	}{
		{"nothing held", SpinAuto, 1000, NoDeadline, true, Decision{Idle, -1}},
		{"nothing held, no spin", SpinOff, 1000, NoDeadline, false, Decision{Idle, -1}},
		{"past", SpinAuto, 1000, 1, true, Decision{Due, 0}},
		{"now", SpinAuto, 1000, 1000, true, Decision{Due, 0}},
		{"now, no spin", SpinAuto, 1000, 1000, false, Decision{Due, 0}},
		{"next nanosecond", SpinAuto, 1000, 1001, true, Decision{Spin, 1}},
		{"next nanosecond, no spin", SpinAuto, 1000, 1001, false, Decision{Sleep, 1}},
		{"at the margin", SpinAuto, 0, int64(margin), true, Decision{Spin, margin}},
		{"before the margin", SpinAuto, 0, int64(margin) + 1, true, Decision{Sleep, 1}},
		{"far", SpinAuto, 7, 7 + int64(5*time.Millisecond), true, Decision{Sleep, 4950 * us}},
		{"far, no spin", SpinAuto, 7, 7 + int64(5*time.Millisecond), false, Decision{Sleep, 5000 * us}},
		{"the longest delay", SpinAuto, 0, int64(MaxDelay), true, Decision{Sleep, MaxDelay - margin}},
		{"off", SpinOff, 0, 10, true, Decision{Sleep, 10}},
		{"fixed, near", SpinMode(time.Millisecond), 0, int64(time.Millisecond), true, Decision{Spin, time.Millisecond}},
		{"fixed, far", SpinMode(time.Millisecond), 0, int64(3 * time.Millisecond), true, Decision{Sleep, 2 * time.Millisecond}},
		{"fixed, no spin", SpinMode(time.Millisecond), 0, int64(3 * time.Millisecond), false, Decision{Sleep, 3 * time.Millisecond}},
	} {
		w := NewWaiter()
		w.SetSpin(c.mode)
		if got := w.Decide(c.now, c.deadline, c.maySpin); got != c.want {
			t.Errorf("%s: %v for %v, want %v for %v", c.name, got.Kind, got.Timeout, c.want.Kind, c.want.Timeout)
		}
	}
}

func TestMarginOfModes(t *testing.T) {
	w := NewWaiter()
	for _, c := range []struct {
		mode SpinMode
		want time.Duration
	}{{SpinAuto, 50 * us}, {SpinOff, 0}, {SpinMode(3 * time.Millisecond), 3 * time.Millisecond}, {SpinAuto, 50 * us}} {
		w.SetSpin(c.mode)
		if got := w.Margin(); got != c.want {
			t.Errorf("%v: margin %v, want %v", c.mode, got, c.want)
		}
	}
}

// TestMarginIsAPercentile holds the incremental margin to its definition.
func TestMarginIsAPercentile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := NewWaiter()
		seen := slices.Repeat([]time.Duration{firstOversleep}, window)
		level := rapid.SampledFrom([]time.Duration{0, us, 15 * us, 40 * us, 140 * us, 296 * us, 5 * time.Millisecond})
		for range rapid.IntRange(0, 3*window).Draw(t, "sleeps") {
			late := level.Draw(t, "level") + time.Duration(rapid.IntRange(0, 9_999).Draw(t, "late"))
			asked := rapid.Int64Range(0, int64(time.Hour)).Draw(t, "asked")
			w.Learn(asked, asked+int64(late))
			seen = append(seen, late)
			if rapid.Bool().Draw(t, "woken") {
				w.Learn(asked, asked-1) // by a completion: no lesson
			}

			recent := slices.Sorted(slices.Values(seen[len(seen)-window:]))
			covered := recent[window-1-outliers]
			want := (covered + step - 1) / step * step
			want = min(max(want, MinMargin), MaxMargin)
			if w.Margin() != want {
				t.Fatalf("margin %v; 95%% of the last %d oversleeps are up to %v", w.Margin(), window, covered)
			}
		}
	})
}

// TestMarginFollows the machine up and down again.
func TestMarginFollows(t *testing.T) {
	w := NewWaiter()
	sleep := func(n int, late time.Duration) {
		for range n {
			w.Learn(0, int64(late))
		}
	}
	for _, c := range []struct {
		name string
		n    int
		late time.Duration
		want time.Duration
	}{
		{"a few stalls are outliers", outliers, 10 * time.Millisecond, 50 * us},
		{"one more is not", 1, 10 * time.Millisecond, MaxMargin},
		{"quiet again", window, 33 * us, 35 * us},
		{"noisy", outliers + 1, 112 * us, 115 * us},
		{"still, until nearly all have left", window - outliers - 1, 2 * us, 115 * us},
		{"quiet: a window later at the most", outliers + 1, 2 * us, MinMargin},
		{"never below the least", 3 * window, 0, MinMargin},
	} {
		sleep(c.n, c.late)
		if got := w.Margin(); got != c.want {
			t.Errorf("%s: margin %v, want %v", c.name, got, c.want)
		}
	}
}

// TestHourCostsOneSleep: the timeout is not chopped, however far the deadline.
func TestHourCostsOneSleep(t *testing.T) {
	w := NewWaiter()
	deadline := int64(time.Hour)
	first := w.Decide(0, deadline, true)
	if first.Kind != Sleep {
		t.Fatalf("first: %v", first)
	}
	woke := int64(first.Timeout) + int64(3*us)
	if d := w.Decide(woke, deadline, true); d.Kind != Spin || int64(d.Timeout) != deadline-woke {
		t.Errorf("then: %v", d)
	}
}

// TestShrunkMarginAddsNoSleep: a margin that has shrunk when the sleep ends would
// ask for a second one, of the difference.
func TestShrunkMarginAddsNoSleep(t *testing.T) {
	w := NewWaiter()
	for range window {
		w.Learn(0, int64(MaxMargin))
	}
	deadline := int64(time.Millisecond)
	if d := w.Decide(0, deadline, true); d.Timeout != time.Millisecond-MaxMargin {
		t.Fatalf("slept %v", d.Timeout)
	}
	for range window {
		w.Learn(0, 0)
	}
	if w.Margin() != MinMargin {
		t.Fatalf("margin %v", w.Margin())
	}
	if d := w.Decide(deadline-int64(MaxMargin)+1, deadline, true); d.Kind != Spin {
		t.Errorf("slept again: %v", d)
	}
	if d := w.Decide(deadline, 2*deadline, true); d.Timeout != time.Millisecond-MinMargin {
		t.Errorf("the next deadline has the old margin: %v", d)
	}
}

// TestEarlyWakeTeachesNothing: it was not the timer that woke the thread.
func TestEarlyWakeTeachesNothing(t *testing.T) {
	w := NewWaiter()
	for range window {
		w.Learn(100, 99)
		w.Learn(int64(time.Hour), 0)
	}
	if w.Margin() != firstOversleep {
		t.Errorf("margin %v", w.Margin())
	}
}

// TestSetSpinTakesEffectOnTheDeadlineAtHand, however often that was asked for.
func TestSetSpinTakesEffectOnTheDeadlineAtHand(t *testing.T) {
	w := NewWaiter()
	for _, c := range []struct {
		mode SpinMode
		want Decision
	}{
		{SpinAuto, Decision{Sleep, 950 * us}},
		{SpinOff, Decision{Sleep, 1000 * us}},
		{SpinMode(time.Millisecond), Decision{Spin, 1000 * us}},
		{SpinAuto, Decision{Sleep, 950 * us}},
	} {
		w.SetSpin(c.mode)
		if got := w.Decide(0, int64(time.Millisecond), true); got != c.want {
			t.Errorf("%v: %v for %v", c.mode, got.Kind, got.Timeout)
		}
	}
}

// machine is a thread's view of a computer that wakes it late, switches it out,
// and has other work. It drives a Waiter as a queue's loop does.
type machine struct {
	*rapid.T
	clock Manual
	w     *Waiter
	noise time.Duration // an oversleep is up to this
}

// run waits for deadline and says what it cost.
func (m *machine) run(deadline int64, leave *rapid.Generator[bool]) (sleeps, woken, lost int, spun time.Duration) {
	bound := m.w.Margin()
	could := false
	for {
		now := m.clock.Now()
		maySpin := leave.Draw(m.T, "may spin")
		if could && !maySpin {
			lost++
		}
		could = maySpin
		switch d := m.w.Decide(now, deadline, maySpin); d.Kind {
		case Due:
			if now < deadline {
				m.Fatalf("dispatched %d ns early", deadline-now)
			}
			return sleeps, woken, lost, spun
		case Sleep:
			sleeps++
			if d.Timeout <= 0 || now+int64(d.Timeout) > deadline {
				m.Fatalf("sleep of %v with %v left", d.Timeout, time.Duration(deadline-now))
			}
			asked := now + int64(d.Timeout)
			if rapid.IntRange(0, 5).Draw(m.T, "completion") == 0 {
				woken++
				m.clock.Set(rapid.Int64Range(now, asked).Draw(m.T, "woken at"))
			} else {
				late := rapid.Int64Range(0, int64(m.noise)).Draw(m.T, "oversleep")
				m.clock.Set(asked + late)
				m.w.Learn(asked, m.clock.Now())
			}
			if got := m.w.Margin(); m.w.mode == SpinAuto && (got < MinMargin || got > MaxMargin) {
				m.Fatalf("margin %v", got)
			}
		case Spin:
			if !maySpin || d.Timeout <= 0 || d.Timeout > bound || int64(d.Timeout) != deadline-now {
				m.Fatalf("spin of %v with %v left, margin %v, leave %v", d.Timeout, time.Duration(deadline-now), bound, maySpin)
			}
			// Up to the deadline and the length of one look, or to a completion.
			until := deadline + rapid.Int64Range(0, 200).Draw(m.T, "look")
			if rapid.IntRange(0, 5).Draw(m.T, "completion") == 0 {
				woken++
				until = rapid.Int64Range(now, deadline).Draw(m.T, "seen at")
			}
			m.clock.Set(until)
			spun += time.Duration(min(until, deadline) - now)
		default:
			m.Fatalf("%v with a deadline", d.Kind)
		}
	}
}

// TestWaiterOnAMachine: whatever the machine does, nothing is dispatched early,
// and a deadline costs a bounded number of wake-ups and a bounded spin.
func TestWaiterOnAMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{T: t, w: NewWaiter()}
		mode := rapid.SampledFrom([]SpinMode{SpinAuto, SpinAuto, SpinOff, 1, SpinMode(time.Millisecond)}).Draw(t, "mode")
		m.w.SetSpin(mode)
		delay := rapid.OneOf(
			rapid.Int64Range(0, int64(400*us)),
			rapid.Int64Range(0, int64(20*time.Millisecond)),
			rapid.Int64Range(0, int64(MaxDelay)),
		)
		leaves := []*rapid.Generator[bool]{rapid.Just(true), rapid.Just(false), rapid.Bool()}
		for range rapid.IntRange(1, 30).Draw(t, "deadlines") {
			m.noise = rapid.SampledFrom([]time.Duration{0, 15 * us, 80 * us, 250 * us, 4 * time.Millisecond}).Draw(t, "noise")
			bound := m.w.Margin()
			deadline := m.clock.Now() + delay.Draw(t, "delay")
			sleeps, woken, lost, spun := m.run(deadline, rapid.SampledFrom(leaves).Draw(t, "leave"))
			if most := 1 + woken + lost; sleeps > most {
				t.Fatalf("%d sleeps for one deadline; %d were ended early, leave to spin was lost %d times", sleeps, woken, lost)
			}
			if spun > bound {
				t.Fatalf("spun %v for one deadline with a margin of %v", spun, bound)
			}
			if mode == SpinOff && spun != 0 {
				t.Fatalf("spun %v when off", spun)
			}
			// What the margin covers is not late.
			if late := time.Duration(m.clock.Now() - deadline); woken == 0 && spun > 0 && late > 200 {
				t.Fatalf("%v late after a spin", late)
			}
		}
	})
}

func TestWaiterAllocatesNothing(t *testing.T) {
	w := NewWaiter()
	now := int64(0)
	n := testing.AllocsPerRun(1000, func() {
		d := w.Decide(now, now+int64(time.Millisecond), true)
		now += int64(d.Timeout)
		w.Learn(now, now+100)
		sink += int64(w.Margin())
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestKindString(t *testing.T) {
	for kind, want := range map[Kind]string{Idle: "idle", Sleep: "sleep", Spin: "spin", Due: "due"} {
		if kind.String() != want {
			t.Errorf("%d is %q", kind, kind)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	w := NewWaiter()
	now := int64(0)
	for b.Loop() {
		now++
		sink += int64(w.Decide(now, now+int64(time.Millisecond), true).Timeout)
	}
}

func BenchmarkLearn(b *testing.B) {
	w := NewWaiter()
	for i := int64(0); b.Loop(); i++ {
		w.Learn(i, i+i%60_000)
	}
}
