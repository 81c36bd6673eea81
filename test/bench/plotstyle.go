package main

import (
	"errors"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
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
	plotMargin = 0.15 * vg.Inch
)

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(8)
	p.X.Padding, p.Y.Padding = vg.Points(4), vg.Points(4)
	p.BackgroundColor = color.White
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(8), vg.Points(-4)
	for _, s := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		s.Variant = "Sans"
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{225}, color.Gray{225}
	p.Add(grid)
	return p
}

// legendBelow puts the legend into the corner at the bottom on the right, which a
// rising curve leaves free.
func legendBelow(p *plot.Plot) {
	p.Legend.Top, p.Legend.Left = false, false
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-8), vg.Points(6)
}

// save writes a plot as SVG, with a margin for the labels at the ends of the axes.
func save(p *plot.Plot, path string) error {
	c := vgsvg.New(plotWidth, plotHeight)
	all := draw.New(c)
	c.SetColor(color.White)
	c.Fill(all.Rectangle.Path())
	p.Draw(draw.Crop(all, plotMargin, -2*plotMargin, plotMargin, -plotMargin))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = c.WriteTo(f)
	return errors.Join(err, f.Close())
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

// times marks 1, 2 and 5 of each decade from 10 µs to 1 s.
func times() (t ticks) {
	for decade := 10.0; decade <= 1e6; decade *= 10 {
		for _, k := range []float64{1, 2, 5} {
			t = append(t, plot.Tick{Value: decade * k, Label: duration(decade * k)})
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
