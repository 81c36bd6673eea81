package counters

import (
	"time"

	"github.com/delayd/delayd/pkg/op"
)

// A Snapshot is a copy of all counts of a device, summed over its queues.
type Snapshot struct {
	Since time.Time // when the counting began
	Ops   [op.Count]OpCounts
	Loop  LoopCounts
}

// OpCounts is what was counted of one kind of request.
type OpCounts struct {
	Arrived, ArrivedBytes uint64
	Done, DoneBytes       uint64             // Done with the errors, DoneBytes without
	Held, InFlight        int64              // now: in the heap, at the backing
	Errors                [ErrnoCount]uint64 // see ErrnoName
	Latency               [KindCount]Histogram
}

// Failed returns how many of Done were answered with an error.
func (c *OpCounts) Failed() uint64 {
	var n uint64
	for _, e := range c.Errors {
		n += e
	}
	return n
}

// LoopCounts is what was counted of the queues' threads.
type LoopCounts struct {
	Turns       uint64        // turns that reaped something
	Completions uint64        // what they reaped; by Turns, the batch
	Sleeps      uint64        // waits in the kernel: wake-ups
	Slept       time.Duration // in them
	Spins       uint64
	Spun        time.Duration
	Penalties   uint64        // spins that lost their CPU
	NoTags      time.Duration // with every tag taken
}

// addTo adds the queue's counts to s.
func (q *Queue) addTo(s *Snapshot) {
	for i := range q.ops {
		c, to := &q.ops[i], &s.Ops[i]
		to.Arrived += c.arrived.load()
		to.ArrivedBytes += c.arrivedBytes.load()
		to.Done += c.done.load()
		to.DoneBytes += c.doneBytes.load()
		to.Held += int64(c.held.load())
		to.InFlight += int64(c.inFlight.load())
		for e := range c.errors {
			to.Errors[e] += c.errors[e].load()
		}
		for k := range c.latency {
			c.latency[k].addTo(&to.Latency[k])
		}
	}
	l, to := &q.loop, &s.Loop
	to.Turns += l.turns.load()
	to.Completions += l.completions.load()
	to.Sleeps += l.sleeps.load()
	to.Slept += time.Duration(l.sleepNS.load())
	to.Spins += l.spins.load()
	to.Spun += time.Duration(l.spinNS.load())
	to.Penalties += l.penalties.load()
	to.NoTags += time.Duration(l.noTagsNS.load())
}

// addTo adds the counts to h. The number of observations is that of the buckets
// as they were read, so that the two agree whatever the writer does meanwhile;
// Min and Max may then lack the last observation, and are made to fit.
func (c *histogramCells) addTo(h *Histogram) {
	var one Histogram
	first, last := -1, -1
	for i := range c.buckets {
		n := c.buckets[i].load()
		if n == 0 {
			continue
		}
		one.Buckets[i] = n
		one.Count += n
		if last = i; first < 0 {
			first = i
		}
	}
	if one.Count == 0 {
		return
	}
	one.Sum = c.sum.load()
	one.Max = max(int64(c.max.load()), Lower(last))
	one.Min = Upper(first)
	if least := c.least.load(); least != 0 {
		one.Min = min(one.Min, int64(least-1))
	}
	h.Add(&one)
}
