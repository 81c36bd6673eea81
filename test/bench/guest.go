package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/delayd/delayd/test/fixture"
)

// guestOptions are the flags of `bench guest`.
type guestOptions struct {
	part  string
	bin   string
	kublk string
	out   string
	quick bool
	only  string // a target, for trying
}

// run is one part, under way.
type run struct {
	*bench
	part      string
	scope     scope
	facts     Facts
	lines     *os.File
	factsFile string
	curves    map[curveKey]*hdrhistogram.Histogram
	order     []curveKey
}

type curveKey struct {
	target string
	delay  time.Duration
	load   load
}

// guest measures one part, on the kernel that it runs on, and leaves the
// measurements and the facts in o.out.
func guest(ctx context.Context, o guestOptions) (err error) {
	var made fixture.Stack
	defer func() { err = errors.Join(err, made.Close()) }()

	b := &bench{bin: o.bin, kublk: o.kublk, leftOut: map[string]string{}}
	if b.kernel, err = fixture.ThisKernel(); err != nil {
		return err
	}
	if _, err := os.Stat(b.kublk); err != nil {
		b.kublk = ""
	}
	if b.flags, err = addFlags(o.bin); err != nil {
		return err
	}
	if b.disk, err = fixture.NewNullBlk(diskAttrs()); err != nil {
		return err
	}
	made.Push(b.disk.Path, b.disk.Close)
	if err := fill(b.disk.Path); err != nil {
		return err
	}

	r := &run{bench: b, part: o.part, scope: scopeOf(o.quick), curves: map[curveKey]*hdrhistogram.Histogram{}}
	r.facts = Facts{Kernel: b.kernel.String(), CPUs: b.kernel.CPUs, Began: time.Now(), Rounds: r.scope.rounds, Quick: o.quick}
	r.factsFile = filepath.Join(o.out, o.part+".run.json")
	if r.lines, err = os.Create(filepath.Join(o.out, o.part+".jsonl")); err != nil {
		return err
	}
	made.Push("the measurements", r.lines.Close)

	targets := b.targets()
	if o.only != "" {
		targets = only(targets, o.only)
	}
	r.facts.LeftOut = b.leftOut
	r.rounds(ctx, targets)
	switch whole := ctx.Err() == nil && o.only == ""; {
	case whole && o.part == throughputPart:
		r.manyDevices()
	case whole && o.part == accuracyPart:
		r.startMany(figureStartOne, figureFileOne)
	}
	r.finishCurves()
	return errors.Join(ctx.Err(), r.facts.write(r.factsFile))
}

func only(targets []target, name string) (some []target) {
	for _, t := range targets {
		if t.name == name {
			some = append(some, t)
		}
	}
	return some
}

// addFlags are the flags that this `delayctl add` has.
func addFlags(bin string) ([]string, error) {
	out, err := fixture.Command(filepath.Join(bin, "delayctl"), "add", "--help")
	if err != nil {
		return nil, err
	}
	var flags []string
	for _, word := range strings.Fields(out) {
		if strings.HasPrefix(word, "--") {
			flags = append(flags, word)
		}
	}
	return flags, nil
}

// rounds measures every target once a round. What fails is said and left out.
func (r *run) rounds(ctx context.Context, targets []target) {
	var plans [][]step
	total := time.Duration(0)
	for round := 1; round <= r.scope.rounds; round++ {
		steps := r.scope.plan(r.part, round, targets)
		for _, s := range steps {
			total += s.estimate()
		}
		plans = append(plans, steps)
	}
	p := newProgress(os.Stderr, total)
	// What is known is kept after each round: a guest may be ended from outside.
	keep := func() {
		if err := r.facts.write(r.factsFile); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		}
	}
	broken := map[string]int{} // failures of a target in a row
	for i, steps := range plans {
		for _, s := range steps {
			if ctx.Err() != nil {
				return
			}
			if took := time.Since(r.facts.Began); i > 0 && r.scope.limit > 0 && took > r.scope.limit {
				r.facts.fail("round %d ended before %s, delay %v: the time is over", i+1, s.target.name, s.delay)
				return
			}
			p.next(s.estimate(), fmt.Sprintf("%s, round %d of %d: %s, delay %v", r.part, i+1, len(plans), s.target.name, s.delay))
			if broken[s.target.name] >= maxFailures {
				continue
			}
			if err := r.step(i+1, s); err != nil {
				broken[s.target.name]++
				r.facts.fail("round %d: %s %v: %v", i+1, s.target.name, s.delay, err)
				if broken[s.target.name] == maxFailures {
					r.facts.fail("%s: given up after %d failures in a row", s.target.name, maxFailures)
				}
				continue
			}
			broken[s.target.name] = 0
		}
		keep()
	}
}

// maxFailures in a row are what a target is given before it is left out.
const maxFailures = 3

// step opens a target, measures each load and removes it again.
func (r *run) step(round int, s step) (err error) {
	t, err := s.target.open(s.delay, s.inFlight())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for _, l := range s.loads {
		if err := r.measure(round, s, l, t); err != nil {
			return err
		}
	}
	return nil
}

// measure runs one load and writes its line. The CPU time is that of the server's
// processes while fio runs.
func (r *run) measure(round int, s step, l load, t *served) error {
	before, err := cpuOf(t.pids)
	if err != nil {
		return err
	}
	m, ns, err := runFio(l, t.path)
	if err != nil {
		return err
	}
	after, err := cpuOf(t.pids)
	if err != nil {
		return err
	}
	if len(t.pids) > 0 {
		each := us(after-before) / float64(m.Requests)
		m.CPU = &each
	}
	r.remember(s, l, ns)
	return r.line(round, s.target.name, s.delay, m)
}

// line completes m and writes it.
func (r *run) line(round int, target string, delay time.Duration, m Measurement) error {
	m.Kernel, m.Accel, m.CPUs = r.kernel.Release, strings.ToLower(r.kernel.Machine), runtime.NumCPU()
	m.Part, m.Target, m.DelayUS, m.Round = r.part, target, us(delay), round
	return writeLine(r.lines, m)
}

// curveDelay is the delay whose distributions are kept, for the load of depth 1.
const curveDelay = time.Millisecond

// remember adds to the distribution of a target, if it is one to be drawn.
func (r *run) remember(s step, l load, ns []int64) {
	if s.delay != curveDelay || l.depth != 1 || l.op != "read" || l.buffered {
		return
	}
	key := curveKey{s.target.name, s.delay, l}
	h := r.curves[key]
	if h == nil {
		h = hdrhistogram.New(1, int64(10*time.Second), 4)
		r.curves[key] = h
		r.order = append(r.order, key)
	}
	for _, v := range ns {
		_ = h.RecordValue(min(v, int64(10*time.Second)))
	}
}

// finishCurves puts the distributions into the facts, denser towards the slowest.
func (r *run) finishCurves() {
	for _, key := range r.order {
		h := r.curves[key]
		c := Curve{Target: key.target, DelayUS: us(key.delay), Op: key.load.op, Depth: key.load.depth}
		for rest := 1.0; rest*float64(h.TotalCount()) >= 1; rest *= 0.8 {
			c.Share = append(c.Share, 1-rest)
			c.US = append(c.US, float64(h.ValueAtQuantile(100*(1-rest)))/1000)
		}
		r.facts.Curves = append(r.facts.Curves, c)
	}
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
