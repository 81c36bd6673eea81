package ublkdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// expired returns a context that ends very soon.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// START_DEV waits for the queues: for ever, were it not for the limit.
func TestVMStartWithoutQueues(t *testing.T) {
	c := needUblk(t)
	info := device(t, c, AddOptions{ID: -1}, 1<<20)
	c.LongLimit = 300 * time.Millisecond
	defer func() { c.LongLimit = DefaultLongLimit }()

	start := time.Now()
	err := c.Start(t.Context(), info.ID, os.Getpid())
	took := time.Since(start)
	if !errors.Is(err, ErrTimeout) {
		t.Errorf("start: %v, want ErrTimeout", err)
	}
	for _, want := range []string{"START_DEV", fmt.Sprintf("device %d", info.ID), "300ms", "dmesg"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if took < c.LongLimit || took > c.LongLimit+2*time.Second {
		t.Errorf("gave up after %v, want %v", took, c.LongLimit)
	}

	// The same by the context.
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { cancel(errors.New("a queue failed")) })
	c.LongLimit = DefaultLongLimit
	start = time.Now()
	if err := c.Start(ctx, info.ID, os.Getpid()); !errors.Is(err, context.Canceled) || !strings.Contains(fmt.Sprint(err), "START_DEV") {
		t.Errorf("start with a context that ends: %v, want Canceled", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("gave up after %v, want 100 ms", took)
	}

	// The command waits interruptibly, so it could be taken back.
	if n := c.Unanswered(); n != 0 {
		t.Errorf("%d commands unanswered, want none", n)
	}
	if got, err := c.Info(t.Context(), info.ID); err != nil || got.State != Dead {
		t.Errorf("afterwards: %+v, %v, want dead", got, err)
	}
	// And the device can still be started, with queues.
	s := serve(t, info, memory(t, 1<<20))
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatalf("start with queues: %v", err)
	}
	stop(t, c, s)
}

// STOP_DEV waits for a request that the server does not answer, and cannot be
// interrupted: the channel is set aside, and comes back in the end.
func TestVMStopWithRequestUnanswered(t *testing.T) {
	c := needUblk(t)
	info := device(t, c, AddOptions{ID: -1}, 1<<20)
	s := serve(t, info, memory(t, 1<<20))
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	settle(t, s)

	s.gate.Lock()
	locked := true
	unlock := func() {
		if locked {
			s.gate.Unlock()
			locked = false
		}
	}
	defer unlock()
	reader := startChild(t, "read", BlockPath(info.ID))
	waitFor(t, "the request to arrive", func() bool { return inflight(t, info.ID) > 0 })

	c.LongLimit = 300 * time.Millisecond
	start := time.Now()
	err := c.Stop(t.Context(), info.ID)
	took := time.Since(start)
	c.LongLimit = DefaultLongLimit
	if !errors.Is(err, ErrTimeout) || !strings.Contains(fmt.Sprint(err), "STOP_DEV of device") || !strings.Contains(fmt.Sprint(err), "dmesg") {
		t.Errorf("stop: %v, want ErrTimeout", err)
	}
	if took > 3*time.Second {
		t.Errorf("gave up after %v, want 300 ms", took)
	}
	if n := c.Unanswered(); n != 1 {
		t.Errorf("%d commands unanswered, want the one", n)
	}

	// The Control works on, for other devices too.
	if _, err := c.Features(t.Context()); err != nil {
		t.Errorf("features meanwhile: %v", err)
	}
	if _, err := c.Info(t.Context(), info.ID); err != nil {
		t.Errorf("info meanwhile: %v", err)
	}
	other := add(t, c, AddOptions{ID: -1})
	if err := c.Delete(t.Context(), other.ID); err != nil {
		t.Errorf("delete another meanwhile: %v", err)
	}

	unlock()
	if err := reader.Wait(); err != nil {
		t.Errorf("the reader: %v", err)
	}
	waitFor(t, "the stop to be answered", func() bool { return c.Unanswered() == 0 })
	s.close()
	if got, err := c.Info(t.Context(), info.ID); err != nil || got.State != Dead {
		t.Errorf("afterwards: %+v, %v, want dead", got, err)
	}
}

// DEL_DEV waits until the server has let the device go.
func TestVMDeleteWhileOpen(t *testing.T) {
	c := needUblk(t)
	info := device(t, c, AddOptions{ID: -1}, 1<<20)
	char, err := OpenChar(t.Context(), info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer char.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.Delete(ctx, info.ID); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "DEL_DEV of device") {
		t.Errorf("delete: %v, want DeadlineExceeded", err)
	}
	if n := c.Unanswered(); n != 0 {
		t.Errorf("%d commands unanswered, want none", n)
	}
	_ = char.Close()
	waitFor(t, "the device to go", func() bool {
		_, err := c.Info(t.Context(), info.ID)
		return errors.Is(err, ErrNotFound)
	})
}

func TestVMDeleteAsync(t *testing.T) {
	c := needUblk(t)
	info := device(t, c, AddOptions{ID: -1}, 1<<20)
	char, err := OpenChar(t.Context(), info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer char.Close()
	if err := c.DeleteAsync(t.Context(), info.ID); err != nil {
		t.Fatal(err)
	}
	_ = char.Close()
	waitFor(t, "the device to go", func() bool {
		_, err := c.Info(t.Context(), info.ID)
		return errors.Is(err, ErrNotFound)
	})
}

// Many at once, from as many goroutines.
func TestVMConcurrentCommands(t *testing.T) {
	c := needUblk(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 3 {
				info, err := c.Add(t.Context(), AddOptions{ID: -1, Queues: 1, Depth: 8, MaxIOBytes: 4096})
				if err != nil {
					t.Error(err)
					return
				}
				if err := c.SetParams(t.Context(), info.ID, plainParams(info, 1<<20)); err != nil {
					t.Error(err)
				}
				p, err := c.GetParams(t.Context(), info.ID)
				if err != nil || p.Numbers == nil || int(p.Numbers.CharMinor) != info.ID {
					t.Errorf("device %d: parameters %+v, %v: another's answer?", info.ID, p, err)
				}
				got, err := c.Info(t.Context(), info.ID)
				if err != nil || got.ID != info.ID {
					t.Errorf("info of %d: %+v, %v", info.ID, got, err)
				}
				if err := c.Delete(t.Context(), info.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) > maxIdle || c.active != 0 {
		t.Errorf("%d channels kept, %d active, want at most %d and 0", len(c.idle), c.active, maxIdle)
	}
}

// Close while a command waits: the command ends with its own limit.
func TestVMCloseMeanwhile(t *testing.T) {
	keep := needUblk(t)
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	info := device(t, keep, AddOptions{ID: -1}, 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- c.Start(ctx, info.ID, os.Getpid()) }()
	waitFor(t, "the command to start", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.active == 1
	})
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := c.Features(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("features: %v, want ErrClosed", err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("start: %v, want Canceled", err)
	}
	if _, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the control file is still open: %v", err)
	}
}

// waitFor polls cond for up to 10 s.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}

// settle waits until whoever probes a new device is done with it.
func settle(t *testing.T, s *server) {
	t.Helper()
	total := func() (n int64) {
		for i := range s.served {
			n += s.served[i].Load()
		}
		return n
	}
	before, since := total(), time.Now()
	waitFor(t, "the probing to end", func() bool {
		if now := total(); now != before {
			before, since = now, time.Now()
		}
		return time.Since(since) > 200*time.Millisecond
	})
}

// inflight returns how many requests the block device has under way.
func inflight(t *testing.T, id int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/sys/block/ublkb%d/inflight", id))
	if err != nil {
		t.Fatal(err)
	}
	var reads, writes int
	if _, err := fmt.Sscan(string(b), &reads, &writes); err != nil {
		t.Fatalf("inflight %q: %v", b, err)
	}
	return reads + writes
}

// startChild is child without waiting.
func startChild(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}
