package main

import (
	"errors"
	"image/color"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// drawings are the plots, by the end of the file's name.
func (d *data) drawings() map[string]func() (*plot.Plot, error) {
	return map[string]func() (*plot.Plot, error){
		"-delay.svg": d.delayPlot, "-excess.svg": d.excessPlot, "-latency.svg": d.latencyPlot,
		"-throughput.svg": d.throughputPlot, "-cpu.svg": d.cpuPlot,
	}
}

// writePlots draws what there are measurements for, and removes the plots of an
// earlier run that this one has nothing for.
func (d *data) writePlots(folder string) error {
	var errs []error
	for suffix, draw := range d.drawings() {
		path := d.file(folder, suffix)
		p, err := draw()
		switch {
		case err != nil:
		case p != nil:
			err = save(p, path)
		default:
			if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// byDelay is a figure of a target against the delay asked.
func (d *data) byDelay(target, op string, get func(Measurement) (float64, bool)) (points plotter.XYs) {
	for _, delay := range allDelays[1:] {
		m, ok := d.small(accuracyPart, target, delay, op, 1)
		if !ok {
			continue
		}
		if y, ok := get(m); ok && y > 0 {
			points = append(points, plotter.XY{X: us(delay), Y: y})
		}
	}
	return points
}

// opDrawn is the op that the plots show: the one that every scope measures.
const opDrawn = "read"

// delayPlot is the median latency seen against the delay asked.
func (d *data) delayPlot() (*plot.Plot, error) {
	p := newPlot("Direct 4 KiB reads, one at a time", "delay asked", "median latency seen")
	logAxis(&p.X, times())
	logAxis(&p.Y, times())
	legendBelow(p)
	ideal, err := plotter.NewLine(plotter.XYs{{X: 50, Y: 50}, {X: 100_000, Y: 100_000}})
	if err != nil {
		return nil, err
	}
	ideal.Color, ideal.Width = color.Gray{170}, vg.Points(1)
	p.Add(ideal)
	p.Legend.Add("seen = asked", ideal)
	any := false
	for _, target := range delayTargets {
		points := d.byDelay(target, opDrawn, func(m Measurement) (float64, bool) { return m.P50, true })
		any = any || len(points) > 0
		if err := line(p, target, points); err != nil {
			return nil, err
		}
	}
	return orNothing(p, any)
}

// excessPlot is how much longer than asked the median request took.
func (d *data) excessPlot() (*plot.Plot, error) {
	p := newPlot("Direct 4 KiB reads, one at a time: what comes on top", "delay asked", "median latency − delay asked")
	logAxis(&p.X, times())
	logAxis(&p.Y, times())
	any := false
	low, high := math.Inf(1), 0.0
	for _, target := range delayTargets {
		points := d.byDelay(target, opDrawn, func(m Measurement) (float64, bool) {
			over := m.P50 - m.DelayUS
			return over, over > 0 // what is early cannot be drawn
		})
		any = any || len(points) > 0
		for _, xy := range points {
			low, high = min(low, xy.Y), max(high, xy.Y)
		}
		if err := line(p, target, points); err != nil {
			return nil, err
		}
	}
	if any {
		p.Y.Min, p.Y.Max = low/1.5, headroom*high
	}
	return orNothing(p, any)
}

// headroom is by how much the greatest value of a log axis is exceeded, for the
// legend's sake.
const headroom = 12

// latencyPlot is the distribution at one delay, spread out towards the slowest.
func (d *data) latencyPlot() (*plot.Plot, error) {
	p := newPlot("Direct 4 KiB reads, one at a time, 1 ms asked", "share of requests that took at most …", "… this long")
	logAxis(&p.Y, times())
	p.X.Min = 0
	p.X.Tick.Marker = plot.ConstantTicks{
		{Value: 0, Label: "0 %"}, {Value: nines(0.5), Label: "50 %"}, {Value: 1, Label: "90 %"},
		{Value: 2, Label: "99 %"}, {Value: 3, Label: "99.9 %"}, {Value: 4, Label: "99.99 %"},
	}
	any := false
	slowest := 0.0
	f := d.parts[accuracyPart]
	if f == nil {
		return nil, nil
	}
	for _, target := range delayTargets {
		for _, c := range f.Curves {
			if c.Target != target {
				continue
			}
			var points plotter.XYs
			for i := range c.Share {
				if c.US[i] > 0 {
					points = append(points, plotter.XY{X: nines(c.Share[i]), Y: c.US[i]})
					slowest = max(slowest, c.US[i])
				}
			}
			any = any || len(points) > 0
			if err := line(p, target, points); err != nil {
				return nil, err
			}
		}
	}
	if any {
		p.Y.Min, p.Y.Max = us(curveDelay)*0.9, 4*slowest
	}
	return orNothing(p, any)
}

// nines maps a share to how many nines it has: 0.9 to 1, 0.99 to 2.
func nines(share float64) float64 { return -math.Log10(1 - share) }

// cpuPlot is the server's CPU time for a request against the delay asked.
func (d *data) cpuPlot() (*plot.Plot, error) {
	p := newPlot("CPU of the server's processes, direct 4 KiB reads, one at a time", "delay asked", "µs of CPU a request")
	logAxis(&p.X, times())
	p.Y.Min = 0
	any := false
	for _, target := range delayTargets {
		points := d.byDelay(target, opDrawn, func(m Measurement) (float64, bool) {
			if m.CPU == nil {
				return 0, false
			}
			return *m.CPU, true
		})
		any = any || len(points) > 0
		if err := line(p, target, points); err != nil {
			return nil, err
		}
	}
	return orNothing(p, any)
}

// throughputPlot is IOPS at depth 32 without delay.
func (d *data) throughputPlot() (*plot.Plot, error) {
	p := newPlot("4 KiB requests at depth 32, no delay", "", "thousand IOPS")
	names := d.targetsOf(throughputPart)
	if len(names) == 0 {
		return nil, nil
	}
	any, most := false, 0.0
	width := vg.Points(14)
	for i, op := range ops {
		values := make(plotter.Values, len(names))
		for j, target := range names {
			if m, ok := d.small(throughputPart, target, 0, op, 32); ok {
				values[j] = m.IOPS / 1000
				most = max(most, values[j])
				any = true
			}
		}
		if !any {
			continue
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return nil, err
		}
		bars.LineStyle.Width = 0
		bars.Color = []color.Color{styles[delaydTarget].color, color.RGBA{230, 159, 0, 255}}[i]
		bars.Offset = width * vg.Length(float64(i)-0.5)
		p.Add(bars)
		p.Legend.Add(op, bars)
	}
	p.Y.Min, p.Y.Max = 0, 1.25*most
	p.NominalX(names...)
	p.X.Tick.Label.Rotation = math.Pi / 8
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YTop
	return orNothing(p, any)
}

// orNothing is the plot if something is in it.
func orNothing(p *plot.Plot, any bool) (*plot.Plot, error) {
	if !any {
		return nil, nil
	}
	return p, nil
}
