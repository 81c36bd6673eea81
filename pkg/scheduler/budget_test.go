package scheduler

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestSpinBudgetLimit(t *testing.T) {
	for cpus, want := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 1, 3: 2, 64: 63} {
		b := NewSpinBudget(cpus)
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

// TestSpinBudgetShared has more threads than places at all times.
func TestSpinBudgetShared(t *testing.T) {
	const cpus, threads, rounds = 4, 8, 20_000
	b := NewSpinBudget(cpus)
	var inside, most, taken atomic.Int32
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			for range rounds {
				if !b.TryAcquire() {
					continue
				}
				n := inside.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				taken.Add(1)
				inside.Add(-1)
				b.Release()
			}
		})
	}
	wg.Wait()
	if most.Load() > cpus-1 || taken.Load() < rounds {
		t.Errorf("%d at once of %d allowed, %d times in all", most.Load(), cpus-1, taken.Load())
	}
	if b.Spinners() != 0 {
		t.Errorf("%d left", b.Spinners())
	}
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
