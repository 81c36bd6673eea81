package systemd

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/test/fixture"
)

// The units under a systemd that runs, with the programs that make build has
// made:
//
//	go test -exec "$PWD/test/vm/run --kernel 6.12 --init systemd --" ./deploy/systemd
//
// It installs files, so it wants to be in the guest, where nothing of it stays.
func booted(t *testing.T) {
	t.Helper()
	if os.Getenv("VM_KERNEL") == "" {
		t.Skip("needs to be run with test/vm/run --init systemd")
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skipf("needs systemd as the first program: %v", err)
	}
	install := func(from, to string, mode os.FileMode) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatalf("%v (make build makes the programs)", err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"delayd", "delayctl"} {
		install("../../bin/"+program, "/usr/local/bin/"+program, 0o755)
	}
	for file := range units {
		install(file, "/etc/systemd/system/"+file, 0o644)
	}
	install("example.toml", "/etc/delayd/slow.toml", 0o644)
	command(t, "systemctl", "daemon-reload")
	t.Cleanup(func() {
		if t.Failed() {
			for _, unit := range units {
				out, _ := fixture.Command("systemctl", "status", "--no-pager", "-n", "50", unit)
				t.Log(out)
			}
		}
	})
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := fixture.Command(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func property(t *testing.T, unit, name string) string {
	t.Helper()
	return command(t, "systemctl", "show", "-P", name, unit)
}

// wait waits for a property of a unit to have a value.
func wait(t *testing.T, unit, name, want string) {
	t.Helper()
	var got string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got = property(t, unit, name); got == want {
			return
		}
	}
	t.Fatalf("%s of %s is %q, want %q", name, unit, got, want)
}

// checkDevice checks that what delayctl shows of a device is there.
func checkDevice(t *testing.T, socket, name string, size int64) {
	t.Helper()
	var d struct {
		Path string `json:"path"`
	}
	out := command(t, "delayctl", "--socket", socket, "show", name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := fixture.Size(d.Path); got != size || err != nil {
		t.Errorf("%s of %s has %d bytes, %v; want %d", d.Path, name, got, err, size)
	}
}

// checkScrape reads a device for a while and checks that a scrape, parsed as
// Prometheus does, tells of it.
func checkScrape(t *testing.T, url, name, path string) {
	t.Helper()
	const reads, delay = 50, time.Millisecond
	fixture.For(t).Measure(path, fixture.Load{Op: op.Read, Count: reads})
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("a scrape: %s, %v", answer.Status, err)
	}
	one := func(metric string) *dto.Metric {
		t.Helper()
		for _, m := range families[metric].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["device"] == name && labels["op"] == "read" {
				return m
			}
		}
		t.Fatalf("a scrape has no %s of reads of %s", metric, name)
		return nil
	}
	// udev and the like may have read it too.
	if n := one("delayd_requests_total").GetCounter().GetValue(); n < reads {
		t.Errorf("%v requests were counted, want %d or more", n, reads)
	}
	if n := one("delayd_request_bytes_total").GetCounter().GetValue(); n < reads*4096 {
		t.Errorf("%v bytes were counted, want %d or more", n, reads*4096)
	}
	for _, metric := range []string{"delayd_held_seconds", "delayd_lateness_seconds", "delayd_backing_seconds", "delayd_total_seconds"} {
		h := one(metric).GetHistogram()
		if h.GetSampleCount() < reads {
			t.Errorf("%s has %d samples, want %d or more", metric, h.GetSampleCount(), reads)
		}
		mean := h.GetSampleSum() / float64(h.GetSampleCount())
		if metric == "delayd_held_seconds" || metric == "delayd_total_seconds" {
			if mean < delay.Seconds()/2 || mean > 1 {
				t.Errorf("%s has a mean of %v s at a delay of %v", metric, mean, delay)
			}
		}
	}
}

func TestUnitsOnABootedSystem(t *testing.T) {
	booted(t)

	if err := os.MkdirAll("/etc/default", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/default/delayd", []byte("DELAYD_OPTIONS=--metrics 127.0.0.1:9799\n"), 0o644); err != nil {
		t.Fatal(err)
	}

	// Type=notify: start returns when the daemon has said that it is ready.
	command(t, "systemctl", "start", "delayd.service")
	command(t, "delayctl", "add", "one", "--backing", "mem:16MiB", "--delay", "1ms")
	checkDevice(t, "/run/delayd/delayd.sock", "one", 16<<20)

	checkScrape(t, "http://127.0.0.1:9799/metrics", "one", "/dev/ublkb0")

	// An instance beside it has a daemon and a device of its own.
	command(t, "systemctl", "start", "delayd@slow.service")
	checkDevice(t, "/run/delayd/slow.sock", "slow", 64<<20)
	if list := command(t, "delayctl", "list", "-o", "json"); !strings.Contains(list, `"one"`) || strings.Contains(list, `"slow"`) {
		t.Errorf("the manager lists %s", list)
	}

	// Stopping one leaves the other and the directory that they share.
	command(t, "systemctl", "stop", "delayd@slow.service")
	if got := property(t, "delayd@slow.service", "Result"); got != "success" {
		t.Errorf("delayd@slow ended with %q", got)
	}
	checkDevice(t, "/run/delayd/delayd.sock", "one", 16<<20)
	command(t, "delayctl", "del", "one")

	// A daemon that dies is started again, and answers.
	command(t, "systemctl", "kill", "--signal=KILL", "--kill-whom=main", "delayd.service")
	wait(t, "delayd.service", "NRestarts", "1")
	wait(t, "delayd.service", "ActiveState", "active")
	command(t, "delayctl", "list")

	command(t, "systemctl", "stop", "delayd.service")
	if got := property(t, "delayd.service", "Result"); got != "success" {
		t.Errorf("delayd ended with %q", got)
	}
	if left, _ := filepath.Glob("/dev/ublkb*"); len(left) > 0 {
		t.Errorf("devices left: %v", left)
	}
}

// What the daemon cannot serve is a failure of the unit, at once and with the
// reason in the log; what has no file is not started.
func TestUnitsThatCannotStart(t *testing.T) {
	booted(t)
	if err := os.WriteFile("/etc/delayd/wrong.toml", []byte("name = \"wrong\"\nbacking = \"/dev/no-such-disk\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := fixture.Command("systemctl", "start", "delayd@wrong.service"); err == nil {
		t.Errorf("a missing backing was accepted: %s", out)
	}
	if log := command(t, "journalctl", "--no-pager", "-u", "delayd@wrong.service"); !strings.Contains(log, "/dev/no-such-disk") {
		t.Errorf("the log does not say what is wrong: %s", log)
	}
	command(t, "systemctl", "stop", "delayd@wrong.service")

	command(t, "systemctl", "start", "delayd@none.service")
	if got := property(t, "delayd@none.service", "ConditionResult"); got != "no" {
		t.Errorf("an instance without a file was started (ConditionResult=%s)", got)
	}
}
