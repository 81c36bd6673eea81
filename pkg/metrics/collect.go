package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/op"
	"github.com/prometheus/client_golang/prometheus"
)

// collect sends the metrics of one device.
func (c *Collector) collect(ch chan<- prometheus.Metric, s Source) {
	ch <- prometheus.MustNewConstMetric(deviceInfo, gauge, 1, s.Name, strconv.Itoa(s.ID), s.Path)
	collectState(ch, s)
	ch <- prometheus.MustNewConstMetric(compensation, gauge, s.Compensation.Seconds(), s.Name)

	snap := s.Counters.Snapshot()
	for _, o := range op.All() {
		counts := &snap.Ops[o]
		for _, m := range opMetrics {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(counts), s.Name, o.String())
		}
		for i, n := range counts.Errors {
			if n > 0 {
				ch <- prometheus.MustNewConstMetric(errorsTotal, counter, float64(n), s.Name, o.String(), counters.ErrnoName(i))
			}
		}
		if counts.Arrived == 0 {
			continue
		}
		for kind, d := range histograms {
			ch <- c.histogram(d, &counts.Latency[kind], s.Name, o.String())
		}
	}
	for _, m := range deviceMetrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&snap.Loop), s.Name)
	}
}

func collectState(ch chan<- prometheus.Metric, s Source) {
	states := States
	if !slices.Contains(states, s.State) {
		states = append(slices.Clone(states), s.State)
	}
	for _, state := range states {
		is := 0.0
		if state == s.State {
			is = 1
		}
		ch <- prometheus.MustNewConstMetric(deviceState, gauge, is, s.Name, state)
	}
}

// histogram makes a classic histogram of the fine one. An observation is counted
// under the first bound that its fine bucket lies wholly below, so that one just
// under a bound (by less than a sixteenth) may be counted under the next.
func (c *Collector) histogram(d *prometheus.Desc, h *counters.Histogram, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(c.bounds))
	for i, n := range h.Cumulative(counters.ClassicBounds()) {
		buckets[c.bounds[i]] = n
	}
	sum := time.Duration(h.Sum).Seconds()
	return prometheus.MustNewConstHistogram(d, h.Count, sum, buckets, labels...)
}
