package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// reportOptions are the flags of `bench report`.
type reportOptions struct {
	from, to string
	kernel   string // "uml", "6.12", "7.3"
}

// data is all of one run.
type data struct {
	name    string // of the files
	all     []Measurement
	results *results
	parts   map[string]*Facts // by part; nativePart too
}

const nativePart = "native"

// cpus is how many CPUs the guest of a part had.
func (d *data) cpus(part string) int {
	if f := d.parts[part]; f != nil {
		return f.CPUs
	}
	return 0
}

// figure is one of the figures of any part.
func (d *data) figure(name string) (float64, bool) {
	for _, f := range d.parts {
		if v, ok := f.Figures[name]; ok {
			return v, true
		}
	}
	return 0, false
}

// report makes the files of the results of what the parts have left. A part that
// is not there is left out, and the report says so.
func report(o reportOptions) error {
	d := &data{name: o.kernel, parts: map[string]*Facts{}}
	for _, part := range slices.Concat(guestParts, []string{nativePart}) {
		f, err := readFacts(filepath.Join(o.from, part+".run.json"))
		if err != nil {
			return err
		}
		if f == nil {
			continue
		}
		d.parts[part] = f
		if part == nativePart {
			continue
		}
		some, err := readMeasurements(filepath.Join(o.from, part+".jsonl"))
		if err != nil {
			return err
		}
		d.all = append(d.all, some...)
	}
	if len(d.parts) == 0 {
		return fmt.Errorf("%s has no results of any part", o.from)
	}
	d.results = group(d.all)
	if err := os.MkdirAll(o.to, 0o755); err != nil {
		return err
	}
	return errors.Join(d.writeLines(o.to), d.writeFacts(o.to), d.writePlots(o.to), d.writeMarkdown(o.to))
}

func (d *data) file(folder, suffix string) string { return filepath.Join(folder, d.name+suffix) }

func (d *data) writeLines(folder string) error {
	f, err := os.Create(d.file(folder, ".jsonl"))
	if err != nil {
		return err
	}
	for _, m := range d.all {
		if err := writeLine(f, m); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

// writeFacts keeps what the parts know besides their measurements.
func (d *data) writeFacts(folder string) error {
	text, err := json.MarshalIndent(d.parts, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(d.file(folder, ".run.json"), append(text, '\n'), 0o644)
}

// duration is a delay as delayd writes it.
func duration(us float64) string {
	return time.Duration(us * float64(time.Microsecond)).String()
}

// shape is how many jobs of which depth.
func shape(p point) string {
	if p.Jobs == 1 {
		return fmt.Sprintf("depth %d", p.Depth)
	}
	return fmt.Sprintf("%d jobs × depth %d", p.Jobs, p.Depth)
}
