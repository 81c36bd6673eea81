package scheduler

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// NoDeadline is the deadline of what waits for no time: an empty heap, or a
// request held by hang. It is later than every other.
const NoDeadline int64 = math.MaxInt64

// A Clock tells the time in nanoseconds from an origin of its own. It never goes
// back, and it does not follow changes of the wall clock.
type Clock interface {
	Now() int64
}

// base is the origin of Monotonic: one for the process, so that the times of
// two queues or two devices can be compared.
var base = time.Now()

type monotonic struct{}

// Now is one vDSO read: Since, for a time that carries a monotonic reading,
// does not look at the wall clock.
func (monotonic) Now() int64 { return int64(time.Since(base)) }

// Monotonic returns the machine's clock, CLOCK_MONOTONIC. All of them in one
// process have the same origin, the start of the process. Now neither allocates
// nor enters the kernel.
func Monotonic() Clock { return monotonic{} }

// Manual is a clock that moves when it is told to. The zero value stands at 0.
// It may be used by several goroutines.
type Manual struct {
	now atomic.Int64
}

// Now returns the time that was set.
func (m *Manual) Now() int64 { return m.now.Load() }

// Advance moves the clock by d and returns the new time. A negative d is a
// programmer error and panics.
func (m *Manual) Advance(d time.Duration) int64 {
	if d < 0 {
		panic(fmt.Sprintf("scheduler: manual clock moved back by %v", -d))
	}
	return m.now.Add(int64(d))
}

// Set moves the clock to now. An earlier time than the clock shows is a
// programmer error and panics.
func (m *Manual) Set(now int64) {
	if old := m.now.Swap(now); now < old {
		panic(fmt.Sprintf("scheduler: manual clock set back from %d to %d", old, now))
	}
}

// Origin returns what CLOCK_MONOTONIC showed, in nanoseconds, when [Monotonic]
// showed 0: what to add to a time of the one to tell it to the kernel. It is
// exact to within what it takes to read both, and never too small.
func Origin() int64 { return origin() }

var origin = sync.OnceValue(func() int64 {
	best, width := int64(0), int64(math.MaxInt64)
	for range 16 {
		before := Monotonic().Now()
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic(fmt.Sprintf("scheduler: read CLOCK_MONOTONIC: %v", err)) // every Linux has it
		}
		if w := Monotonic().Now() - before; w < width {
			best, width = ts.Nano()-before, w
		}
	}
	return best
})

// Cost returns how long a look at [Monotonic] takes on this machine: tens of
// nanoseconds where the vDSO tells the time, and as much as a system call, a
// microsecond or many, where it does not.
func Cost() time.Duration { return cost() }

var cost = sync.OnceValue(func() time.Duration {
	least := int64(math.MaxInt64)
	last := Monotonic().Now()
	for range 64 {
		now := Monotonic().Now()
		least = min(least, now-last)
		last = now
	}
	return time.Duration(least)
})
