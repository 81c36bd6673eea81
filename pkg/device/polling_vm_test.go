package device

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/test/fixture"
)

// Promise 4: a polled backing is polled only while it has requests.
func TestPromise4PolledIdleCostsNothing(t *testing.T) {
	h := newHost(t)
	disk := fixture.For(t).Filled(fixture.Polled(16))
	d := start(t, h, Spec{Backing: disk.Path, Poll: true, Delays: scheduler.Constant(time.Millisecond), Queues: min(2, runtime.NumCPU())})
	_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 20})
	must(t, err)
	time.Sleep(500 * time.Millisecond) // the last of its short waits
	before, loop := switches(t, d), d.Counters().Snapshot().Loop
	time.Sleep(5 * time.Second)
	if after := switches(t, d); after != before {
		t.Errorf("the threads of an idle device were switched %d times in 5 s", after-before)
	}
	if after := d.Counters().Snapshot().Loop; after != loop {
		t.Errorf("the loops of an idle device went on: %+v, and then %+v", loop, after)
	}
	wasPolled(t, d, true)
}

// slowDisk is a polled disk of slowBlocks blocks that takes a second for all of
// them: what is too much at once is polled for meanwhile.
func slowDisk(t *testing.T) *fixture.NullBlk {
	t.Helper()
	return fixture.For(t).Filled(fixture.Polled(1).Throttled())
}

const slowBlocks = 1 << 20 / block

// Promise 3: while polled requests are long in coming, those of another kind
// are fetched, held, and dispatched at their time; and so are orders.
func TestPromise3PollingStarvesNobody(t *testing.T) {
	h := newHost(t)
	const n, delay = slowBlocks, 5 * time.Millisecond
	d := start(t, h, Spec{Backing: slowDisk(t).Path, Poll: true, Delays: scheduler.Delays{op.Write: 20 * time.Second}})
	quiet := start(t, h, Spec{Name: "quiet", Backing: "mem:16M", Delays: scheduler.Constant(delay)})
	noMerges(t, d)
	k := openDisk(t, d.Info().Path, n)
	defer k.close()
	began := time.Now()
	for i := range n {
		k.queue(i, i >= n/2, int64(i)*block)
	}
	k.submit()
	awaitHeld(t, d, n/2)
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("%d writes were held after %v", n/2, took)
	}
	// The reads take half a second: a neighbour that they starve is starved for
	// so long, and one that has to share the CPU is not.
	neighbour := 0
	for ; d.Counters().Snapshot().Ops[op.Read].InFlight > 0; neighbour++ {
		l, err := fixture.Measure(quiet.Info().Path, fixture.Load{Op: op.Write, Count: 1})
		must(t, err)
		if l.Min() < delay {
			t.Errorf("a write took %v, asked %v", l.Min(), delay)
		}
	}
	t.Logf("%d writes with a delay of %v were answered while a neighbour was polled", neighbour, delay)
	if neighbour < 5 {
		t.Errorf("only %d writes were answered while a neighbour was polled, want 5", neighbour)
	}
	letGo(t, d, n/2)
	must(t, k.reap(n, 60*time.Second, func(i int, res int32) {
		if res != block {
			t.Errorf("request %d: answer %d, want %d", i, res, block)
		}
	}))
}

// Promise 2: a stop waits for polled requests that are at the backing, and
// dispatches those that are held.
func TestPromise2StopWhilePolling(t *testing.T) {
	h := newHost(t)
	const n = slowBlocks
	d := start(t, h, Spec{Backing: slowDisk(t).Path, Poll: true, Delays: scheduler.Delays{op.Write: time.Hour}})
	noMerges(t, d)
	k := openDisk(t, d.Info().Path, n)
	for i := range n {
		k.queue(i, i >= n/2, int64(i)*block)
	}
	k.submit()
	awaitHeld(t, d, n/2)
	if d.Counters().Snapshot().Ops[op.Read].InFlight == 0 {
		t.Error("nothing is in flight when the stop comes")
	}
	var stopped sync.WaitGroup
	stopped.Go(func() { wasPolled(t, d, true) })
	must(t, k.reap(n, 60*time.Second, func(i int, res int32) {
		if res != block {
			t.Errorf("request %d: answer %d, want %d", i, res, block)
		}
	}))
	k.close()
	stopped.Wait()
}

// Promise 4: a polled backing that takes its time does not cost a CPU.
func TestPromise4SlowPolledBacking(t *testing.T) {
	h := newHost(t)
	const n = 4 * slowBlocks
	disk := fixture.For(t).Filled(fixture.Polled(4).Throttled())
	d := start(t, h, Spec{Backing: disk.Path, Poll: true, Depth: n})
	noMerges(t, d)
	k := openDisk(t, d.Info().Path, n)
	for i := range n {
		k.queue(i, false, int64(i)*block)
	}
	k.submit()
	time.Sleep(500 * time.Millisecond)
	// It answers 20 times a second. After each answer a millisecond of looks
	// follows, and then some 35 with a pause that grows to 50 ms.
	const watched, answers = 2 * time.Second, 40
	before, looks := cpuTime(t, d), d.Counters().Snapshot()
	time.Sleep(watched)
	now := d.Counters().Snapshot()
	took := cpuTime(t, d) - before
	if now.Ops[op.Read].InFlight == 0 {
		t.Fatalf("%d reads were answered before the %v were over", n, watched)
	}
	sleeps, spun := now.Loop.Sleeps-looks.Loop.Sleeps, now.Loop.Spun-looks.Loop.Spun
	t.Logf("a slow backing costs %v of CPU, %d sleeps and %v of spinning in %v", took, sleeps, spun, watched)
	if sleeps > 100*answers {
		t.Errorf("a slow backing costs %d sleeps in %v", sleeps, watched)
	}
	if spun > watched/4 || took > watched/2 {
		t.Errorf("a slow backing costs %v of CPU and %v of spinning in %v", took, spun, watched)
	}
	must(t, k.reap(n, 20*time.Second, func(i int, res int32) {
		if res != block {
			t.Errorf("read %d was answered with %d", i, res)
		}
	}))
	k.close()
	wasPolled(t, d, true)
}

// cpuTime is what the queue threads of d have used, in ticks of 10 ms.
func cpuTime(t *testing.T, d *Device) (total time.Duration) {
	t.Helper()
	for _, q := range d.queues {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", q.tid))
		must(t, err)
		// After the name, which may have spaces: state is field 3, utime and stime
		// are 14 and 15 (proc_pid_stat(5)).
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.Atoi(field)
			must(t, err)
			total += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return total
}
