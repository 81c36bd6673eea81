package uring

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is what CLOCK_MONOTONIC shows.
func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return ts.Nano()
}

// A wait until a time does not end before it, and ends about then; one until a
// time that has passed ends at once. A kernel without such timers says so.
func TestWaitUntil(t *testing.T) {
	eachWait(t, func(t *testing.T, r *Ring, b Block) {
		if !r.Absolute() {
			if err := r.WaitUntil(1, monotonic(t), b); !errors.Is(err, ErrNotSupported) {
				t.Errorf("without such timers: %v", err)
			}
			return
		}
		for _, ahead := range []time.Duration{-time.Hour, 0, 100 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond} {
			best := time.Hour
			for range 9 {
				at := monotonic(t) + int64(ahead)
				l := limit{kind: untilTime, ns: max(at, 0)}
				errno := r.attempt(1, l, b)
				for errno == unix.EINTR {
					errno = r.attempt(1, l, b)
				}
				late := time.Duration(monotonic(t) - at)
				switch {
				case errno != unix.ETIME:
					t.Fatalf("wait until %v from now: %v", ahead, errno)
				case late < 0:
					t.Fatalf("wait until %v from now ended %v early", ahead, -late)
				}
				best = min(best, late+min(ahead, 0))
			}
			if best > 20*time.Millisecond {
				t.Errorf("wait until %v from now: late by %v at best", ahead, best)
			}
		}
	})
}

// The time of a wait counts from when it is asked for, not from when what is
// pending has been submitted.
func TestWaitUntilTakesWhatIsPending(t *testing.T) {
	eachWait(t, func(t *testing.T, r *Ring, b Block) {
		if !r.Absolute() {
			t.Skip("this kernel has no timers for it: Linux 6.12 has")
		}
		s := next(t, r)
		s.Opcode, s.UserData = OpNop, 7
		must(t, r.WaitUntil(1, monotonic(t)+int64(time.Minute), b))
		var c [1]CQE
		if n := r.Reap(c[:]); n != 1 || c[0].UserData != 7 {
			t.Errorf("%d completions, %+v", n, c[0])
		}
	})
}
