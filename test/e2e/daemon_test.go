package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/test/fixture"
)

const (
	startLimit = 30 * time.Second // until the daemon answers
	stopLimit  = 90 * time.Second // until it has ended after SIGTERM
	ctlLimit   = 90 * time.Second // of one delayctl
)

// daemon is a delayd of a test's own.
type daemon struct {
	t testing.TB // that fails
	*process
}

// process is what a daemon is, whichever test speaks to it.
type process struct {
	owner  string
	socket string
	runDir string

	cmd    *exec.Cmd
	output fixture.Output
	ended  chan struct{} // closed when the process is gone
	err    error         // how it ended; read after ended
	killed bool          // by the test: its exit code and what it left are not judged
}

var (
	serial  atomic.Uint64
	running sync.Map // *process → *daemon: those that may have devices
	// foreign are the ublk devices that were there before the first daemon.
	foreign = sync.OnceValue(ublkDevices)
)

// startDaemon starts delayd on a socket and a run directory of its own and
// returns when it answers. args are added to its flags; --owner, --socket and
// --run-dir among them replace those that it would have had. It is ended with
// SIGTERM when the test ends, if it has not been before, and has failed the test
// unless it exits with 0 and leaves nothing behind.
func startDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	d := newDaemon(t, args...)
	if err := d.begin(args); err != nil {
		t.Fatal(err)
	}
	return d
}

// newDaemon is a daemon that is not started.
func newDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	needUblk(t)
	foreign()
	d := &daemon{t, &process{
		owner:  flagOf(args, "owner"),
		socket: flagOf(args, "socket"),
		runDir: flagOf(args, "run-dir"),
		ended:  make(chan struct{}),
	}}
	if d.owner == "" {
		d.owner = fmt.Sprintf("e2e-%d-%d", os.Getpid(), serial.Add(1))
	}
	if d.runDir == "" {
		d.runDir = t.TempDir()
	}
	if d.socket == "" {
		// Not in the run directory, which is to be empty at the end. The
		// path of a socket has at most 107 bytes, a test's folder may have more.
		dir, err := os.MkdirTemp("", "e2e-")
		must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		d.socket = filepath.Join(dir, "sock")
	}
	return d
}

// with is the same daemon for a subtest, which then is what fails.
func (d *daemon) with(t testing.TB) *daemon { return &daemon{t, d.process} }

// flagOf returns the value of the last --name in args.
func flagOf(args []string, name string) (value string) {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			value = v
		} else if a == "--"+name && i+1 < len(args) {
			value = args[i+1]
		}
	}
	return value
}

// begin starts the process and waits until it answers; an error has its log.
func (d *daemon) begin(args []string) error {
	d.t.Helper()
	// Of two equal flags the last counts.
	args = append([]string{"--owner", d.owner, "--socket", d.socket, "--run-dir", d.runDir, "--log-level", "debug"}, args...)
	d.cmd = exec.Command(program(d.t, "delayd", "DELAYD_BIN"), args...)
	d.cmd.Stdout, d.cmd.Stderr = &d.output, &d.output
	// A group of its own, so that children which outlive it are found.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return fmt.Errorf("start delayd: %w", err)
	}
	running.Store(d.process, d)
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
	}()
	d.t.Cleanup(d.end)
	return d.waitReady()
}

func (d *daemon) waitReady() error {
	for end := time.Now().Add(startLimit); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-d.ended:
			return fmt.Errorf("delayd ended at once: %w\n%s", d.err, d.log())
		default:
		}
		if strings.Contains(d.log(), "msg=ready") || strings.Contains(d.log(), `"msg":"ready"`) {
			if _, errOut, code := d.ctl("list"); code != 0 {
				return fmt.Errorf("delayd does not answer: %s\n%s", errOut, d.log())
			}
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("delayd was not ready within %v\n%s", startLimit, d.log())
		}
	}
}

// ctl runs delayctl on the daemon's socket.
func (d *daemon) ctl(args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	cmd := exec.Command(program(d.t, "delayctl", "DELAYCTL_BIN"), append([]string{"--socket", d.socket}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Start(); err != nil {
		d.t.Errorf("start delayctl: %v", err)
		return "", err.Error(), -1
	}
	late := time.AfterFunc(ctlLimit, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !late.Stop() {
		d.t.Errorf("delayctl %s did not end within %v\n%s", strings.Join(args, " "), ctlLimit, d.log())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Errorf("delayctl %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// mustCtl is ctl that ends the test unless the exit code is 0.
func (d *daemon) mustCtl(args ...string) string {
	d.t.Helper()
	out, errOut, code := d.ctl(args...)
	if code != 0 {
		d.t.Fatalf("delayctl %s: exit code %d: %s\ndelayd printed:\n%s", strings.Join(args, " "), code, errOut, d.log())
	}
	return out
}

// add makes a device and returns its path; flags are those of delayctl add. A
// test that fails need not remove it.
func (d *daemon) add(name string, flags ...string) string {
	d.t.Helper()
	out := d.mustCtl(append([]string{"add", name}, flags...)...)
	path := strings.TrimSpace(out)
	if !strings.HasPrefix(path, "/dev/ublkb") || strings.ContainsAny(path, " \n") {
		d.t.Fatalf("delayctl add printed %q, want a path", out)
	}
	d.t.Cleanup(func() {
		if d.t.Failed() {
			d.ctl("del", name, "--force") // so that its backing can be removed
		}
	})
	return path
}

// del removes a device.
func (d *daemon) del(name string) {
	d.t.Helper()
	d.mustCtl("del", name)
}

// show returns what the daemon knows of a device.
func (d *daemon) show(name string) (dev api.Device) {
	d.t.Helper()
	must(d.t, json.Unmarshal([]byte(d.mustCtl("show", name, "-o", "json")), &dev))
	return dev
}

// log is what the daemon has printed so far.
func (d *daemon) log() string { return d.output.String() }

// pid is the daemon's process.
func (d *daemon) pid() int { return d.cmd.Process.Pid }

// signal sends one.
func (d *daemon) signal(s os.Signal) {
	d.t.Helper()
	must(d.t, d.cmd.Process.Signal(s))
}

// wait returns how the daemon ended, nil for exit code 0, or an error after d
// has passed.
func (d *daemon) wait(limit time.Duration) error {
	select {
	case <-d.ended:
		return d.err
	case <-time.After(limit):
		return fmt.Errorf("delayd has not ended within %v", limit)
	}
}

// stop ends the daemon with SIGTERM and fails the test as startDaemon says. Once
// it has ended, stop does nothing.
func (d *daemon) stop() {
	d.t.Helper()
	select {
	case <-d.ended:
	default:
		d.signal(unix.SIGTERM)
	}
	d.judge()
}

// kill ends the daemon with SIGKILL; what it leaves is the test's business.
func (d *daemon) kill() {
	d.t.Helper()
	d.killed = true
	_ = d.cmd.Process.Kill()
	must(d.t, ignoreExit(d.wait(stopLimit)))
	running.Delete(d.process)
}

func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// end is the clean-up.
func (d *daemon) end() {
	d.t.Helper()
	if d.killed {
		return
	}
	d.stop()
	if d.t.Failed() {
		d.t.Logf("delayd printed:\n%s", d.log())
	}
}

// judge waits for the end and looks for what is left, once.
func (d *daemon) judge() {
	d.t.Helper()
	if _, live := running.Load(d.process); !live {
		return
	}
	if err := d.wait(stopLimit); err != nil {
		d.t.Errorf("%v\n%s", err, d.log())
		select {
		case <-d.ended:
		default:
			_ = d.cmd.Process.Signal(unix.SIGABRT) // prints its goroutines
			if d.wait(5*time.Second) != nil {
				_ = d.cmd.Process.Kill()
			}
			d.t.Logf("delayd printed:\n%s", d.log())
		}
	}
	running.Delete(d.process)
	for _, left := range d.leftovers() {
		d.t.Errorf("left behind by delayd: %s", left)
	}
}

// leftovers is what an ended daemon should have removed.
func (d *daemon) leftovers() (left []string) {
	if err := unix.Kill(-d.pid(), 0); !errors.Is(err, unix.ESRCH) {
		left = append(left, fmt.Sprintf("a process of its group %d (%v)", d.pid(), err))
	}
	if _, err := os.Lstat(d.socket); !errors.Is(err, os.ErrNotExist) {
		left = append(left, fmt.Sprintf("its socket %s (%v)", d.socket, err))
	}
	// mem: has a file of the owner's name.
	files, _ := filepath.Glob("/dev/shm/delayd-" + d.owner + ":*")
	left = append(left, files...)
	records, err := os.ReadDir(filepath.Join(d.runDir, d.owner))
	if err == nil && len(records) == 0 {
		left = append(left, "its empty folder in the run directory")
	}
	for _, r := range records {
		left = append(left, "in its run directory: "+r.Name())
	}
	known := foreign()
	running.Range(func(_, other any) bool {
		// Any of them may be another's, who can say.
		known = append(known, other.(*daemon).devices()...)
		return true
	})
	for _, dev := range ublkDevices() {
		if !slices.Contains(known, dev) {
			left = append(left, dev)
		}
	}
	return left
}

// devices are the names in sysfs of the daemon's ublk devices.
func (d *daemon) devices() (names []string) {
	out, _, code := d.ctl("list", "-o", "json")
	var list api.DeviceList
	if code != 0 || json.Unmarshal([]byte(out), &list) != nil {
		return nil
	}
	for _, dev := range list.Devices {
		names = append(names, fmt.Sprintf("ublkb%d", dev.ID), fmt.Sprintf("ublkc%d", dev.ID))
	}
	return names
}

// ublkDevices are the names of all there are.
func ublkDevices() (names []string) {
	for _, pattern := range []string{"/sys/class/ublk-char/ublkc*", "/sys/block/ublkb*"} {
		found, _ := filepath.Glob(pattern)
		for _, f := range found {
			names = append(names, filepath.Base(f))
		}
	}
	return names
}
