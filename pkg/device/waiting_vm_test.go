package device

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/test/fixture"
)

// Promise 3: a flood on one device starves neither another device nor the held
// requests of its own.
func TestPromise3NeverStarved(t *testing.T) {
	h := newHost(t)
	const delay = 5 * time.Millisecond
	flooded := start(t, h, Spec{Name: "flooded", Backing: "mem:64M", Delays: scheduler.Delays{op.Write: delay}})
	quiet := start(t, h, Spec{Name: "quiet", Backing: "mem:64M", Delays: scheduler.Constant(delay)})
	var flood sync.WaitGroup
	stop := make(chan struct{})
	reads := 0
	flood.Go(func() {
		const depth = 256
		k := openDisk(t, flooded.Info().Path, depth)
		defer k.close()
		for i := range depth {
			k.queue(i, false, int64(i)*block)
		}
		for inFlight := depth; inFlight > 0; {
			k.submit()
			if err := k.reap(1, 20*time.Second, func(i int, _ int32) {
				reads++
				select {
				case <-stop:
					inFlight--
				default:
					k.queue(i, false, int64(i)*block)
				}
			}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	// Generous: the flood and its source take all CPUs of a small machine. A
	// queue that is starved is starved for as long as the flood lasts.
	const bound = 500 * time.Millisecond
	for _, d := range []*Device{flooded, quiet} {
		l, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Write, Count: 40})
		must(t, err)
		t.Logf("%s: median %v, longest %v of a delay of %v", d.Spec().Name, l.Median(), l.Max(), delay)
		if l.Min() < delay {
			t.Errorf("%s: a write took %v, asked %v", d.Spec().Name, l.Min(), delay)
		}
		if l.Max() > bound {
			t.Errorf("%s: a write took %v beside the flood, want at most %v", d.Spec().Name, l.Max(), bound)
		}
	}
	close(stop)
	flood.Wait()
	if reads < 500 {
		t.Errorf("the flood was only %d reads", reads)
	}
}

// Promise 4: an idle device costs no wake-ups.
func TestPromise4IdleCostsNothing(t *testing.T) {
	h := newHost(t)
	d := start(t, h, Spec{Backing: "mem:16M", Delays: scheduler.Constant(time.Millisecond), Queues: min(2, runtime.NumCPU())})
	_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 20})
	must(t, err)
	time.Sleep(500 * time.Millisecond) // the last of its short waits
	before := switches(t, d)
	time.Sleep(5 * time.Second)
	if after := switches(t, d); after != before {
		t.Errorf("the threads of an idle device were switched %d times in 5 s", after-before)
	}
}

// Promise 4: a request that is held for long costs a few wake-ups, not a poll.
func TestPromise4LongHoldCostsLittle(t *testing.T) {
	h := newHost(t)
	d := start(t, h, Spec{Backing: "mem:16M", Delays: scheduler.Constant(3 * time.Second)})
	before := switches(t, d)
	l, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 1})
	must(t, err)
	if l.Min() < 3*time.Second || l.Max() > 4*time.Second {
		t.Errorf("a request with a delay of 3 s took %v", l.Max())
	}
	if n := switches(t, d) - before; n >= 20 {
		t.Errorf("a request held for 3 s cost %d wake-ups, want fewer than 20", n)
	}
}

// switches is how often the queue threads of d were put to sleep or switched out.
func switches(t *testing.T, d *Device) int {
	t.Helper()
	total := 0
	for _, q := range d.queues {
		status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", q.tid))
		must(t, err)
		for _, m := range regexp.MustCompile(`ctxt_switches:\s+(\d+)`).FindAllSubmatch(status, -1) {
			n, err := strconv.Atoi(string(m[1]))
			must(t, err)
			total += n
		}
	}
	return total
}

// Promise 5: nobody waits behind another's longer deadline.
func TestPromise5NobodyWaitsBehindALongerDelay(t *testing.T) {
	h := newHost(t)
	d := start(t, h, Spec{Backing: "mem:16M", Delays: scheduler.Delays{op.Read: 20 * time.Second, op.Write: 2 * time.Millisecond}})
	noMerges(t, d)
	k := openDisk(t, d.Info().Path, 8)
	defer k.close()
	for i := range 8 {
		k.queue(i, false, int64(i)*block)
	}
	k.submit()
	awaitHeld(t, d, 8)
	l, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Write, Count: 20})
	must(t, err)
	if l.Max() > 2*time.Second {
		t.Errorf("a write with a delay of 2 ms took %v behind reads with one of 20 s", l.Max())
	}
	letGo(t, d, 8)
	must(t, k.reap(8, 10*time.Second, func(int, int32) {}))
}
