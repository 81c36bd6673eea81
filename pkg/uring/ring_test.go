package uring

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestNop(t *testing.T) {
	eachConfig(t, func(t *testing.T, r *Ring) {
		s := next(t, r)
		s.Opcode, s.UserData = OpNop, 0xfedcba9876543210
		if r.Pending() != 1 || r.Space() != int(r.Config().Entries)-1 {
			t.Errorf("1 SQE queued: %d pending, room for %d", r.Pending(), r.Space())
		}
		if c := one(t, r); c != (CQE{UserData: 0xfedcba9876543210}) {
			t.Errorf("completed with %+v", c)
		}
		if r.Pending() != 0 || r.Ready() {
			t.Errorf("all done: %d pending, ready %v", r.Pending(), r.Ready())
		}
	})
}

// The queues wrap many times, with batches that do not divide their sizes.
func TestManyNops(t *testing.T) {
	for name, c := range configs {
		n := 10_000
		if name == "queue" || name == "plain" {
			n = 100_000
		}
		if testing.Short() {
			n /= 10
		}
		t.Run(name, func(t *testing.T) {
			r := open(t, c)
			var sent, seen uint64
			dst := make([]CQE, 37)
			for batch := 1; seen < uint64(n); batch = batch%61 + 1 {
				for range batch {
					if sent == uint64(n) || r.Space() == 0 {
						break
					}
					s := next(t, r)
					s.Opcode, s.UserData = OpNop, sent
					sent++
				}
				must(t, r.Submit())
				for _, c := range dst[:r.Reap(dst)] {
					if c.UserData != seen || c.Res != 0 {
						t.Fatalf("completion %d is %+v", seen, c)
					}
					seen++
				}
			}
			if sent != seen || r.Ready() || r.Lost() != 0 {
				t.Errorf("%d sent, %d seen, ready %v, %d lost", sent, seen, r.Ready(), r.Lost())
			}
		})
	}
}

func TestNextIsZeroAndBounded(t *testing.T) {
	eachConfig(t, func(t *testing.T, r *Ring) {
		n, size := int(r.Config().Entries), 64
		if r.Config().SQE128 {
			size = 128
		}
		for lap := range 3 {
			for i := range n {
				b := unsafe.Slice((*byte)(unsafe.Pointer(next(t, r))), size)
				for at, v := range b {
					if v != 0 {
						t.Fatalf("lap %d: byte %d of SQE %d is %#x", lap, at, i, v)
					}
				}
				// Dirty all of it but what makes it a NOP that the kernel accepts.
				for at := 64; at < size; at++ {
					b[at] = 0xff
				}
				(*SQE)(unsafe.Pointer(&b[0])).UserData = ^uint64(0)
			}
			if s := r.Next(); s != nil || r.Space() != 0 || r.Pending() != n {
				t.Fatalf("full queue of %d: next %p, room for %d, %d pending", n, s, r.Space(), r.Pending())
			}
			for _, c := range collect(t, r, n) {
				if c.Res != 0 {
					t.Fatalf("a NOP completed with %d", c.Res)
				}
			}
			if r.Space() != n {
				t.Fatalf("empty queue of %d has room for %d", n, r.Space())
			}
		}
	})
}

// The counters of both queues wrap at 2³², which no test lives to see: here
// they begin just before it, in queues that no kernel serves.
func TestCountersWrap(t *testing.T) {
	const entries, start = 4, ^uint32(0) - 1
	for _, big := range []bool{false, true} {
		var sqHead, sqTail, flags, cqHead, cqTail uint32 = start, start, 0, start, start
		sqes, cqes := make([]SQE, 2*entries), make([]BigCQE, entries)
		sqShift, cqShift := uint8(6), uint8(4)
		if big {
			sqShift, cqShift = 7, 5
		}
		r := &Ring{
			sq: submission{head: &sqHead, tail: &sqTail, flags: &flags, localTail: start,
				entries: entries, mask: entries - 1, shift: sqShift, base: unsafe.Pointer(&sqes[0])},
			cq: completion{head: &cqHead, tail: &cqTail, localHead: start,
				mask: entries - 1, shift: cqShift, big: big, base: unsafe.Pointer(&cqes[0])},
		}
		for i := range uint64(100) {
			for r.Space() > 0 {
				r.Next().UserData = i
			}
			if r.Next() != nil || r.Pending() != entries || r.publish() != entries {
				t.Fatalf("full: %d pending, %d published", r.Pending(), r.publish())
			}
			if sqTail != sqHead+entries {
				t.Fatalf("tail is %d, head %d", sqTail, sqHead)
			}
			// The kernel takes three and completes them.
			for range 3 {
				s := (*SQE)(unsafe.Add(unsafe.Pointer(&sqes[0]), uintptr(sqHead%entries)<<sqShift))
				if s.UserData > i {
					t.Fatalf("turn %d has an SQE of turn %d", i, s.UserData)
				}
				at := unsafe.Add(unsafe.Pointer(&cqes[0]), uintptr(cqTail%entries)<<cqShift)
				*(*CQE)(at) = CQE{UserData: uint64(cqTail), Res: int32(i)}
				if big {
					(*BigCQE)(at).Extra = [2]uint64{i, ^i}
				}
				sqHead++
				cqTail++
			}
			dst := make([]BigCQE, 2)
			at := cqHead
			for _, n := range []int{2, 1, 0} {
				if ready := r.Ready(); ready != (n > 0) {
					t.Fatalf("ready %v with %d completions", ready, n)
				}
				if got := r.ReapBig(dst); got != n {
					t.Fatalf("reaped %d, want %d", got, n)
				}
				for _, c := range dst[:n] {
					want := BigCQE{CQE: CQE{UserData: uint64(at), Res: int32(i)}}
					if big {
						want.Extra = [2]uint64{i, ^i}
					}
					if c != want {
						t.Fatalf("completion %d is %+v, want %+v", at, c, want)
					}
					at++
				}
			}
			if cqHead != cqTail {
				t.Fatalf("all reaped: head %d, tail %d", cqHead, cqTail)
			}
		}
	}
}

func TestReadyReadsTheFlags(t *testing.T) {
	r := open(t, configs["plain"])
	for flag, want := range map[uint32]bool{0: false, sqTaskrun: true, sqCQOverflow: true, 1: false} {
		old := atomic.SwapUint32(r.sq.flags, flag)
		if got := r.Ready(); got != want {
			t.Errorf("flags %#x: ready %v", flag, got)
		}
		atomic.StoreUint32(r.sq.flags, old)
	}
}

// An operation that ends later, on a ring with TASKRUN_FLAG: Ready turns true
// without a system call of ours, and a Submit makes the completion appear.
func TestReadyTellsTaskWork(t *testing.T) {
	for _, name := range []string{"coop, flag", "defer, flag", "queue", "queue, large"} {
		t.Run(name, func(t *testing.T) {
			r := open(t, configs[name])
			buf := memory(t, 4096)
			var p [2]int
			must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
			defer unix.Close(p[0])
			defer unix.Close(p[1])
			s := next(t, r)
			s.Opcode, s.FD, s.Addr, s.Len, s.UserData = OpRead, int32(p[0]), addr(buf), 8, 7
			must(t, r.Submit())
			if r.Ready() {
				t.Fatal("ready before the pipe has anything to read")
			}
			if _, err := unix.Write(p[1], []byte("8 bytes!")); err != nil {
				t.Fatal(err)
			}
			if r.config.DeferTaskrun {
				if got := r.Reap(make([]CQE, 1)); got != 0 {
					t.Fatal("a completion appeared without an enter")
				}
			}
			if !r.Ready() {
				t.Fatal("not ready after the pipe has got something to read")
			}
			must(t, r.Submit())
			var c [2]CQE
			if n := r.Reap(c[:]); n != 1 || c[0] != (CQE{UserData: 7, Res: 8}) || string(buf[:8]) != "8 bytes!" {
				t.Errorf("%d completions, %+v, %q", n, c[0], buf[:8])
			}
			if r.Ready() {
				t.Error("still ready")
			}
		})
	}
}

// A tiny ring against a model of it: everything that is queued completes once
// and in order, whatever the order of calls, and the counts are right.
func TestModel(t *testing.T) {
	for _, name := range []string{"plain", "queue", "queue, large"} {
		t.Run(name, func(t *testing.T) {
			c := configs[name]
			c.Entries, c.CQEntries = 4, 4
			r := open(t, c)
			rapid.Check(t, func(rt *rapid.T) {
				var queued, taken, seen uint64
				reap := func(limit int) {
					dst := make([]CQE, limit)
					for _, c := range dst[:r.Reap(dst)] {
						if c.UserData != seen || c.Res != 0 {
							rt.Fatalf("completion %d is %+v", seen, c)
						}
						seen++
					}
				}
				enter := func(err error) {
					if err != nil {
						rt.Fatal(err)
					}
					taken = queued
				}
				rt.Repeat(map[string]func(*rapid.T){
					"next": func(*rapid.T) {
						s := r.Next()
						if (s == nil) != (queued-taken == 4) {
							rt.Fatalf("next: %p with %d pending", s, queued-taken)
						}
						if s != nil {
							s.UserData = queued
							queued++
						}
					},
					"submit": func(*rapid.T) { enter(r.Submit()) },
					"wait": func(rt *rapid.T) {
						n := rapid.IntRange(0, min(4, int(queued-seen))).Draw(rt, "minimum")
						enter(r.Wait(n, -1, Block(n%2)))
					},
					"poll": func(*rapid.T) { enter(r.Wait(4, 0, HoldP)) },
					"reap": func(rt *rapid.T) { reap(rapid.IntRange(0, 6).Draw(rt, "limit")) },
					"": func(*rapid.T) {
						if r.Pending() != int(queued-taken) || r.Space() != 4-r.Pending() {
							rt.Fatalf("%d pending, room for %d; want %d", r.Pending(), r.Space(), queued-taken)
						}
						if !r.Ready() && seen != taken {
							rt.Fatalf("not ready with %d completions to come", taken-seen)
						}
					},
				})
				for enter(r.Submit()); seen < queued; enter(r.Submit()) {
					before := seen
					if reap(3); seen == before && !r.Ready() {
						rt.Fatalf("%d of %d completions came", seen, queued)
					}
				}
			})
		})
	}
}
