// Package metrics shows the counts of delayed devices to Prometheus.
//
//	http.Handle("/", metrics.Handler(devices, version))
//
// Nothing is counted here: a scrape reads the cells that the devices' queues
// write (package counters) and makes constant metrics of them, so that it costs
// a request nothing, and the series of a device end with the device. Names begin
// with delayd_ and are in base units; the label device is the device's name, op
// the kind of request.
//
// Counters continue over a restart of the daemon, as the cells do.
package metrics

import (
	"time"

	"github.com/delayd/delayd/pkg/counters"
	"github.com/prometheus/client_golang/prometheus"
)

// Source is a device as one scrape sees it.
type Source struct {
	Name  string // its name, unique among the devices of a scrape
	ID    int    // N of /dev/ublkbN
	Path  string // /dev/ublkbN
	State string // one of States, or another word

	Compensation time.Duration // taken off each delay now

	Counters *counters.Set // may be closed meanwhile: it keeps its last counts
}

// States are the states of a device that delayd_device_state always has a series
// for, with 1 for the one it is in.
var States = []string{"delaying", "suspended", "hung", "quiesced", "stopping", "failed"}

// Collector is a [prometheus.Collector] of devices. It may be used by several
// scrapes at once.
type Collector struct {
	sources func() []Source
	bounds  []float64 // seconds, of every histogram
}

// NewCollector returns a collector of what sources returns at each scrape.
func NewCollector(sources func() []Source) *Collector {
	c := &Collector{sources: sources}
	for _, b := range counters.ClassicBounds() {
		c.bounds = append(c.bounds, b.Seconds())
	}
	return c
}

// perOp is a metric with a series for each device and op.
type perOp struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*counters.OpCounts) float64
}

// perDevice is a metric with a series for each device.
type perDevice struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*counters.LoopCounts) float64
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("delayd_"+name, help, append([]string{"device"}, labels...), nil)
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

var (
	deviceInfo   = desc("device_info", "Always 1; the ublk number and the path of the device.", "id", "path")
	compensation = desc("compensation_seconds", "What is taken off each delay for a request's own path.")
	deviceState  = desc("device_state", "1 for the state that the device is in, 0 for the others.", "state")
	errorsTotal  = desc("request_errors_total", "Requests answered with an error, by the error's name.", "op", "errno")

	opMetrics = []perOp{
		{desc("arrived_requests_total", "Requests fetched from the kernel.", "op"), counter,
			func(c *counters.OpCounts) float64 { return float64(c.Arrived) }},
		{desc("requests_total", "Requests answered, with or without an error.", "op"), counter,
			func(c *counters.OpCounts) float64 { return float64(c.Done) }},
		{desc("request_bytes_total", "Bytes of the requests answered without an error.", "op"), counter,
			func(c *counters.OpCounts) float64 { return float64(c.DoneBytes) }},
		{desc("held_requests", "Requests that wait for their deadline now.", "op"), gauge,
			func(c *counters.OpCounts) float64 { return float64(c.Held) }},
		{desc("in_flight_requests", "Requests at the backing now.", "op"), gauge,
			func(c *counters.OpCounts) float64 { return float64(c.InFlight) }},
	}

	histograms = [counters.KindCount]*prometheus.Desc{
		counters.Held:     desc("held_seconds", "From a request's arrival to its dispatch.", "op"),
		counters.Lateness: desc("lateness_seconds", "From a request's deadline to its dispatch.", "op"),
		counters.Backing:  desc("backing_seconds", "From a request's dispatch to the backing's answer.", "op"),
		counters.Total:    desc("total_seconds", "From a request's arrival to its answer.", "op"),
	}

	deviceMetrics = []perDevice{
		{desc("loop_turns_total", "Turns of the queue loops that found something to do."), counter,
			func(c *counters.LoopCounts) float64 { return float64(c.Turns) }},
		{desc("loop_completions_total", "Completions that the queue loops reaped."), counter,
			func(c *counters.LoopCounts) float64 { return float64(c.Completions) }},
		{desc("wakeups_total", "Waits in the kernel that ended."), counter,
			func(c *counters.LoopCounts) float64 { return float64(c.Sleeps) }},
		{desc("sleep_seconds_total", "Time that the queue loops waited in the kernel."), counter,
			func(c *counters.LoopCounts) float64 { return c.Slept.Seconds() }},
		{desc("spins_total", "Spins before a deadline."), counter,
			func(c *counters.LoopCounts) float64 { return float64(c.Spins) }},
		{desc("spin_seconds_total", "CPU time spent in spins before a deadline."), counter,
			func(c *counters.LoopCounts) float64 { return c.Spun.Seconds() }},
		{desc("spin_penalties_total", "Spins that lost their CPU, after which the queue does not spin for a while."), counter,
			func(c *counters.LoopCounts) float64 { return float64(c.Penalties) }},
		{desc("no_tag_seconds_total", "Time in which a queue had no free tag: the depth limits the load."), counter,
			func(c *counters.LoopCounts) float64 { return c.NoTags.Seconds() }},
	}
)

// Describe sends every description, so that a registry can check the collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- deviceInfo
	ch <- deviceState
	ch <- compensation
	ch <- errorsTotal
	for _, m := range opMetrics {
		ch <- m.desc
	}
	for _, d := range histograms {
		ch <- d
	}
	for _, m := range deviceMetrics {
		ch <- m.desc
	}
}

// Collect sends the metrics of the devices that there are now. Counters are there
// from the start. The histograms of an op begin with its first request, and the
// errors of one kind with the first, for most devices never see most of them.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.sources() {
		c.collect(ch, s)
	}
}
