package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/config"
	"github.com/delayd/delayd/pkg/size"
)

func (p *program) showCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "show NAME [-o text|json|toml]",
		Short: "Show all about a device",
		Example: `  delayctl show slow
  delayctl show slow -o json | jq .held
  delayctl show slow -o toml > /etc/delayd/slow.toml`,
		Args:              oneName,
		ValidArgsFunction: p.completeNames,
	}
	outputFlag(cmd, &output, "text", "json", "toml")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkName("show", args[0]); err != nil {
			return err
		}
		return p.work("show "+args[0], func() error {
			d, err := p.client().Device(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch output {
			case "json":
				return writeJSON(p.out, d)
			case "toml":
				text, err := config.Format(specOf(d))
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(p.out, text)
				return err
			}
			return writeTable(p.out, details(d))
		})
	}
	return cmd
}

// details are the lines of the text that a person reads.
func details(d api.Device) [][]string {
	rows := [][]string{
		{"name", d.Name},
		{"path", d.Path},
		{"state", d.State},
		{"backing", d.Backing},
		{"read", d.Delays.Read},
		{"write", d.Delays.Write},
		{"flush", d.Delays.Flush},
		{"discard", d.Delays.Discard},
		{"write-zeroes", d.Delays.WriteZeroes},
		{"hold", d.Hold},
		{"offset", size.Format(d.Offset)},
		{"size", size.Format(d.Size)},
		{"queues", fmt.Sprintf("%d of depth %d", d.Queues, d.Depth)},
		{"compensation", compensation(d)},
		{"spin", d.Spin},
		{"zero copy", asked(d.ZeroCopied, d.ZeroCopy)},
		{"polled", yesNo(d.Polled)},
		{"pinned", yesNo(d.Pin)},
		{"realtime", realtime(d.Realtime)},
		{"read-only", yesNo(d.ReadOnly)},
		{"shared", yesNo(d.Shared)},
		{"blocks", fmt.Sprintf("%d logical, %d physical", d.Limits.LogicalBlockSize, d.Limits.PhysicalBlockSize)},
		{"largest request", size.Format(d.MaxIOBytes)},
		{"buffers", size.Format(d.BufferBytes) + " at most"},
		{"volatile cache", yesNo(d.Limits.VolatileCache)},
		{"fua", yesNo(d.Limits.FUA)},
		{"rotational", yesNo(d.Limits.Rotational)},
		{"largest discard", size.Format(d.Limits.MaxDiscardBytes)},
		{"held", strconv.FormatInt(d.Held, 10)},
		{"in flight", strconv.FormatInt(d.InFlight, 10)},
		{"requests", strconv.FormatUint(d.Requests, 10)},
		{"created", d.Created.Local().Format(time.RFC3339)},
	}
	if d.Error != "" {
		rows = append(rows, []string{"error", d.Error})
	}
	for _, w := range d.Warnings {
		rows = append(rows, []string{"warning", w})
	}
	return rows
}

// compensation is what is taken off each delay, and what was asked for.
func compensation(d api.Device) string {
	if d.Compensate == api.Auto {
		return d.Compensation + " (auto)"
	}
	return d.Compensate
}

// asked says whether something is so, and what was asked for.
func asked(is bool, word string) string { return yesNo(is) + " (" + word + ")" }

func realtime(priority int) string {
	if priority == 0 {
		return "no"
	}
	return fmt.Sprintf("SCHED_FIFO %d", priority)
}

// unless returns a word, or nothing where it is the default.
func unless(otherwise, word string) string {
	if word == otherwise {
		return ""
	}
	return word
}

// specOf is what would make the device again.
func specOf(d api.Device) api.Spec {
	s := api.Spec{
		Name: d.Name, Backing: d.Backing, Offset: d.Offset, Size: d.Size,
		Queues: api.Queues(d.Queues), Depth: d.Depth, ReadOnly: d.ReadOnly, Shared: d.Shared, Hold: d.Hold,
		Compensate: unless(api.Off, d.Compensate), Spin: unless(api.Auto, d.Spin), ZeroCopy: unless(api.Auto, d.ZeroCopy),
		Poll: d.Poll, Pin: d.Pin, Realtime: d.Realtime,
	}
	if v := d.Delays; v == (api.Delays{Read: v.Read, Write: v.Read, Flush: v.Read, Discard: v.Read, WriteZeroes: v.Read}) {
		s.Delay = v.Read
	} else {
		s.Read, s.Write, s.Flush, s.Discard = v.Read, v.Write, v.Flush, v.Discard
	}
	return s
}
