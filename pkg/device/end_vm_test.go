package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/ublkdev"
	"github.com/delayd/delayd/test/fixture"
)

// A device that somebody else stops says so, and can still be removed.
func TestStoppedBehindItsBack(t *testing.T) {
	h := newHost(t)
	d := start(t, h, Spec{Backing: "mem:16M", Delays: scheduler.Constant(time.Millisecond)})
	other, err := ublkdev.Open()
	must(t, err)
	defer other.Close()
	must(t, other.Stop(limit(t), d.Info().ID))
	select {
	case <-d.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the device does not notice that it was stopped")
	}
	if d.Err() == nil || !strings.Contains(d.Err().Error(), "somebody else stopped it") {
		t.Errorf("it says %v", d.Err())
	}
	if s := d.Info().State; s != Failed {
		t.Errorf("state %v, want %v", s, Failed)
	}
	must(t, d.Stop(limit(t)))
	if _, err := os.Stat(ublkdev.CharPath(d.Info().ID)); err == nil {
		t.Error("it is still there")
	}
}

// A backing that hangs is waited for within a limit and reported; when it goes
// on, so does the stop.
func TestStopOfABackingThatHangs(t *testing.T) { bothWays(t, stopOfABackingThatHangs) }

func stopOfABackingThatHangs(t *testing.T, zero Choice) {
	f := fixture.For(t)
	null := f.NullBlk(fixture.MemoryBacked(64))
	dm := f.DM(fmt.Sprintf("0 %d linear %s 0", 64<<20/512, null.Path))
	h := newHost(t)
	d := start(t, h, Spec{Backing: dm.Path, ZeroCopy: zero})
	k := openDisk(t, d.Info().Path, 1)
	must(t, dm.Suspend())
	k.queue(0, true, 0)
	k.submit()
	for end := time.Now().Add(20 * time.Second); d.Counters().Snapshot().Ops[1].InFlight != 1; {
		if time.Now().After(end) {
			t.Fatal("the write does not reach the backing")
		}
		time.Sleep(time.Millisecond)
	}
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	err := d.Stop(short)
	if err == nil || !strings.Contains(err.Error(), "the backing has not answered") {
		t.Errorf("a stop while the backing hangs: %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v with a limit of 2 s", took)
	}
	must(t, dm.Resume())
	must(t, k.reap(1, 20*time.Second, func(_ int, res int32) {
		if res != block {
			t.Errorf("the write was answered with %d", res)
		}
	}))
	k.close()
	// The stop that was given up goes on in the kernel, and takes the queues'
	// tags back: the next one finds nobody there to be told.
	for _, q := range d.queues {
		select {
		case <-q.over:
		case <-time.After(20 * time.Second):
			t.Error("the kernel does not go on with the stop when the backing does")
		}
	}
	must(t, d.Stop(limit(t)))
}

// A start that fails at any point leaves nothing: here in the middle of it, when
// its caller gives up.
func TestPromise8StartGivenUp(t *testing.T) {
	h := newHost(t)
	for after := time.Duration(0); after < 200*time.Millisecond; after += 7 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		d, err := h.Start(ctx, Spec{Name: "given-up", Backing: "mem:16M"})
		cancel()
		if err == nil {
			must(t, d.Stop(limit(t)))
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up after %v: %v", after, err)
		}
		ids, err := ublkdev.List()
		must(t, err)
		if len(ids) > 0 {
			t.Fatalf("given up after %v, devices %v are left", after, ids)
		}
		if _, err := os.Stat("/dev/shm/delayd-test:given-up"); err == nil {
			t.Fatalf("given up after %v, the memory is left", after)
		}
	}
}

// Errors of the backing are passed through as they are.
func TestPromise2ErrorsArePassedThrough(t *testing.T) { bothWays(t, errorsArePassedThrough) }

func errorsArePassedThrough(t *testing.T, zero Choice) {
	f := fixture.For(t)
	null := f.NullBlk(fixture.MemoryBacked(64))
	// Two halves: one that works, one that does not.
	dm := f.DM(fmt.Sprintf("0 65536 linear %s 0\n65536 65536 error", null.Path))
	h := newHost(t)
	d := start(t, h, Spec{Backing: dm.Path, Delays: scheduler.Constant(time.Millisecond), ZeroCopy: zero})
	k := openDisk(t, d.Info().Path, 2)
	defer k.close()
	k.queue(0, true, 0)
	k.queue(1, true, 40<<20)
	k.submit()
	must(t, k.reap(2, 20*time.Second, func(i int, res int32) {
		if want := []int32{block, -int32(unix.EIO)}[i]; res != want {
			t.Errorf("request %d: answer %d, want %d", i, res, want)
		}
	}))
}
