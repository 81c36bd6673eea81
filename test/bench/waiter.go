package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/uring"
)

// wait is one way of waiting for a deadline, as a queue of pkg/device does it.
type wait struct {
	name string
	spin scheduler.SpinMode
	load bool // with a thread that computes on every CPU
}

var waits = []wait{
	{"timer only", scheduler.SpinOff, false},
	{"spin", scheduler.SpinAuto, false},
	{"timer only, CPUs busy", scheduler.SpinOff, true},
	{"spin, CPUs busy", scheduler.SpinAuto, true},
}

// waited is how late a number of deadlines was seen, in ns, and what share of a
// CPU the thread used meanwhile.
type waited struct {
	late []int64 // sorted
	cpu  float64
}

// sliceLength is that of pkg/device: a queue that had work a moment ago waits in
// slices that keep the P, and gives it back after three without an event.
const (
	sliceLength = int64(2 * time.Millisecond)
	quietSlices = 3
)

// waitFor meets deadlines delay apart for the time d with a real io_uring and the
// real Waiter. Nothing but the deadlines happens on the ring: what is measured is
// the waiting.
func waitFor(w wait, delay, d time.Duration) (waited, error) {
	type answer struct {
		waited
		err error
	}
	done := make(chan answer)
	if w.load {
		stop := keepBusy()
		defer stop()
	}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var a answer
		a.waited, a.err = waitHere(w, delay, d)
		done <- a
	}()
	a := <-done
	return a.waited, a.err
}

// waitHere is waitFor on this thread.
func waitHere(w wait, delay, d time.Duration) (res waited, err error) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	ring, err := uring.New(uring.Config{Entries: 8, SingleIssuer: true, DeferTaskrun: true, TaskrunFlag: true, RegisterRing: true})
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, ring.Close()) }()
	q := &waiting{ring: ring, clock: scheduler.Monotonic(), waiter: scheduler.NewWaiter(),
		budget: scheduler.NewSpinBudget(scheduler.DefaultSpinners(runtime.NumCPU()))}
	q.waiter.SetSpin(w.spin)

	// What the Waiter learns first does not count.
	q.now = q.clock.Now()
	for end := q.now + int64(d)/10; q.now < end; {
		if err := q.until(q.now + int64(delay)); err != nil {
			return res, err
		}
	}
	res.late = make([]int64, 0, int(d/delay)+1)
	cpu, err := threadCPU()
	if err != nil {
		return res, err
	}
	began := q.clock.Now()
	for q.now = began; q.now < began+int64(d); {
		deadline := q.now + int64(delay)
		if err := q.until(deadline); err != nil {
			return res, err
		}
		res.late = append(res.late, q.now-deadline)
	}
	after, err := threadCPU()
	if err != nil {
		return res, err
	}
	res.cpu = float64(after-cpu) / float64(q.now-began)
	if len(res.late) == 0 {
		return res, fmt.Errorf("no deadline of %v in %v", delay, d)
	}
	slices.Sort(res.late)
	return res, nil
}

// waiting is the part of a queue of pkg/device that waits (rest.go there).
type waiting struct {
	ring    *uring.Ring
	clock   scheduler.Clock
	waiter  *scheduler.Waiter
	budget  *scheduler.SpinBudget
	backoff scheduler.Backoff
	quiet   int
	now     int64
	nivcsw  int64
	usage   unix.Rusage
}

// until returns when the deadline has passed; now is then the time it was seen.
func (q *waiting) until(deadline int64) error {
	q.quiet = 0 // a request has come
	for {
		switch d := q.waiter.Decide(q.now, deadline, q.backoff.Allowed(q.now) && q.budget.Free()); d.Kind {
		case scheduler.Due:
			return nil
		case scheduler.Spin:
			if !q.budget.TryAcquire() {
				if err := q.sleep(deadline - q.now); err != nil {
					return err
				}
				continue
			}
			q.spin(deadline)
			q.budget.Release()
		default:
			if err := q.sleep(int64(d.Timeout)); err != nil {
				return err
			}
		}
	}
}

func (q *waiting) sleep(timeout int64) error {
	block, asked := uring.HoldP, timeout
	if timeout > sliceLength {
		if q.quiet < quietSlices {
			asked = sliceLength
		} else {
			block = uring.ReleaseP
		}
	}
	slept := q.now
	if err := q.ring.Wait(1, time.Duration(asked), block); err != nil {
		return err
	}
	q.now = q.clock.Now()
	q.quiet++
	if q.now-slept >= asked {
		q.waiter.Learn(slept+asked, q.now)
	}
	return nil
}

func (q *waiting) spin(deadline int64) {
	const stolen = int64(200 * time.Microsecond)
	gap := int64(0)
	for q.now < deadline && !q.ring.Ready() {
		last := q.now
		q.now = q.clock.Now()
		gap = max(gap, q.now-last)
	}
	if gap > stolen && unix.Getrusage(unix.RUSAGE_THREAD, &q.usage) == nil {
		if q.usage.Nivcsw > q.nivcsw {
			q.backoff.Penalise(q.now)
		}
		q.nivcsw = q.usage.Nivcsw
	}
}

// threadCPU is the CPU time of this thread, in ns.
func threadCPU() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, fmt.Errorf("read the CPU time of a thread: %w", err)
	}
	return ts.Nano(), nil
}

// keepBusy computes on as many threads as there are CPUs until stop is called.
func keepBusy() (stop func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	procs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(procs + runtime.NumCPU())
	for range runtime.NumCPU() {
		all.Go(func() {
			runtime.LockOSThread()
			for x := uint32(1); !over.Load(); {
				for range 1000 {
					x = x*1664525 + 1013904223
				}
				if x == 0 {
					return
				}
			}
		})
	}
	return func() {
		over.Store(true)
		all.Wait()
		runtime.GOMAXPROCS(procs)
	}
}
