package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// fioOutput is shortened from what fio 3.33 wrote, with a warning in front.
const fioOutput = `fio: this platform does not support process shared mutexes
{
  "fio version" : "fio-3.33",
  "jobs" : [ {
    "jobname" : "bench", "groupid" : 0, "error" : 0,
    "read" : { "total_ios" : 0, "iops" : 0.0, "lat_ns" : { "min" : 0, "max" : 0, "mean" : 0.0, "N" : 0 } },
    "write" : { "total_ios" : 3510, "iops" : 7005.988024,
      "lat_ns" : { "min" : 292352, "max" : 41358336, "mean" : 4452311.156695, "stddev" : 3673867.8, "N" : 3510,
        "percentile" : { "50.000000" : 3915776, "99.000000" : 9502720, "99.900000" : 41156608 } } }
  } ]
}`

func TestParseFio(t *testing.T) {
	var m Measurement
	if err := parseFio([]byte(fioOutput), "write", &m); err != nil {
		t.Fatal(err)
	}
	want := Measurement{IOPS: 7005.988024, Min: 292.352, Mean: 4452.311156695, P50: 3915.776, P99: 9502.72, Requests: 3510}
	if m.P999 == nil || *m.P999 != 41156.608 {
		t.Errorf("p99.9 %v", m.P999)
	}
	m.P999 = nil
	if m != want {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
}

func TestParseFioRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, op, want string }{
		"no request": {fioOutput, "read", "finished no request"},
		"words":      {"fio: out of memory", "read", "no JSON"},
		"cut short":  {fioOutput[:200], "write", "read fio's JSON"},
		"an error":   {strings.Replace(fioOutput, `"error" : 0`, `"error" : 5`, 1), "write", "error 5"},
		"no group":   {`{"jobs": []}`, "write", "0 groups"},
	} {
		var m Measurement
		if err := parseFio([]byte(c.text), c.op, &m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}

func TestFewRequestsHaveNoThousandth(t *testing.T) {
	var m Measurement
	text := strings.Replace(fioOutput, `"N" : 3510`, `"N" : 999`, 1)
	if err := parseFio([]byte(text), "write", &m); err != nil || m.P999 != nil {
		t.Errorf("p99.9 of 999 requests is %v, error %v", m.P999, err)
	}
}

func TestParseLatencyLog(t *testing.T) {
	got, err := parseLatencyLog(strings.NewReader("0, 166912, 0, 4096, 0\n1, 40960, 0, 4096, 0\n"))
	if err != nil || !slices.Equal(got, []int64{166912, 40960}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"0, x, 0, 4096, 0\n", "12\n"} {
		if got, err := parseLatencyLog(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestFioArguments(t *testing.T) {
	l := load{op: "write", bytes: 4096, jobs: 32, depth: 64, runtime: 1500 * time.Millisecond, span: "100%"}
	args := l.args("/x/fio", "/dev/a", "/dev/b")
	for _, want := range []string{"--rw=randwrite", "--ioengine=libaio", "--iodepth=64", "--numjobs=32", "--direct=1",
		"--runtime=1500ms", "--filename=/dev/a", "--filename=/dev/b"} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %v", want, args)
		}
	}
	// fio takes what comes before the first --name for all jobs.
	if first := slices.Index(args, "--name=bench"); first < slices.Index(args, "--rw=randwrite") || args[first+1] != "--filename=/dev/a" {
		t.Errorf("the jobs' names are in the wrong place: %v", args)
	}
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--write_lat_log") }) {
		t.Error("a log of latencies is written though nobody asked for single ones")
	}
	buffered := load{op: "read", buffered: true, bytes: 4096, jobs: 1, depth: 1, span: span, single: true, exact: true}
	args = buffered.args("/x/fio", "/dev/a")
	for _, want := range []string{"--direct=0", "--ioengine=psync", "--rw=randread", "--write_lat_log=/x/fio", "--clocksource=clock_gettime"} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %v", want, args)
		}
	}
	// A block that is read twice would come from the cache.
	if slices.Contains(args, "--norandommap") {
		t.Error("a buffered read may hit the cache")
	}
}
