package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/client"
	"github.com/delayd/delayd/test/fixture"
)

// attempt is a delayd that should not come to serve.
type attempt struct {
	args   []string
	nobody bool // run as another user
	env    []string
}

// run starts it and returns what it says and its exit code. One that serves all
// the same is ended, and the test fails.
func (a attempt) run(t testing.TB) (says string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t, "delayd", "DELAYD_BIN"), a.args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = stopLimit
	cmd.Env = append(os.Environ(), a.env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if a.nobody {
		cmd.SysProcAttr = asNobody()
	}
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Errorf("delayd %s has not refused within %v: %v\n%s", strings.Join(a.args, " "), startLimit, err, &errOut)
	}
	if out.Len() > 0 {
		t.Errorf("delayd %s prints %q", strings.Join(a.args, " "), &out)
	}
	return errOut.String(), cmd.ProcessState.ExitCode()
}

func asNobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// place is a folder for what a daemon makes: it must be as empty afterwards.
type place struct{ dir, socket, runDir string }

func newPlace(t testing.TB) place {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o777))
	p := place{dir, filepath.Join(dir, "sock"), filepath.Join(dir, "run")}
	must(t, os.Mkdir(p.runDir, 0o777))
	must(t, os.Chmod(p.runDir, 0o777))
	return p
}

func (p place) args(more ...string) []string {
	return append([]string{"--socket", p.socket, "--run-dir", p.runDir, "--owner", "e2e-refused"}, more...)
}

// untouched fails the test if anything is in the place. A socket that is left
// goes, so that it does not fail the next test too.
func (p place) untouched(t testing.TB) {
	t.Helper()
	for dir, want := range map[string]int{p.dir: 1, p.runDir: 0} { // the run directory itself
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != want {
			t.Errorf("in %s: %v, %v", dir, entries, err)
		}
	}
	_ = os.Remove(p.socket)
	if left := ublkDevices(); len(left) > 0 {
		t.Errorf("devices are left: %v", left)
	}
}

// Promise 8: a daemon that cannot serve says why and leaves nothing.
func TestPromise8DaemonRefuses(t *testing.T) {
	needUblk(t)
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct {
		name string
		attempt
		code int
		says []string
	}{
		{"flag unknown", attempt{args: []string{"--sockett", "x"}}, 2, []string{"unknown flag: --sockett", "delayd --help"}},
		{"command unknown", attempt{args: []string{"serve"}}, 2, []string{`unknown command "serve"`, "delayd --help"}},
		{"log level unknown", attempt{args: p.args("--log-level", "loud")}, 2, []string{`--log-level "loud"`, "debug, info, warn and error"}},
		{"log format unknown", attempt{args: p.args("--log-format", "xml")}, 2, []string{`--log-format "xml"`, "text and json"}},
		{"owner with a slash", attempt{args: p.args("--owner", "a/b")}, 2, []string{`--owner "a/b"`, "want 1 to 64"}},
		{"owner of 65 characters", attempt{args: p.args("--owner", strings.Repeat("o", 65))}, 2, []string{"--owner", "65 characters long"}},
		{"metrics without a port", attempt{args: p.args("--metrics", "localhost")}, 2, []string{`--metrics "localhost": not HOST:PORT`, "for example localhost:"}},
		{"metrics on somebody's port", attempt{args: p.args("--metrics", takenPort(t))}, 1, []string{"serve metrics on 127.0.0.1:", "address already in use"}},
		{"socket where a file is", attempt{args: p.args("--socket", file)}, 1, []string{"listen on " + file, "not a socket", "remove it, or name another path"}},
		{"socket below a file", attempt{args: p.args("--socket", file+"/sock")}, 1, []string{file, "not a directory"}},
		{"socket with too long a name", attempt{args: p.args("--socket", filepath.Join(p.dir, strings.Repeat("s", 120)))}, 1, []string{"listen on", strings.Repeat("s", 120)}},
		{"run directory below a file", attempt{args: p.args("--run-dir", file+"/run")}, 1, []string{"run directory", file, "not a directory"}},
		{"config missing", attempt{args: p.args("--config", file+".toml")}, 1, []string{file + ".toml", "no such file or directory"}},
		{"config a directory", attempt{args: p.args("--config", filepath.Dir(file), "--owner", "x")}, 1, []string{filepath.Dir(file), "is a directory"}},
		{"not root", attempt{args: p.args(), nobody: true}, 1, []string{"not permitted", "root", "/dev/ublk-control", "permission denied"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.HasPrefix(c.name, "metrics on") {
				// It serves already when it comes to this: once may be luck.
				for range 5 {
					c.run(t)
					p.untouched(t)
				}
			}
			text, code := c.run(t)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.HasPrefix(text, "delayd: ") && !strings.Contains(text, "\ndelayd: ") {
				t.Errorf("no line begins with \"delayd: \": %s", text)
			}
			says(t, "delayd", text, c.says...)
			p.untouched(t)
		})
	}
}

// takenPort is an address that somebody listens on until the test ends.
func takenPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l.Addr().String()
}

// Promise 8: io_uring is forbidden.
func TestPromise8IOUringDisabled(t *testing.T) {
	needUblk(t)
	const sysctl = "/proc/sys/kernel/io_uring_disabled"
	old, err := os.ReadFile(sysctl)
	if os.IsNotExist(err) {
		t.Skip("this kernel cannot forbid io_uring")
	}
	must(t, err)
	set := func(value string) { must(t, os.WriteFile(sysctl, []byte(value), 0)) }
	t.Cleanup(func() { set(string(old)) })
	want := []string{"io_uring is forbidden", "kernel.io_uring_disabled is 2", "sysctl kernel.io_uring_disabled=0"}

	d := startDaemon(t)
	d.warm()
	d.add("before", "--backing", "mem:1M")
	set("2")
	p := newPlace(t)
	text, code := attempt{args: p.args()}.run(t)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	says(t, "delayd", text, want...)
	if entries, err := os.ReadDir(p.runDir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	// A daemon that runs already can go on; what it cannot make, it says.
	refused(t, d, []refusal{{"add", add("a", "--backing", "mem:1M"), 1, want}})
	readBlock(t, d.show("before").Path)
	d.del("before")
	set(string(old))
	d.add("a", "--backing", "mem:1M")
	d.del("a")
}

// readBlock reads one block past the page cache.
func readBlock(t testing.TB, device string) {
	t.Helper()
	if _, err := fixture.Command("dd", "if="+device, "of=/dev/null", "bs=4096", "count=1", "iflag=direct"); err != nil {
		t.Error(err)
	}
}

// Promise 8: delayctl without a daemon, or without the right to speak to it.
func TestPromise8DaemonNotRunning(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	must(t, os.Chmod(filepath.Dir(d.socket), 0o755))
	t.Run("not permitted", func(t *testing.T) {
		cmd := exec.Command(program(t, "delayctl", "DELAYCTL_BIN"), "--socket", d.socket, "list")
		cmd.SysProcAttr = asNobody()
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		if _ = cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("exit code %d, want 1", cmd.ProcessState.ExitCode())
		}
		says(t, "delayctl", errOut.String(), "no permission to use "+d.socket, "be root")
	})
	d.stop()
	hint := "start it with `delayd --socket " + d.socket + "`"
	for _, args := range [][]string{{"list"}, {"show", "a"}, {"del", "a"}, add("a", "--backing", "mem:1M")} {
		t.Run(args[0], func(t *testing.T) {
			out, errOut, code := d.ctl(args...)
			if code != 1 || out != "" {
				t.Errorf("exit code %d, output %q", code, out)
			}
			says(t, "delayctl", errOut, "delayd is not running", "nobody listens on "+d.socket, hint)
		})
	}
	out, errOut, code := d.ctl("version")
	if code != 0 || !strings.HasPrefix(out, "delayctl") {
		t.Errorf("version: %d, %q", code, out)
	}
	says(t, "delayctl", errOut, "delayd is not running")
}

// Promise 8: two daemons that want the same thing; the first is not disturbed.
func TestPromise8TwoDaemons(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	d.add("a", "--backing", "mem:1M")
	before := look(t, d)
	other := newPlace(t)
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"the same socket", other.args("--socket", d.socket), []string{"listen on " + d.socket, "somebody listens there already", "name another path with --socket"}},
		{"the same owner", other.args("--owner", d.owner, "--run-dir", d.runDir), []string{fmt.Sprintf("owner %q has a daemon already", d.owner), "give this one another --owner"}},
		{"both", []string{"--socket", d.socket, "--owner", d.owner, "--run-dir", d.runDir}, []string{d.owner, "has a daemon already"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, code := attempt{args: c.args}.run(t)
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			says(t, "delayd", text, c.says...)
			sameTraces(t, d, before)
			if entries, err := os.ReadDir(other.runDir); err != nil || len(entries) > 0 {
				t.Errorf("left behind by the second: %v, %v", entries, err)
			}
			readBlock(t, d.show("a").Path)
		})
	}
	// With names of its own it may live beside it, and have a device of that name.
	second := startDaemon(t)
	second.add("a", "--backing", "mem:1M")
	if one, two := d.show("a").Path, second.show("a").Path; one == two {
		t.Errorf("both devices are %s", one)
	}
	second.stop()
	sameTraces(t, d, before)
}

// Promise 8: what is wrong in a file of devices is told by line and column, and
// nothing of the file is made.
func TestPromise8ConfigErrors(t *testing.T) {
	needUblk(t)
	p := newPlace(t)
	missing := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		name, text string
		at         string // line:column
		says       []string
	}{
		{"not TOML", "backing = \"mem:1M\"\ndelay = 5ms\n", ":2:10: ", []string{"strings must be quoted"}},
		{"string not ended", "backing = \"mem:1M\n", ":1:", nil},
		{"key unknown", "backing = \"mem:1M\"\n\n  dealy = \"5ms\"\n", ":3:3: ", []string{"dealy: unknown key", "did you mean delay?"}},
		{"key as the flag is", "backing = \"mem:1M\"\nread-only = true\n", ":2:1: ", []string{"read-only: unknown key", "did you mean read_only?"}},
		{"table unknown", "backing = \"mem:1M\"\n[slow]\ndelay = \"5ms\"\n", ":2:", []string{"slow"}},
		{"backing missing", "delay = \"5ms\"\n", ": ", []string{"backing: missing", "mem:SIZE"}},
		{"delay negative", "backing = \"mem:1M\"\ndelay = \"-5ms\"\n", ":2:1: ", []string{`delay "-5ms": negative`, "0 to 24h"}},
		{"delay a number", "backing = \"mem:1M\"\ndelay = 5\n", ":2:9: ", []string{"integer", "string"}},
		{"size unreadable", "backing = \"mem:1M\"\nsize = \"much\"\n", ":2:1: ", []string{`size "much"`, "K, M, G, T"}},
		{"size negative", "backing = \"mem:1M\"\nsize = -1\n", ":2:1: ", []string{"size -1: negative"}},
		{"size a truth", "backing = \"mem:1M\"\nsize = true\n", ":2:1: ", []string{`size "true": neither a string nor a whole number`}},
		{"depth 5000", "backing = \"mem:1M\"\ndepth = 5000\n", ":2:1: ", []string{"depth 5000: out of range", "want 1 to 4096"}},
		{"hold unknown", "backing = \"mem:1M\"\nhold = \"never\"\n", ":2:1: ", []string{`hold "never": there is no such mode`}},
		{"name with a slash", "name = \"a/b\"\nbacking = \"mem:1M\"\n", ":1:1: ", []string{`name "a/b": has "/" in it`}},
		{"name twice", "[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n", ":5:1: ",
			[]string{`name "a": taken by [[device]] number 1`, "a name of its own"}},
		{"second without a name", "[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n[[device]]\nbacking = \"mem:1M\"\n", ":4:3: ", []string{"name: empty"}},
		{"one and several", "delay = \"1ms\"\n[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n", ":1:1: ", []string{"delay", "at the top level"}},
		// Right as a file, and refused by the system: the first is undone.
		{"second device's backing missing", "[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n[[device]]\nname = \"b\"\nbacking = \"" + missing + "\"\n", "",
			[]string{"add b", missing, "no such file or directory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "devices.toml")
			must(t, os.WriteFile(config, []byte(c.text), 0o600))
			text, code := attempt{args: p.args("--config", config)}.run(t)
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if c.at != "" {
				says(t, "delayd", text, config+c.at)
			}
			says(t, "delayd", text, c.says...)
			p.untouched(t)
			if left, _ := filepath.Glob("/dev/shm/delayd*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// Promise 8: more devices than 64, which is where some kernels draw the line.
func TestPromise8SixtyFifthDevice(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	const many = 65
	c := client.New(d.socket)
	var refusal error
	var took []time.Duration
	for len(took) < many {
		began := time.Now()
		dev, err := c.Add(t.Context(), api.Spec{Name: fmt.Sprintf("d%d", len(took)), Backing: "mem:1M", Depth: 16, Delay: "1ms"})
		if err != nil {
			refusal = err
			break
		}
		took = append(took, time.Since(began))
		if len(took)%16 == 1 {
			readBlock(t, dev.Path)
		}
	}
	made := len(took)
	switch {
	case refusal == nil:
		readBlock(t, d.show("d64").Path)
		// The last must not take longer because of all the others. The least
		// of several: that one has not waited for another process.
		first, last := slices.Min(took[:8]), slices.Min(took[many-8:])
		t.Logf("the first took %v, the last %v, all %v", first, last, sum(took))
		if last > 3*first {
			t.Errorf("one more device takes %v where there are none, %v where there are %d", first, last, many-8)
		}
	case made == 64:
		// The kernel counts all devices.
		_, errOut, code := d.ctl(add("d64", "--backing", "mem:1M")...)
		if code != 1 {
			t.Errorf("exit code %d, want 1", code)
		}
		says(t, "delayctl", errOut, "too many ublk devices", "the kernel's limit is 64", "ublks_max", "options ublk_drv ublks_max=")
		if len(ublkDevices()) != 2*made {
			t.Errorf("after the refusal there are %d nodes, want %d", len(ublkDevices()), 2*made)
		}
	default:
		t.Errorf("device number %d was refused: %v", made+1, refusal)
	}
	// One thread for each queue and one of io_uring, not several.
	if tr := look(t, d); tr.threads > 3*made+40 {
		t.Errorf("%d threads for %d devices", tr.threads, made)
	}
	began := time.Now()
	d.stop()
	t.Logf("the daemon's end removed all in %v", time.Since(began))
}

func sum(all []time.Duration) (total time.Duration) {
	for _, d := range all {
		total += d
	}
	return total
}
