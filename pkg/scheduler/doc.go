// Package scheduler decides when a held request's time has come. It is pure: it
// knows neither the kernel nor goroutines, and takes the time as an argument.
//
// A queue's loop owns one [Heap] of deadlines and one [Waiter]:
//
//	heap.Push(arrival+delays.For(o), tag)              // hold
//	for {
//		deadline, _ := heap.Min()                      // NoDeadline if empty
//		if deadline > clock.Now() { break }
//		tag, _ := heap.Pop()                           // due: dispatch
//	}
//	switch d := waiter.Decide(now, deadline, maySpin); d.Kind {
//	case scheduler.Idle:  wait for a completion
//	case scheduler.Sleep: wait for a completion, at most d.Timeout; waiter.Learn
//	case scheduler.Spin:  look at the clock and the completions, if budget.TryAcquire lets
//	case scheduler.Due:   dispatch
//	}
//
// Times are nanoseconds of one [Clock]; a deadline is a time, a delay a length.
// Nothing here allocates after it was made, and except for [SpinBudget] and
// [Manual] everything belongs to one thread.
package scheduler
