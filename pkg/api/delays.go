package api

import (
	"fmt"
	"strconv"
	"time"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
)

// Describe returns delays as the wire type.
func Describe(d scheduler.Delays) Delays {
	return Delays{
		Read:        d[op.Read].String(),
		Write:       d[op.Write].String(),
		Flush:       d[op.Flush].String(),
		Discard:     d[op.Discard].String(),
		WriteZeroes: d[op.WriteZeroes].String(),
	}
}

// Warnings tells what of a valid spec will not come out as a reader of it may
// expect.
//
// A device never has more than queues × depth requests in flight, so it cannot
// answer more than queues × depth ÷ delay in a second: that is said where it
// comes out below [SlowIOPS].
func (s Spec) Warnings() []string {
	s = s.WithDefaults()
	warnings := []string{}
	delays, err := s.ParseDelays()
	if err != nil {
		return warnings
	}
	slots := int(s.Queues) * s.Depth
	seen := map[time.Duration]bool{}
	for _, o := range []op.Op{op.Read, op.Write} {
		d := delays[o]
		if d <= 0 || seen[d] {
			continue
		}
		seen[d] = true
		if iops := float64(slots) / d.Seconds(); iops < SlowIOPS {
			warnings = append(warnings, iopsWarning(s, o, d, iops))
		}
	}
	return warnings
}

// SlowIOPS is the rate of requests below which [Spec.Warnings] says that the
// number of requests in flight is what limits a device.
const SlowIOPS = 10_000

func iopsWarning(s Spec, o op.Op, d time.Duration, iops float64) string {
	rate := strconv.FormatFloat(iops, 'f', 0, 64)
	if iops < 10 {
		rate = strconv.FormatFloat(iops, 'g', 2, 64)
	}
	w := fmt.Sprintf("at a %s delay of %s at most %s requests a second: %d queue%s × depth %d ÷ %s",
		o, d, rate, s.Queues, plural(int(s.Queues)), s.Depth, d)
	if s.Depth < MaxDepth {
		return w + fmt.Sprintf("; a greater depth (up to %d) allows more", MaxDepth)
	}
	return w
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
