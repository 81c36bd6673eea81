package main

import (
	"fmt"
	"io"
	"time"

	"github.com/delayd/delayd/test/fixture"
)

// report is what was measured.
type report struct {
	kernel    fixture.Kernel
	dmMissing error // why there is no dm-delay, if there is none
	undelayed fixture.Latencies
	rows      []row
}

type row struct {
	asked  time.Duration
	dm     fixture.Latencies // nil: dm-delay cannot have this delay, or is not here
	delayd fixture.Latencies
}

// early returns the delays that delayd fell short of.
func (r *report) early() (asked []time.Duration) {
	for _, row := range r.rows {
		if row.delayd.Min() < row.asked {
			asked = append(asked, row.asked)
		}
	}
	return asked
}

// busy is the ratio of mean to median of the undelayed device, a few µs of copying
// in the kernel, from which on something else must have had the CPU.
const busy = 2

// print writes the table. Times are in milliseconds; one that is shorter than
// what was asked has an asterisk.
func (r *report) print(w io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

	p("\nLatency of direct 4 KiB writes, one at a time, on a memory-backed null_blk device (ms)\n\n")
	p("%11s |%20s  |%30s  | %s\n", "", "dm-delay      ", "delayd            ", "delayd's median against")
	p("%11s |%10s%10s  |%10s%10s%10s  | %s\n", "asked", "mean", "median", "mean", "median", "min", "undelayed + asked")
	p("------------+----------------------+--------------------------------+--------------------------\n")
	p("%11s | the device itself: mean %.3f, median %.3f, min %.3f\n", "undelayed",
		ms(r.undelayed.Mean()), ms(r.undelayed.Median()), ms(r.undelayed.Min()))

	marked := false
	cell := func(d, asked time.Duration) string {
		mark := " "
		if d < asked {
			mark, marked = "*", true
		}
		return fmt.Sprintf("%9.3f%s", ms(d), mark)
	}
	for _, row := range r.rows {
		p("%11s |", fmt.Sprintf("%.1f", ms(row.asked)))
		if row.dm == nil {
			p("%10s%10s  |", "- ", "- ")
		} else {
			p("%s%s  |", cell(row.dm.Mean(), row.asked), cell(row.dm.Median(), row.asked))
		}
		p("%s%s%s  | ", cell(row.delayd.Mean(), row.asked), cell(row.delayd.Median(), row.asked), cell(row.delayd.Min(), row.asked))
		want := r.undelayed.Median() + row.asked
		over := row.delayd.Median() - want
		p("%+.3f (%+.1f %%)\n", ms(over), 100*float64(over)/float64(want))
	}

	p("\n")
	if marked {
		p("* shorter than what was asked: EARLY\n")
	}
	if r.dmMissing != nil {
		p("- %v\n", r.dmMissing)
	} else {
		p("- dm-delay takes whole milliseconds only, and rounds them to timer ticks of %v ms\n", 1000/float64(r.kernel.HZ))
	}
	if ratio := float64(r.undelayed.Mean()) / float64(r.undelayed.Median()); ratio > busy {
		p("! the machine was busy: the undelayed device's mean is %.1f times its median; try again when it is quiet\n", ratio)
	}
	p("kernel %v\n", r.kernel)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
