package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Facts are what a part of a run knows besides its measurements. All parts' are
// kept in results/KERNEL.run.json.
type Facts struct {
	Kernel   string             `json:"kernel,omitempty"` // release and machine, in words
	CPUs     int                `json:"cpus,omitempty"`
	Began    time.Time          `json:"began"`
	Seconds  float64            `json:"seconds"`
	Rounds   int                `json:"rounds,omitempty"`
	Quick    bool               `json:"quick"`
	Host     string             `json:"host,omitempty"`     // the machine that the guest runs on
	Versions map[string]string  `json:"versions,omitempty"` // of the programs
	LeftOut  map[string]string  `json:"left_out,omitempty"` // target: why
	Failed   []string           `json:"failed,omitempty"`   // measurements that were not to be had, and why
	Figures  map[string]float64 `json:"figures,omitempty"`  // by name
	Curves   []Curve            `json:"curves,omitempty"`
}

// Curve is a distribution of latencies, all rounds together.
type Curve struct {
	Target  string    `json:"target"`
	DelayUS float64   `json:"delay_us"`
	Op      string    `json:"op"`
	Depth   int       `json:"depth"`
	Share   []float64 `json:"share"` // of requests that took at most …
	US      []float64 `json:"us"`    // … so long
}

func (f *Facts) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(os.Stderr, "bench: not measured: %s\n", text)
	f.Failed = append(f.Failed, text)
}

func (f *Facts) figure(name string, value float64) {
	if f.Figures == nil {
		f.Figures = map[string]float64{}
	}
	f.Figures[name] = value
}

func (f *Facts) write(path string) error {
	f.Seconds = time.Since(f.Began).Seconds()
	text, err := json.MarshalIndent(f, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// readFacts returns nil without an error if there is no such file.
func readFacts(path string) (*Facts, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := &Facts{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}
