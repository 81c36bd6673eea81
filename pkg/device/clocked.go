package device

import "time"

// A look at the clock is a vDSO read of some ten nanoseconds, or, on a machine
// without one (another clock source than the TSC, user-mode Linux), a system
// call. Where it is that dear, and while nothing is delayed, a queue looks at it
// in one turn of a few only: the latencies of the requests of that turn are
// measured, and the others are counted without. A delay is never guessed.

// dearClock is what a look at the clock costs where it is a system call, at least.
const dearClock = time.Microsecond

// sampleTurns is the number of turns of which one is timed. It is odd, because
// turns alternate between fetches and answers at depth 1.
const sampleTurns = 15

// clocked is what a queue remembers of the time from turn to turn. queue thread only.
type clocked struct {
	dear   bool // a look costs a system call; written once, before the thread starts
	looked bool // now was read at the end of the rest before this turn
	blind  bool // this turn does without the time: now is an old one
	timed  int  // requests of turns that had it, and that are not answered yet
	turns  int  // turns that could do without
}

// readClock reads the clock for this turn, if it needs one.
//
// It comes after the reap: an arrival is never dated before its fetch. A rest
// that ended with a look at the clock saves this one, if nothing was fetched
// since: with DEFER_TASKRUN the kernel posts completions only while this thread
// is in it.
func (q *queue) readClock(reaped int) {
	q.clocked.blind = q.canGuess()
	if !q.clocked.blind && (!q.clocked.looked || reaped > 0 && !q.deferred) {
		q.now = q.clock.Now()
	}
	q.clocked.looked = false
}

// canGuess reports whether nothing in this turn depends on the time: nothing is
// delayed, nothing is held, no request is under way whose latency is measured, and
// none can be polled for, which goes by how long ago it was sent.
func (q *queue) canGuess() bool {
	c := &q.clocked
	if !c.dear || !q.law.passes || q.polled.ring != nil || q.heap.Len() > 0 || c.timed > 0 {
		return false
	}
	c.turns++
	return c.turns%sampleTurns != 0
}

// time is now, also in a turn that did without it.
func (q *queue) time() int64 {
	if q.clocked.blind {
		q.now = q.clock.Now()
		q.clocked.blind = false
	}
	return q.now
}

// look reads the clock for this rest and for the turn that follows it.
func (q *queue) look() {
	q.now = q.clock.Now()
	q.clocked.looked = true
}
