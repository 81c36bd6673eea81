package main

import (
	"fmt"
	"io"
	"time"
)

// progress says on a terminal what is under way and how long the rest will take:
// the estimate of what is left, by as much longer as what is done took longer
// than its own.
type progress struct {
	w       io.Writer
	now     func() time.Time
	began   time.Time
	said    time.Time
	total   time.Duration // estimates
	done    time.Duration
	current time.Duration
}

// often is how often a line is written at most.
const often = 5 * time.Second

func newProgress(w io.Writer, total time.Duration) *progress {
	return &progress{w: w, now: time.Now, began: time.Now(), total: total}
}

// next begins something that is estimated to take d; what was before it is done.
func (p *progress) next(d time.Duration, what string) {
	p.done += p.current
	p.current = d
	now := p.now()
	if now.Sub(p.said) < often {
		return
	}
	p.said = now
	_, _ = fmt.Fprintf(p.w, "bench: %s (%v left)\n", what, p.left())
}

// left is how long the rest will take.
func (p *progress) left() time.Duration {
	rest := p.total - p.done
	if p.done > 0 {
		rest = time.Duration(float64(rest) * float64(p.now().Sub(p.began)) / float64(p.done))
	}
	if rest < time.Minute {
		return rest.Round(time.Second)
	}
	return rest.Round(10 * time.Second)
}
