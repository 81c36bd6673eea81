package uring

import (
	"sync/atomic"
	"testing"
)

// Far more completions than the queue holds: the kernel keeps the rest, says so
// in the flags, and gives them back when it is entered.
func TestOverflowLosesNothing(t *testing.T) {
	for _, name := range []string{"plain", "queue", "queue, large"} {
		t.Run(name, func(t *testing.T) {
			c := configs[name]
			c.Entries, c.CQEntries = 2, 2
			r := open(t, c)
			const n = 5000
			for i := range uint64(n) {
				if r.Space() == 0 {
					must(t, r.Submit())
				}
				next(t, r).UserData = i
			}
			must(t, r.Submit())
			if r.Pending() != 0 {
				t.Fatalf("%d SQEs not taken", r.Pending())
			}
			if atomic.LoadUint32(r.sq.flags)&sqCQOverflow == 0 {
				t.Fatalf("%d completions in a queue of 2 did not overflow", n)
			}
			// What is in the queue, without an enter.
			var dst [3]CQE
			if got := r.Reap(dst[:]); got != 2 {
				t.Fatalf("reaped %d of a queue of 2", got)
			}
			if !r.Ready() {
				t.Fatal("not ready with completions kept by the kernel")
			}
			if got := r.Reap(dst[:]); got != 0 {
				t.Fatalf("%d completions came back without an enter", got)
			}
			// By turns with the three calls that bring them back.
			seen, enters := uint64(2), 0
			for seen < n {
				switch enters % 3 {
				case 0:
					must(t, r.Submit())
				case 1:
					must(t, r.Wait(1, -1, HoldP))
				case 2:
					must(t, r.Wait(2, 1e9, ReleaseP))
				}
				enters++
				if enters > n {
					t.Fatalf("%d enters brought %d of %d", enters, seen, n)
				}
				for _, c := range dst[:r.Reap(dst[:])] {
					if c.UserData != seen {
						t.Fatalf("completion %d comes after %d", c.UserData, seen-1)
					}
					seen++
				}
			}
			if r.Ready() || r.Lost() != 0 {
				t.Errorf("ready %v, %d lost", r.Ready(), r.Lost())
			}
		})
	}
}
