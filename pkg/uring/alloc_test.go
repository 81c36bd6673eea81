package uring

import (
	"testing"
	"time"
)

// A turn of a queue thread: queue, submit, look, wait, reap.
func TestNoAllocation(t *testing.T) {
	for name, c := range configs {
		if c.Entries < 8 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := open(t, c)
			dst, big := make([]CQE, 8), make([]BigCQE, 8)
			var failed error
			keep := func(err error) {
				if err != nil {
					failed = err
				}
			}
			seen := 0
			turn := func() {
				for range 3 {
					s := r.Next()
					s.Opcode, s.UserData = OpNop, 1
				}
				keep(r.Submit())
				if r.Ready() && r.Pending() == 0 && r.Space() > 0 {
					seen += r.Reap(dst)
				}
				r.Next().Opcode = OpNop
				keep(r.Wait(1, time.Second, HoldP))
				seen += r.Reap(dst)
				r.Next().Opcode = OpNop
				keep(r.Wait(1, -1, ReleaseP))
				seen += r.ReapBig(big)
				if !c.IOPoll {
					keep(r.Wait(1, 10*time.Microsecond, HoldP))
					keep(r.Wait(1, 10*time.Microsecond, ReleaseP))
				}
			}
			const runs = 200
			if n := testing.AllocsPerRun(runs, turn); n != 0 {
				t.Errorf("%v allocations a turn", n)
			}
			if failed != nil {
				t.Error(failed)
			}
			if want := (runs + 1) * 5; seen != want {
				t.Errorf("%d completions, want %d", seen, want)
			}
		})
	}
}

func BenchmarkNop(b *testing.B) {
	for _, batch := range []int{1, 32} {
		for _, name := range []string{"plain", "queue"} {
			b.Run(name+map[int]string{1: ", one", 32: ", 32"}[batch], func(b *testing.B) {
				r := open(b, configs[name])
				dst := make([]CQE, batch)
				b.ReportAllocs()
				for n := 0; n < b.N; n += batch {
					for range batch {
						r.Next().Opcode = OpNop
					}
					if err := r.Wait(batch, -1, HoldP); err != nil {
						b.Fatal(err)
					}
					r.Reap(dst)
				}
			})
		}
	}
}
