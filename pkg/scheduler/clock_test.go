package scheduler

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMonotonic(t *testing.T) {
	a, b := Monotonic(), Monotonic()
	last := a.Now()
	if last < 0 {
		t.Fatalf("the clock shows %d", last)
	}
	for range 10_000 { // two clocks are one
		for _, c := range []Clock{a, b} {
			now := c.Now()
			if now < last {
				t.Fatalf("the clock went from %d back to %d", last, now)
			}
			last = now
		}
	}
	before, start := a.Now(), time.Now()
	time.Sleep(2 * time.Millisecond)
	inner := a.Now() - before
	outer := time.Since(start) + time.Duration(start.Sub(base.Add(time.Duration(before))))
	if inner < int64(2*time.Millisecond) || inner > int64(outer) {
		t.Errorf("the clock went on by %v in %v", time.Duration(inner), outer)
	}
	if n := testing.AllocsPerRun(100, func() { sink += a.Now() }); n != 0 {
		t.Errorf("Now makes %v allocations", n)
	}
}

func TestOrigin(t *testing.T) {
	kernel := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return ts.Nano()
	}
	for range 100 {
		before := kernel()
		now := Monotonic().Now() + Origin()
		after := kernel()
		// The origin may be too great by what it took to read both clocks.
		if now < before || now > after+int64(5*time.Millisecond) {
			t.Fatalf("the kernel's clock went from %d to %d, and ours shows %d in between", before, after, now)
		}
	}
}

func TestCost(t *testing.T) {
	const looks = 1000
	cost, start := Cost(), time.Now()
	for range looks {
		sink += Monotonic().Now()
	}
	// It is the least seen, so no thousand can be faster than half of that.
	if each := time.Since(start) / looks; cost <= 0 || each < cost/2 {
		t.Errorf("a look costs %v at least, but %d of them took %v each", cost, looks, each)
	}
}

func TestManual(t *testing.T) {
	var m Manual
	var c Clock = &m
	if c.Now() != 0 {
		t.Errorf("starts at %d", c.Now())
	}
	if got := m.Advance(time.Second); got != int64(time.Second) || c.Now() != got {
		t.Errorf("after Advance: %d, %d", got, c.Now())
	}
	m.Set(int64(time.Minute))
	m.Set(int64(time.Minute))
	if c.Now() != int64(time.Minute) {
		t.Errorf("after Set: %d", c.Now())
	}
	if !panics(func() { m.Set(1) }) || !panics(func() { m.Advance(-1) }) {
		t.Error("went back")
	}
}

func BenchmarkMonotonic(b *testing.B) {
	c := Monotonic()
	for b.Loop() {
		sink += c.Now()
	}
}
