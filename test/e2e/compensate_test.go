package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/test/fixture"
)

// What an application sees of a compensated device is nearer to the backing's
// latency plus the delay than what it sees without; a live device changes
// between the two.
func TestCompensatedMedianIsNearer(t *testing.T) {
	raw := fixture.For(t).NullBlk(fixture.MemoryBacked(64)).Path
	d := startDaemon(t)
	for _, delay := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			d := d.with(t)
			path := d.add("near", "--backing", raw, "--delay", delay.String(), "--compensate", "auto")
			read := func(path string) fixture.Latencies {
				l, err := fixture.Measure(path, fixture.Load{Op: op.Read, Count: 30, Warmup: 2, Random: true, Raw: true})
				must(t, err)
				return l
			}
			dev := d.show("near")
			took, err := time.ParseDuration(dev.Compensation)
			if err != nil || took <= 0 || took > 50*time.Millisecond || dev.Compensate != "auto" || len(dev.Warnings) > 0 {
				t.Fatalf("%q is taken off, asked for %q, warnings %q", dev.Compensation, dev.Compensate, dev.Warnings)
			}
			nearer := func() (ok bool) {
				// In turns: a machine that is slow for a while is so for all three.
				var backing, with, without fixture.Latencies
				for range 6 {
					backing = append(backing, read(raw)...)
					d.mustCtl("compensate", "near", took.String())
					l := read(path)
					if l.Min() < delay-took {
						t.Errorf("a read took %v, less than %v less %v", l.Min(), delay, took)
					}
					with = append(with, l...)
					d.mustCtl("compensate", "near", "off")
					if l = read(path); l.Min() < delay {
						t.Errorf("without compensation a read took %v", l.Min())
					}
					without = append(without, l...)
				}
				for _, l := range []fixture.Latencies{backing, with, without} {
					slices.Sort(l)
				}
				want := backing.Median() + delay
				t.Logf("want %v; with %v taken off %v, without %v", want, took, with.Median(), without.Median())
				return without.Median()-with.Median() >= took/4 && (with.Median()-want).Abs() < (without.Median()-want).Abs()
			}
			// A machine that is busy wakes the daemon later than all that is
			// compensated, now in one of the two and then in the other.
			tries := 1
			for ; !nearer(); tries++ {
				if tries == 5 {
					t.Fatalf("with %v taken off, reads are not nearer to the backing's latency + %v", took, delay)
				}
			}
			d.del("near")
		})
	}
}

// What is in force and what was asked for, in every place that shows it.
func TestCompensationIsShown(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	must(t, err)
	addr := l.Addr().String()
	must(t, l.Close())
	d := startDaemon(t, "--metrics", addr)
	d.add("a", "--backing", "mem:16M", "--delay", "2ms", "--compensate", "70us")
	// shown checks what is shown, for an exact value if there is one.
	shown := func(asked, exact string) {
		t.Helper()
		dev := d.show("a")
		took, err := time.ParseDuration(dev.Compensation)
		must(t, err)
		if dev.Compensate != asked || exact != "" && dev.Compensation != exact || exact == "" && took <= 0 {
			t.Errorf("shown as %q (%q), want %q (%q)", dev.Compensation, dev.Compensate, exact, asked)
		}
		word := fmt.Sprintf("compensate = '%s'\n", asked)
		if out := d.mustCtl("show", "a", "-o", "toml"); strings.Contains(out, word) == (asked == "off") {
			t.Errorf("as a device file it has not %q:\n%s", word, out)
		}
		resp, err := http.Get("http://" + addr + "/metrics")
		must(t, err)
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		must(t, resp.Body.Close())
		line := fmt.Sprintf("delayd_compensation_seconds{device=\"a\"} %v\n", took.Seconds())
		if !strings.Contains(string(text), line) {
			t.Errorf("the metrics do not have %q", line)
		}
		if dev.State != api.StateDelaying || dev.Delays.Read != "2ms" {
			t.Errorf("it is %s by %s", dev.State, dev.Delays.Read)
		}
	}
	shown("70µs", "70µs")
	if out := d.mustCtl("compensate", "a"); !strings.HasSuffix(out, "s\n") {
		t.Errorf("printed %q", out)
	}
	shown("auto", "")
	var dev api.Device
	must(t, json.Unmarshal([]byte(d.mustCtl("compensate", "a", "100us", "-o", "json")), &dev))
	if dev.Compensation != "100µs" {
		t.Errorf("answered %q", dev.Compensation)
	}
	shown("100µs", "100µs")
	d.mustCtl("compensate", "a", "off")
	shown("off", "0s")
	d.del("a")
}

// Refusals change nothing.
func TestPromise8CompensateRefused(t *testing.T) {
	d := startDaemon(t)
	d.add("long", "--backing", "mem:16M", "--delay", "5s", "--compensate", "40us")
	for _, c := range []struct {
		args  []string
		code  int
		words []string
	}{
		{[]string{"long"}, 1, []string{"reads are held for 4.99996s", "too long to be measured", "hint: give a duration"}},
		{[]string{"long", "5"}, 2, []string{"unit missing"}},
		{[]string{"long", "1s"}, 2, []string{"too long", "100ms"}},
		{[]string{"lnog", "off"}, 1, []string{`there is no device "lnog"`, "did you mean long?"}},
	} {
		out, errOut, code := d.ctl(append([]string{"compensate"}, c.args...)...)
		if code != c.code || out != "" {
			t.Errorf("%v: exit code %d, printed %q", c.args, code, out)
		}
		for _, w := range c.words {
			if !strings.Contains(errOut, w) {
				t.Errorf("%v: %q is not in %q", c.args, w, errOut)
			}
		}
	}
	if got := d.show("long"); got.Compensation != "40µs" || got.Compensate != "40µs" {
		t.Errorf("in force is %q, asked for %q", got.Compensation, got.Compensate)
	}
	d.del("long")
}
