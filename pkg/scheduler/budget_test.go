package scheduler

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestSpinBudgetLimit(t *testing.T) {
	for cpus, want := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 1, 3: 2, 64: 63} {
		b := NewSpinBudget(DefaultSpinners(cpus))
		for i := range want {
			if !b.Free() || !b.TryAcquire() {
				t.Fatalf("%d CPUs: spinner %d refused", cpus, i+1)
			}
		}
		if b.Free() || b.TryAcquire() {
			t.Errorf("%d CPUs: spinner %d allowed", cpus, want+1)
		}
		if b.Spinners() != want || b.Limit() != want {
			t.Errorf("%d CPUs: %d spinners of %d, want %d", cpus, b.Spinners(), b.Limit(), want)
		}
		b.Release()
		if !b.Free() || !b.TryAcquire() {
			t.Errorf("%d CPUs: a released place cannot be taken", cpus)
		}
		for range want {
			b.Release()
		}
		if !panics(b.Release) {
			t.Errorf("%d CPUs: one release too many", cpus)
		}
	}
}

// TestSpinBudgetShared lets all threads ask at one time, again and again, and
// keep what they got until everybody has asked. A busy machine gets fewer rounds.
func TestSpinBudgetShared(t *testing.T) {
	for _, c := range []struct{ cpus, threads, rounds int }{{2, 2, 20_000}, {2, 3, 2_000}, {4, 5, 2_000}} {
		b := NewSpinBudget(DefaultSpinners(c.cpus))
		var met, got atomic.Int64
		var enough atomic.Bool
		begun := time.Now()
		meet := func(times int) {
			met.Add(1)
			for met.Load() < int64(times*c.threads) {
				runtime.Gosched()
			}
		}
		var wg sync.WaitGroup
		for thread := range c.threads {
			wg.Go(func() {
				for round := 0; round < c.rounds && !enough.Load(); round++ {
					meet(4*round + 1)
					mine := b.TryAcquire()
					if mine {
						got.Add(1)
					}
					meet(4*round + 2)
					if n := int(got.Load()); n != b.Limit() || n != b.Spinners() {
						t.Errorf("%d threads got a place, %d are counted, of %d", n, b.Spinners(), b.Limit())
					}
					if thread == 0 && time.Since(begun) > 300*time.Millisecond {
						enough.Store(true)
					}
					meet(4*round + 3)
					if mine {
						got.Add(-1)
						b.Release()
					}
					meet(4*round + 4)
				}
			})
		}
		wg.Wait()
		if b.Spinners() != 0 {
			t.Errorf("%d left", b.Spinners())
		}
	}
	b := NewSpinBudget(1)
	if n := testing.AllocsPerRun(100, func() {
		if b.TryAcquire() {
			b.Release()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBackoff(t *testing.T) {
	const ms = int64(time.Millisecond)
	var b Backoff
	if !b.Allowed(0) {
		t.Fatal("not allowed at first")
	}
	// Each switch comes as soon as spinning is allowed again.
	now := int64(0)
	for i, want := range []int64{100, 200, 400, 800, 1000, 1000, 1000} {
		b.Penalise(now)
		if b.Allowed(now) || b.Allowed(now+want*ms-1) || !b.Allowed(now+want*ms) {
			t.Fatalf("switch %d does not cost %d ms", i+1, want)
		}
		now += want * ms
	}
	// A second without one is not yet enough, a little more is.
	now += int64(MaxBackoff)
	b.Penalise(now)
	if b.Allowed(now + 1000*ms - 1) {
		t.Error("forgiven too soon")
	}
	now += 1000*ms + int64(MaxBackoff) + 1
	b.Penalise(now)
	if b.Allowed(now+100*ms-1) || !b.Allowed(now+100*ms) {
		t.Error("never forgiven")
	}
}
