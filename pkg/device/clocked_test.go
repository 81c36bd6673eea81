package device

import (
	"testing"

	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/uring"
)

// A turn does without the time only where nothing depends on it.
func TestCanGuess(t *testing.T) {
	for name, c := range map[string]struct {
		change func(q *queue)
		want   bool
	}{
		"nothing is delayed":  {func(*queue) {}, true},
		"the clock is cheap":  {func(q *queue) { q.clocked.dear = false }, false},
		"something is":        {func(q *queue) { q.law = &policy{} }, false},
		"a request is held":   {func(q *queue) { q.heap.Push(1, 0) }, false},
		"one is timed":        {func(q *queue) { q.clocked.timed = 1 }, false},
		"the backing polls":   {func(q *queue) { q.polled.ring = new(uring.Ring) }, false},
		"one turn of several": {func(q *queue) { q.clocked.turns = sampleTurns - 1 }, false},
	} {
		q := &queue{law: undelayed, heap: scheduler.NewHeap(1), clocked: clocked{dear: true}}
		c.change(q)
		if got := q.canGuess(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
