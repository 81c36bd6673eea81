package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayd/delayd/test/fixture"
)

// load is what fio does to a target.
type load struct {
	op         string // read or write
	buffered   bool   // through the page cache, else O_DIRECT
	sequential bool
	bytes      int // of a request
	jobs       int
	depth      int // of each job
	runtime    time.Duration
	span       string // how much of the device, in fio's words

	// single keeps the latency of each request. Without it percentiles come
	// from fio's own histogram, whose classes are up to 1.6 % wide.
	single bool

	// exact takes the kernel's clock, where fio may take the processor's counter,
	// which it calibrates for some ms: an error there of one in ten thousand is
	// 10 µs at 100 ms. Under user-mode Linux the kernel's clock costs a system
	// call each time, so that what is to show throughput goes without.
	exact bool
}

// opName is the load's op in a measurement.
func (l load) opName() string {
	if l.buffered {
		return "buffered " + l.op
	}
	return l.op
}

// args are fio's. Latency is from the making of a request to its completion, so
// that an asynchronous one is not taken for shorter by the time of its submission.
//
// With several paths each has a job of its own.
func (l load) args(out string, paths ...string) []string {
	rw := "rand" + l.op
	if l.sequential {
		rw = l.op
	}
	engine := "psync"
	if l.depth > 1 {
		engine = "libaio"
	}
	direct := "1"
	if l.buffered {
		direct = "0"
	}
	args := []string{
		"--rw=" + rw, "--bs=" + strconv.Itoa(l.bytes), "--direct=" + direct,
		"--ioengine=" + engine, "--iodepth=" + strconv.Itoa(l.depth), "--numjobs=" + strconv.Itoa(l.jobs),
		"--group_reporting", "--time_based", fmt.Sprintf("--runtime=%dms", l.runtime.Milliseconds()),
		"--size=" + l.span,
		"--disable_clat=1", "--disable_slat=1", "--clat_percentiles=0", "--lat_percentiles=1", "--percentile_list=50:99:99.9",
		"--eta=never", "--output-format=json", "--output=" + out + ".json",
	}
	if !l.buffered {
		args = append(args, "--norandommap")
	}
	if l.exact {
		args = append(args, "--clocksource=clock_gettime")
	}
	if l.single {
		args = append(args, "--write_lat_log="+out)
	}
	// What comes before the first name is for all.
	for _, path := range paths {
		args = append(args, "--name=bench", "--filename="+path)
	}
	return args
}

// runFio runs the load on each of the paths at once and returns what fio says, and
// with single the latency of each request in ns.
func runFio(l load, paths ...string) (Measurement, []int64, error) {
	m := Measurement{Op: l.opName(), Jobs: l.jobs * len(paths), Depth: l.depth, Bytes: l.bytes}
	dir, err := os.MkdirTemp("", "delayd-bench-fio-")
	if err != nil {
		return m, nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "fio")
	if said, err := fixture.Command("fio", l.args(out, paths...)...); err != nil {
		return m, nil, fmt.Errorf("%w %s", err, said)
	}
	text, err := os.ReadFile(out + ".json")
	if err != nil {
		return m, nil, err
	}
	if err := parseFio(text, l.op, &m); err != nil {
		return m, nil, err
	}
	if !l.single {
		return m, nil, nil
	}
	logs, err := filepath.Glob(out + "_lat.*.log")
	if err != nil || len(logs) == 0 {
		return m, nil, errors.Join(errors.New("fio wrote no log of latencies"), err)
	}
	var ns []int64
	for _, path := range logs {
		f, err := os.Open(path)
		if err != nil {
			return m, nil, err
		}
		some, err := parseLatencyLog(f)
		f.Close()
		if err != nil {
			return m, nil, err
		}
		ns = append(ns, some...)
	}
	if len(ns) == 0 {
		return m, nil, errors.New("fio finished no request")
	}
	m.setLatencies(ns)
	return m, ns, nil
}

// fioReport is what is read of fio's JSON.
type fioReport struct {
	Jobs []struct {
		Error int    `json:"error"`
		Read  fioSum `json:"read"`
		Write fioSum `json:"write"`
	} `json:"jobs"`
}

type fioSum struct {
	IOPS float64 `json:"iops"`
	Lat  struct {
		Min        float64            `json:"min"`
		Mean       float64            `json:"mean"`
		N          int                `json:"N"`
		Percentile map[string]float64 `json:"percentile"`
	} `json:"lat_ns"`
}

// parseFio reads fio's JSON, which may follow warnings in plain words.
func parseFio(text []byte, op string, m *Measurement) error {
	start := bytes.IndexByte(text, '{')
	if start < 0 {
		return fmt.Errorf("fio wrote no JSON but %q", text)
	}
	var r fioReport
	if err := json.Unmarshal(text[start:], &r); err != nil {
		return fmt.Errorf("read fio's JSON: %w", err)
	}
	if len(r.Jobs) != 1 {
		return fmt.Errorf("fio reports %d groups of jobs, want 1", len(r.Jobs))
	}
	job := r.Jobs[0]
	if job.Error != 0 {
		return fmt.Errorf("fio's job ended with error %d", job.Error)
	}
	sum := job.Read
	if op == "write" {
		sum = job.Write
	}
	if sum.Lat.N == 0 {
		return errors.New("fio finished no request")
	}
	m.IOPS, m.Requests = sum.IOPS, sum.Lat.N
	m.Min, m.Mean = sum.Lat.Min/1000, sum.Lat.Mean/1000
	for name, where := range map[string]*float64{"50.000000": &m.P50, "99.000000": &m.P99} {
		v, ok := sum.Lat.Percentile[name]
		if !ok {
			return fmt.Errorf("fio reports no percentile %s", name)
		}
		*where = v / 1000
	}
	if v, ok := sum.Lat.Percentile["99.900000"]; ok && sum.Lat.N >= enough {
		v /= 1000
		m.P999 = &v
	}
	return nil
}

// parseLatencyLog reads fio's log of latencies: a line is time, latency in ns,
// direction, length, offset (HOWTO, "Log File Formats").
func parseLatencyLog(r io.Reader) ([]int64, error) {
	var ns []int64
	s := bufio.NewScanner(r)
	for s.Scan() {
		fields := strings.SplitN(s.Text(), ",", 3)
		if len(fields) < 3 {
			return nil, fmt.Errorf("fio's log of latencies has the line %q", s.Text())
		}
		v, err := strconv.ParseInt(strings.TrimSpace(fields[1]), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("fio's log of latencies: %w", err)
		}
		ns = append(ns, v)
	}
	return slices.Clip(ns), s.Err()
}
