package device

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/test/fixture"
)

// Promise 9: a request allocates nothing in the process that serves it. The
// process that makes the requests is the same one here, and its loop does not
// allocate either.
func TestPromise9NoAllocation(t *testing.T) {
	h := newHost(t)
	for _, c := range []struct {
		name    string
		backing func() string
		hold    Hold
		zero    Choice
		poll    bool
	}{
		{"memory", func() string { return "mem:16M" }, HoldSubmit, Auto, false},
		{"file", func() string { return tempFile(t, 16<<20) }, HoldSubmit, Auto, false},
		{"file, copying", func() string { return tempFile(t, 16<<20) }, HoldSubmit, Off, false},
		{"complete", func() string { return tempFile(t, 16<<20) }, HoldComplete, Auto, false},
		{"polled", func() string { return fixture.For(t).Filled(fixture.Polled(16)).Path }, HoldSubmit, Auto, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const depth = 32
			n := 8000
			if testing.Short() {
				n = 3000
			}
			d := start(t, h, Spec{Backing: c.backing(), Delays: scheduler.Constant(200 * time.Microsecond), Hold: c.hold,
				ZeroCopy: c.zero, Poll: c.poll})
			k := openDisk(t, d.Info().Path, depth)
			defer k.close()
			left := 0
			again := func(i int, _ int32) {
				if left--; left >= depth {
					k.queue(i, i%2 == 0, int64(i)*block)
					k.submit()
				}
			}
			run := func(n int) {
				left = n
				for i := range depth {
					k.queue(i, i%2 == 0, int64(i)*block)
				}
				k.submit()
				must(t, k.reap(n, 60*time.Second, again))
			}
			run(500) // first faults, lazily made threads
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			run(n)
			runtime.ReadMemStats(&after)
			// The runtime's own threads allocate a little now and then.
			if got := after.Mallocs - before.Mallocs; got > uint64(n)/100 {
				t.Errorf("%d allocations in %d requests", got, n)
			}
		})
	}
}

// Promise 9: a reader of the counters and the threads that write them do not
// race (the race detector is the judge), and what is read makes sense.
func TestPromise9CountersWhileServing(t *testing.T) {
	h := newHost(t)
	d := start(t, h, Spec{Backing: "mem:16M", Delays: scheduler.Constant(100 * time.Microsecond)})
	ctx, cancel := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		last := uint64(0)
		for ctx.Err() == nil {
			s := d.Counters().Snapshot().Ops[op.Read]
			if s.Done < last {
				t.Errorf("done went from %d to %d", last, s.Done)
			}
			last = s.Done
			d.Info()
			time.Sleep(time.Millisecond)
		}
	})
	_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 500})
	cancel()
	reader.Wait()
	must(t, err)
	if s := d.Counters().Snapshot().Ops[op.Read]; s.Done < 500 || s.DoneBytes < 500*block {
		t.Errorf("counted %d reads and %d bytes of 500 and %d", s.Done, s.DoneBytes, 500*block)
	}
}
