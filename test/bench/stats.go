package main

import (
	"math"
	"slices"
)

// quantile returns the smallest of sorted values that a share q of them does not
// exceed.
func quantile(sorted []float64, q float64) float64 {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// median returns the middle value, or the mean of the two in the middle; NaN of
// none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// enough is how many requests a 99.9th percentile takes to be more than the
// slowest one.
const enough = 1000

// setLatencies fills in what the latencies of single requests, in ns, tell.
func (m *Measurement) setLatencies(ns []int64) {
	us := make([]float64, len(ns))
	sum := 0.0
	for i, v := range ns {
		us[i] = float64(v) / 1000
		sum += us[i]
	}
	slices.Sort(us)
	m.Requests = len(us)
	m.Min, m.Mean = us[0], sum/float64(len(us))
	m.P50, m.P99 = quantile(us, 0.5), quantile(us, 0.99)
	if len(us) >= enough {
		p := quantile(us, 0.999)
		m.P999 = &p
	}
}

// point names what is measured once a round.
type point struct {
	Part    string
	Target  string
	DelayUS float64
	Op      string
	Jobs    int
	Depth   int
	Bytes   int
}

func (m Measurement) point() point {
	return point{m.Part, m.Target, m.DelayUS, m.Op, m.Jobs, m.Depth, m.Bytes}
}

// results are the measurements of one run, by point.
type results struct {
	order []point // as first seen
	by    map[point][]Measurement
}

func group(all []Measurement) *results {
	r := &results{by: map[point][]Measurement{}}
	for _, m := range all {
		p := m.point()
		if r.by[p] == nil {
			r.order = append(r.order, p)
		}
		r.by[p] = append(r.by[p], m)
	}
	return r
}

// summary is a point's medians over its rounds; its minimum is that of all
// rounds. It reports false if the point was not measured.
func (r *results) summary(p point) (Measurement, bool) {
	rounds := r.by[p]
	if len(rounds) == 0 {
		return Measurement{}, false
	}
	of := func(get func(Measurement) *float64) *float64 {
		var v []float64
		for _, m := range rounds {
			if x := get(m); x != nil {
				v = append(v, *x)
			}
		}
		if len(v) == 0 {
			return nil
		}
		x := median(v)
		return &x
	}
	s := rounds[0]
	s.IOPS = *of(func(m Measurement) *float64 { return &m.IOPS })
	s.Mean = *of(func(m Measurement) *float64 { return &m.Mean })
	s.P50 = *of(func(m Measurement) *float64 { return &m.P50 })
	s.P99 = *of(func(m Measurement) *float64 { return &m.P99 })
	s.P999 = of(func(m Measurement) *float64 { return m.P999 })
	s.CPU = of(func(m Measurement) *float64 { return m.CPU })
	s.Requests, s.Round = 0, len(rounds)
	for _, m := range rounds {
		s.Min = min(s.Min, m.Min)
		s.Requests += m.Requests
	}
	return s, true
}
