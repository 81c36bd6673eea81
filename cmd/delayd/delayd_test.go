package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/client"
	"github.com/delayd/delayd/pkg/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWrongUsage has what is refused with exit code 2.
func TestWrongUsage(t *testing.T) {
	const help = "hint: `delayd --help` shows what can be typed\n"
	cpus := strconv.Itoa(runtime.NumCPU())
	for line, want := range map[string]string{
		"start":            "delayd: unknown command \"start\"\n" + help,
		"--bogus":          "delayd: unknown flag: --bogus\n" + help,
		"--log-level loud": "delayd: --log-level \"loud\": there is no such level\nhint: the levels are debug, info, warn and error\n",
		"--log-format xml": "delayd: --log-format \"xml\": there is no such format\nhint: the formats are text and json\n",
		"--spinners many":  "delayd: --spinners \"many\": not auto or 0 to " + cpus + ", the number of CPUs\nhint: auto is one less than there are CPUs; 0 lets no queue spin\n",
		"--spinners=-1":    "delayd: --spinners \"-1\": not auto or 0 to " + cpus + ", the number of CPUs\nhint: auto is one less than there are CPUs; 0 lets no queue spin\n",
		"--metrics 9799":   "delayd: --metrics \"9799\": not HOST:PORT\nhint: for example localhost:9799, or :9799 for all addresses\n",
		"--owner a/b":      "delayd: --owner \"a/b\": has \"/\" in it\nhint: want 1 to 64 of A-Z a-z 0-9 . _ - and neither a dot nor a dash first\n",
		"helper mount":     "delayd: unknown helper \"mount\"\n" + help,
		"helper serve 1":   "delayd: accepts 0 arg(s), received 1\n" + help,
		"helper measure 1": "delayd: accepts 8 arg(s), received 1\n" + help,
	} {
		var out, errOut bytes.Buffer
		code := execute(context.Background(), strings.Fields(line), &out, &errOut)
		if code != 2 || errOut.String() != want || out.Len() != 0 {
			t.Errorf("delayd %s: %d, %q, %q; want 2, %q", line, code, &out, &errOut, want)
		}
	}
}

// What fails before there is a device leaves nothing behind.
func TestFailedStarts(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "slow.toml")
	if err := os.WriteFile(config, []byte("backing = \"mem:1M\"\ndealy = \"5ms\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runDir := filepath.Join(dir, "run")
	lines := map[string]string{
		"--config " + config:             "delayd: " + config + ":2:1: dealy: unknown key\nhint: did you mean delay?\n",
		"--config " + dir + "/none.toml": "delayd: read the device file: stat " + dir + "/none.toml: no such file or directory\n",
	}
	// A kernel that has the driver starts a daemon; its tests are elsewhere.
	if _, err := os.Stat("/dev/ublk-control"); errors.Is(err, os.ErrNotExist) {
		lines[""] = "no ublk driver: /dev/ublk-control is missing; load it with \"modprobe ublk_drv\""
	}
	for line, want := range lines {
		var out, errOut bytes.Buffer
		code := execute(context.Background(), append([]string{"--run-dir", runDir}, strings.Fields(line)...), &out, &errOut)
		if code != 1 || !strings.Contains(errOut.String(), want) {
			t.Errorf("delayd %s: %d, %q; want 1, %q", line, code, &errOut, want)
		}
	}
	if _, err := os.Stat(runDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory is left: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		in            options
		env           string
		owner, socket string
	}{
		{options{}, "", "delayd", "/run/delayd/delayd.sock"},
		{options{config: "/etc/delayd/slow.toml"}, "", "slow", "/run/delayd/slow.sock"},
		{options{config: "/etc/delayd/slow.toml", owner: "x"}, "", "x", "/run/delayd/x.sock"},
		{options{}, "/tmp/e.sock", "delayd", "/tmp/e.sock"},
		{options{socket: "/tmp/f.sock"}, "/tmp/e.sock", "delayd", "/tmp/f.sock"},
	} {
		c.in.runDir = defaultRunDir
		if err := c.in.complete(c.env); err != nil {
			t.Error(err)
		}
		if c.in.owner != c.owner || c.in.socket != c.socket {
			t.Errorf("got %s and %s, want %s and %s", c.in.owner, c.in.socket, c.owner, c.socket)
		}
	}
	var manager options
	manager.runDir = defaultRunDir
	if err := manager.complete(""); err != nil || manager.socket != api.DefaultSocket {
		t.Errorf("the manager listens on %s, and its clients look at %s", manager.socket, api.DefaultSocket)
	}
}

// fakes makes devices that serve nobody; those named "bad" do not start.
type fakes struct {
	mu      sync.Mutex
	stopped []string
}

type fake struct {
	all  *fakes
	spec api.Spec
}

func (f *fakes) Start(_ context.Context, s api.Spec, numbered func()) (control.Device, error) {
	if s.Name == "bad" {
		return nil, api.NewProblem(api.ProblemBacking, "open backing "+s.Backing+": no such file or directory")
	}
	numbered()
	return &fake{f, s}, nil
}

func (d *fake) Describe() api.Device           { return api.Device{Name: d.spec.Name, Path: "/dev/ublkb0"} }
func (d *fake) Users() ([]string, error)       { return nil, nil }
func (d *fake) Kill(ctx context.Context) error { return d.Stop(ctx) }

func (d *fake) Compensate(context.Context, string) error { return nil }

func (d *fake) Stop(context.Context) error {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	d.all.stopped = append(d.all.stopped, d.spec.Name)
	return nil
}

// systemd stands for the service manager: it collects what it is told.
func systemd(t *testing.T) func() []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Cleanup(func() { _ = conn.Close() })
	return func() []string {
		var all []string
		buf := make([]byte, 4096)
		for {
			if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, err := conn.Read(buf)
			if err != nil {
				return all
			}
			all = append(all, string(buf[:n]))
		}
	}
}

func specs(names ...string) []api.Spec {
	var all []api.Spec
	for _, n := range names {
		all = append(all, api.Spec{Name: n, Backing: "mem:1M"})
	}
	return all
}

func TestServeUntilToldToEnd(t *testing.T) {
	told := systemd(t)
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	all := &fakes{}
	done := make(chan error, 1)
	go func() {
		done <- serve(ctx, options{owner: "t"}, slog.New(slog.DiscardHandler), l, specs("a", "b"), all)
	}()
	c := client.New(socket)
	devices, err := c.Devices(context.Background()) // answered when all are there
	if err != nil || len(devices) != 2 {
		t.Errorf("%v, %v", devices, err)
	}
	v, err := c.Version(context.Background())
	if err != nil || v != api.Build() {
		t.Errorf("%v, %v", v, err)
	}
	// The first to be there may find the second there too.
	states, one, two := told(), "STATUS=1 device", "STATUS=2 devices"
	if !slices.Equal(states, []string{one, two, "READY=1"}) && !slices.Equal(states, []string{two, two, "READY=1"}) {
		t.Errorf("told %q", states)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(all.stopped) != 2 {
		t.Errorf("stopped %v", all.stopped)
	}
	if diff := cmp.Diff([]string{"STOPPING=1\nSTATUS=Ending: devices are finished and removed"}, told()); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// If one device of a file fails, none is left and nobody is told "ready".
func TestServeWithADeviceThatFails(t *testing.T) {
	told := systemd(t)
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	all := &fakes{}
	err = serve(context.Background(), options{}, slog.New(slog.DiscardHandler), l, specs("a", "bad", "c"), all)
	if err == nil || err.Error() != "add bad: open backing mem:1M: no such file or directory" {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"a"}, all.stopped); diff != "" {
		t.Error(diff)
	}
	for _, state := range told() {
		if strings.Contains(state, "READY") {
			t.Errorf("told %q", state)
		}
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	m := control.NewManager(control.Options{Starter: &fakes{}})
	taken, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := taken.Addr().String()
	if _, err := serveMetrics(addr, m, log); err == nil || err.Error() != "serve metrics on "+addr+": listen tcp "+addr+": bind: address already in use" {
		t.Errorf("got %v", err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := serveMetrics(addr, m, log)
	if err != nil {
		t.Fatal(err)
	}
	scrape := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := scrape.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 || !strings.Contains(string(text), "\ndelayd_build_info{") {
		t.Errorf("%d\n%s", resp.StatusCode, text)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestHelpersFailOnWhatIsNoDisk(t *testing.T) {
	for line, want := range map[string]string{
		"helper measure x 0 512 0 1 1s /dev/null 0": "delayd: helper measure: \"x\" is not a number\n",
		"helper measure 1 0 512 0 1 1 /dev/null 0":  "delayd: helper measure: \"1\" is not a time\n",
	} {
		var out, errOut bytes.Buffer
		if code := execute(context.Background(), strings.Fields(line), &out, &errOut); code != 1 || errOut.String() != want {
			t.Errorf("delayd %s: %d, %q, want %q", line, code, &errOut, want)
		}
	}
}
