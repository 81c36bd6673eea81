package counters

import (
	"math"
	"math/bits"
	"time"
)

// The buckets of a histogram: one for all below 64 ns, then 16 of equal width in
// each octave up to 2^47 ns (39 hours), then one for all above. So a value is
// known to a sixteenth.
const (
	subBits     = 4 // 16 buckets in an octave
	firstOctave = 6 // 2^6 = 64 ns
	lastOctave  = 46

	// Buckets is the number of buckets: the length of Histogram.Buckets.
	Buckets = 1 + (lastOctave-firstOctave+1)<<subBits + 1
)

// Bucket returns the bucket that counts ns.
func Bucket(ns int64) int {
	if ns < 1<<firstOctave {
		return 0
	}
	octave := bits.Len64(uint64(ns)) - 1
	if octave > lastOctave {
		return Buckets - 1
	}
	sub := int(ns>>(octave-subBits)) & (1<<subBits - 1)
	return 1 + (octave-firstOctave)<<subBits + sub
}

// Lower returns the least ns that the bucket i counts.
func Lower(i int) int64 {
	if i == 0 {
		return 0
	}
	octave, sub := firstOctave+(i-1)>>subBits, (i-1)&(1<<subBits-1)
	return int64(1<<subBits+sub) << (octave - subBits)
}

// Upper returns the greatest ns that the bucket i counts: the largest int64 for
// the last one.
func Upper(i int) int64 {
	if i == Buckets-1 {
		return math.MaxInt64
	}
	return Lower(i+1) - 1
}

// A Histogram is a reader's copy of the counts of one kind.
type Histogram struct {
	Count   uint64 // of all buckets
	Sum     uint64 // ns, exact; wraps like every cell, after 584 years of waiting added up
	Min     int64  // ns, exact; 0 if Count is
	Max     int64  // ns, exact
	Buckets [Buckets]uint64
}

// Quantile returns the duration that a share q (0 to 1) of the observations did
// not exceed: the upper end of a bucket, at most a sixteenth too long, and never
// outside Min and Max, which are the answers for 0 and 1. It is 0 without any
// observation.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.Count == 0 {
		return 0
	}
	if !(q > 0) {
		return time.Duration(h.Min)
	}
	rank := uint64(math.Ceil(min(q, 1) * float64(h.Count)))
	rank = min(max(rank, 1), h.Count)
	var below uint64
	for i, n := range h.Buckets {
		if below += n; below >= rank {
			return time.Duration(min(max(Upper(i), h.Min), h.Max))
		}
	}
	return time.Duration(h.Max)
}

// Mean returns the mean, 0 without any observation.
func (h *Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return time.Duration(h.Sum / h.Count)
}

// CountBelow returns how many observations were at most d for certain: those of
// the buckets that end at or before it. Up to a sixteenth below d may be missing.
func (h *Histogram) CountBelow(d time.Duration) uint64 {
	var n uint64
	for i, c := range h.Buckets {
		if Upper(i) > int64(d) {
			break
		}
		n += c
	}
	return n
}

// Cumulative returns CountBelow of each of the bounds, which ascend: the buckets
// of a classic Prometheus histogram. Each of them never falls from one snapshot
// to the next.
func (h *Histogram) Cumulative(bounds []time.Duration) []uint64 {
	counts := make([]uint64, len(bounds))
	var n uint64
	i := 0
	for b, bound := range bounds {
		for ; i < Buckets && Upper(i) <= int64(bound); i++ {
			n += h.Buckets[i]
		}
		counts[b] = n
	}
	return counts
}

// ClassicBounds returns upper bounds for a classic Prometheus histogram: 1, 2, 5
// of each decade from 1 µs to 20 s, and 60 s.
func ClassicBounds() []time.Duration {
	var bounds []time.Duration
	for decade := time.Microsecond; decade <= 10*time.Second; decade *= 10 {
		for _, step := range []time.Duration{1, 2, 5} {
			if step*decade <= 20*time.Second {
				bounds = append(bounds, step*decade)
			}
		}
	}
	return append(bounds, time.Minute)
}

// Add adds the observations of o to h.
func (h *Histogram) Add(o *Histogram) {
	switch {
	case o.Count == 0:
		return
	case h.Count == 0:
		*h = *o
		return
	}
	h.Count += o.Count
	h.Sum += o.Sum
	h.Min = min(h.Min, o.Min)
	h.Max = max(h.Max, o.Max)
	for i := range h.Buckets {
		h.Buckets[i] += o.Buckets[i]
	}
}

// Sub takes the observations of an earlier snapshot of the same histogram out of
// h, so that what is left is of the time between. Min and Max are then known by
// their buckets only.
func (h *Histogram) Sub(earlier *Histogram) {
	if earlier.Count == 0 {
		return
	}
	h.Count -= earlier.Count
	h.Sum -= earlier.Sum
	first, last := -1, -1
	for i := range h.Buckets {
		h.Buckets[i] -= earlier.Buckets[i]
		if h.Buckets[i] != 0 {
			last = i
			if first < 0 {
				first = i
			}
		}
	}
	if first < 0 {
		h.Min, h.Max = 0, 0
		return
	}
	h.Min = max(h.Min, Lower(first))
	h.Max = min(h.Max, Upper(last))
}
