package device

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
)

// childHost is a host that can do no more than have children.
func childHost(t *testing.T, helper ...string) *Host {
	if helper == nil {
		self, err := os.Executable()
		must(t, err)
		helper = []string{self, "helper"}
	}
	h := &Host{opts: HostOptions{Helper: helper}, log: slog.New(slog.DiscardHandler)}
	t.Cleanup(h.settlers.close)
	return h
}

// idle returns the one settler that has nothing to do.
func (h *Host) idle(t *testing.T) *settler {
	t.Helper()
	h.settlers.mu.Lock()
	defer h.settlers.mu.Unlock()
	if len(h.settlers.idle) != 1 {
		t.Fatalf("%d processes have nothing to do, want one", len(h.settlers.idle))
	}
	return h.settlers.idle[0]
}

func TestSettle(t *testing.T) {
	for want, args := range map[string][]string{
		`helper settle x: "x" is not a number`:       {"settle", "x"},
		`helper start 1 -1: "-1" is not a number`:    {"start", "1", "-1"},
		`want "start ID PID" or "settle ID"`:         {"mount", "1"},
		"set the scheduler: open /sys/block/ublkb99": {"settle", "999999"},
	} {
		h := childHost(t)
		if said, err := h.settle(limit(t), args...); err == nil || !strings.Contains(err.Error(), want) || said != "" {
			t.Errorf("%q: %q, %v; want %q", args, said, err, want)
		}
	}
}

// One process serves one device after the other, and goes when there is no more.
func TestSettlerIsKeptForAWhile(t *testing.T) {
	h := childHost(t)
	first := 0
	for range 5 {
		if _, err := h.settle(limit(t), "settle", "999999"); err == nil {
			t.Fatal("a device that is not there was settled")
		}
		s := h.idle(t)
		if first == 0 {
			first = s.cmd.Process.Pid
		}
		if pid := s.cmd.Process.Pid; pid != first {
			t.Fatalf("process %d, then %d", first, pid)
		}
	}
	s := h.idle(t)
	if !s.gone(settlerIdle + 20*time.Second) {
		t.Fatal("a process without work does not go")
	}
	if s := h.settlers.take(); s != nil {
		t.Error("it is still said to be there")
	}
}

// A process that died while it had nothing to do is replaced.
func TestSettlerThatDiedIdle(t *testing.T) {
	h := childHost(t)
	settleNone := func() {
		t.Helper()
		if _, err := h.settle(limit(t), "settle", "999999"); err == nil || !strings.Contains(err.Error(), "set the scheduler") {
			t.Fatalf("got %v", err)
		}
	}
	settleNone()
	s := h.idle(t)
	must(t, s.cmd.Process.Kill())
	if !s.gone(20 * time.Second) {
		t.Fatal("it does not end")
	}
	settleNone()
	if again := h.idle(t); again == s {
		t.Error("it is said to live")
	}
}

// One that does not answer is killed; one that ends without an answer, or cannot
// be started, is an error with its last words.
func TestSettlerThatDoesNotAnswer(t *testing.T) {
	h := childHost(t, "/bin/sh", "-c", "exec sleep 1000")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := h.settle(ctx, "settle", "1")
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 20*time.Second {
		t.Errorf("got %v after %v", err, time.Since(began))
	}
	if h.settlers.take() != nil {
		t.Error("it is kept")
	}
	h = childHost(t, "/bin/sh", "-c", "echo no such luck >&2")
	if _, err := h.settle(limit(t), "settle", "1"); err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("got %v", err)
	}
	h = childHost(t, "/nonexistent/helper")
	if _, err := h.settle(limit(t), "settle", "1"); err == nil || !strings.Contains(err.Error(), "start a helper") {
		t.Errorf("got %v", err)
	}
}

// The child's side ends with its input, and says so if that is nonsense.
func TestServeSettling(t *testing.T) {
	var out bytes.Buffer
	must(t, serveSettling(strings.NewReader(`["settle","y"]`+"\n"+`["settle","z"]`), &out))
	if want := `{"error":"\"y\" is not a number"}` + "\n" + `{"error":"\"z\" is not a number"}` + "\n"; out.String() != want {
		t.Errorf("got %s", out.String())
	}
	if err := serveSettling(strings.NewReader("settle 1"), &out); err == nil || !strings.Contains(err.Error(), "helper serve") {
		t.Errorf("got %v", err)
	}
}

// A host that is closed leaves no process, whatever that is just doing.
func TestClosedHostHasNoSettlers(t *testing.T) {
	h := childHost(t)
	if _, err := h.settle(limit(t), "settle", "999999"); err == nil {
		t.Fatal("a device that is not there was settled")
	}
	idle := h.idle(t)
	busy, used, err := h.settler()
	if err != nil || busy != idle || !used {
		t.Fatalf("got %p of %p, %v", busy, idle, err)
	}
	other, _, err := h.settler()
	must(t, err)
	h.settlers.put(other)
	h.settlers.close()
	for _, s := range []*settler{busy, other} {
		select {
		case <-s.ended:
		default:
			t.Errorf("process %d is still there", s.cmd.Process.Pid)
		}
	}
}
