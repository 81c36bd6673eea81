package scheduler

import "time"

// The learned margin stays between these.
const (
	MinMargin = 20 * time.Microsecond
	MaxMargin = 300 * time.Microsecond
)

const (
	// window is how many of the last oversleeps count. It is a number of sleeps
	// and not a time: a queue that rarely sleeps adapts slowly, but then it spins
	// rarely too.
	window = 128

	// outliers is how many of the window may be later than the margin: the
	// margin is the 95th percentile. A higher one chases the stalls of the host,
	// each of which would cost a spin before every later deadline.
	outliers = window * 5 / 100

	// step is the resolution of what is learned; a margin is a multiple of it.
	step = 5 * time.Microsecond

	// steps is the number of classes of oversleeps; the last has all that no
	// margin may cover.
	steps = int(MaxMargin/step) + 1

	// firstOversleep is what a machine is taken for that was not seen asleep: the
	// usual of a virtual one.
	firstOversleep = 50 * time.Microsecond
)

// Kind is what a queue does until its next deadline.
type Kind uint8

// The kinds of Decision.
const (
	// Idle: nothing has a deadline. Wait for a completion, however long.
	Idle Kind = iota
	// Sleep: wait for a completion, at most the decision's Timeout.
	Sleep
	// Spin: do not block. Look for completions and at the clock, up to the deadline.
	Spin
	// Due: the deadline has passed. Dispatch.
	Due
)

// String returns the kind's word.
func (k Kind) String() string {
	return [...]string{"idle", "sleep", "spin", "due"}[k]
}

// A Decision is what a queue does next.
type Decision struct {
	Kind Kind

	// Timeout is how long a Sleep may be, more than 0; for Spin it is the time
	// left, for Due 0, and for Idle -1: no limit.
	Timeout time.Duration
}

// A Waiter decides between sleeping and spinning for one queue. A sleep is asked
// to end one margin before the deadline, because it ends late; the rest is spun.
// The margin follows how late the last sleeps ended, up and down.
//
// A deadline, however far, costs one sleep if the rest may be spun, or was never
// going to be; and one more if leave to spin was lost in between. Only what wakes
// a sleep early (a completion, a signal) adds to that.
//
// It belongs to one thread. Nothing in it allocates.
type Waiter struct {
	mode   SpinMode      // changed by SetSpin only
	margin time.Duration // what was learned; moved by Learn

	// The deadline that was last decided on, and the margin it was given: a
	// margin that shrinks during the sleep must not add a second short one.
	target int64
	lead   time.Duration

	recent  [window]uint8 // classes of the last oversleeps, a ring
	next    int           // where in recent the oldest is
	classes [steps]uint8  // how many of recent are in each class
}

// NewWaiter returns a Waiter in SpinAuto, for a machine it knows nothing about.
func NewWaiter() *Waiter {
	w := &Waiter{target: NoDeadline}
	first := class(firstOversleep)
	for i := range w.recent {
		w.recent[i] = first
	}
	w.classes[first] = window
	w.margin = w.percentile()
	return w
}

// SetSpin changes the mode, from the next Decide on.
func (w *Waiter) SetSpin(mode SpinMode) {
	w.mode = mode
	w.target = NoDeadline
}

// Margin returns how long before a deadline a sleep is to end: what was learned,
// between MinMargin and MaxMargin, or the fixed spin, or 0 if spinning is off.
func (w *Waiter) Margin() time.Duration {
	switch {
	case w.mode == SpinAuto:
		return w.margin
	case w.mode < 0:
		return 0
	}
	return time.Duration(w.mode)
}

// Decide says what to do at the time now if the next deadline is deadline.
//
// maySpin is whether this queue would be let spin: its Backoff allows it and the
// SpinBudget has room. Without it the sleep lasts to the deadline itself. A caller
// whose TryAcquire fails on Spin asks again with maySpin false.
func (w *Waiter) Decide(now, deadline int64, maySpin bool) Decision {
	if deadline == NoDeadline {
		return Decision{Idle, -1}
	}
	left := time.Duration(deadline - now)
	if left <= 0 {
		return Decision{Due, 0}
	}
	if deadline != w.target {
		w.target, w.lead = deadline, w.Margin()
	}
	switch {
	case !maySpin || w.lead == 0:
		return Decision{Sleep, left}
	case left <= w.lead:
		return Decision{Spin, left}
	}
	return Decision{Sleep, left - w.lead}
}

// Learn takes notice of a sleep that was to end at the time asked and ended at
// actual. One that ended before was ended by something else and teaches nothing.
func (w *Waiter) Learn(asked, actual int64) {
	if actual < asked {
		return
	}
	c := class(time.Duration(actual - asked))
	w.classes[w.recent[w.next]]--
	w.classes[c]++
	w.recent[w.next] = c
	w.next = (w.next + 1) % window
	w.margin = w.percentile()
}

// class returns the class of an oversleep: class i has those over (i-1)·step up
// to i·step.
func class(oversleep time.Duration) uint8 {
	return uint8(min((oversleep+step-1)/step, time.Duration(steps-1)))
}

// percentile returns the least margin that covers all but the outliers.
func (w *Waiter) percentile() time.Duration {
	later, c := 0, steps-1
	for ; c > 0; c-- {
		if later += int(w.classes[c]); later > outliers {
			break
		}
	}
	return max(time.Duration(c)*step, MinMargin)
}
