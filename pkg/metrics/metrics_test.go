package metrics

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/op"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func newSet(t *testing.T) *counters.Set {
	t.Helper()
	set, err := counters.Create("", 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close() })
	return set
}

// work does to the counters what two writes, one of them failed, and a read that
// is still held would.
func work(set *counters.Set) {
	q, other := set.Queue(0), set.Queue(1)
	q.Arrived(op.Write, 4096)
	q.Observe(counters.Held, op.Write, 2_000_100)
	q.Observe(counters.Lateness, op.Write, 100)
	q.Observe(counters.Backing, op.Write, 40_000)
	q.Observe(counters.Total, op.Write, 2_041_000)
	q.Done(op.Write, 4096, 0)
	other.Arrived(op.Write, 512)
	other.Observe(counters.Held, op.Write, 3_000_000)
	other.Done(op.Write, 512, 5) // EIO
	other.Arrived(op.Read, 8192)
	other.AddHeld(op.Read, 1)
	q.AddInFlight(op.Discard, 3)
	q.Slept(1_500_000_000)
	q.Spun(250_000_000)
	q.Batch(7)
}

func scrape(t *testing.T, h http.Handler) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("/metrics: %d: %s", w.Code, w.Body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatalf("/metrics cannot be parsed: %v", err)
	}
	return families
}

// series returns the metrics of ours as "name{label=value,…}" → value, with the
// count of a histogram.
func series(families map[string]*dto.MetricFamily) map[string]float64 {
	all := map[string]float64{}
	for name, f := range families {
		if !strings.HasPrefix(name, "delayd_") {
			continue
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if m.Histogram != nil {
				value = float64(m.Histogram.GetSampleCount())
			}
			all[name+"{"+strings.Join(labels, ",")+"}"] = value
		}
	}
	return all
}

func TestScrapeShowsWhatWasCounted(t *testing.T) {
	set := newSet(t)
	work(set)
	source := Source{Name: "slow0", ID: 3, Path: "/dev/ublkb3", State: "hung", Counters: set, Compensation: 80 * time.Microsecond}
	families := scrape(t, Handler(func() []Source { return []Source{source} }, "v1.2.3"))
	got := series(families)

	for name, want := range map[string]float64{
		"delayd_device_info{device=slow0,id=3,path=/dev/ublkb3}":       1,
		"delayd_device_state{device=slow0,state=hung}":                 1,
		"delayd_device_state{device=slow0,state=delaying}":             0,
		"delayd_compensation_seconds{device=slow0}":                    80e-6,
		"delayd_arrived_requests_total{device=slow0,op=write}":         2,
		"delayd_requests_total{device=slow0,op=write}":                 2,
		"delayd_requests_total{device=slow0,op=read}":                  0,
		"delayd_requests_total{device=slow0,op=write-zeroes}":          0,
		"delayd_request_bytes_total{device=slow0,op=write}":            4096,
		"delayd_request_errors_total{device=slow0,errno=EIO,op=write}": 1,
		"delayd_held_requests{device=slow0,op=read}":                   1,
		"delayd_in_flight_requests{device=slow0,op=discard}":           3,
		"delayd_held_seconds{device=slow0,op=write}":                   2,
		"delayd_lateness_seconds{device=slow0,op=write}":               1,
		"delayd_backing_seconds{device=slow0,op=write}":                1,
		"delayd_total_seconds{device=slow0,op=write}":                  1,
		"delayd_wakeups_total{device=slow0}":                           1,
		"delayd_sleep_seconds_total{device=slow0}":                     1.5,
		"delayd_spin_seconds_total{device=slow0}":                      0.25,
		"delayd_loop_completions_total{device=slow0}":                  7,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s: %v (there: %v), want %v", name, value, ok, want)
		}
	}
	for _, absent := range []string{
		"delayd_held_seconds{device=slow0,op=discard}",
		"delayd_request_errors_total{device=slow0,errno=ENOSPC,op=write}",
	} {
		if _, ok := got[absent]; ok {
			t.Errorf("%s is there, though nothing of the kind happened", absent)
		}
	}
	for _, other := range []string{"go_goroutines", "process_open_fds", "delayd_build_info"} {
		if families[other] == nil {
			t.Errorf("%s is missing", other)
		}
	}
}

func TestHistogramOfOneWrite(t *testing.T) {
	set := newSet(t)
	work(set)
	families := scrape(t, Handler(func() []Source {
		return []Source{{Name: "slow0", State: "delaying", Counters: set}}
	}, "v1"))

	h := families["delayd_held_seconds"].Metric
	var write *dto.Histogram
	for _, m := range h {
		if m.Label[1].GetValue() == "write" {
			write = m.Histogram
		}
	}
	if got, want := write.GetSampleSum(), 0.0050001; math.Abs(got-want) > 1e-12 {
		t.Errorf("sum %v s, want %v s", got, want)
	}
	below := map[float64]uint64{}
	for _, b := range write.Bucket {
		below[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	if first, last := write.Bucket[0].GetUpperBound(), write.Bucket[len(write.Bucket)-2].GetUpperBound(); first != 1e-6 || last != 60 {
		t.Errorf("bounds from %v to %v s, want 1 µs to 60 s", first, last)
	}
	// 2.0001 ms and 3 ms.
	for bound, want := range map[float64]uint64{1e-6: 0, 1e-3: 0, 2e-3: 0, 5e-3: 2, 1: 2, 60: 2, math.Inf(1): 2} {
		if got, ok := below[bound]; !ok || got != want {
			t.Errorf("%v s and less: %d (there: %v), want %d", bound, got, ok, want)
		}
	}
}

func TestSeriesEndWithTheirDevice(t *testing.T) {
	a, b := newSet(t), newSet(t)
	work(a)
	work(b)
	devices := []Source{
		{Name: "a", ID: 0, Path: "/dev/ublkb0", State: "delaying", Counters: a},
		{Name: "b", ID: 1, Path: "/dev/ublkb1", State: "delaying", Counters: b},
	}
	h := Handler(func() []Source { return devices }, "v1")
	count := func(name string) (n int) {
		for s := range series(scrape(t, h)) {
			if strings.Contains(s, "device="+name+",") || strings.Contains(s, "device="+name+"}") {
				n++
			}
		}
		return n
	}
	if na, nb := count("a"), count("b"); na == 0 || na != nb {
		t.Fatalf("%d series of a, %d of b", na, nb)
	}
	devices = devices[1:]
	if na, nb := count("a"), count("b"); na != 0 || nb == 0 {
		t.Errorf("without a: %d series of a, %d of b", na, nb)
	}
}

func TestNamesAreWhatPrometheusWants(t *testing.T) {
	set := newSet(t)
	work(set)
	// The Go and process collectors are Prometheus' own.
	c := NewCollector(func() []Source {
		return []Source{{Name: "slow0", State: "delaying", Counters: set}}
	})
	problems, err := testutil.CollectAndLint(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A name may be anything, and a state one that this package does not know.
func TestStrangeWords(t *testing.T) {
	set := newSet(t)
	name := "sl\"ow\\0\n"
	got := series(scrape(t, Handler(func() []Source {
		return []Source{{Name: name, State: "recovering", Counters: set}}
	}, "v1")))
	if got["delayd_device_state{device="+name+",state=recovering}"] != 1 {
		t.Errorf("no state recovering: %v", got)
	}
}

func TestScrapesWhileTheQueuesCount(t *testing.T) {
	set := newSet(t)
	h := Handler(func() []Source {
		return []Source{{Name: "busy", State: "delaying", Counters: set}}
	}, "v1")

	stop := make(chan struct{})
	var writers, readers sync.WaitGroup
	for i := range set.Queues() {
		writers.Go(func() {
			q := set.Queue(i) // one writer a queue
			for n := int64(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				q.Arrived(op.Read, 4096)
				q.AddHeld(op.Read, 1)
				q.Observe(counters.Held, op.Read, 1000+n%1_000_000)
				q.AddHeld(op.Read, -1)
				q.Done(op.Read, 4096, 0)
			}
		})
	}
	for range 3 {
		readers.Go(func() {
			var before float64
			for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
				now := series(scrape(t, h))["delayd_requests_total{device=busy,op=read}"]
				if now < before {
					t.Errorf("the count fell from %v to %v", before, now)
				}
				before = now
			}
			if before == 0 {
				t.Error("nothing was counted")
			}
		})
	}
	readers.Wait()
	close(stop)
	writers.Wait()

	got := series(scrape(t, h))
	want := float64(set.Snapshot().Ops[op.Read].Done)
	if diff := cmp.Diff(map[string]float64{
		"delayd_requests_total{device=busy,op=read}": want,
		"delayd_held_seconds{device=busy,op=read}":   want,
		"delayd_held_requests{device=busy,op=read}":  0,
	}, map[string]float64{
		"delayd_requests_total{device=busy,op=read}": got["delayd_requests_total{device=busy,op=read}"],
		"delayd_held_seconds{device=busy,op=read}":   got["delayd_held_seconds{device=busy,op=read}"],
		"delayd_held_requests{device=busy,op=read}":  got["delayd_held_requests{device=busy,op=read}"],
	}); diff != "" {
		t.Errorf("after the last request (-want +got):\n%s", diff)
	}
}

func TestScrapeOfAClosedDevice(t *testing.T) {
	set := newSet(t)
	work(set)
	h := Handler(func() []Source {
		return []Source{{Name: "gone", State: "quiesced", Counters: set}}
	}, "v1")
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	if got := series(scrape(t, h))["delayd_requests_total{device=gone,op=write}"]; got != 2 {
		t.Errorf("%v requests, want the last known 2", got)
	}
}

func TestOtherPaths(t *testing.T) {
	h := Handler(func() []Source { return nil }, "v1")
	for _, c := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/healthz", 200, "ok\n"},
		{"POST", "/healthz", 405, ""},
		{"POST", "/metrics", 405, ""},
		{"GET", "/other", 404, ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		body, err := io.ReadAll(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		if w.Code != c.code || c.body != "" && string(body) != c.body {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, w.Code, body, c.code, c.body)
		}
	}
}
