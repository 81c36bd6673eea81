package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/config"
	"github.com/delayd/delayd/pkg/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory makes devices that serve nobody, to have something behind the API.
type memory struct{ next atomic.Int32 }

type memoryDevice struct {
	id int

	mu   sync.Mutex
	spec api.Spec
}

func (m *memory) Start(_ context.Context, s api.Spec, _ func()) (control.Device, error) {
	if s.Backing == "/dev/missing" {
		p := api.NewProblem(api.ProblemBacking, "open backing /dev/missing: no such file or directory")
		p.Hint = "look with lsblk"
		return nil, p
	}
	return &memoryDevice{spec: s, id: int(m.next.Add(1)) - 1}, nil
}

func (d *memoryDevice) Describe() api.Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	delays, err := d.spec.ParseDelays()
	if err != nil {
		panic(err)
	}
	size := d.spec.Size
	if size == 0 {
		size = 64 << 20
	}
	compensation := d.spec.Compensate
	switch compensation {
	case api.Off:
		compensation = "0s"
	case api.Auto:
		compensation = "83µs"
	}
	return api.Device{
		Name: d.spec.Name, ID: d.id, Path: fmt.Sprintf("/dev/ublkb%d", d.id), State: api.StateDelaying,
		Backing: d.spec.Backing, Delays: api.Describe(delays), Hold: d.spec.Hold,
		Offset: d.spec.Offset, Size: size, Queues: int(d.spec.Queues), Depth: d.spec.Depth,
		ReadOnly: d.spec.ReadOnly, Shared: d.spec.Shared,
		Compensate: d.spec.Compensate, Compensation: compensation, Spin: d.spec.Spin, ZeroCopy: d.spec.ZeroCopy,
		Poll: d.spec.Poll, Pin: d.spec.Pin, Realtime: d.spec.Realtime,
		Limits:     api.Limits{LogicalBlockSize: 512, PhysicalBlockSize: 4096},
		MaxIOBytes: 1 << 20, BufferBytes: 1 << 30, Created: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC),
	}
}

func (d *memoryDevice) Users() ([]string, error) {
	if d.spec.Name == "mounted" {
		return []string{"mounted on /mnt"}, nil
	}
	return nil, nil
}

func (d *memoryDevice) Compensate(_ context.Context, word string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spec.Compensate = word
	return nil
}

func (d *memoryDevice) Stop(context.Context) error { return nil }
func (d *memoryDevice) Kill(context.Context) error { return nil }

// daemon serves an empty manager and returns the socket.
func daemon(t *testing.T) string {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := control.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	m := control.NewManager(control.Options{Starter: &memory{}, Log: log, CPUs: 2, ProbeWait: 50 * time.Millisecond})
	s := control.Serve(l, control.Handler(m, log), log)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return socket
}

// run executes one command line against a socket.
func run(t *testing.T, socket string, args ...string) (code int, out, errOut string) {
	t.Helper()
	t.Setenv(api.SocketEnv, socket)
	var o, e bytes.Buffer
	code = execute(context.Background(), args, &o, &e)
	return code, o.String(), e.String()
}

// want runs a command line that must end just so.
func want(t *testing.T, socket, line string, code int, out, errOut string) {
	t.Helper()
	gotCode, gotOut, gotErr := run(t, socket, strings.Fields(line)...)
	if gotCode != code {
		t.Errorf("delayctl %s: exit code %d, want %d", line, gotCode, code)
	}
	if diff := cmp.Diff(out, gotOut); diff != "" {
		t.Errorf("delayctl %s: standard output:\n%s", line, diff)
	}
	if diff := cmp.Diff(errOut, gotErr); diff != "" {
		t.Errorf("delayctl %s: standard error:\n%s", line, diff)
	}
}

func TestCommands(t *testing.T) {
	s := daemon(t)
	want(t, s, "list", 0, "NAME  PATH  STATE  SIZE  BACKING  DELAY\n", "")
	want(t, s, "add slow --backing mem:64M --delay 5ms", 0, "/dev/ublkb0\n", "")
	want(t, s, "add db --backing /dev/sdb --write 2ms --flush 20ms --size 1536M --offset 1MiB", 0, "/dev/ublkb1\n", "")
	want(t, s, "add thin --backing null:1G --delay 1s --depth 1", 0, "/dev/ublkb2\n",
		"delayctl: warning: at a read delay of 1s at most 1 requests a second: 1 queue × depth 1 ÷ 1s; a greater depth (up to 4096) allows more\n")
	want(t, s, "list", 0, strings.TrimLeft(`
NAME  PATH         STATE     SIZE     BACKING   DELAY
db    /dev/ublkb1  delaying  1536MiB  /dev/sdb  write 2ms, flush 20ms
slow  /dev/ublkb0  delaying  64MiB    mem:64M   5ms
thin  /dev/ublkb2  delaying  64MiB    null:1G   1s
`, "\n"), "")
	want(t, s, "del slow", 0, "", "")
	want(t, s, "del slow", 1, "", "delayctl: del slow: there is no device \"slow\"\nhint: the devices are db, thin\n")
	want(t, s, "show thni", 1, "", "delayctl: show thni: there is no device \"thni\"\nhint: did you mean thin?\n")
	want(t, s, "add db --backing mem:1M", 1, "", "delayctl: add db: a device \"db\" exists\nhint: choose another name, or remove it with `delayctl del db`\n")
	want(t, s, "add x --backing /dev/missing", 1, "", "delayctl: add x: open backing /dev/missing: no such file or directory\nhint: look with lsblk\n")
	want(t, s, "add x --backing mem:1M --queues 3", 1, "", "delayctl: add x: queues 3: more than the daemon has CPUs (2)\nhint: want auto, or 1 to 2; the default is 1\n")
	want(t, s, "add mounted --backing mem:1M", 0, "/dev/ublkb3\n", "")
	want(t, s, "del mounted", 1, "", "delayctl: del mounted: it is in use: mounted on /mnt\nhint: stop using it, or insist with --force: its users then get I/O errors\n")
	want(t, s, "del mounted --force", 0, "", "")
	want(t, s, "compensate db", 0, "83µs\n", "")
	want(t, s, "compensate db 70us", 0, "70us\n", "")
	want(t, s, "compensate db off", 0, "0s\n", "")
	want(t, s, "compensate dbx auto", 1, "", "delayctl: compensate dbx: there is no device \"dbx\"\nhint: did you mean db?\n")
	want(t, s, "del db", 0, "", "")
	want(t, s, "del thin", 0, "", "")
}

func TestJSONIsTheAPIsOwn(t *testing.T) {
	s := daemon(t)
	decode := func(line string, into any) {
		t.Helper()
		code, out, errOut := run(t, s, strings.Fields(line)...)
		d := json.NewDecoder(strings.NewReader(out))
		d.DisallowUnknownFields()
		if err := d.Decode(into); code != 0 || err != nil {
			t.Fatalf("delayctl %s: %d, %v\n%s%s", line, code, err, out, errOut)
		}
	}
	var added, other, one api.Device
	decode("add a --backing mem:1M --delay 1ms -o json", &added)
	decode("add b --backing mem:1M --output json", &other)
	if added.Name != "a" || added.Path == "" || added.Path == other.Path {
		t.Errorf("added %+v and %+v", added, other)
	}
	var list api.DeviceList
	decode("list -o json", &list)
	decode("show a -o json", &one)
	if diff := cmp.Diff(list.Devices[0], one); diff != "" || len(list.Devices) != 2 || one.Delays.Read != "1ms" {
		t.Errorf("%d devices; in the list (-) and alone (+):\n%s", len(list.Devices), diff)
	}
	var v versions
	decode("version -o json", &v)
	if v.Daemon == nil || *v.Daemon != v.Client {
		t.Errorf("got %+v", v)
	}
}

func TestShowAsTOMLIsADeviceFile(t *testing.T) {
	s := daemon(t)
	for _, line := range []string{
		"add same --backing mem:64M --delay 5ms",
		"add full --backing /dev/sdb --read 1ms --write 2ms --flush 3ms --discard 4ms --offset 512 --size 1GiB --queues 2 --depth 7 --read-only --shared --hold complete --compensate 80us --spin off --zero-copy off --poll --pin --realtime 5",
	} {
		if code, _, errOut := run(t, s, strings.Fields(line)...); code != 0 {
			t.Fatal(errOut)
		}
	}
	for name, wantSpec := range map[string]api.Spec{
		"same": {Name: "same", Backing: "mem:64M", Delay: "5ms", Size: 64 << 20, Queues: 1, Depth: 1024, Hold: "submit"},
		"full": {Name: "full", Backing: "/dev/sdb", Read: "1ms", Write: "2ms", Flush: "3ms", Discard: "4ms",
			Offset: 512, Size: 1 << 30, Queues: 2, Depth: 7, ReadOnly: true, Shared: true, Hold: "complete",
			Compensate: "80us", Spin: "off", ZeroCopy: "off", Poll: true, Pin: true, Realtime: 5},
	} {
		code, out, errOut := run(t, s, "show", name, "-o", "toml")
		if code != 0 {
			t.Fatal(errOut)
		}
		got, err := config.Parse("x.toml", []byte(out))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if diff := cmp.Diff([]api.Spec{wantSpec}, got); diff != "" {
			t.Errorf("%s:\n%s", diff, out)
		}
	}
}

func TestShowAsText(t *testing.T) {
	s := daemon(t)
	if code, _, errOut := run(t, s, "add", "slow", "--backing", "mem:64M", "--write", "2s", "--depth", "2"); code != 0 {
		t.Fatal(errOut)
	}
	_, out, _ := run(t, s, "show", "slow")
	for _, line := range []string{
		"name             slow",
		"path             /dev/ublkb0",
		"read             0s",
		"write-zeroes     2s",
		"size             64MiB",
		"queues           1 of depth 2",
		"buffers          1GiB at most",
		"warning          at a write delay of 2s at most 1 requests a second: 1 queue × depth 2 ÷ 2s; a greater depth (up to 4096) allows more",
	} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("there is no line %q in\n%s", line, out)
		}
	}
}

// TestWrongUsage has what is refused without a daemon, with exit code 2.
func TestWrongUsage(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	helpOf := func(command string) string { return "hint: `delayctl " + command + "--help` shows what can be typed\n" }
	const nameHint = "hint: want 1 to 64 of A-Z a-z 0-9 . _ - and neither a dot nor a dash first\n"
	for line, errOut := range map[string]string{
		"":                                    "delayctl: no command given\n" + helpOf(""),
		"lst":                                 "delayctl: unknown command \"lst\" for \"delayctl\"\nhint: did you mean list?\n",
		"bogus":                               "delayctl: unknown command \"bogus\" for \"delayctl\"\n" + helpOf(""),
		"--bogus":                             "delayctl: unknown flag: --bogus\n" + helpOf(""),
		"list x":                              "delayctl: list: nothing is wanted after it, not \"x\"\n" + helpOf("list "),
		"list --bogus":                        "delayctl: list: unknown flag: --bogus\n" + helpOf("list "),
		"list -o xml":                         "delayctl: list: --output \"xml\": there is no such format\nhint: the formats are table, json\n",
		"show a -o table":                     "delayctl: show: --output \"table\": there is no such format\nhint: the formats are text, json, toml\n",
		"show":                                "delayctl: show: no NAME given\n" + helpOf("show "),
		"del a b":                             "delayctl: del: one NAME is wanted, not 2: a b\n" + helpOf("del "),
		"del a/b":                             "delayctl: del: name \"a/b\": has \"/\" in it\n" + nameHint,
		"del a --force=x":                     "delayctl: del: --force \"x\": neither true nor false\n",
		"compensate":                          "delayctl: compensate: no NAME given\n" + helpOf("compensate "),
		"compensate a b c":                    "delayctl: compensate: a NAME and off, auto or a duration are wanted, not a b c\n" + helpOf("compensate "),
		"compensate a 5":                      "delayctl: compensate a: compensate \"5\": unit missing; did you mean 5ms or 5us?\nhint: want off, auto, or a duration up to 100ms, such as 80us\n",
		"compensate .a off":                   "delayctl: compensate: name \".a\": starts with \".\"\n" + nameHint,
		"add":                                 "delayctl: add: no NAME given\n" + helpOf("add "),
		"completion":                          "delayctl: completion: one shell is wanted: bash, zsh or fish\n" + helpOf("completion "),
		"completion tcsh":                     "delayctl: completion: there is no completion for \"tcsh\": want bash, zsh or fish\n" + helpOf("completion "),
		"version now":                         "delayctl: version: nothing is wanted after it, not \"now\"\n" + helpOf("version "),
		"add a":                               "delayctl: add a: --backing: missing\nhint: want a block device or file by its absolute path, \"mem:SIZE\" or \"null:SIZE\"\n",
		"add a --backing":                     "delayctl: add: flag needs an argument: --backing\n" + helpOf("add "),
		"add .a --backing x":                  "delayctl: add .a: name \".a\": starts with \".\"\n" + nameHint,
		"add a --backing mem:x":               "delayctl: add a: --backing \"mem:x\": size \"x\": not a number with a unit; type bytes, or a number with K, M, G, T (or KiB, MiB, GiB, TiB: powers of 1024; kB, MB, GB, TB: powers of 1000)\nhint: for example mem:64M\n",
		"add a --backing mem:1M --delay 5":    "delayctl: add a: --delay \"5\": unit missing; did you mean 5ms or 5us?\n",
		"add a --backing mem:1M --delay=-5ms": "delayctl: add a: --delay \"-5ms\": negative; a delay is 0 to 24h\n",
		"add a --backing mem:1M --read 25h":   "delayctl: add a: --read \"25h\": too long; a delay is 0 to 24h\n",
		"add a --backing mem:1M --flush x":    "delayctl: add a: --flush \"x\": not a duration; type a number and a unit (ns, us, ms, s, m, h), such as 50us, 1.5ms or 2s\n",
		"add a --backing mem:1M --delay=":     "delayctl: add a: --delay: no value at all\nhint: leave --delay out for its default\n",
		"add a --backing mem:1M --offset=-1":  "delayctl: add a: --offset -1: negative; a size is 0 or more bytes\n",
		"add a --backing mem:1M --size 99999999999T":      "delayctl: add a: --size \"99999999999T\": too large; the most is 9223372036854775807 bytes\n",
		"add a --backing mem:1M --queues 0":               "delayctl: add a: --queues 0: no value at all\nhint: leave --queues out for its default\n",
		"add a --backing mem:1M --queues x":               "delayctl: add a: --queues \"x\": neither auto nor a whole number\nhint: want auto, or 1 to the number of CPUs\n",
		"add a --backing mem:1M --depth x":                "delayctl: add: --depth \"x\": not a whole number\n",
		"add a --backing mem:1M --spin 2s":                "delayctl: add a: --spin \"2s\": too long; type auto, off, or a duration up to 1s, such as 50us\n",
		"add a --backing mem:1M --zero-copy no":           "delayctl: add a: --zero-copy \"no\": there is no such mode\nhint: did you mean on?\n",
		"add a --backing mem:1M --compensate=":            "delayctl: add a: --compensate: no value at all\nhint: leave --compensate out for its default\n",
		"add a --backing mem:1M --realtime 99":            "delayctl: add a: --realtime 99: out of range\nhint: want a SCHED_FIFO priority of 1 to 98, or 0 for the normal scheduler\n",
		"add a --backing mem:1M --depth 4097":             "delayctl: add a: --depth 4097: out of range\nhint: want 1 to 4096, which is the kernel's limit; the default is 1024\n",
		"add a --backing mem:1M --hold later":             "delayctl: add a: --hold \"later\": there is no such mode\nhint: want \"submit\" (delay + backing latency) or \"complete\" (the greater of the two)\n",
		"add " + strings.Repeat("a", 65) + " --backing x": "delayctl: add " + strings.Repeat("a", 65) + ": name \"" + strings.Repeat("a", 65) + "\": 65 characters long\n" + nameHint,
	} {
		want(t, socket, line, 2, "", errOut)
	}
	code, _, errOut := run(t, socket, "add", "", "--backing", "mem:1M")
	if code != 2 || errOut != "delayctl: add : name: empty\n"+nameHint {
		t.Errorf("an empty name: %d, %q", code, errOut)
	}
}

func TestDaemonNotRunning(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	for line, what := range map[string]string{
		"list":                      "list",
		"show slow":                 "show slow",
		"del slow":                  "del slow",
		"compensate slow":           "compensate slow",
		"add slow --backing mem:1M": "add slow",
	} {
		want(t, socket, line, 1, "", "delayctl: "+what+": delayd is not running: nobody listens on "+socket+
			"\nhint: start it with `delayd --socket "+socket+"`, or name another with --socket or DELAYD_SOCKET\n")
	}
	code, out, errOut := run(t, socket, "version")
	if code != 0 || !strings.HasPrefix(out, "delayctl  ") || errOut != "delayctl: delayd is not running: nobody listens on "+socket+"\n" {
		t.Errorf("version: %d, %q, %q", code, out, errOut)
	}
	// The flag goes before the environment.
	_, _, errOut = run(t, "/nowhere", "list", "--socket", socket)
	if !strings.Contains(errOut, socket) {
		t.Errorf("--socket is not looked at: %s", errOut)
	}
}

func TestARelativeBackingIsOfThisDirectory(t *testing.T) {
	s := daemon(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if code, _, errOut := run(t, s, "add", "img", "--backing", "disk.img"); code != 0 {
		t.Fatal(errOut)
	}
	_, out, _ := run(t, s, "show", "img", "-o", "json")
	var d api.Device
	if err := json.Unmarshal([]byte(out), &d); err != nil || d.Backing != filepath.Join(dir, "disk.img") {
		t.Errorf("the backing is %q, %v", d.Backing, err)
	}
}

func TestInterrupted(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
			cancel()
		}
	}()
	var out, errOut bytes.Buffer
	t.Setenv(api.SocketEnv, socket)
	if code := execute(ctx, []string{"list"}, &out, &errOut); code != 1 || errOut.String() != "delayctl: interrupted\n" {
		t.Errorf("%d, %q", code, &errOut)
	}
	if err := (<-accepted).Close(); err != nil {
		t.Error(err)
	}
}

func TestCompletion(t *testing.T) {
	s := daemon(t)
	for _, name := range []string{"slow", "slower"} {
		if code, _, errOut := run(t, s, "add", name, "--backing", "mem:1M"); code != 0 {
			t.Fatal(errOut)
		}
	}
	for line, words := range map[string]string{
		"del ":         "slow\tmem:1M\nslower\tmem:1M\n",
		"show ":        "slow\tmem:1M\nslower\tmem:1M\n",
		"show slow ":   "",
		"compensate s": "slow\tmem:1M\nslower\tmem:1M\n",

		"compensate slow ":   "auto\noff\n",
		"compensate slow a ": "",

		"list -o ":      "table\njson\n",
		"show -o ":      "text\njson\ntoml\n",
		"completion ":   "bash\nzsh\nfish\n",
		"add x --hold ": "submit\ncomplete\n",
	} {
		args := append([]string{"__complete"}, strings.Split(line, " ")...)
		_, out, _ := run(t, s, args...)
		got := out[:strings.LastIndex(out, ":")] // the last line is cobra's directive
		if got != words {
			t.Errorf("%q offers %q, want %q", line, got, words)
		}
	}
	_, out, _ := run(t, filepath.Join(t.TempDir(), "none"), "__complete", "del", "")
	if !strings.HasPrefix(out, ":4") {
		t.Errorf("without a daemon: %q", out)
	}
	for shell, mark := range map[string]string{"bash": "__start_delayctl", "zsh": "#compdef delayctl", "fish": "complete -c delayctl"} {
		code, out, errOut := run(t, s, "completion", shell)
		if code != 0 || !strings.Contains(out, mark) || errOut != "" {
			t.Errorf("%s: %d, %d bytes, %q", shell, code, len(out), errOut)
		}
	}
}

// Every command's help begins with what it does and examples.
func TestHelpBeginsWithExamples(t *testing.T) {
	for _, command := range []string{"add", "del", "list", "show", "compensate", "version", "completion"} {
		_, out, _ := run(t, "/nowhere", command, "--help")
		lines := strings.Split(out, "\n")
		if len(lines) < 4 || lines[2] != "Examples:" || !strings.HasPrefix(lines[3], "  delayctl "+command) {
			t.Errorf("%s:\n%s", command, out)
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Setenv(api.SocketEnv, daemon(t))
	var errOut bytes.Buffer
	if code := execute(context.Background(), []string{"list"}, brokenPipe{}, &errOut); code != 1 {
		t.Errorf("%d, %q", code, &errOut)
	}
	if !strings.Contains(errOut.String(), "file already closed") {
		t.Errorf("%q", &errOut)
	}
}
