package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Measurement is one line of results/KERNEL.jsonl: one run of fio on one target.
// Times are µs. What could not be measured is null.
type Measurement struct {
	Kernel  string   `json:"kernel"` // uname -r
	Accel   string   `json:"accel"`  // uml, tcg, kvm, native
	CPUs    int      `json:"cpus"`
	Target  string   `json:"target"`
	DelayUS float64  `json:"delay_us"`
	Op      string   `json:"op"` // read, write; "buffered read"
	Jobs    int      `json:"jobs"`
	Depth   int      `json:"depth"`
	IOPS    float64  `json:"iops"`
	Min     float64  `json:"min_us"`
	Mean    float64  `json:"mean_us"`
	P50     float64  `json:"p50_us"`
	P99     float64  `json:"p99_us"`
	P999    *float64 `json:"p999_us"`       // null below 1000 requests
	CPU     *float64 `json:"cpu_us_per_io"` // null: no server process of its own

	Part     string `json:"part"`  // accuracy, throughput
	Bytes    int    `json:"bytes"` // of one request
	Requests int    `json:"requests"`
	Round    int    `json:"round"` // from 1
}

// writeLine appends m to w as one line of JSON.
func writeLine(w io.Writer, m Measurement) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// readMeasurements reads a file of lines.
func readMeasurements(path string) ([]Measurement, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Measurement
	for s, n := bufio.NewScanner(f), 1; ; n++ {
		if !s.Scan() {
			return all, s.Err()
		}
		var m Measurement
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			return nil, fmt.Errorf("%s line %d: %w", path, n, err)
		}
		all = append(all, m)
	}
}
