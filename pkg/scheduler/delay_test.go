package scheduler

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/delayd/delayd/pkg/op"
)

func TestParseDelay(t *testing.T) {
	for _, c := range []struct {
		in   string
		want time.Duration
	}{
		{"0", 0}, {"0s", 0}, {"-0", 0}, {"+0", 0}, {"0.0", 0}, {"-0ms", 0}, {"00", 0},
		{"1ns", 1}, {"50us", 50 * time.Microsecond}, {"50µs", 50 * time.Microsecond}, {"50μs", 50 * time.Microsecond},
		{"1.5ms", 1500 * time.Microsecond}, {".5ms", 500 * time.Microsecond}, {"5.ms", 5 * time.Millisecond},
		{"+2s", 2 * time.Second}, {"010ms", 10 * time.Millisecond}, {"1h30m", 90 * time.Minute},
		{"0.3us", 300}, {"1.001us", 1001}, {"0.000000001s", 1}, {"0.5us500ns", 1000},
		{"1.0000000000000000000ms", time.Millisecond},
		{"24h", MaxDelay}, {"86400s", MaxDelay}, {"23h59m59.999999999s", MaxDelay - 1},
		// Two that are whole only together, and would be rounded apart.
		{"0.5ns0.5ns", 1},
	} {
		if got, err := ParseDelay(c.in); err != nil || got != c.want {
			t.Errorf("ParseDelay(%q) = %v, %v; want %v", c.in, got, err, c.want)
		}
	}
}

func TestParseDelayRefuses(t *testing.T) {
	const syntax = "type a number and a unit (ns, us, ms, s, m, h), such as 50us, 1.5ms or 2s"
	for _, c := range []struct{ in, want string }{
		{"", `delay "": empty; ` + syntax},
		{"5", `delay "5": unit missing; did you mean 5ms or 5us?`},
		{"1.5", `delay "1.5": unit missing; did you mean 1.5ms or 1.5us?`},
		{"100000000", `delay "100000000": unit missing; did you mean 100000000us?`},
		{"100000000000", `delay "100000000000": unit missing; ` + syntax},
		{"5ms3", `delay "5ms3": unit missing; did you mean 5ms3ms or 5ms3us?`},
		{"-5ms", `delay "-5ms": negative; a delay is 0 to 24h`},
		{"-5", `delay "-5": negative; a delay is 0 to 24h`},
		{"-0.1ns", `delay "-0.1ns": negative; a delay is 0 to 24h`},
		{"-100000h", `delay "-100000h": negative; a delay is 0 to 24h`},
		{"24h1ns", `delay "24h1ns": too long; a delay is 0 to 24h`},
		{"25h", `delay "25h": too long; a delay is 0 to 24h`},
		{"99999999999999999999h", `delay "99999999999999999999h": too long; a delay is 0 to 24h`},
		{"NaN", `delay "NaN": not a duration; ` + syntax},
		{"Inf", `delay "Inf": not a duration; ` + syntax},
		{"ms", `delay "ms": not a duration; ` + syntax},
		{".ms", `delay ".ms": not a duration; ` + syntax},
		{"1.2.3ms", `delay "1.2.3ms": not a duration; ` + syntax},
		{".", `delay ".": not a duration; ` + syntax},
		{"-", `delay "-": no number; ` + syntax},
		{"--5ms", `delay "--5ms": not a duration; ` + syntax},
		{"1e3us", `delay "1e3us": unknown unit "e"; ` + syntax},
		{"1_000us", `delay "1_000us": unknown unit "_"; ` + syntax},
		{"0x5ms", `delay "0x5ms": unknown unit "x"; ` + syntax},
		{"5MS", `delay "5MS": unknown unit "MS"; did you mean 5ms?`},
		{"5sec", `delay "5sec": unknown unit "sec"; ` + syntax},
		{"1d", `delay "1d": unknown unit "d"; ` + syntax},
		{"5ms,", `delay "5ms,": unknown unit "ms,"; ` + syntax},
		{"5 ms", `delay "5 ms": contains a space; did you mean 5ms?`},
		{"5ms\n", `delay "5ms\n": contains a space; did you mean 5ms?`},
		{"a b", `delay "a b": contains a space; ` + syntax},
		{"5 ", `delay "5 ": contains a space; ` + syntax},
		{"0.5ns", `delay "0.5ns": shorter than a nanosecond, the smallest step; type 0 or at least 1ns`},
		{"0.0001us", `delay "0.0001us": shorter than a nanosecond, the smallest step; type 0 or at least 1ns`},
		{"1.5ns", `delay "1.5ns": not a whole number of nanoseconds, the smallest step`},
		{"1.0000001ms", `delay "1.0000001ms": not a whole number of nanoseconds, the smallest step`},
		{"6\xffs", `delay "6\xffs": unknown unit "\xffs"; ` + syntax},
		{strings.Repeat("1", 65), `delay "` + strings.Repeat("1", 64) + `"…: 65 characters long; ` + syntax},
	} {
		got, err := ParseDelay(c.in)
		if err == nil {
			t.Errorf("ParseDelay(%q) = %v, want an error", c.in, got)
		} else if err.Error() != c.want {
			t.Errorf("ParseDelay(%q)\nsays %s\nwant %s", c.in, err, c.want)
		}
	}
}

func TestParseDelayReadsDurations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(MaxDelay)).Draw(t, "ns"))
		if got, err := ParseDelay(d.String()); err != nil || got != d {
			t.Fatalf("ParseDelay(%q) = %v, %v", d, got, err)
		}
	})
}

// FuzzParseDelay holds ParseDelay to the package time, which rounds down.
func FuzzParseDelay(f *testing.F) {
	for _, s := range []string{"", "0", "1.5ms", "1h2m3s4ms5us6ns", "0.5ns0.5ns", "5", "5 ms", "-3s", "9223372036854775808ns"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseDelay(s)
		if err != nil {
			if got != 0 || !strings.HasPrefix(err.Error(), "delay ") {
				t.Errorf("ParseDelay(%q) = %v, %v", s, got, err)
			}
			return
		}
		if got < 0 || got > MaxDelay {
			t.Errorf("ParseDelay(%q) = %v", s, got)
		}
		parts := time.Duration(strings.Count(s, ".") + 1) // each may be rounded
		if std, err := time.ParseDuration(s); err == nil && (got < std || got > std+parts) {
			t.Errorf("ParseDelay(%q) = %v, package time has %v", s, got, std)
		} else if err != nil && got != 0 {
			t.Errorf("ParseDelay(%q) = %v, package time has %v", s, got, err)
		}
	})
}

func TestDelays(t *testing.T) {
	if got := Constant(5 * time.Millisecond).String(); got != "5ms" {
		t.Errorf("constant: %q", got)
	}
	if got := (Delays{}).String(); got != "0s" {
		t.Errorf("zero: %q", got)
	}
	d := Constant(time.Millisecond)
	d[op.Write], d[op.Flush] = 2*time.Second, 0
	if got, want := d.String(), "read=1ms write=2s flush=0s discard=1ms write-zeroes=1ms"; got != want {
		t.Errorf("mixed: %q, want %q", got, want)
	}
	for _, o := range op.All() {
		if got := d.For(o); got != int64(d[o]) {
			t.Errorf("For(%v) = %d", o, got)
		}
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	d[op.Flush] = -1
	if err := d.Validate(); err == nil || err.Error() != "flush delay -1ns: negative; a delay is 0 to 24h" {
		t.Errorf("negative: %v", err)
	}
	d[op.Flush] = MaxDelay + 1
	if err := d.Validate(); err == nil || err.Error() != "flush delay 24h0m0.000000001s: too long; a delay is 0 to 24h" {
		t.Errorf("too long: %v", err)
	}
	d[op.Flush] = MaxDelay
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	if n := testing.AllocsPerRun(100, func() { sink += d.For(op.Write) }); n != 0 {
		t.Errorf("For makes %v allocations", n)
	}
}

var sink int64

func TestSpinMode(t *testing.T) {
	for _, c := range []struct {
		in    string
		want  SpinMode
		shown string
	}{
		{"auto", SpinAuto, "auto"}, {"AUTO", SpinAuto, "auto"},
		{"off", SpinOff, "off"}, {"0", SpinOff, "off"}, {"0us", SpinOff, "off"},
		{"50us", SpinMode(50 * time.Microsecond), "50µs"}, {"1ns", 1, "1ns"}, {"1s", SpinMode(MaxSpin), "1s"},
	} {
		got, err := ParseSpin(c.in)
		if err != nil || got != c.want {
			t.Errorf("ParseSpin(%q) = %v, %v", c.in, got, err)
		}
		if got.String() != c.shown {
			t.Errorf("%q is shown as %q", c.in, got)
		}
		text, err := got.MarshalText()
		var back SpinMode = math.MaxInt64
		if err != nil || back.UnmarshalText(text) != nil || back != got {
			t.Errorf("%q is marshalled as %q and read as %v", c.in, text, back)
		}
	}
	for in, says := range map[string]string{
		"":     `spin "": empty; `,
		"on":   `spin "on": not a duration; `,
		"50":   `spin "50": unit missing; did you mean 50ms or 50us?`,
		"-1us": `spin "-1us": negative; type auto, off, or a duration up to 1s, such as 50us`,
		"2s":   `spin "2s": too long; type auto, off, or a duration up to 1s, such as 50us`,
	} {
		keep := SpinMode(7)
		if err := keep.UnmarshalText([]byte(in)); err == nil || !strings.Contains(err.Error(), says) || keep != 7 {
			t.Errorf("ParseSpin(%q): %v, which lacks %q (%v)", in, err, says, keep)
		}
	}
}
