package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/delayd/delayd/pkg/api"
)

func wantProblem(t *testing.T, err error, kind api.ProblemType, detail, hint string) {
	t.Helper()
	p := problemOf(err)
	if !p.OfType(kind) || p.Detail != detail || p.Hint != hint {
		t.Errorf("got %s %q (hint %q), want %s %q (hint %q)", p.Type, p.Detail, p.Hint, kind, detail, hint)
	}
}

func names(m *Manager) []string {
	var out []string
	for _, d := range m.Devices() {
		out = append(out, d.Name)
	}
	return out
}

func TestAddFillsInDefaultsAndLists(t *testing.T) {
	m, starter := newManager(t, Options{})
	mustAdd(t, m, spec("b"))
	d := mustAdd(t, m, api.Spec{Name: "a", Backing: "null:1G", Delay: "1s", Write: "2s"})
	if got := starter.device("a").spec; got.Queues != 1 || got.Depth != 1024 || got.Hold != "submit" {
		t.Errorf("started with %+v", got)
	}
	want := api.Delays{Read: "1s", Write: "2s", Flush: "1s", Discard: "1s", WriteZeroes: "2s"}
	if diff := cmp.Diff(want, d.Delays); diff != "" {
		t.Error(diff)
	}
	if len(d.Warnings) != 2 || !strings.Contains(d.Warnings[0], "at most 1024 requests a second") {
		t.Errorf("warnings: %q", d.Warnings)
	}
	if diff := cmp.Diff([]string{"a", "b"}, names(m)); diff != "" {
		t.Error(diff)
	}
	shown, err := m.Device("a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.Warnings, shown.Warnings); diff != "" {
		t.Error(diff)
	}
}

func TestRefusals(t *testing.T) {
	ctx := context.Background()
	m, starter := newManager(t, Options{})
	_, err := m.Device("slow")
	wantProblem(t, err, api.ProblemNoDevice, `there is no device "slow"`, "there are no devices; `delayctl add` makes one")
	mustAdd(t, m, spec("slow"))
	mustAdd(t, m, spec("disk2"))

	_, err = m.Add(ctx, spec("slow"))
	wantProblem(t, err, api.ProblemNameTaken, `a device "slow" exists`, "choose another name, or remove it with `delayctl del slow`")
	err = m.Delete(ctx, "slwo", false)
	wantProblem(t, err, api.ProblemNoDevice, `there is no device "slwo"`, "did you mean slow?")
	err = m.Delete(ctx, "other", true)
	wantProblem(t, err, api.ProblemNoDevice, `there is no device "other"`, "the devices are disk2, slow")
	s := spec("many")
	s.Queues = 5
	_, err = m.Add(ctx, s)
	wantProblem(t, err, api.ProblemInvalid, "queues 5: more than the daemon has CPUs (4)", "want auto, or 1 to 4; the default is 1")

	starter.start = func(context.Context, api.Spec) error { return errors.New("ADD_DEV: out of memory") }
	_, err = m.Add(ctx, spec("x"))
	wantProblem(t, err, api.ProblemFailed, "ADD_DEV: out of memory", "")
	starter.start = func(context.Context, api.Spec) error { return fmt.Errorf("START_DEV: %w", context.DeadlineExceeded) }
	_, err = m.Add(ctx, spec("x"))
	wantProblem(t, err, api.ProblemTimeout, "START_DEV: context deadline exceeded", "")
	starter.start = nil
	mustAdd(t, m, spec("x")) // the name is free after a failure
}

func TestDeleteInUse(t *testing.T) {
	ctx := context.Background()
	m, starter := newManager(t, Options{})
	mustAdd(t, m, spec("slow"))
	dev := starter.device("slow")
	dev.setUsers(func() ([]string, error) { return []string{"mounted on /mnt", "process fio (7)"}, nil })
	began := time.Now()
	err := m.Delete(ctx, "slow", false)
	wantProblem(t, err, api.ProblemInUse, "it is in use: mounted on /mnt, process fio (7)",
		"stop using it, or insist with --force: its users then get I/O errors")
	if waited := time.Since(began); waited < 100*time.Millisecond {
		t.Errorf("said so after %v, before the wait for udev was over", waited)
	}
	if _, err := m.Device("slow"); err != nil {
		t.Errorf("the device is not there any more: %v", err)
	}
	if stops, kills := dev.counts(); stops+kills != 0 {
		t.Errorf("stopped %d and killed %d times", stops, kills)
	}
	if err := m.Delete(ctx, "slow", true); err != nil {
		t.Fatal(err)
	}
	if stops, kills := dev.counts(); stops != 0 || kills != 1 {
		t.Errorf("stopped %d and killed %d times, want 0 and 1", stops, kills)
	}
}

func TestDeleteWaitsForUdev(t *testing.T) {
	m, starter := newManager(t, Options{ProbeWait: 10 * time.Second})
	mustAdd(t, m, spec("slow"))
	var asked atomic.Int32
	starter.device("slow").setUsers(func() ([]string, error) {
		if asked.Add(1) < 4 {
			return []string{"process (udev-worker) (99)"}, nil
		}
		return nil, nil
	})
	if err := m.Delete(context.Background(), "slow", false); err != nil {
		t.Fatal(err)
	}
	if asked.Load() != 4 {
		t.Errorf("asked %d times, want 4", asked.Load())
	}
}

func TestDeleteThatFailsCanBeRepeated(t *testing.T) {
	ctx := context.Background()
	m, starter := newManager(t, Options{})
	mustAdd(t, m, spec("slow"))
	dev := starter.device("slow")
	dev.setStop(func(context.Context) error { return errors.New("STOP_DEV: no answer") })
	wantProblem(t, m.Delete(ctx, "slow", false), api.ProblemFailed, "STOP_DEV: no answer", "")
	dev.setUsers(func() ([]string, error) { return nil, errors.New("read /proc/swaps: denied") })
	wantProblem(t, m.Delete(ctx, "slow", false), api.ProblemFailed, "find out who has it open: read /proc/swaps: denied", "")
	dev.setStop(nil)
	if err := m.Delete(ctx, "slow", true); err != nil {
		t.Fatal(err)
	}
	if len(names(m)) != 0 {
		t.Errorf("left: %v", names(m))
	}
}

// A name is busy while its device starts and stops, and nothing else waits.
func TestNoLockIsHeldWhileADeviceStartsOrStops(t *testing.T) {
	ctx := context.Background()
	m, starter := newManager(t, Options{})
	entered, leave := make(chan struct{}), make(chan struct{})
	starter.start = func(_ context.Context, s api.Spec) error {
		if s.Name == "slow" {
			close(entered)
			<-leave
		}
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { mustAdd(t, m, spec("slow")) })
	<-entered
	mustAdd(t, m, spec("quick"))
	if diff := cmp.Diff([]string{"quick"}, names(m)); diff != "" {
		t.Error(diff)
	}
	_, err := m.Device("slow")
	wantProblem(t, err, api.ProblemBusy, `device "slow" is just being added`, "try again in a moment")
	wantProblem(t, m.Delete(ctx, "slow", true), api.ProblemBusy, `device "slow" is just being added`, "try again in a moment")
	_, err = m.Add(ctx, spec("slow"))
	wantProblem(t, err, api.ProblemNameTaken, `a device "slow" is just being added`, "choose another name, or remove it with `delayctl del slow`")
	close(leave)
	wg.Wait()

	entered, leave = make(chan struct{}), make(chan struct{})
	starter.device("slow").setStop(func(context.Context) error { close(entered); <-leave; return nil })
	wg.Go(func() {
		if err := m.Delete(ctx, "slow", false); err != nil {
			t.Error(err)
		}
	})
	<-entered
	if err := m.Delete(ctx, "quick", false); err != nil {
		t.Error(err)
	}
	_, err = m.Add(ctx, spec("slow"))
	wantProblem(t, err, api.ProblemNameTaken, `a device "slow" is just being removed`, "choose another name, or try again when it is gone")
	wantProblem(t, m.Delete(ctx, "slow", false), api.ProblemBusy, `device "slow" is just being removed`, "try again in a moment")
	close(leave)
	wg.Wait()
}

func TestSixteenClientsAtOnce(t *testing.T) {
	var changes atomic.Int32
	m, starter := newManager(t, Options{OnChange: func(int) { changes.Add(1) }})
	starter.start = func(context.Context, api.Spec) error { time.Sleep(time.Millisecond); return nil }
	var wg sync.WaitGroup
	const clients, rounds = 16, 20
	for i := range clients {
		wg.Go(func() {
			name := fmt.Sprintf("slow%d", i)
			for range rounds {
				if _, err := m.Add(context.Background(), spec(name)); err != nil {
					t.Errorf("add %s: %v", name, err)
				}
				if err := m.Delete(context.Background(), name, false); err != nil {
					t.Errorf("del %s: %v", name, err)
				}
				m.Devices()
			}
		})
	}
	wg.Wait()
	if len(names(m)) != 0 || starter.alive() != 0 {
		t.Errorf("left: %v, %d alive", names(m), starter.alive())
	}
	if changes.Load() != 2*clients*rounds {
		t.Errorf("told of %d changes, want %d", changes.Load(), 2*clients*rounds)
	}
}

// Of many who want one name, one gets it.
func TestOneNameIsGivenOnce(t *testing.T) {
	m, starter := newManager(t, Options{})
	var wg sync.WaitGroup
	var won atomic.Int32
	for range 16 {
		wg.Go(func() {
			if _, err := m.Add(context.Background(), spec("slow")); err == nil {
				won.Add(1)
			} else if p := problemOf(err); !p.OfType(api.ProblemNameTaken) {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || starter.alive() != 1 {
		t.Errorf("%d got it, %d alive", won.Load(), starter.alive())
	}
}

func TestAFailedDeviceIsListedUntilItIsRemoved(t *testing.T) {
	m, starter := newManager(t, Options{})
	mustAdd(t, m, spec("slow"))
	dev := starter.device("slow")
	dev.mu.Lock()
	dev.failure = "queue 0: a completion was lost"
	dev.mu.Unlock()
	d, err := m.Device("slow")
	if err != nil || d.State != "failed" || d.Error != "queue 0: a completion was lost" {
		t.Errorf("got %+v, %v", d, err)
	}
	if err := m.Delete(context.Background(), "slow", false); err != nil {
		t.Error(err)
	}
}

func TestRemovalGoesOnWithoutItsClient(t *testing.T) {
	m, starter := newManager(t, Options{})
	mustAdd(t, m, spec("slow"))
	ctx, cancel := context.WithCancel(context.Background())
	starter.device("slow").setStop(func(ctx context.Context) error { cancel(); return ctx.Err() })
	if err := m.Delete(ctx, "slow", false); err != nil {
		t.Error(err)
	}
	if starter.alive() != 0 {
		t.Error("the device is still there")
	}
}

func TestShutdown(t *testing.T) {
	var text bytes.Buffer
	m, starter := newManager(t, Options{Log: slog.New(slog.NewTextHandler(&text, nil))})
	for _, name := range []string{"idle", "busy", "odd"} {
		mustAdd(t, m, spec(name))
	}
	starter.device("busy").setUsers(func() ([]string, error) { return []string{"mounted on /mnt"}, nil })
	starter.device("odd").setUsers(func() ([]string, error) { return nil, errors.New("no /proc") })
	if err := m.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if starter.alive() != 0 {
		t.Errorf("%d devices are left", starter.alive())
	}
	for _, name := range []string{"idle", "busy", "odd"} {
		if stops, kills := starter.device(name).counts(); stops != 1 || kills != 0 {
			t.Errorf("%s: stopped %d and killed %d times, want 1 and 0", name, stops, kills)
		}
	}
	if want := `msg="device is in use; its requests are finished before it ends" device=busy users="mounted on /mnt"`; !strings.Contains(text.String(), want) {
		t.Errorf("the log lacks %s:\n%s", want, &text)
	}
	if strings.Contains(text.String(), "device=idle users") {
		t.Errorf("the log says that idle is in use:\n%s", &text)
	}
	_, err := m.Add(context.Background(), spec("late"))
	wantProblem(t, err, api.ProblemStopping, "delayd is ending", "")
	wantProblem(t, m.Delete(context.Background(), "idle", true), api.ProblemStopping, "delayd is ending", "")
}

func TestShutdownUndoesWhatIsBeingAdded(t *testing.T) {
	m, starter := newManager(t, Options{})
	entered := make(chan struct{})
	starter.start = func(ctx context.Context, _ api.Spec) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := m.Add(context.Background(), spec("slow")); err == nil {
			t.Error("it was added")
		}
	})
	<-entered
	if err := m.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestShutdownNamesWhatItCannotStop(t *testing.T) {
	m, starter := newManager(t, Options{})
	mustAdd(t, m, spec("stuck"))
	mustAdd(t, m, spec("fine"))
	starter.device("stuck").setStop(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	err := m.Shutdown(ctx)
	if err == nil || err.Error() != "stop stuck: context deadline exceeded" {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"stuck"}, names(m)); diff != "" {
		t.Error(diff)
	}
}

// Several are started at once, and numbered in their order.
func TestAddAll(t *testing.T) {
	m, starter := newManager(t, Options{})
	var specs []api.Spec
	for i := range 3 * atOnce {
		specs = append(specs, spec(fmt.Sprintf("d%d", i)))
	}
	var under, most atomic.Int32
	starter.start = func(context.Context, api.Spec) error {
		n := under.Add(1)
		defer under.Add(-1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		return nil
	}
	if err := m.AddAll(context.Background(), specs); err != nil {
		t.Fatal(err)
	}
	for i, s := range specs {
		if d, err := m.Device(s.Name); err != nil || d.ID != i {
			t.Errorf("%s has number %d, %v", s.Name, d.ID, err)
		}
	}
	if n := most.Load(); n < 2 || n > atOnce {
		t.Errorf("%d were started at once", n)
	}
}

// The first that fails ends it: what is being started is undone. One more may
// have begun, for this one fails after it has its number.
func TestAddAllWithOneThatFails(t *testing.T) {
	m, starter := newManager(t, Options{})
	starter.start = func(ctx context.Context, s api.Spec) error {
		switch s.Name {
		case "slow":
			<-ctx.Done()
			return ctx.Err()
		case "bad":
			return errors.New("no such thing")
		}
		return nil
	}
	err := m.AddAll(context.Background(), []api.Spec{spec("a"), spec("slow"), spec("bad"), spec("c")})
	if err == nil || err.Error() != "add bad: no such thing" {
		t.Errorf("got %v", err)
	}
	if n := len(m.Devices()); n > 2 {
		t.Errorf("%d devices are left", n)
	}
	if _, err := m.Device("slow"); err == nil {
		t.Error("one that was being started is left")
	}
	if err := m.AddAll(context.Background(), nil); err != nil {
		t.Errorf("none: %v", err)
	}
}
