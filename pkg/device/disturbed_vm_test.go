package device

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/metrics"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/test/fixture"
)

// disturbance bounds how much later the latest hundredth of the dispatches may
// be while the rest of the daemon is as busy as it can be. User-mode Linux, with
// HZ=100 and no preemption, runs the threads of one process one at a time
// (arch/um/os-Linux/skas/process.c, the turnstile), so that the queue's thread
// waits there for all others of its process, each for a tick at worst; some 60 ms
// were seen.
const disturbance = 200 * time.Millisecond

// Promise 9: what else the daemon does does not keep a request waiting. Scrapes,
// devices that come and go, one after the other, and the garbage collections that
// they cause move the 99th percentile of the lateness by less than disturbance.
func TestPromise9TheRestOfTheDaemonIsKeptAway(t *testing.T) {
	if testing.Short() {
		t.Skip("a matter of time, which an emulated CPU or the race detector blurs: run without -short")
	}
	h := newHost(t)
	d := start(t, h, Spec{Name: "measured", Backing: "mem:16M", Delays: scheduler.Constant(time.Millisecond)})
	const reads = 500
	p99 := func() time.Duration {
		before := d.Counters().Snapshot().Ops[op.Read].Latency
		_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: reads})
		must(t, err)
		after := d.Counters().Snapshot().Ops[op.Read].Latency
		late := &after[counters.Lateness]
		late.Sub(&before[counters.Lateness])
		if late.Count != reads {
			t.Fatalf("the lateness of %d requests of %d was counted", late.Count, reads)
		}
		return late.Quantile(0.99)
	}
	var moved time.Duration
	for range 3 { // the machine itself may be busy
		quiet := p99()
		stop := disturb(t, h, d)
		disturbed := p99()
		did := stop()
		moved = disturbed - quiet
		t.Logf("99%% of the dispatches late by %v at most, with %s meanwhile by %v", quiet, did, disturbed)
		if moved < disturbance {
			return
		}
	}
	t.Errorf("scrapes, additions and garbage collections move the 99th percentile of the lateness by %v, want less than %v", moved, disturbance)
}

// disturb keeps the daemon of h busy until the returned function is called,
// which says what was done meanwhile.
func disturb(t *testing.T, h *Host, d *Device) (stop func() string) {
	scrape := metrics.Handler(func() []metrics.Source {
		info := d.Info()
		return []metrics.Source{{Name: "measured", ID: info.ID, Path: info.Path, State: "delaying", Counters: d.Counters()}}
	}, "test")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var scrapes, additions int
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	repeat := func(n *int, f func()) {
		wg.Go(func() {
			for ctx.Err() == nil {
				f()
				*n++
			}
		})
	}
	repeat(&scrapes, func() {
		w := httptest.NewRecorder()
		scrape.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusOK {
			t.Errorf("a scrape was answered with %d", w.Code)
		}
	})
	repeat(&additions, func() {
		other, err := h.Start(limit(t), Spec{Name: "other", Backing: "mem:16M"})
		if err == nil {
			err = other.Stop(limit(t))
		}
		if err != nil {
			t.Error(err)
			cancel()
		}
	})
	return func() string {
		cancel()
		wg.Wait()
		runtime.ReadMemStats(&after)
		collections := after.NumGC - before.NumGC
		if scrapes == 0 || additions == 0 || collections == 0 {
			t.Errorf("%d scrapes, %d additions, %d collections: nothing was disturbed", scrapes, additions, collections)
		}
		return fmt.Sprintf("%d scrapes, %d additions and %d collections", scrapes, additions, collections)
	}
}
