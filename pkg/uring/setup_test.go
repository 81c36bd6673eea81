package uring

import (
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// olderKernel is a kernel that knows only some set-up flags.
func olderKernel(lacks uint32) setupFunc {
	return func(entries uint32, p *params) (int, syscall.Errno) {
		if p.flags&lacks != 0 {
			return -1, unix.EINVAL
		}
		return setup(entries, p)
	}
}

func TestFallBack(t *testing.T) {
	const (
		since61  = setupDeferTaskrun
		since60  = since61 | setupSingleIssuer
		since519 = since60 | setupCoopTaskrun | setupTaskrunFlag
		since518 = since519 | setupSubmitAll
	)
	all := Config{SingleIssuer: true, DeferTaskrun: true, TaskrunFlag: true, SubmitAll: true, RegisterRing: true}
	for _, c := range []struct {
		what  string
		lacks uint32
		asked Config
		want  Config
	}{
		{"this kernel", 0, all, all},
		{"6.0", since61, all, Config{CoopTaskrun: true, TaskrunFlag: true, SubmitAll: true, RegisterRing: true}},
		{"5.19", since60, all, Config{CoopTaskrun: true, TaskrunFlag: true, SubmitAll: true, RegisterRing: true}},
		{"5.18", since519, all, Config{SubmitAll: true, RegisterRing: true}},
		{"5.17", since518, all, Config{RegisterRing: true}},
		{"5.19 with large entries", since60,
			Config{SQE128: true, CQE32: true, SingleIssuer: true, DeferTaskrun: true},
			Config{SQE128: true, CQE32: true, CoopTaskrun: true}},
		{"single issuer only", since60, Config{SingleIssuer: true}, Config{}},
		{"defer implies single issuer", 0, Config{DeferTaskrun: true}, Config{SingleIssuer: true, DeferTaskrun: true}},
		{"the flag implies coop", 0, Config{TaskrunFlag: true}, Config{CoopTaskrun: true, TaskrunFlag: true}},
		{"nothing asked", ^uint32(setupCQSize), Config{}, Config{}},
	} {
		t.Run(c.what, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			c.asked.Entries, c.asked.CQEntries = 5, 100
			c.want.Entries, c.want.CQEntries = 8, 128
			r, err := newRing(c.asked, olderKernel(c.lacks))
			must(t, err)
			defer r.Close()
			if r.Config() != c.want {
				t.Errorf("asked for %+v\ngot       %+v\nwant      %+v", c.asked, r.Config(), c.want)
			}
			next(t, r).UserData = 3
			if got := one(t, r); got != (CQE{UserData: 3}) {
				t.Errorf("a NOP completed with %+v", got)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	fails := func(errno syscall.Errno) setupFunc {
		return func(uint32, *params) (int, syscall.Errno) { return -1, errno }
	}
	for _, c := range []struct {
		what  string
		c     Config
		setup setupFunc
		is    error
		says  string
	}{
		{"no entries", Config{}, setup, nil, "0 entries: want 1 to 32768"},
		{"too many entries", Config{Entries: 32769}, setup, nil, "32769 entries: want 1 to 32768"},
		{"too few completions", Config{Entries: 64, CQEntries: 32}, setup, nil, "32 completion entries: want 64 to 65536, or 0 for 128"},
		{"too many completions", Config{Entries: 64, CQEntries: 65537}, setup, nil, "65537 completion entries"},
		{"no io_uring", Config{Entries: 1}, fails(unix.ENOSYS), ErrNotSupported, "CONFIG_IO_URING"},
		{"no large SQEs", Config{Entries: 1, SQE128: true, DeferTaskrun: true}, olderKernel(setupSQE128), ErrNotSupported, "128-byte SQEs (Linux 5.19)"},
		{"no large CQEs", Config{Entries: 1, CQE32: true}, olderKernel(setupCQE32), ErrNotSupported, "32-byte CQEs (Linux 5.19)"},
		{"no polling", Config{Entries: 1, IOPoll: true}, olderKernel(setupIOPoll), ErrNotSupported, "polling"},
		{"refused for no reason", Config{Entries: 1}, fails(unix.EINVAL), unix.EINVAL, "1 entries"},
		{"no descriptors", Config{Entries: 1}, fails(unix.EMFILE), unix.EMFILE, "LimitNOFILE="},
		{"no memory", Config{Entries: 1}, fails(unix.ENOMEM), unix.ENOMEM, "LimitMEMLOCK="},
		{"forbidden", Config{Entries: 1}, fails(unix.EPERM), ErrForbidden, "seccomp"},
		{"5.10", Config{Entries: 1}, func(n uint32, p *params) (int, syscall.Errno) {
			fd, errno := setup(n, p)
			p.features &^= featExtArg
			return fd, errno
		}, ErrNotSupported, "Linux 5.11"},
	} {
		t.Run(c.what, func(t *testing.T) {
			files, maps := openFiles(t), mappings(t)
			r, err := newRing(c.c, c.setup)
			if err == nil {
				r.Close()
				t.Fatal("made a ring")
			}
			t.Log(err)
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v: not %v", err, c.is)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: does not say %q", err, c.says)
			}
			if f, m := openFiles(t), mappings(t); f != files || m != maps {
				t.Errorf("left behind: %d files, %d bytes mapped", f-files, m-maps)
			}
		})
	}
}

func TestForbiddenNamesTheSysctl(t *testing.T) {
	for value, says := range map[string]string{
		"2": "kernel.io_uring_disabled is 2 (nobody may); set it with `sysctl kernel.io_uring_disabled=0`",
		"1": "kernel.io_uring_disabled is 1 (only root",
		"0": "seccomp",
		"":  "seccomp",
	} {
		err := forbidden(value, unix.EPERM)
		if !errors.Is(err, ErrForbidden) || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// All of a ring is mapped, and unmapped again: with 128-byte SQEs twice as much
// as without.
func TestCloseUnmapsEverything(t *testing.T) {
	files, before := openFiles(t), mappings(t)
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r, err := New(c)
			must(t, err)
			got := r.Config()
			sqe, cqe := uint64(64), uint64(16)
			if got.SQE128 {
				sqe = 128
			}
			if got.CQE32 {
				cqe = 32
			}
			atLeast := uint64(got.Entries)*sqe + uint64(got.CQEntries)*cqe
			if m := mappings(t) - before; m < atLeast || m > atLeast+6*uint64(os.Getpagesize()) {
				t.Errorf("mapped %d bytes for %d", m, atLeast)
			}
			// The last byte of the last SQE can be touched.
			r.sqes[uint64(got.Entries)*sqe-1] = 1
			must(t, r.Close())
			if m := mappings(t); m != before {
				t.Errorf("%d bytes still mapped", m-before)
			}
			if f := openFiles(t); f != files {
				t.Errorf("%d files still open", f-files)
			}
		})
	}
}

// One thread can register 16 rings; Close gives the place back.
func TestRegisteredRings(t *testing.T) {
	for i := range 40 {
		func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r, err := New(queueConfig)
			must(t, err)
			defer r.Close()
			if !r.Config().RegisterRing || r.enterFlags != enterRegisteredRing {
				t.Fatalf("ring %d is not registered", i)
			}
			next(t, r)
			one(t, r)
		}()
	}
	t.Run("the 17th falls back", func(t *testing.T) {
		for i := range 17 {
			r := open(t, queueConfig)
			if want := i < 16; r.Config().RegisterRing != want {
				t.Errorf("ring %d: registered %v", i, !want)
			}
			next(t, r)
			one(t, r)
		}
	})
}

// Whether a ring is really gone shows in a pipe whose writing end only its file
// table holds: it ends when the ring does.
func TestCloseFreesTheRing(t *testing.T) {
	for _, c := range []struct {
		what          string
		config        Config
		elsewhere     bool // closed on another thread
		untilThreadIs bool // gone only with the thread that made it
	}{
		{"plain", configs["plain"], false, false},
		{"plain, on another thread", configs["plain"], true, false},
		{"defer", configs["defer"], false, false},
		{"defer, on another thread", configs["defer"], true, false},
		{"registered", queueConfig, false, false},
		{"registered, on another thread", queueConfig, true, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			read, write, err := os.Pipe()
			must(t, err)
			defer read.Close()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				io.Copy(io.Discard, read)
			}()
			rings, exit := make(chan *Ring), make(chan struct{})
			go func() { // ends without UnlockOSThread, which ends the thread
				runtime.LockOSThread()
				r, err := New(c.config)
				if err == nil {
					err = r.RegisterFiles([]int32{int32(write.Fd())})
				}
				if err == nil && !c.elsewhere {
					err = r.Close()
				}
				if err != nil {
					t.Error(err)
				}
				rings <- r
				<-exit
			}()
			r := <-rings
			write.Close()
			if c.elsewhere {
				must(t, r.Close())
			}
			if c.untilThreadIs {
				select {
				case <-ended:
					t.Error("gone before its thread")
				case <-time.After(200 * time.Millisecond):
				}
				close(exit)
			} else {
				defer close(exit)
			}
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("not gone after 20 s")
			}
		})
	}
}
