package uring

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var blocks = map[string]Block{"hold P": HoldP, "release P": ReleaseP}

// waitRings are the rings on which waiting differs.
var waitRings = []string{"plain", "coop, flag", "defer", "queue"}

// eachWait runs f on every kind of ring that waits, in both ways to wait.
func eachWait(t *testing.T, f func(t *testing.T, r *Ring, b Block)) {
	for _, name := range waitRings {
		for how, b := range blocks {
			t.Run(name+", "+how, func(t *testing.T) { f(t, open(t, configs[name]), b) })
		}
	}
}

// A wait that ends because its time is up has not ended before, and ends about
// then: half of the waits of a round within 5 ms, where a timer that counts
// ticks of 10 ms would be late by more. A busy machine gets three rounds.
func TestWaitTimeout(t *testing.T) {
	eachWait(t, func(t *testing.T, r *Ring, b Block) {
		for _, timeout := range []time.Duration{time.Nanosecond, 100 * time.Microsecond, time.Millisecond, 7 * time.Millisecond, 20 * time.Millisecond} {
			var late []time.Duration
			for range 3 {
				late = lateness(t, r, timeout, b)
				if late[len(late)/2] <= 5*time.Millisecond {
					break
				}
			}
			t.Logf("%v: late by %v", timeout, late)
			if late[len(late)/2] > 5*time.Millisecond {
				t.Errorf("wait of %v: late by %v", timeout, late)
			}
		}
	})
}

// lateness returns by how much waits were late, sorted.
func lateness(t *testing.T, r *Ring, timeout time.Duration, b Block) []time.Duration {
	t.Helper()
	late := make([]time.Duration, 0, 9)
	for try := 0; len(late) < cap(late); try++ {
		start := time.Now()
		errno := r.attempt(1, after(timeout), b)
		took := time.Since(start)
		switch {
		case errno == unix.EINTR && try < 1000:
			continue // a signal of the runtime; TestSignalEndsWait has those
		case errno != unix.ETIME:
			t.Fatalf("wait of %v: %v", timeout, errno)
		case took < timeout:
			t.Fatalf("wait of %v ended after %v", timeout, took)
		}
		late = append(late, took-timeout)
	}
	slices.Sort(late)
	return late
}

// What ends a wait early is a completion.
func TestWaitEndsWithCompletion(t *testing.T) {
	eachWait(t, func(t *testing.T, r *Ring, b Block) {
		buf := memory(t, 4096)
		ts := (*unix.Timespec)(ptr(buf))
		*ts = unix.NsecToTimespec(int64(3 * time.Millisecond))
		s := next(t, r)
		s.Opcode, s.FD, s.Addr, s.Len, s.UserData = OpTimeout, -1, addr(buf), 1, 9
		start := time.Now()
		var c [1]CQE
		for r.Reap(c[:]) == 0 {
			must(t, r.Wait(1, time.Minute, b))
		}
		took := time.Since(start)
		if c[0] != (CQE{UserData: 9, Res: -int32(unix.ETIME)}) {
			t.Errorf("completed with %+v", c[0])
		}
		if took < 3*time.Millisecond || took > 30*time.Second {
			t.Errorf("a 3 ms timer and a wait of a minute took %v", took)
		}
	})
}

// With completions there already, or nothing asked for, there is no wait.
func TestWaitDoesNotWait(t *testing.T) {
	eachWait(t, func(t *testing.T, r *Ring, b Block) {
		for range 3 {
			next(t, r)
		}
		must(t, r.Submit())
		for what, f := range map[string]func() error{
			"wait for 3 of 3":    func() error { return r.Wait(3, -1, b) },
			"wait for none":      func() error { return r.Wait(0, -1, b) },
			"wait for -1":        func() error { return r.Wait(-1, time.Hour, b) },
			"wait for no time":   func() error { return r.Wait(10, 0, b) },
			"submit nothing":     r.Submit,
			"wait for 1 of them": func() error { return r.Wait(1, time.Hour, b) },
		} {
			start := time.Now()
			must(t, f())
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("%s took %v", what, took)
			}
		}
		if got := len(collect(t, r, 3)); got != 3 {
			t.Errorf("%d completions", got)
		}
	})
}

// Submit with operations in flight that do not end.
func TestSubmitDoesNotBlock(t *testing.T) {
	eachConfig(t, func(t *testing.T, r *Ring) {
		if r.Config().IOPoll {
			return // a pipe cannot be polled for
		}
		buf := memory(t, 4096)
		var p [2]int
		must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
		defer unix.Close(p[0])
		s := next(t, r)
		s.Opcode, s.FD, s.Addr, s.Len, s.UserData = OpRead, int32(p[0]), addr(buf), 8, 1
		start := time.Now()
		for range 1000 {
			must(t, r.Submit())
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("1000 submits took %v", took)
		}
		if got := r.Reap(make([]CQE, 1)); got != 0 {
			t.Error("an empty pipe was read")
		}
		unix.Close(p[1])
		if c := one(t, r); c != (CQE{UserData: 1}) {
			t.Errorf("end of file is %+v", c)
		}
	})
}

// An SQE that the kernel refuses: without SUBMIT_ALL it stops there, and the
// rest has to be handed to it again, in the same call.
func TestSubmitGoesOnAfterRefusedSQE(t *testing.T) {
	for _, name := range []string{"plain", "submit all", "queue", "queue, large", "defer"} {
		t.Run(name, func(t *testing.T) {
			r := open(t, configs[name])
			const n = 12
			for _, wait := range []bool{false, true} {
				for i := range uint64(n) {
					s := next(t, r)
					s.UserData = i
					if i%5 == 2 {
						s.Opcode = 255
					}
				}
				if wait {
					must(t, r.Wait(n, -1, HoldP))
				} else {
					must(t, r.Submit())
				}
				if r.Pending() != 0 {
					t.Fatalf("%d left", r.Pending())
				}
				got := collect(t, r, n)
				slices.SortFunc(got, func(a, b CQE) int { return int(a.UserData) - int(b.UserData) })
				for i, c := range got {
					want := CQE{UserData: uint64(i)}
					if i%5 == 2 {
						want.Res = -int32(unix.EINVAL)
					}
					if c != want {
						t.Errorf("completion %d is %+v", i, c)
					}
				}
			}
		})
	}
}

// wakers are the two ways in which another thread ends a wait: a message from
// its own ring, and an eventfd that the waiting ring reads.
var wakers = map[string]func(t *testing.T, r *Ring) (wake func() error){
	"message": func(t *testing.T, r *Ring) func() error {
		fd := r.FD()
		return func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			from, err := New(Config{Entries: 1})
			if err != nil {
				return err
			}
			defer from.Close()
			s := from.Next()
			s.Opcode, s.FD, s.Addr, s.Off, s.Len = OpMsgRing, int32(fd), MsgData, 77, 8
			if err := from.Wait(1, -1, ReleaseP); err != nil {
				return err
			}
			var c [1]CQE
			if from.Reap(c[:]) != 1 || c[0].Res != 0 {
				return errors.New("message not sent")
			}
			return nil
		}
	},
	"eventfd": func(t *testing.T, r *Ring) func() error {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		must(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		s := next(t, r)
		s.Opcode, s.FD, s.Addr, s.Len, s.UserData = OpRead, int32(fd), addr(memory(t, 4096)), 8, 77
		must(t, r.Submit())
		return func() error {
			_, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			return err
		}
	},
}

func TestWakeFromAnotherThread(t *testing.T) {
	for what, waker := range wakers {
		t.Run(what, func(t *testing.T) {
			eachWait(t, func(t *testing.T, r *Ring, b Block) {
				wake := waker(t, r)
				var woken atomic.Int64
				failed := make(chan error, 1)
				start := time.Now()
				go func() {
					time.Sleep(20 * time.Millisecond)
					woken.Store(int64(time.Since(start)))
					failed <- wake()
				}()
				var c [1]CQE
				for r.Reap(c[:]) == 0 {
					must(t, r.Wait(1, -1, b))
				}
				seen := time.Since(start)
				must(t, <-failed)
				if c[0] != (CQE{UserData: 77, Res: 8}) {
					t.Errorf("woken by %+v", c[0])
				}
				sent := time.Duration(woken.Load())
				if seen < sent || seen > sent+10*time.Second {
					t.Errorf("woken after %v, the waker came after %v", seen, sent)
				}
			})
		})
	}
}

// A thread that waits with its P held stands in the way of a collection until
// the runtime's signal ends its wait. It does, each time, and the wait goes on
// afterwards. One that has given its P away is left alone.
func TestGarbageCollectionDuringWait(t *testing.T) {
	eachWait(t, func(t *testing.T, r *Ring, b Block) {
		wake := wakers["eventfd"](t, r)
		const collections = 20
		done := make(chan time.Duration, 1)
		failed := make(chan error, 1)
		go func() {
			time.Sleep(5 * time.Millisecond)
			start := time.Now()
			for range collections {
				runtime.GC()
			}
			done <- time.Since(start)
			failed <- wake()
		}()
		var c [1]CQE
		turns := 0
		for ; r.Reap(c[:]) == 0; turns++ {
			must(t, r.Wait(1, time.Minute, b))
		}
		took := <-done
		must(t, <-failed)
		t.Logf("%d collections in %v, %d turns", collections, took, turns)
		if b == HoldP && turns < collections {
			t.Errorf("%d turns in %d collections: the P was not held", turns, collections)
		}
		if b == ReleaseP && turns > collections/2 {
			t.Errorf("%d turns in %d collections: the P was not released", turns, collections)
		}
		if took > 20*time.Second {
			t.Errorf("%d collections took %v", collections, took)
		}
		if c[0] != (CQE{UserData: 77, Res: 8}) {
			t.Errorf("woken by %+v", c[0])
		}
	})
}

// A signal ends a wait without an error, and without a completion.
func TestSignalEndsWait(t *testing.T) {
	eachWait(t, func(t *testing.T, r *Ring, b Block) {
		pid, tid := unix.Getpid(), unix.Gettid()
		stop := make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
					unix.Tgkill(pid, tid, unix.SIGURG) // the signal that the runtime itself uses
				}
			}
		}()
		start := time.Now()
		errno := r.attempt(1, after(time.Minute), b)
		took := time.Since(start)
		must(t, r.Wait(1, time.Minute, b))
		both := time.Since(start)
		close(stop)
		<-stopped
		if errno != unix.EINTR {
			t.Errorf("interrupted wait: %v", errno)
		}
		if took > 30*time.Second || both > 50*time.Second {
			t.Errorf("interrupted waits of a minute took %v and %v", took, both-took)
		}
		if r.Reap(make([]CQE, 1)) != 0 {
			t.Error("a signal completed something")
		}
	})
}

func TestWrongThread(t *testing.T) {
	for _, name := range []string{"single issuer", "defer"} {
		t.Run(name, func(t *testing.T) {
			r := open(t, configs[name])
			next(t, r)
			failed := make(chan error)
			go func() { // on another thread, since this one is locked
				failed <- r.Submit()
			}()
			err := <-failed
			if !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), "belongs to the thread") {
				t.Errorf("submitted on another thread: %v", err)
			}
			if c := one(t, r); c.Res != 0 {
				t.Errorf("afterwards on its own: %+v", c)
			}
		})
	}
	t.Run("registered", func(t *testing.T) {
		r := open(t, configs["registered"])
		failed := make(chan error)
		go func() { failed <- r.Submit() }()
		if err := <-failed; err == nil || !strings.Contains(err.Error(), "belongs to the thread") {
			t.Errorf("submitted on another thread: %v", err)
		}
	})
}

func TestUseAfterClose(t *testing.T) {
	r := open(t, queueConfig)
	must(t, r.Close())
	must(t, r.Close())
	if r.FD() != -1 || r.Next() != nil || r.Reap(make([]CQE, 4)) != 0 || r.Ready() || r.Pending() != 0 || r.Space() != 0 || r.Lost() != 0 {
		t.Error("a closed ring is not empty")
	}
	for what, err := range map[string]error{
		"submit":             r.Submit(),
		"wait":               r.Wait(1, time.Second, HoldP),
		"register files":     r.RegisterFiles([]int32{0}),
		"update file":        r.UpdateFile(0, -1),
		"unregister files":   r.UnregisterFiles(),
		"update buffer":      r.UpdateBuffer(0, unix.Iovec{}),
		"unregister buffers": r.UnregisterBuffers(),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
}
