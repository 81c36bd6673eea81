package scheduler

import (
	"fmt"
	"sync/atomic"
	"time"
)

// A SpinBudget bounds how many threads spin at once. There is one for the whole
// process, shared by the queues of all devices: a spinner takes a CPU from
// everybody, so a budget for each device would bound nothing.
//
// It may be used by several threads. Nothing in it blocks or allocates.
type SpinBudget struct {
	_     [64]byte // the counter has a cache line to itself
	spins atomic.Int32
	_     [60]byte
	limit int32 // written once, by NewSpinBudget
}

// DefaultSpinners is how many may spin at once in a process that may run on cpus
// CPUs: on all but one, and on one in any case.
func DefaultSpinners(cpus int) int { return max(cpus-1, 1) }

// NewSpinBudget returns a budget of so many spinners; 0 lets none spin.
func NewSpinBudget(spinners int) *SpinBudget {
	return &SpinBudget{limit: int32(max(spinners, 0))}
}

// Limit returns how many may spin at once.
func (b *SpinBudget) Limit() int { return int(b.limit) }

// Spinners returns how many are spinning.
func (b *SpinBudget) Spinners() int { return int(b.spins.Load()) }

// Free reports whether TryAcquire would succeed at this moment: a hint for
// Waiter.Decide while the deadline is still far.
func (b *SpinBudget) Free() bool { return b.spins.Load() < b.limit }

// TryAcquire takes one place, if there is one. Each success needs one Release,
// before the thread blocks.
func (b *SpinBudget) TryAcquire() bool {
	for {
		n := b.spins.Load()
		if n >= b.limit {
			return false
		}
		if b.spins.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives the place back. One without a TryAcquire is a programmer error
// and panics.
func (b *SpinBudget) Release() {
	if n := b.spins.Add(-1); n < 0 {
		panic(fmt.Sprintf("scheduler: spin budget released below zero (%d)", n))
	}
}

// How long a queue does not spin after it was switched out while it did.
const (
	MinBackoff = 100 * time.Millisecond
	MaxBackoff = time.Second
)

// A Backoff keeps a queue from spinning for a while after the kernel took the CPU
// from it in the middle of a spin (an involuntary context switch): somebody else
// needs that CPU, and the spin was not precise either. Each further one doubles
// the while, from MinBackoff to MaxBackoff; a queue that then goes MaxBackoff
// without another begins again.
//
// The zero value allows spinning. It belongs to one thread.
type Backoff struct {
	until int64         // no spin before this time
	last  time.Duration // how long the last penalty was, 0 if there was none
}

// Allowed reports whether the queue may spin at the time now.
func (b *Backoff) Allowed(now int64) bool { return now >= b.until }

// Penalise records an involuntary switch, seen at the time now.
func (b *Backoff) Penalise(now int64) {
	if b.last == 0 || now-b.until > int64(MaxBackoff) {
		b.last = MinBackoff
	} else {
		b.last = min(2*b.last, MaxBackoff)
	}
	b.until = now + int64(b.last)
}
