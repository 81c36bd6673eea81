package api

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
)

func good() Spec { return Spec{Name: "slow", Backing: "mem:64M", Delay: "5ms"} }

// TestValidate has every refusal with its words.
func TestValidate(t *testing.T) {
	const nameHint = "want 1 to 64 of A-Z a-z 0-9 . _ - and neither a dot nor a dash first"
	const backingHint = `want a block device or file by its absolute path, "mem:SIZE" or "null:SIZE"`
	long := strings.Repeat("a", 65)
	for _, c := range []struct {
		change func(*Spec)
		want   string // "" is fine
		hint   string
	}{
		{func(s *Spec) {}, "", ""},
		{func(s *Spec) { s.Name = strings.Repeat("a", 64) }, "", ""},
		{func(s *Spec) { s.Name = "A-z_0.9" }, "", ""},
		{func(s *Spec) { s.Name = "" }, "name: empty", nameHint},
		{func(s *Spec) { s.Name = long }, `name "` + long + `": 65 characters long`, nameHint},
		{func(s *Spec) { s.Name = "a/b" }, `name "a/b": has "/" in it`, nameHint},
		{func(s *Spec) { s.Name = "a b" }, `name "a b": has " " in it`, nameHint},
		{func(s *Spec) { s.Name = "ä" }, `name "ä": has "ä" in it`, nameHint},
		{func(s *Spec) { s.Name = ".." }, `name "..": starts with "."`, nameHint},
		{func(s *Spec) { s.Name = "-x" }, `name "-x": starts with "-"`, nameHint},

		{func(s *Spec) { s.Backing = "/dev/sdb" }, "", ""},
		{func(s *Spec) { s.Backing = "null:1T" }, "", ""},
		{func(s *Spec) { s.Backing = "" }, "backing: missing", backingHint},
		{func(s *Spec) { s.Backing = "disk.img" }, `backing "disk.img": neither an absolute path nor mem: or null:`, backingHint},
		{func(s *Spec) { s.Backing = "/x\x00y" }, `backing "/x\x00y": has a NUL byte in it`, backingHint},
		{func(s *Spec) { s.Backing = "mem:0" }, `backing "mem:0": no bytes`, "for example mem:64M"},
		{func(s *Spec) { s.Backing = "null:-1" }, `backing "null:-1": size "-1": negative; a size is 0 or more bytes`, "for example null:64M"},

		{func(s *Spec) { s.Delay = "24h" }, "", ""},
		{func(s *Spec) { s.Delay = "0" }, "", ""},
		{func(s *Spec) { s.Delay = "5" }, `delay "5": unit missing; did you mean 5ms or 5us?`, ""},
		{func(s *Spec) { s.Read = "-1ms" }, `read "-1ms": negative; a delay is 0 to 24h`, ""},
		{func(s *Spec) { s.Write = "25h" }, `write "25h": too long; a delay is 0 to 24h`, ""},
		{func(s *Spec) { s.Discard = "99999999999999999999h" }, `discard "99999999999999999999h": too long; a delay is 0 to 24h`, ""},

		{func(s *Spec) { s.Offset = -1 }, "offset -1: negative", "want 0 or more bytes"},
		{func(s *Spec) { s.Size = -4096 }, "size -4096: negative", "want 0 or more bytes"},
		{func(s *Spec) { s.Queues = 2 }, "", ""},
		{func(s *Spec) { s.Queues = 3 }, "queues 3: more than the daemon has CPUs (2)", "want auto, or 1 to 2; the default is 1"},
		{func(s *Spec) { s.Queues = QueuesAuto }, "", ""},
		{func(s *Spec) { s.Queues = -2 }, "queues -2: negative", "want auto, or 1 to the number of CPUs; the default is 1"},
		{func(s *Spec) { s.Depth = 4096 }, "", ""},
		{func(s *Spec) { s.Depth = 4097 }, "depth 4097: out of range", "want 1 to 4096, which is the kernel's limit; the default is 1024"},
		{func(s *Spec) { s.Depth = -1 }, "depth -1: out of range", "want 1 to 4096, which is the kernel's limit; the default is 1024"},
		{func(s *Spec) { s.Hold = "complete" }, "", ""},
		{func(s *Spec) { s.Hold = "sumbit" }, `hold "sumbit": there is no such mode`, "did you mean submit?"},
		{func(s *Spec) { s.Hold = "x" }, `hold "x": there is no such mode`, `want "submit" (delay + backing latency) or "complete" (the greater of the two)`},

		{func(s *Spec) { s.Compensate = "auto" }, "", ""},
		{func(s *Spec) { s.Compensate = "off" }, "", ""},
		{func(s *Spec) { s.Compensate = "100ms" }, "", ""},
		{func(s *Spec) { s.Compensate = "101ms" }, `compensate "101ms": too long`, "want off, auto, or a duration up to 100ms, such as 80us"},
		{func(s *Spec) { s.Compensate = "-1us" }, `compensate "-1us": negative; a delay is 0 to 24h`, "want off, auto, or a duration up to 100ms, such as 80us"},
		{func(s *Spec) { s.Spin = "50us" }, "", ""},
		{func(s *Spec) { s.Spin = "off" }, "", ""},
		{func(s *Spec) { s.Spin = "2s" }, `spin "2s": too long; type auto, off, or a duration up to 1s, such as 50us`, ""},
		{func(s *Spec) { s.ZeroCopy = "off" }, "", ""},
		{func(s *Spec) { s.ZeroCopy = "no" }, `zero_copy "no": there is no such mode`, "did you mean on?"},
		{func(s *Spec) { s.ZeroCopy = "perhaps" }, `zero_copy "perhaps": there is no such mode`, "want auto, on or off"},
		{func(s *Spec) { s.ZeroCopy, s.Poll = "on", true }, `zero_copy "on": cannot be had together with poll`,
			"drop one of the two; with zero_copy auto a polled device copies"},
		{func(s *Spec) { s.Poll = true }, "", ""},
		{func(s *Spec) { s.Realtime = 98 }, "", ""},
		{func(s *Spec) { s.Realtime = 99 }, "realtime 99: out of range", "want a SCHED_FIFO priority of 1 to 98, or 0 for the normal scheduler"},
		{func(s *Spec) { s.Realtime = -1 }, "realtime -1: out of range", "want a SCHED_FIFO priority of 1 to 98, or 0 for the normal scheduler"},
	} {
		s := good()
		c.change(&s)
		err := s.Validate(2)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", s, err)
		case c.want != "" && err == nil:
			t.Errorf("%+v was not refused", s)
		case err != nil:
			if err.Error() != c.want || HintOf(err) != c.hint {
				t.Errorf("got %q (hint %q), want %q (hint %q)", err, HintOf(err), c.want, c.hint)
			}
			if !errors.As(err, new(*FieldError)) {
				t.Errorf("%v is a %T", err, err)
			}
		}
	}
	s := good()
	s.Queues = 4000
	if err := s.Validate(0); err != nil {
		t.Errorf("with unknown CPUs: %v", err)
	}
}

func TestLongValuesAreCutInMessages(t *testing.T) {
	s := good()
	s.Backing = strings.Repeat("x", 5000)
	if err := s.Validate(2); err == nil || len(err.Error()) > 200 {
		t.Errorf("got %v", err)
	}
}

func TestValidateName(t *testing.T) {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(
			rapid.StringOfN(rapid.RuneFrom([]rune(letters)), 0, 66, -1),
			rapid.String(),
		).Draw(t, "name")
		want := len(name) >= 1 && len(name) <= 64 && name[0] != '.' && name[0] != '-'
		for _, r := range name {
			want = want && strings.ContainsRune(letters, r)
		}
		if got := ValidateName(name) == nil; got != want {
			t.Fatalf("%q: taken %v, want %v", name, got, want)
		}
	})
}

func TestDelaysFallBackFromOpToAll(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want scheduler.Delays
	}{
		{Spec{}, scheduler.Delays{}},
		{Spec{Delay: "1ms"}, scheduler.Constant(time.Millisecond)},
		{Spec{Write: "2ms"}, scheduler.Delays{op.Write: 2 * time.Millisecond, op.WriteZeroes: 2 * time.Millisecond}},
		{
			Spec{Delay: "1ms", Read: "0", Write: "2ms", Flush: "3ms", Discard: "4ms"},
			scheduler.Delays{op.Write: 2 * time.Millisecond, op.WriteZeroes: 2 * time.Millisecond, op.Flush: 3 * time.Millisecond, op.Discard: 4 * time.Millisecond},
		},
	} {
		got, err := c.spec.ParseDelays()
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v:\n%s", c.spec, diff)
		}
	}
}

// What Describe says of delays is read back as the same delays.
func TestDescribedDelaysAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(scheduler.MaxDelay)).Draw(t, name))
		}
		in := scheduler.Delays{op.Read: d("read"), op.Write: d("write"), op.Flush: d("flush"), op.Discard: d("discard")}
		in[op.WriteZeroes] = in[op.Write]
		w := Describe(in)
		out, err := Spec{Read: w.Read, Write: w.Write, Flush: w.Flush, Discard: w.Discard}.ParseDelays()
		if err != nil || out != in {
			t.Fatalf("%v came back as %v, %v", in, out, err)
		}
	})
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want []string
	}{
		{Spec{Delay: "5ms"}, nil},
		{Spec{}, nil},
		{Spec{Flush: "1h"}, nil},
		{Spec{Delay: "1s"}, []string{"at a read delay of 1s at most 1024 requests a second: 1 queue × depth 1024 ÷ 1s; a greater depth (up to 4096) allows more"}},
		{Spec{Delay: "1s", Queues: 2, Depth: 4096}, []string{"at a read delay of 1s at most 8192 requests a second: 2 queues × depth 4096 ÷ 1s"}},
		{Spec{Write: "2ms", Depth: 1}, []string{"at a write delay of 2ms at most 500 requests a second: 1 queue × depth 1 ÷ 2ms; a greater depth (up to 4096) allows more"}},
		{Spec{Read: "1h", Write: "1s", Depth: 1}, []string{
			"at a read delay of 1h0m0s at most 0.00028 requests a second: 1 queue × depth 1 ÷ 1h0m0s; a greater depth (up to 4096) allows more",
			"at a write delay of 1s at most 1 requests a second: 1 queue × depth 1 ÷ 1s; a greater depth (up to 4096) allows more",
		}},
	} {
		got := c.spec.Warnings()
		if got == nil {
			t.Errorf("%+v: null in JSON", c.spec)
		}
		if len(got) == 0 {
			got = nil
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v:\n%s", c.spec, diff)
		}
	}
}

func TestHintOfFindsAWrappedHint(t *testing.T) {
	err := fmt.Errorf("add slow: %w", &FieldError{Field: "x", Err: errors.New("y"), Hint: "z"})
	if got := HintOf(err); got != "z" {
		t.Errorf("got %q", got)
	}
	if got := HintOf(errors.New("x")); got != "" {
		t.Errorf("got %q", got)
	}
}
