package scheduler

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestHeapIsAStableSort drives a heap and a list that is sorted stably by
// deadline, which says the same by definition.
func TestHeapIsAStableSort(t *testing.T) {
	type entry struct {
		deadline int64
		tag      uint16
	}
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, MaxHeap)).Draw(t, "capacity")
		// Few different deadlines make ties; the extremes must compare too.
		deadlines := rapid.OneOf(
			rapid.Int64Range(0, 5),
			rapid.Int64(),
			rapid.SampledFrom([]int64{math.MinInt64, 0, NoDeadline}),
		)
		h := NewHeap(capacity)
		var model []entry
		pop := func(t *rapid.T) {
			tag, deadline := h.Pop()
			if got := (entry{deadline, tag}); got != model[0] {
				t.Fatalf("popped %v, want %v", got, model[0])
			}
			model = model[1:]
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "burst") {
					if len(model) == capacity {
						return
					}
					e := entry{deadlines.Draw(t, "deadline"), rapid.Uint16().Draw(t, "tag")}
					h.Push(e.deadline, e.tag)
					model = append(model, e)
					slices.SortStableFunc(model, func(a, b entry) int { return cmp.Compare(a.deadline, b.deadline) })
				}
			},
			"pop": func(t *rapid.T) {
				if len(model) > 0 {
					pop(t)
				}
			},
			"release all": func(t *rapid.T) {
				for len(model) > 0 {
					pop(t)
				}
			},
			"": func(t *rapid.T) {
				if h.Len() != len(model) || h.Cap() != capacity {
					t.Fatalf("Len, Cap = %d, %d, want %d, %d", h.Len(), h.Cap(), len(model), capacity)
				}
				want, some := NoDeadline, len(model) > 0
				if some {
					want = model[0].deadline
				}
				if got, ok := h.Min(); got != want || ok != some {
					t.Fatalf("Min = %d, %v, want %d, %v", got, ok, want, some)
				}
			},
		})
	})
}

// TestHeapFull fills a heap to the kernel's depth, from the worst end.
func TestHeapFull(t *testing.T) {
	h := NewHeap(MaxHeap)
	for i := range MaxHeap {
		h.Push(int64(MaxHeap-i), uint16(i))
	}
	for i := range MaxHeap {
		tag, deadline := h.Pop()
		if int(deadline) != i+1 || int(tag) != MaxHeap-1-i {
			t.Fatalf("pop %d gave tag %d at %d", i, tag, deadline)
		}
	}
}

// TestHeapKeepsOrderWhileNeverEmpty pushes more than 2^16 equal deadlines past a
// request that stays, so that arrivals outgrow the tag's bits.
func TestHeapKeepsOrderWhileNeverEmpty(t *testing.T) {
	h := NewHeap(3)
	h.Push(1, 0)
	for i := 1; i < 200_000; i++ {
		h.Push(1, uint16(i))
		if tag, _ := h.Pop(); tag != uint16(i-1) {
			t.Fatalf("after %d pushes the tag %d left first, want %d", i, tag, uint16(i-1))
		}
	}
}

func TestHeapMisuse(t *testing.T) {
	for name, f := range map[string]func(){
		"no capacity":       func() { NewHeap(0) },
		"too much capacity": func() { NewHeap(MaxHeap + 1) },
		"pop of nothing":    func() { NewHeap(1).Pop() },
		"push over capacity": func() {
			h := NewHeap(1)
			h.Push(1, 1)
			h.Push(2, 2)
		},
	} {
		if !panics(f) {
			t.Errorf("%s: no panic", name)
		}
	}
}

func TestHeapAllocatesNothing(t *testing.T) {
	h := NewHeap(64)
	n := testing.AllocsPerRun(100, func() {
		for i := range 64 {
			h.Push(int64(i*37%64), uint16(i))
		}
		for h.Len() > 0 {
			h.Min()
			h.Pop()
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

// BenchmarkHeap holds a steady number of requests: one push and one pop each.
func BenchmarkHeap(b *testing.B) {
	for _, c := range []struct {
		name string
		held int
	}{{"1", 1}, {"32", 32}, {"1024", 1024}, {"4095", 4095}} {
		b.Run(c.name, func(b *testing.B) {
			h := NewHeap(MaxHeap)
			seed := uint32(1)
			random := func() int64 { seed = seed*1664525 + 1013904223; return int64(seed >> 12) }
			now := int64(0)
			for i := range c.held {
				h.Push(random(), uint16(i))
			}
			b.ReportAllocs()
			for b.Loop() {
				h.Push(now+random(), 0)
				_, now = h.Pop()
			}
		})
	}
}
