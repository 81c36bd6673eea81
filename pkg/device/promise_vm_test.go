package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/test/fixture"
)

// Promise 1: never early, for every op, in both modes of holding.
func TestPromise1NeverEarly(t *testing.T) {
	delays := scheduler.Delays{
		op.Read: 2 * time.Millisecond, op.Write: 3 * time.Millisecond, op.Flush: 4 * time.Millisecond,
		op.Discard: 5 * time.Millisecond, op.WriteZeroes: 6 * time.Millisecond,
	}
	for _, hold := range []Hold{HoldSubmit, HoldComplete} {
		t.Run(hold.String(), func(t *testing.T) {
			h := newHost(t)
			d := start(t, h, Spec{Backing: tempFile(t, 64<<20), Delays: delays, Hold: hold, Queues: min(2, runtime.NumCPU())})
			fd, err := unix.Open(d.Info().Path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(fd)
			for _, o := range op.All() {
				before := d.Counters().Snapshot().Ops[o].Done
				for i := range 15 {
					took := doOne(t, fd, o, int64(i)*1<<20)
					if took < delays[o] {
						t.Errorf("%v %d took %v, asked %v", o, i, took, delays[o])
					}
				}
				// A test of latencies proves nothing if the block layer
				// answered by itself.
				if n := d.Counters().Snapshot().Ops[o].Done - before; n < 15 {
					t.Errorf("%d of 15 requests of %v reached the device", n, o)
				}
			}
		})
	}
}

// doOne makes one request of 64 KiB of the op and returns how long it took.
func doOne(t *testing.T, fd int, o op.Op, offset int64) time.Duration {
	t.Helper()
	const length = 64 << 10
	mem, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	defer unix.Munmap(mem)
	if o == op.Flush {
		// A flush with nothing written since the last may be left out.
		_, err := unix.Pwrite(fd, mem, offset)
		must(t, err)
	}
	began := time.Now()
	switch o {
	case op.Read:
		_, err = unix.Pread(fd, mem, offset)
	case op.Write:
		_, err = unix.Pwrite(fd, mem, offset)
	case op.Flush:
		err = unix.Fsync(fd)
	case op.Discard:
		err = rangeIoctl(fd, unix.BLKDISCARD, offset, length)
	case op.WriteZeroes:
		err = rangeIoctl(fd, unix.BLKZEROOUT, offset, length)
	}
	took := time.Since(began)
	if err != nil {
		t.Fatalf("%v: %v", o, err)
	}
	return took
}

// Promise 1 at depth: a request is timed from before it is submitted to after
// it is answered, so that one that is early shows whatever else goes on.
func TestPromise1NeverEarlyAtDepth(t *testing.T) {
	const depth, rounds, delay = 64, 20, 3 * time.Millisecond
	for _, hold := range []Hold{HoldSubmit, HoldComplete} {
		t.Run(hold.String(), func(t *testing.T) {
			h := newHost(t)
			d := start(t, h, Spec{Backing: "mem:64M", Delays: scheduler.Constant(delay), Hold: hold, Queues: min(2, runtime.NumCPU())})
			k := openDisk(t, d.Info().Path, depth)
			defer k.close()
			var sent [depth]time.Time
			left := depth * rounds
			send := func(i int) {
				sent[i] = time.Now()
				k.queue(i, i%2 == 0, int64((left*7919)%(64<<20/block))*block)
				k.submit()
			}
			for i := range depth {
				send(i)
			}
			total := left
			must(t, k.reap(total, 60*time.Second, func(i int, res int32) {
				if took := time.Since(sent[i]); took < delay {
					t.Errorf("took %v, asked %v", took, delay)
				}
				if res != block {
					t.Errorf("answer %d, want %d", res, block)
				}
				if left--; left >= depth {
					send(i)
				}
			}))
		})
	}
}

// Promise 2: 4096 requests in flight are each answered once, and are where they
// belong.
func TestPromise2AnsweredOnce(t *testing.T) {
	const n = MaxDepth
	file := tempFile(t, n*block)
	h := newHost(t)
	d := start(t, h, Spec{Backing: file, Delays: scheduler.Constant(time.Hour), Depth: MaxDepth})
	noMerges(t, d)
	k := openDisk(t, d.Info().Path, n)
	answers := make([]int, n)
	for i := range n {
		stamp(k.buf(i), i)
		k.queue(i, true, int64(i)*block)
	}
	k.submit()
	awaitHeld(t, d, n)
	letGo(t, d, n)
	must(t, k.reap(n, 60*time.Second, func(i int, res int32) {
		answers[i]++
		if res != block {
			t.Errorf("request %d: answer %d, want %d", i, res, block)
		}
	}))
	if err := k.reap(1, 100*time.Millisecond, func(i int, _ int32) { answers[i]++ }); err == nil {
		t.Error("more answers than requests")
	}
	for i, n := range answers {
		if n != 1 {
			t.Errorf("request %d was answered %d times", i, n)
		}
	}
	k.close()
	s := d.Counters().Snapshot().Ops[op.Write]
	if s.Arrived != n || s.Done != n || s.Held != 0 || s.InFlight != 0 {
		t.Errorf("counted %d arrived, %d done, %d held, %d in flight", s.Arrived, s.Done, s.Held, s.InFlight)
	}
	must(t, d.Stop(limit(t)))
	checkStamps(t, file, n)
}

// Promise 2: what is held at a stop is dispatched at once, and answered.
func TestPromise2StopDispatchesWhatIsHeld(t *testing.T) {
	const n = 2048
	file := tempFile(t, n*block)
	h := newHost(t)
	d := start(t, h, Spec{Backing: file, Delays: scheduler.Constant(time.Hour), Depth: MaxDepth})
	noMerges(t, d)
	k := openDisk(t, d.Info().Path, n)
	defer k.close()
	for i := range n {
		stamp(k.buf(i), i)
		k.queue(i, true, int64(i)*block)
	}
	k.submit()
	awaitHeld(t, d, n)
	var stopped sync.WaitGroup
	began := time.Now()
	stopped.Go(func() {
		if err := d.Stop(limit(t)); err != nil {
			t.Error(err)
		}
	})
	must(t, k.reap(n, 60*time.Second, func(i int, res int32) {
		if res != block {
			t.Errorf("request %d: answer %d, want %d", i, res, block)
		}
	}))
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the stop let its requests go after %v", took)
	}
	unix.Close(k.fd)
	k.fd, _ = unix.Open("/dev/null", unix.O_RDONLY, 0)
	stopped.Wait()
	checkStamps(t, file, n)
}

// Kill answers what is held with EIO, and nothing of it reaches the backing.
func TestKillFailsWhatIsHeld(t *testing.T) {
	const n = 256
	file := tempFile(t, n*block)
	h := newHost(t)
	d := start(t, h, Spec{Backing: file, Delays: scheduler.Constant(time.Hour)})
	noMerges(t, d)
	k := openDisk(t, d.Info().Path, n)
	for i := range n {
		stamp(k.buf(i), i)
		k.queue(i, true, int64(i)*block)
	}
	k.submit()
	awaitHeld(t, d, n)
	var killed sync.WaitGroup
	killed.Go(func() {
		if err := d.Kill(limit(t)); err != nil {
			t.Error(err)
		}
	})
	must(t, k.reap(n, 60*time.Second, func(i int, res int32) {
		if res != -int32(unix.EIO) {
			t.Errorf("request %d: answer %d, want EIO", i, res)
		}
	}))
	k.close()
	killed.Wait()
	data, err := os.ReadFile(file)
	must(t, err)
	if !bytes.Equal(data, make([]byte, len(data))) {
		t.Error("a request that was answered with EIO has reached the backing")
	}
}

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

// Promise 9: a request allocates nothing in the process that serves it. The
// process that makes the requests is the same one here, and its loop does not
// allocate either.
func TestPromise9NoAllocation(t *testing.T) {
	h := newHost(t)
	for _, c := range []struct {
		name    string
		backing func() string
		hold    Hold
	}{
		{"memory", func() string { return "mem:16M" }, HoldSubmit},
		{"file", func() string { return tempFile(t, 16<<20) }, HoldSubmit},
		{"complete", func() string { return tempFile(t, 16<<20) }, HoldComplete},
	} {
		t.Run(c.name, func(t *testing.T) {
			const depth, n = 32, 8000
			d := start(t, h, Spec{Backing: c.backing(), Delays: scheduler.Constant(200 * time.Microsecond), Hold: c.hold})
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
			if got := after.Mallocs - before.Mallocs; got > n/100 {
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

// A device cannot be made of a device of the same daemon, nor of a file on one.
func TestPromise7OwnDeviceIsRefused(t *testing.T) {
	h := newHost(t)
	d := start(t, h, Spec{Backing: "mem:64M"})
	_, err := h.Start(limit(t), Spec{Name: "on-own", Backing: d.Info().Path})
	if !errors.Is(err, ErrOwnDevice) {
		t.Errorf("a device on %s: %v, want ErrOwnDevice", d.Info().Path, err)
	}
	fixture.For(t).Mkfs("ext4", d.Info().Path)
	m := fixture.For(t).Mount(d.Info().Path, "ext4")
	file := filepath.Join(m.Dir, "backing")
	must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	if _, err := h.Start(limit(t), Spec{Name: "in-own", Backing: file}); !errors.Is(err, ErrOwnDevice) {
		t.Errorf("a device in a file on %s: %v, want ErrOwnDevice", d.Info().Path, err)
	}
	users, err := d.Users()
	must(t, err)
	if len(users) != 1 || users[0] != "mounted on "+m.Dir {
		t.Errorf("users %q, want the mount on %s", users, m.Dir)
	}
	must(t, m.Close())
}

// stamp writes a block that no other number has.
func stamp(b []byte, n int) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(n)<<32|uint64(i)|1)
	}
}

func checkStamps(t *testing.T, file string, n int) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	want := make([]byte, block)
	for i := range n {
		stamp(want, i)
		if !bytes.Equal(data[i*block:(i+1)*block], want) {
			t.Fatalf("block %d of the backing is not what was written", i)
		}
	}
}

// letGo releases all that is held, n requests, before its time.
func letGo(t *testing.T, d *Device, n int) {
	t.Helper()
	d.policy.Store(undelayed)
	touched, err := d.tell(limit(t), release)
	must(t, err)
	if touched != n {
		t.Errorf("the release touched %d requests, want %d", touched, n)
	}
}

// awaitHeld waits until n requests are held.
func awaitHeld(t *testing.T, d *Device, n int) {
	t.Helper()
	held := 0
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		held = 0
		for _, c := range d.Counters().Snapshot().Ops {
			held += int(c.Held)
		}
		if held == n {
			return
		}
	}
	t.Fatalf("%d requests are held, want %d", held, n)
}
