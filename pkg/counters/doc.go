// Package counters counts what a device's queues do, in a mapping that outlives
// the daemon.
//
// Each queue's thread adds to cells of its own, and nobody else does: a count is
// a load, an addition and a store, with no lock and no locked instruction. Readers
// load the same cells whenever they like. So a count is never torn and never goes
// back, but two counts of one [Snapshot] may be a few requests apart.
//
//	set, err := counters.Create("/run/delayd/delayd/slow0.counters", queues)
//	q := set.Queue(0)
//	q.Arrived(op.Write, 4096)              // queue thread
//	q.Observe(counters.Held, op.Write, ns) // queue thread
//	s := set.Snapshot()                    // anybody
//
// The mapping is a file, so that the next daemon which serves the device continues
// its counts.
package counters
