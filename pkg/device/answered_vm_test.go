package device

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
)

// Promise 2: 4096 requests in flight are each answered once, and are where they
// belong.
func TestPromise2AnsweredOnce(t *testing.T) {
	inEveryMode(t, MaxDepth*block, checkPromise2AnsweredOnce)
}

func checkPromise2AnsweredOnce(t *testing.T, spec Spec) {
	const n = MaxDepth
	spec.Delays, spec.Depth = scheduler.Constant(time.Hour), MaxDepth
	h := newHost(t)
	d := start(t, h, spec)
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
	checkStamps(t, spec.Backing, n)
}

// Promise 2: what is held at a stop is dispatched at once, and answered.
func TestPromise2StopDispatchesWhatIsHeld(t *testing.T) {
	inEveryMode(t, 2048*block, checkPromise2StopDispatchesWhatIsHeld)
}

func checkPromise2StopDispatchesWhatIsHeld(t *testing.T, spec Spec) {
	const n = 2048
	spec.Delays, spec.Depth = scheduler.Constant(time.Hour), MaxDepth
	h := newHost(t)
	d := start(t, h, spec)
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
	checkStamps(t, spec.Backing, n)
}

// Kill answers what is held with EIO, and nothing of it reaches the backing.
func TestKillFailsWhatIsHeld(t *testing.T) { inEveryMode(t, 256*block, checkKillFailsWhatIsHeld) }

func checkKillFailsWhatIsHeld(t *testing.T, spec Spec) {
	const n = 256
	spec.Delays = scheduler.Constant(time.Hour)
	h := newHost(t)
	d := start(t, h, spec)
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
	data, err := os.ReadFile(spec.Backing)
	must(t, err)
	if !bytes.Equal(data, make([]byte, len(data))) {
		t.Error("a request that was answered with EIO has reached the backing")
	}
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
