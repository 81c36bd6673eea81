package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.501: 51, 0.99: 99, 0.999: 100, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := quantile([]float64{7}, 0.5); got != 7 {
		t.Errorf("of one value: %v", got)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.of); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.of, got, c.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
}

func TestSetLatencies(t *testing.T) {
	ns := make([]int64, 2000)
	for i := range ns {
		ns[i] = int64(2000-i) * 1000
	}
	var m Measurement
	m.setLatencies(ns)
	if m.Min != 1 || m.Mean != 1000.5 || m.P50 != 1000 || m.P99 != 1980 || m.P999 == nil || *m.P999 != 1998 || m.Requests != 2000 {
		t.Errorf("%+v, p99.9 %v", m, m.P999)
	}
	m = Measurement{}
	m.setLatencies(ns[:enough-1])
	if m.P999 != nil {
		t.Errorf("p99.9 of %d requests is %v", enough-1, *m.P999)
	}
}

func TestSummaryIsTheMedianOfTheRounds(t *testing.T) {
	cpu := func(v float64) *float64 { return &v }
	all := []Measurement{
		{Target: "a", Op: "read", Depth: 1, IOPS: 10, Min: 3, P50: 5, CPU: cpu(7), Requests: 10, Round: 1},
		{Target: "b", Op: "read", Depth: 1, IOPS: 99, Min: 1, P50: 1, Round: 1},
		{Target: "a", Op: "read", Depth: 1, IOPS: 30, Min: 2, P50: 9, CPU: cpu(1), Requests: 10, Round: 2},
		{Target: "a", Op: "read", Depth: 1, IOPS: 20, Min: 4, P50: 6, CPU: cpu(3), Requests: 10, Round: 3},
	}
	r := group(all)
	m, ok := r.summary(point{Target: "a", Op: "read", Depth: 1})
	if !ok || m.IOPS != 20 || m.Min != 2 || m.P50 != 6 || *m.CPU != 3 || m.P999 != nil || m.Requests != 30 || m.Round != 3 {
		t.Errorf("%+v, %v", m, ok)
	}
	if _, ok := r.summary(point{Target: "a", Op: "write", Depth: 1}); ok {
		t.Error("a point that was not measured has a summary")
	}
	if len(r.order) != 2 || r.order[0].Target != "a" {
		t.Errorf("order %v", r.order)
	}
}

func TestLinesHaveTheKeys(t *testing.T) {
	var b bytes.Buffer
	if err := writeLine(&b, Measurement{Target: "raw"}); err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("kernel accel cpus target delay_us op jobs depth iops min_us mean_us p50_us p99_us p999_us cpu_us_per_io") {
		if _, ok := line[key]; !ok {
			t.Errorf("no key %s in %s", key, b.Bytes())
		}
	}
	if line["cpu_us_per_io"] != nil || line["p999_us"] != nil {
		t.Errorf("what is not known is not null: %s", b.Bytes())
	}
	path := filepath.Join(t.TempDir(), "x.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	back, err := readMeasurements(path)
	if err != nil || len(back) != 1 || back[0] != (Measurement{Target: "raw"}) {
		t.Errorf("read back: %+v, %v", back, err)
	}
}

func TestProgress(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(1000, 0)
	p := newProgress(&b, 100*time.Second)
	p.now, p.began = func() time.Time { return now }, now
	p.next(10*time.Second, "first")
	now = now.Add(20 * time.Second) // twice the estimate
	p.next(10*time.Second, "second")
	now = now.Add(time.Second)
	p.next(10*time.Second, "third, too soon to say")
	want := "bench: first (1m40s left)\nbench: second (3m0s left)\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}
