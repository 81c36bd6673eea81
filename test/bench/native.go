package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"time"
)

// nativeOptions are the flags of `bench native`.
type nativeOptions struct {
	benchmarks string // output of go test -bench
	out        string // the file for the facts
	quick      bool
	bin, kublk string // whose versions are told
}

var waiterDelays = []time.Duration{time.Millisecond, 10 * time.Millisecond}

// waiterFigure names a figure of the waiter.
func waiterFigure(w wait, delay time.Duration, what string) string {
	return fmt.Sprintf("waiter, %s, %v, %s", w.name, delay, what)
}

// native measures on this machine what needs no ublk.
func native(ctx context.Context, o nativeOptions) error {
	host, err := thisHost()
	if err != nil {
		return err
	}
	f := Facts{Began: time.Now(), Quick: o.quick, CPUs: runtime.NumCPU(), Host: host, Versions: versions(o.bin, o.kublk)}
	each := 3 * time.Second
	if o.quick {
		each = time.Second
	}
	for _, delay := range waiterDelays {
		for _, w := range waits {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			fmt.Fprintf(os.Stderr, "bench: native: the waiter, %s, %v\n", w.name, delay)
			res, err := waitFor(w, delay, each)
			if err != nil {
				f.fail("the waiter, %s, %v: %v", w.name, delay, err)
				continue
			}
			late := make([]float64, len(res.late))
			for i, ns := range res.late {
				late[i] = float64(ns) / 1000
			}
			f.figure(waiterFigure(w, delay, "p50_us"), quantile(late, 0.5))
			f.figure(waiterFigure(w, delay, "p99_us"), quantile(late, 0.99))
			f.figure(waiterFigure(w, delay, "cpu"), res.cpu)
		}
	}
	if o.benchmarks != "" {
		text, err := os.Open(o.benchmarks)
		if err != nil {
			return err
		}
		defer text.Close()
		if err := parseBenchmarks(text, f.figure); err != nil {
			return err
		}
	}
	return f.write(o.out)
}

// benchmarkLine is what `go test -bench -benchmem` prints:
// BenchmarkHeap/4095-2  12345  81.2 ns/op  0 B/op  0 allocs/op
var benchmarkLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op(?:.*?\s(\d+) allocs/op)?`)

// parseBenchmarks calls figure with the ns and the allocations of each benchmark.
func parseBenchmarks(r io.Reader, figure func(string, float64)) error {
	s := bufio.NewScanner(r)
	for s.Scan() {
		m := benchmarkLine.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		for i, unit := range []string{"ns", "allocs"} {
			if m[2+i] == "" {
				continue
			}
			v, err := strconv.ParseFloat(m[2+i], 64)
			if err != nil {
				return fmt.Errorf("benchmark line %q: %w", s.Text(), err)
			}
			figure(benchmarkFigure(m[1], unit), v)
		}
	}
	return s.Err()
}

func benchmarkFigure(name, unit string) string { return "benchmark " + name + ", " + unit }
