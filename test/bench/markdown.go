package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// writeMarkdown writes KERNEL.md: the plots, the tables, the goals.
func (d *data) writeMarkdown(folder string) error {
	var b strings.Builder
	d.markdown(&b)
	return os.WriteFile(d.file(folder, ".md"), []byte(b.String()), 0o644)
}

func (d *data) markdown(b *strings.Builder) {
	p := func(format string, args ...any) { fmt.Fprintf(b, format, args...) }
	p("## One run of `make bench KERNEL=%s`\n\n", d.name)
	p("%s\n\n", d.where())
	// A plot is there if there was something to draw.
	picture := func(suffix, words string) {
		if p, err := d.drawings()[suffix](); err == nil && p != nil {
			fmt.Fprintf(b, "![%s](%s%s)\n\n", words, d.name, suffix)
		}
	}
	picture("-delay.svg", "delay asked and delay seen")
	picture("-excess.svg", "what comes on top of the delay asked")
	d.delayTable(b)
	picture("-latency.svg", "distribution of latencies at 1 ms")
	picture("-throughput.svg", "throughput without delay")
	d.undelayedTable(b)
	d.classicTable(b)
	picture("-cpu.svg", "CPU of the server")
	d.serverTable(b)
	d.nativeTable(b)
	d.goalTable(b)
	d.gaps(b)
}

// where names the machine and what was run on it.
func (d *data) where() string {
	var s []string
	if f := d.parts[nativePart]; f != nil {
		s = append(s, "Machine: "+f.Host+".")
		var programs []string
		for _, name := range slices.Sorted(maps.Keys(f.Versions)) {
			programs = append(programs, name+" "+f.Versions[name])
		}
		s = append(s, "Programs: "+strings.Join(programs, ", ")+".")
	}
	for _, part := range guestParts {
		if f := d.parts[part]; f != nil {
			quick := ""
			if f.Quick {
				quick = ", QUICK"
			}
			s = append(s, fmt.Sprintf("%s: kernel %s, %s, %s%s.", strings.ToUpper(part[:1])+part[1:], f.Kernel,
				count(f.Rounds, "round"), f.Began.UTC().Format("2006-01-02 15:04 UTC"), quick))
		}
	}
	return strings.Join(s, "  \n")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// table writes a Markdown table; the first column is words, the rest are figures.
func table(b *strings.Builder, head []string, rows [][]string) {
	fmt.Fprintf(b, "| %s |\n| ---%s |\n", strings.Join(head, " | "), strings.Repeat(" | ---:", len(head)-1))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n")
}

var delayTargets = []string{limitTarget, dmTarget, nbdkitTarget, delaydTarget, delaydCompTarget}

// delayTable is median and p99 at depth 1 against the delay asked.
func (d *data) delayTable(b *strings.Builder) {
	for _, op := range ops {
		var rows [][]string
		for _, delay := range allDelays {
			row, any := []string{duration(us(delay))}, false
			if delay == 0 {
				row[0] = "none"
			}
			for _, target := range delayTargets {
				m, ok := d.small(accuracyPart, target, delay, op, 1)
				if !ok {
					row = append(row, "–")
					continue
				}
				any = true
				cell := milliseconds3(m.P50) + " / " + milliseconds3(m.P99)
				if m.Min < m.DelayUS {
					cell += " *"
				}
				row = append(row, cell)
			}
			if any {
				rows = append(rows, row)
			}
		}
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(b, "Direct %ss of 4 KiB, one at a time: median / p99 in ms, by the delay asked (* some took less than that, as compensation may make them).\n\n", op)
		table(b, append([]string{"asked"}, delayTargets...), rows)
	}
}

func milliseconds3(us float64) string { return fmt.Sprintf("%.3f", us/1000) }

// undelayedTable compares all targets without a delay, with two CPUs if there is
// such a part.
func (d *data) undelayedTable(b *strings.Builder) {
	var rows [][]string
	for _, target := range d.targetsOf(throughputPart) {
		row := []string{target}
		for _, depth := range []int{1, 32} {
			for _, op := range ops {
				m, ok := d.small(throughputPart, target, 0, op, depth)
				switch {
				case !ok:
					row = append(row, "–")
				case depth == 1:
					row = append(row, number(m.P50))
				default:
					row = append(row, number(m.IOPS/1000)+"k")
				}
			}
		}
		if m, ok := d.largeReads(target); ok {
			row = append(row, number(m.IOPS/1000)+"k")
		} else {
			row = append(row, "–")
		}
		if m, ok := d.small(throughputPart, target, 0, "read", 1); ok && m.CPU != nil {
			row = append(row, number(*m.CPU))
		} else {
			row = append(row, "–")
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "No delay, %s.\n\n", count(d.cpus(throughputPart), "CPU"))
	table(b, []string{"", "read, median µs", "write, median µs", "read, depth 32, IOPS", "write, depth 32, IOPS",
		"128 KiB read, depth 8, IOPS", "server's CPU, µs a read"}, rows)
}

// targetsOf are those that a part has measured without delay, in its order.
func (d *data) targetsOf(part string) (names []string) {
	for _, p := range d.results.order {
		if p.Part == part && p.DelayUS == 0 && !slices.Contains(names, p.Target) {
			names = append(names, p.Target)
		}
	}
	return names
}

func (d *data) classicTable(b *strings.Builder) {
	var rows [][]string
	for i, c := range classicPoints {
		possible := float64(c.jobs*c.depth) / c.delay.Seconds()
		row := []string{fmt.Sprintf("%v, %s, %s", c.delay, c.op, shape(point{Jobs: c.jobs, Depth: c.depth})), number(possible)}
		any := false
		for _, target := range delayTargets {
			m, ok := d.classic(i, target)
			if !ok {
				row = append(row, "–")
				continue
			}
			any = true
			row = append(row, number(m.IOPS))
		}
		if any {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "The classic five on a device of 1 GiB, %s, IOPS (possible: jobs × depth ÷ delay).\n\n", count(d.cpus(classicPart), "CPU"))
	table(b, append([]string{"", "possible"}, delayTargets...), rows)
}

// serverTable is what share of a CPU the servers use at depth 1, in the guest.
func (d *data) serverTable(b *strings.Builder) {
	var rows [][]string
	for _, target := range []string{nbdkitTarget, delaydTarget, delaydCompTarget} {
		row, any := []string{target}, false
		for _, delay := range waiterDelays {
			m, ok := d.small(accuracyPart, target, delay, opDrawn, 1)
			if !ok || m.CPU == nil {
				row = append(row, "–")
				continue
			}
			any = true
			row = append(row, number(*m.CPU*m.IOPS/10_000))
		}
		if any {
			rows = append(rows, row)
		}
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "CPU of the server's processes while it serves direct reads, one at a time, in the guest, %%.\n\n")
		table(b, []string{"", "1 ms", "10 ms"}, rows)
	}
}

func (d *data) nativeTable(b *strings.Builder) {
	f := d.parts[nativePart]
	if f == nil {
		return
	}
	var rows [][]string
	for _, delay := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
		for _, w := range waits {
			p50, ok := f.Figures[waiterFigure(w, delay, "p50_us")]
			if !ok {
				continue
			}
			rows = append(rows, []string{fmt.Sprintf("%v, %s", delay, w.name), number(p50),
				number(f.Figures[waiterFigure(w, delay, "p99_us")]), number(100 * f.Figures[waiterFigure(w, delay, "cpu")])})
		}
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "The waiter alone, on this machine's own io_uring.\n\n")
		table(b, []string{"", "median lateness, µs", "p99, µs", "CPU of the thread, %"}, rows)
	}
}

func (d *data) goalTable(b *strings.Builder) {
	var rows [][]string
	goals := judge(d)
	for _, g := range goals {
		worst, missed := "", 0
		for _, c := range g.checks {
			if !c.reached {
				missed++
			}
		}
		if len(g.checks) > 0 {
			worst = fmt.Sprintf("%d of %d reached", len(g.checks)-missed, len(g.checks))
		}
		rows = append(rows, []string{fmt.Sprintf("%d. %s", g.number, g.words), worst, "**" + g.verdict() + "**"})
	}
	fmt.Fprintf(b, "### Goals\n\n")
	table(b, []string{"goal", "comparisons", "verdict"}, rows)
	rows = nil
	for _, g := range goals {
		for _, c := range g.checks {
			verdict := "reached"
			if !c.reached {
				verdict = "**missed**"
			}
			rows = append(rows, []string{fmt.Sprintf("%d", g.number), c.what, c.got, c.bound, verdict})
		}
		for _, l := range g.lacks {
			rows = append(rows, []string{fmt.Sprintf("%d", g.number), l, "–", "–", "not measured"})
		}
	}
	fmt.Fprintf(b, "<details><summary>Every comparison</summary>\n\n")
	table(b, []string{"goal", "what", "measured", "bound", ""}, rows)
	fmt.Fprintf(b, "</details>\n\n")
}

// gaps says what was not measured and why.
func (d *data) gaps(b *strings.Builder) {
	var lines []string
	for _, part := range slices.Concat(guestParts, []string{nativePart}) {
		f := d.parts[part]
		if f == nil {
			lines = append(lines, fmt.Sprintf("%s: this part left no results", part))
			continue
		}
		for _, target := range slices.Sorted(maps.Keys(f.LeftOut)) {
			lines = append(lines, fmt.Sprintf("%s: %s left out: %s", part, target, f.LeftOut[target]))
		}
		for _, text := range f.Failed {
			lines = append(lines, fmt.Sprintf("%s: %s", part, strings.Join(strings.Fields(text), " ")))
		}
	}
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "Not measured:\n\n- %s\n", strings.Join(lines, "\n- "))
}
