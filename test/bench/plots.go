package main

import (
	"errors"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// style is how a target is drawn, the same in every plot. The colours are those
// of Okabe and Ito, which the colour-blind can tell apart.
type style struct {
	color color.Color
	shape draw.GlyphDrawer
	dash  []vg.Length
}

var styles = map[string]style{
	limitTarget:      {color.RGBA{0, 0, 0, 255}, draw.CrossGlyph{}, []vg.Length{vg.Points(5), vg.Points(3)}},
	dmTarget:         {color.RGBA{213, 94, 0, 255}, draw.SquareGlyph{}, nil},
	nbdkitTarget:     {color.RGBA{204, 121, 167, 255}, draw.TriangleGlyph{}, nil},
	delaydTarget:     {color.RGBA{0, 114, 178, 255}, draw.CircleGlyph{}, nil},
	delaydCompTarget: {color.RGBA{0, 158, 115, 255}, draw.PyramidGlyph{}, nil},
}

const (
	plotWidth  = 7.2 * vg.Inch
	plotHeight = 4.5 * vg.Inch
)

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(8)
	p.BackgroundColor = color.White
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), vg.Points(-4)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{225}, color.Gray{225}
	p.Add(grid)
	return p
}

// ticks marks an axis of times in µs with the words that people use.
type ticks []plot.Tick

func (t ticks) Ticks(low, high float64) (in []plot.Tick) {
	for _, k := range t {
		if k.Value >= low*0.999 && k.Value <= high*1.001 {
			in = append(in, k)
		}
	}
	return in
}

// times marks 1, 2 and 5 of each decade from 10 µs to 1 s, with words at 1 and 5.
func times() (t ticks) {
	for decade := 10.0; decade <= 1e6; decade *= 10 {
		for _, k := range []float64{1, 2, 5} {
			label := ""
			if k != 2 {
				label = duration(decade * k)
			}
			t = append(t, plot.Tick{Value: decade * k, Label: label})
		}
	}
	return t
}

func logAxis(a *plot.Axis, marks plot.Ticker) {
	a.Scale = plot.LogScale{}
	a.Tick.Marker = marks
}

// line adds a target's points to a plot, if there are any.
func line(p *plot.Plot, target string, points plotter.XYs) error {
	if len(points) == 0 {
		return nil
	}
	s := styles[target]
	l, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	l.Color, l.Dashes, l.Width = s.color, s.dash, vg.Points(1.4)
	dots.Color, dots.Shape, dots.Radius = s.color, s.shape, vg.Points(2.8)
	p.Add(l, dots)
	p.Legend.Add(target, l, dots)
	return nil
}

// writePlots draws what there are measurements for.
func (d *data) writePlots(folder string) error {
	var errs []error
	for suffix, draw := range map[string]func() (*plot.Plot, error){
		"-delay.svg": d.delayPlot, "-latency.svg": d.latencyPlot, "-throughput.svg": d.throughputPlot, "-cpu.svg": d.cpuPlot,
	} {
		p, err := draw()
		if err == nil && p != nil {
			err = p.Save(plotWidth, plotHeight, d.file(folder, suffix))
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
				}
			}
			any = any || len(points) > 0
			if err := line(p, target, points); err != nil {
				return nil, err
			}
		}
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
	p.Legend.Left = false
	p.Legend.XOffs = vg.Points(-6)
	names := d.targetsOf(throughputPart)
	if len(names) == 0 {
		return nil, nil
	}
	any := false
	width := vg.Points(14)
	for i, op := range ops {
		values := make(plotter.Values, len(names))
		for j, target := range names {
			if m, ok := d.small(throughputPart, target, 0, op, 32); ok {
				values[j] = m.IOPS / 1000
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
	p.Y.Min = 0
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
