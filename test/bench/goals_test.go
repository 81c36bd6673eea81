package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// perfect is a run in which delayd reaches every goal by a little.
func perfect() *data {
	d := &data{name: "uml", parts: map[string]*Facts{
		accuracyPart:   {Kernel: "7.3.4 (UML, HZ=100, 1 CPU)", CPUs: 1, Rounds: 3, Began: time.Unix(0, 0)},
		throughputPart: {Kernel: "7.3.4 (UML, HZ=100, 2 CPUs)", CPUs: 2, Rounds: 3, Began: time.Unix(0, 0)},
		classicPart:    {Kernel: "7.3.4 (UML, HZ=100, 1 CPU)", CPUs: 1, Rounds: 3, Began: time.Unix(0, 0)},
		nativePart:     {Host: "a machine", Versions: map[string]string{"fio": "3.33"}},
	}}
	add := func(part string, target string, delay float64, op string, jobs, depth, bytes int, p50, iops float64) {
		d.all = append(d.all, Measurement{Part: part, Target: target, DelayUS: delay, Op: op, Jobs: jobs, Depth: depth, Bytes: bytes,
			Min: delay + 10, P50: p50, Mean: p50, P99: p50 + 100, IOPS: iops, Requests: 1000, Round: 1})
	}
	for _, op := range ops {
		for target, p50 := range map[string]float64{rawTarget: 40, limitTarget: 40, kublkTarget: 100, delaydTarget: 109} {
			add(accuracyPart, target, 0, op, 1, 1, 4096, p50, 1e6/p50)
			add(throughputPart, target, 0, op, 1, 1, 4096, p50, 1e6/p50)
			add(throughputPart, target, 0, op, 1, 32, 4096, 32*p50, 20_000)
		}
		for _, delay := range errorDelays {
			asked := us(delay)
			add(accuracyPart, limitTarget, asked, op, 1, 1, 4096, asked+90, 1) // e = 50
			add(accuracyPart, delaydTarget, asked, op, 1, 1, 4096, asked+109+45, 1)
			add(accuracyPart, delaydCompTarget, asked, op, 1, 1, 4096, asked+40+10, 1)
		}
	}
	for i, c := range classicPoints {
		for target, iops := range map[string]float64{limitTarget: 100, dmTarget: 100, delaydCompTarget: []float64{98, 98, 98, 98, 91}[i]} {
			add(classicPart, target, us(c.delay), c.op, c.jobs, c.depth, 4096, 1, iops)
		}
	}
	for target, iops := range map[string]float64{rawTarget: 100, delaydTarget: 91, delaydCopyTarget: 50} {
		add(throughputPart, target, 0, "read", 1, 8, 128<<10, 1, iops)
	}
	for _, target := range eightTargets {
		add(throughputPart, target, us(eightDelay), "read", 1, 1, 4096, 10_100, 100)
		add(throughputPart, target, us(eightDelay), "read", 8, 1, 4096, 10_100, 721)
	}
	f := d.parts[nativePart]
	for _, delay := range waiterDelays {
		f.figure(waiterFigure(waits[1], delay, "p50_us"), 0.5)
		f.figure(waiterFigure(waits[1], delay, "cpu"), 0.04)
	}
	f.figure(benchmarkFigure("Heap/4095", "ns"), 149)
	f.figure(benchmarkFigure("Heap/4095", "allocs"), 0)
	d.parts[throughputPart].figure(figureResident, 8<<20)
	d.parts[throughputPart].figure(figureStart, 1.9)
	d.parts[accuracyPart].figure(figureStartOne, 1.9)
	d.parts[throughputPart].figure(figureFile, 1.9)
	d.parts[accuracyPart].figure(figureFileOne, 1.9)
	d.results = group(d.all)
	return d
}

func TestAllGoalsReached(t *testing.T) {
	goals := judge(perfect())
	if len(goals) != 10 {
		t.Fatalf("%d goals", len(goals))
	}
	for i, g := range goals {
		if g.number != i+1 || g.verdict() != "reached" || len(g.checks) == 0 {
			t.Errorf("goal %d: %s: %+v %v", g.number, g.verdict(), g.checks, g.lacks)
		}
	}
}

// TestEachGoalCanBeMissed changes one thing for each goal and looks whether that
// goal, and no other, is missed.
func TestEachGoalCanBeMissed(t *testing.T) {
	change := func(which func(Measurement) bool, how func(*Measurement)) func(*data) {
		return func(d *data) {
			for i := range d.all {
				if which(d.all[i]) {
					how(&d.all[i])
				}
			}
		}
	}
	is := func(target string, delay time.Duration, depth int) func(Measurement) bool {
		return func(m Measurement) bool { return m.Target == target && m.DelayUS == us(delay) && m.Depth == depth }
	}
	figure := func(part, name string, v float64) func(*data) {
		return func(d *data) { d.parts[part].figure(name, v) }
	}
	for name, c := range map[string]struct {
		goal int
		do   func(*data)
	}{
		"early":                {1, change(is(delaydTarget, time.Millisecond, 1), func(m *Measurement) { m.Min = 999.9 })},
		"late at 200 µs":       {2, change(is(delaydTarget, 200*time.Microsecond, 1), func(m *Measurement) { m.P50 += 46 })},
		"not better at 20 ms":  {2, change(is(delaydTarget, 20*time.Millisecond, 1), func(m *Measurement) { m.P50 += 5 })},
		"a long tail":          {2, change(is(delaydTarget, 500*time.Microsecond, 1), func(m *Measurement) { m.P99 = 3 * 691 })},
		"compensated too much": {3, change(is(delaydCompTarget, 50*time.Millisecond, 1), func(m *Measurement) { m.P50 -= 41 })},
		"compensated little":   {3, change(is(delaydCompTarget, 50*time.Millisecond, 1), func(m *Measurement) { m.P50 += 41 })},
		"the fifth": {4, change(func(m Measurement) bool { return m.Target == delaydCompTarget && m.Jobs == 32 },
			func(m *Measurement) { m.IOPS = 89 })},
		"slow without delay": {5, change(is(delaydTarget, 0, 1), func(m *Measurement) { m.P50 = 111 })},
		"few IOPS":           {5, change(is(delaydTarget, 0, 32), func(m *Measurement) { m.IOPS = 18_999 })},
		"a hungry waiter":    {6, figure(nativePart, waiterFigure(waits[1], 10*time.Millisecond, "cpu"), 0.06)},
		"eight devices":      {7, change(func(m Measurement) bool { return m.Jobs == 8 }, func(m *Measurement) { m.IOPS = 719 })},
		"a slow heap":        {8, figure(nativePart, benchmarkFigure("Heap/4095", "ns"), 151)},
		"a late waiter":      {8, figure(nativePart, waiterFigure(waits[1], time.Millisecond, "p50_us"), 1.1)},
		"copying":            {9, change(is(delaydTarget, 0, 8), func(m *Measurement) { m.IOPS = 84 })},
		"a large device":     {10, figure(throughputPart, figureResident, 8<<20+1)},
		"a slow start":       {10, figure(throughputPart, figureStart, 2)},
	} {
		d := perfect()
		c.do(d)
		d.results = group(d.all)
		for _, g := range judge(d) {
			want := "reached"
			if g.number == c.goal {
				want = "missed"
			}
			if got := g.verdict(); got != want {
				t.Errorf("%s: goal %d is %s, want %s: %+v", name, g.number, got, want, g.checks)
			}
		}
	}
}

func TestBestMode(t *testing.T) {
	d := perfect()
	for _, m := range d.all {
		if m.Target == delaydTarget && m.DelayUS == 0 && m.Depth == 32 && m.Part == throughputPart {
			m.Target, m.IOPS = delaydWideTarget, 30_000
			d.all = append(d.all, m)
		}
	}
	d.results = group(d.all)
	best, ok := d.best(throughputPart, delaydModes, "read", 32, func(a, b Measurement) bool { return a.IOPS > b.IOPS })
	if !ok || best.Target != delaydWideTarget {
		t.Errorf("%+v, %v", best, ok)
	}
}

func TestNothingMeasured(t *testing.T) {
	d := &data{parts: map[string]*Facts{}, results: group(nil)}
	for _, g := range judge(d) {
		if g.verdict() != "not measured" || len(g.lacks) == 0 {
			t.Errorf("goal %d of an empty run: %s, lacks %v", g.number, g.verdict(), g.lacks)
		}
	}
}

func TestReportFiles(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	d := perfect()
	d.parts[accuracyPart].LeftOut = map[string]string{nbdkitTarget: "there is no nbdkit"}
	d.parts[accuracyPart].Curves = []Curve{{Target: delaydTarget, DelayUS: 1000, Op: "read", Depth: 1,
		Share: []float64{0, 0.5, 0.9, 0.99}, US: []float64{1010, 1100, 1200, 1300}}}
	for part, f := range d.parts {
		if err := f.write(filepath.Join(from, part+".run.json")); err != nil {
			t.Fatal(err)
		}
		lines, err := os.Create(filepath.Join(from, part+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range d.all {
			if m.Part == part {
				if err := writeLine(lines, m); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := lines.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stale := filepath.Join(to, "uml-cpu.svg") // nothing of this run is drawn in it
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := report(reportOptions{from: from, to: to, kernel: "uml"}); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-delay.svg", "-excess.svg", "-latency.svg", "-throughput.svg"} {
		text, err := os.ReadFile(filepath.Join(to, "uml"+suffix))
		if err != nil || !strings.Contains(string(text), "<svg") {
			t.Errorf("%s: %v, %d bytes", suffix, err, len(text))
		}
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("the plot of an earlier run is still there")
	}
	back, err := readMeasurements(filepath.Join(to, "uml.jsonl"))
	if err != nil || len(back) != len(d.all) {
		t.Errorf("%d of %d measurements came through: %v", len(back), len(d.all), err)
	}
	text, err := os.ReadFile(filepath.Join(to, "uml.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Machine: a machine.", "![delay asked and delay seen](uml-delay.svg)",
		"| 1ms | 1.090 / 1.190 | – | – | 1.154 / 1.254 | 1.050 / 1.150 |",
		"| 10ms, write, 32 jobs × depth 64 | 204800 | 100 | 100 | – | – | 91.0 |",
		"| 1. Never early", "**reached**", "- accuracy: nbdkit left out: there is no nbdkit",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "uml-cpu.svg") || strings.Contains(string(text), "missed") {
		t.Errorf("too much in\n%s", text)
	}
}
