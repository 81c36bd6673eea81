package size

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	const (
		kib = int64(1) << 10
		mib = int64(1) << 20
		gib = int64(1) << 30
		tib = int64(1) << 40
	)
	for _, c := range []struct {
		in   string
		want int64
	}{
		{"0", 0}, {"0K", 0}, {"0.0T", 0},
		{"512", 512}, {"512B", 512}, {"1500B", 1500}, {"007", 7},
		{"1K", kib}, {"1k", kib}, {"1KiB", kib}, {"1kiB", kib}, {"1kB", 1000}, {"1KB", 1000},
		{"64M", 64 * mib}, {"64m", 64 * mib}, {"64MiB", 64 * mib}, {"64MB", 64_000_000},
		{"3G", 3 * gib}, {"3GiB", 3 * gib}, {"3GB", 3_000_000_000},
		{"2T", 2 * tib}, {"2TiB", 2 * tib}, {"2TB", 2_000_000_000_000},
		{"1.5G", 3 * gib / 2}, {"0.5K", 512}, {"1.25kB", 1250}, {"1.000", 1}, {"0.001kB", 1},
		{"0.0009765625K", 1},
		{"9223372036854775807", math.MaxInt64},
		{"8388607T", 8388607 * tib}, {"8388607.5T", 8388607*tib + tib/2},
	} {
		if got, err := Parse(c.in); err != nil || got != c.want {
			t.Errorf("Parse(%q) = %d, %v; want %d", c.in, got, err, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ in, says string }{
		{"", `size "": empty; type bytes, or a number with K, M, G, T`},
		{"-1", `size "-1": negative; a size is 0 or more bytes`},
		{"-64M", `size "-64M": negative`},
		{"+1", `size "+1": not a number with a unit`},
		{"M", `size "M": not a number with a unit`},
		{".5M", `size ".5M": not a number with a unit`},
		{"5.M", `size "5.M": not a number with a unit`},
		{"1.2.3M", `size "1.2.3M": not a number with a unit`},
		{"NaN", `size "NaN": not a number with a unit`},
		{"0x10", `size "0x10": unknown unit "x10"`},
		{"1e3", `size "1e3": unknown unit "e3"`},
		{"1_000", `size "1_000": unknown unit "_000"`},
		{"5P", `size "5P": unknown unit "P"`},
		{"5Mi", `size "5Mi": unknown unit "Mi"`},
		{"64MiBs", `size "64MiBs": unknown unit "MiBs"`},
		{"64Mb", `size "64Mb": unknown unit "Mb"; did you mean MB?`},
		{"64Mib", `size "64Mib": unknown unit "Mib"; did you mean MiB?`},
		{"64 MiB", `size "64 MiB": contains a space; did you mean 64MiB?`},
		{" 1", `size " 1": contains a space; did you mean 1?`},
		{"a b", `size "a b": contains a space; type bytes`},
		{"6µ", `size "6µ": unknown unit "µ"`},
		{"6\xff", `size "6\xff": unknown unit "\xff"`},
		{"0.5", `size "0.5": not a whole number of bytes`},
		{"1.0001K", `size "1.0001K": not a whole number of bytes`},
		{"9223372036854775808", `size "9223372036854775808": too large; the most is 9223372036854775807 bytes`},
		{"8388608T", `size "8388608T": too large`},
		{strings.Repeat("9", 40) + "T", `T": too large`},
		{strings.Repeat("9", 1000), `9"…: 1000 characters long`},
	} {
		got, err := Parse(c.in)
		if err == nil {
			t.Errorf("Parse(%q) = %d, want an error", c.in, got)
		} else if !strings.Contains(err.Error(), c.says) {
			t.Errorf("Parse(%q) says %q, which lacks %q", c.in, err, c.says)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		in   int64
		want string
	}{
		{0, "0B"}, {1, "1B"}, {1500, "1500B"}, {1024, "1KiB"}, {1536, "1536B"}, {64 << 20, "64MiB"},
		{3 << 29, "1536MiB"}, {1 << 30, "1GiB"}, {5 << 40, "5TiB"}, {1 << 50, "1024TiB"},
		{math.MaxInt64, "9223372036854775807B"}, {math.MinInt64, "-8388608TiB"}, {-1500, "-1500B"},
	} {
		if got := Format(c.in); got != c.want {
			t.Errorf("Format(%d) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestFormatIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, math.MaxInt64).Draw(t, "n") &^ (1<<rapid.IntRange(0, 50).Draw(t, "shift") - 1)
		got, err := Parse(Format(n))
		if err != nil || got != n {
			t.Fatalf("Parse(Format(%d) = %q) = %d, %v", n, Format(n), got, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "1.5G", "64MiB", "-1", "9223372036854775808", "5 M", "6µ"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse(s)
		if err != nil {
			if n != 0 || !strings.HasPrefix(err.Error(), "size ") {
				t.Errorf("Parse(%q) = %d, %v", s, n, err)
			}
			return
		}
		if n < 0 {
			t.Errorf("Parse(%q) = %d", s, n)
		}
	})
}
