package scheduler

import "fmt"

// MaxHeap is the largest capacity of a heap: the tags of one ublk queue
// (UBLK_MAX_QUEUE_DEPTH, include/uapi/linux/ublk_cmd.h).
const MaxHeap = 4096

// A Heap holds the requests of one queue, the earliest deadline on top. Requests
// with the same deadline leave in the order in which they were pushed. Push and
// Pop take O(log n) and never allocate.
//
// It belongs to one thread.
type Heap struct {
	items   []held // a heap of four children a node; len is what is held, cap is fixed
	arrival uint64 // number of the next Push since the heap was last empty
}

// held is one request. Four of them, the children of one node, fill a cache line.
type held struct {
	deadline int64
	order    uint64 // arrival<<16 | tag: compares as arrival does
}

// arity is the number of children of a node.
const arity = 4

// NewHeap returns an empty heap for up to capacity requests, 1 to MaxHeap. Other
// capacities are a programmer error and panic.
func NewHeap(capacity int) *Heap {
	if capacity < 1 || capacity > MaxHeap {
		panic(fmt.Sprintf("scheduler: heap of %d, which is not 1 to %d", capacity, MaxHeap))
	}
	return &Heap{items: make([]held, 0, capacity)}
}

// Len returns how many requests are held.
func (h *Heap) Len() int { return len(h.items) }

// Cap returns how many requests can be held.
func (h *Heap) Cap() int { return cap(h.items) }

// Min returns the earliest deadline; NoDeadline and false if nothing is held.
func (h *Heap) Min() (deadline int64, ok bool) {
	if len(h.items) == 0 {
		return NoDeadline, false
	}
	return h.items[0].deadline, true
}

// Push holds the request tag until deadline. Every tag is held at most once, so
// a heap as deep as its queue is never overfull; one that is panics.
func (h *Heap) Push(deadline int64, tag uint16) {
	n := len(h.items)
	if n == cap(h.items) {
		panic(fmt.Sprintf("scheduler: tag %d pushed onto a full heap of %d", tag, n))
	}
	if n == 0 {
		h.arrival = 0 // 48 bits last for years at any rate; beginning again, for ever
	}
	it := held{deadline, h.arrival<<16 | uint64(tag)}
	h.arrival++
	h.items = h.items[:n+1]
	h.up(n, it)
}

// Pop removes the request with the earliest deadline and returns it. Pop of an
// empty heap is a programmer error and panics.
func (h *Heap) Pop() (tag uint16, deadline int64) {
	n := len(h.items) - 1
	if n < 0 {
		panic("scheduler: pop of an empty heap")
	}
	top, last := h.items[0], h.items[n]
	h.items = h.items[:n]
	if n > 0 {
		h.down(last)
	}
	return uint16(top.order), top.deadline
}

// up moves the hole at i towards the root until it fits.
func (h *Heap) up(i int, it held) {
	for i > 0 {
		parent := (i - 1) / arity
		if !it.before(h.items[parent]) {
			break
		}
		h.items[i] = h.items[parent]
		i = parent
	}
	h.items[i] = it
}

// down moves the hole at the root towards the leaves until it fits.
func (h *Heap) down(it held) {
	items, i := h.items, 0
	for {
		first := arity*i + 1
		if first >= len(items) {
			break
		}
		least := first
		for c := first + 1; c < min(first+arity, len(items)); c++ {
			if items[c].before(items[least]) {
				least = c
			}
		}
		if !items[least].before(it) {
			break
		}
		items[i] = items[least]
		i = least
	}
	items[i] = it
}

func (a held) before(b held) bool {
	if a.deadline != b.deadline {
		return a.deadline < b.deadline
	}
	return a.order < b.order
}
