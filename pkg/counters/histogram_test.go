package counters

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/delayd/delayd/pkg/op"
)

func TestBucketEdges(t *testing.T) {
	for _, c := range []struct {
		ns     int64
		bucket int
		upper  int64
	}{
		{0, 0, 63}, {63, 0, 63}, {64, 1, 67}, {67, 1, 67}, {68, 2, 71}, {127, 16, 127},
		{128, 17, 135}, {1000, 16*3 + 1 + 15, 1023},
		{int64(longestDelay), 1 + (46-6)*16 + 3, 19<<42 + 1<<42 - 1},
		{1<<47 - 1, Buckets - 2, 1<<47 - 1}, {1 << 47, Buckets - 1, math.MaxInt64}, {math.MaxInt64, Buckets - 1, math.MaxInt64},
	} {
		if b := Bucket(c.ns); b != c.bucket || Upper(b) != c.upper {
			t.Errorf("Bucket(%d) = %d, up to %d; want %d, up to %d", c.ns, b, Upper(b), c.bucket, c.upper)
		}
	}
}

// longestDelay is the longest delay there is: more than that is what is in no
// bucket of a sixteenth.
const longestDelay = 24 * time.Hour

func TestBucketsCoverTheLine(t *testing.T) {
	next := int64(0)
	for i := range Buckets {
		if Lower(i) != next || Bucket(Lower(i)) != i || Bucket(Upper(i)) != i {
			t.Fatalf("bucket %d is %d to %d, want it to begin at %d", i, Lower(i), Upper(i), next)
		}
		next = Upper(i) + 1
	}
	if next != math.MinInt64 { // one past the largest
		t.Errorf("the last bucket ends at %d", next-1)
	}
}

func TestBucketIsKnownToASixteenth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Int64Range(0, math.MaxInt64).Draw(t, "v") >> rapid.IntRange(0, 62).Draw(t, "shift")
		b := Bucket(v)
		if b < 0 || b >= Buckets || Lower(b) > v || Upper(b) < v {
			t.Fatalf("Bucket(%d) = %d, %d to %d", v, b, Lower(b), Upper(b))
		}
		if v >= 64 && v < 1<<47 && (Upper(b)-v)*16 > v {
			t.Fatalf("bucket of %d goes up to %d", v, Upper(b))
		}
		w := rapid.Int64Range(0, v).Draw(t, "w")
		if Bucket(w) > b {
			t.Fatalf("Bucket(%d) > Bucket(%d)", w, v)
		}
	})
}

// observe returns the histogram of values, by way of the cells.
func observe(values ...int64) *Histogram {
	var q Queue
	for _, v := range values {
		q.Observe(Held, op.Read, v)
	}
	var s Snapshot
	q.addTo(&s)
	return &s.Ops[op.Read].Latency[Held]
}

func values(t *rapid.T, label string) []int64 {
	one := rapid.OneOf(
		rapid.Int64Range(0, 300),
		rapid.Int64Range(0, int64(time.Minute)),
		rapid.Int64Range(0, 1<<47-1),
	)
	return rapid.SliceOfN(one, 0, 60).Draw(t, label)
}

func TestHistogramAgainstTheValues(t *testing.T) {
	bounds := ClassicBounds()
	rapid.Check(t, func(t *rapid.T) {
		vs := values(t, "values")
		h := observe(vs...)
		slices.Sort(vs)
		n := len(vs)
		var sum uint64
		for _, v := range vs {
			sum += uint64(v)
		}
		if h.Count != uint64(n) || h.Sum != sum {
			t.Fatalf("Count, Sum = %d, %d, want %d, %d", h.Count, h.Sum, n, sum)
		}
		cumulative := h.Cumulative(bounds)
		for i, bound := range bounds {
			atMost, below := 0, 0 // values up to the bound, and surely below it
			for _, v := range vs {
				if v <= int64(bound) {
					atMost++
				}
				if v <= int64(bound)*16/17 {
					below++
				}
			}
			if c := int(cumulative[i]); c > atMost || c < below || c != int(h.CountBelow(bound)) {
				t.Fatalf("%d (CountBelow: %d) at most %v; right is %d to %d", c, h.CountBelow(bound), bound, below, atMost)
			}
		}
		if n == 0 {
			if h.Min != 0 || h.Max != 0 || h.Quantile(0.5) != 0 || h.Mean() != 0 {
				t.Fatalf("nothing observed: %d %d %v %v", h.Min, h.Max, h.Quantile(0.5), h.Mean())
			}
			return
		}
		if h.Min != vs[0] || h.Max != vs[n-1] || int64(h.Mean()) != int64(sum)/int64(n) {
			t.Fatalf("Min, Max, Mean = %d, %d, %d", h.Min, h.Max, h.Mean())
		}
		if h.Quantile(0) != time.Duration(vs[0]) || h.Quantile(1) != time.Duration(vs[n-1]) {
			t.Fatalf("quantiles 0 and 1 are %d and %d", h.Quantile(0), h.Quantile(1))
		}
		q := rapid.Float64Range(0.001, 1).Draw(t, "q")
		exact := vs[int(math.Ceil(q*float64(n)))-1]
		if got := int64(h.Quantile(q)); got < exact || got > max(63, exact+exact/16) {
			t.Fatalf("quantile %v is %d, exactly %d", q, got, exact)
		}
	})
}

func TestQuantileOutside(t *testing.T) {
	h := observe(1000, 2000, 3000)
	for q, want := range map[float64]time.Duration{-1: 1000, math.NaN(): 1000, 2: 3000, math.Inf(1): 3000} {
		if got := h.Quantile(q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	far := observe(1<<50, 1<<51)
	if got := far.Quantile(0.5); got != 1<<51 {
		t.Errorf("in the last bucket: %d", got)
	}
}

func TestNegativeIsZero(t *testing.T) {
	if h := observe(-5); h.Count != 1 || h.Sum != 0 || h.Min != 0 || h.Max != 0 || h.Buckets[0] != 1 {
		t.Errorf("%d %d %d %d %d", h.Count, h.Sum, h.Min, h.Max, h.Buckets[0])
	}
}

func TestAddAndSub(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := values(t, "before"), values(t, "after")
		h := *observe(before...)
		h.Add(observe(after...))
		both := observe(slices.Concat(before, after)...)
		if d := diff(both, &h); d != "" {
			t.Fatalf("Add (-want +got):\n%s", d)
		}
		h.Sub(observe(before...))
		want := observe(after...)
		if h.Count != want.Count || h.Sum != want.Sum || h.Buckets != want.Buckets {
			t.Fatalf("Sub: %d observations of %d ns, want %d of %d", h.Count, h.Sum, want.Count, want.Sum)
		}
		if h.Count > 0 && (h.Min > want.Min || h.Max < want.Max || Bucket(h.Min) != Bucket(want.Min) || Bucket(h.Max) != Bucket(want.Max)) {
			t.Fatalf("Sub: %d to %d, want about %d to %d", h.Min, h.Max, want.Min, want.Max)
		}
		if h.Count == 0 && (h.Min != 0 || h.Max != 0) {
			t.Fatalf("Sub to nothing: %d to %d", h.Min, h.Max)
		}
	})
}

func TestClassicBounds(t *testing.T) {
	b := ClassicBounds()
	if !slices.IsSorted(b) || b[0] != time.Microsecond || b[len(b)-1] != time.Minute ||
		!slices.Contains(b, 500*time.Microsecond) || !slices.Contains(b, 20*time.Second) || len(b) != 24 {
		t.Errorf("%d bounds: %v", len(b), b)
	}
}
