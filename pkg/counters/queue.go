package counters

import "github.com/delayd/delayd/pkg/op"

// Arrived counts a fetched request of bytes bytes.
func (q *Queue) Arrived(o op.Op, bytes uint64) {
	c := &q.ops[o]
	c.arrived.add(1)
	c.arrivedBytes.add(bytes)
}

// Done counts an answered request: its bytes bytes if errno is 0, else the error.
// errno is positive, as in EIO = 5.
func (q *Queue) Done(o op.Op, bytes uint64, errno uint16) {
	c := &q.ops[o]
	c.done.add(1)
	if errno == 0 {
		c.doneBytes.add(bytes)
		return
	}
	c.errors[errnoCell(errno)].add(1)
}

// Observe counts one stretch of ns nanoseconds. A negative one counts as 0.
func (q *Queue) Observe(k Kind, o op.Op, ns int64) {
	ns = max(ns, 0)
	c := &q.ops[o].latency[k]
	c.buckets[Bucket(ns)].add(1)
	v := uint64(ns)
	c.sum.add(v)
	if v > c.max.own() {
		c.max.set(v)
	}
	if v < c.least.own()-1 { // wraps for the first, and is then less than all
		c.least.set(v + 1)
	}
}

// AddHeld changes the number of requests in the heap by n.
func (q *Queue) AddHeld(o op.Op, n int) { q.ops[o].held.add(uint64(n)) }

// AddInFlight changes the number of requests at the backing by n.
func (q *Queue) AddInFlight(o op.Op, n int) { q.ops[o].inFlight.add(uint64(n)) }

// Batch counts a turn of the loop that reaped n completions.
func (q *Queue) Batch(n int) {
	q.loop.turns.add(1)
	q.loop.completions.add(uint64(n))
}

// Slept counts a wait in the kernel that ended after ns nanoseconds: a wake-up.
func (q *Queue) Slept(ns int64) {
	q.loop.sleeps.add(1)
	q.loop.sleepNS.add(uint64(max(ns, 0)))
}

// Spun counts a spin of ns nanoseconds.
func (q *Queue) Spun(ns int64) {
	q.loop.spins.add(1)
	q.loop.spinNS.add(uint64(max(ns, 0)))
}

// Penalised counts a spin that lost its CPU, and so the next ones their leave.
func (q *Queue) Penalised() { q.loop.penalties.add(1) }

// NoTags counts ns nanoseconds in which every tag was taken: the application may
// have had more requests than the queue has depth.
func (q *Queue) NoTags(ns int64) { q.loop.noTagsNS.add(uint64(max(ns, 0))) }

// resetGauges makes the queue one that has no request.
func (q *Queue) resetGauges() {
	for i := range q.ops {
		q.ops[i].held.set(0)
		q.ops[i].inFlight.set(0)
	}
}
