package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/delayd/delayd/pkg/api"
)

func (p *program) addCommand() *cobra.Command {
	var s api.Spec
	var offset, length, queues, output string
	cmd := &cobra.Command{
		Use:   "add NAME --backing SPEC [flags]",
		Short: "Make a delayed device and print its path",
		Example: `  delayctl add slow --backing mem:64M --delay 5ms
  delayctl add db --backing /dev/sdb --read 200us --write 2ms --flush 20ms
  mount "$(delayctl add img --backing ./disk.img --delay 1ms)" /mnt
  delayctl add part --backing /dev/sdb --offset 1GiB --size 10GiB --delay 1ms
  delayctl add slow --backing mem:64M --delay 5ms -o json | jq -r .path

A SPEC is a block device, a regular file, mem:SIZE or null:SIZE. A delay is a
number and a unit (ns, us, ms, s, m, h), at most 24h. A SIZE is bytes, or takes
K, M, G, T (or KiB, MiB, ...: powers of 1024) and kB, MB, GB, TB (powers of 1000).
Writing zeroes is delayed as writing is.`,
		Args:              oneName,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&s.Backing, "backing", "", "`SPEC` of what holds the bytes")
	f.StringVar(&s.Delay, "delay", "", "delay `D` of every request that has none of its own")
	f.StringVar(&s.Read, "read", "", "delay `D` of reads")
	f.StringVar(&s.Write, "write", "", "delay `D` of writes")
	f.StringVar(&s.Flush, "flush", "", "delay `D` of flushes")
	f.StringVar(&s.Discard, "discard", "", "delay `D` of discards")
	f.StringVar(&offset, "offset", "0", "first byte of the backing to use, a `SIZE`")
	f.StringVar(&length, "size", "0", "how much of the backing to use, a `SIZE`; 0: to its end")
	f.StringVar(&queues, "queues", strconv.Itoa(api.DefaultQueues), "`N` queues, 1 to the number of CPUs, or auto for one a CPU")
	f.IntVar(&s.Depth, "depth", 0, fmt.Sprintf("`N` requests in flight per queue, 1 to %d (default %d)", api.MaxDepth, api.DefaultDepth))
	f.BoolVar(&s.ReadOnly, "read-only", false, "make a device that cannot be written")
	f.BoolVar(&s.Shared, "shared", false, "use a backing that is mounted or in use; you keep the two apart")
	f.StringVar(&s.Hold, "hold", api.HoldSubmit, "where to hold: `MODE` submit (before the backing) or complete (after it)")
	f.StringVar(&s.Compensate, "compensate", api.Off, "take off each delay what a request's own path costs: off, auto (measured) or `D`")
	f.StringVar(&s.Spin, "spin", api.Auto, "how long before a deadline to look at the clock instead of sleeping: auto, off or `D`")
	f.StringVar(&s.ZeroCopy, "zero-copy", api.Auto, "let the backing work on the request's own pages: `MODE` auto, on or off")
	f.BoolVar(&s.Poll, "poll", false, "poll the backing for completions while it has requests; takes a CPU")
	f.BoolVar(&s.Pin, "pin", false, "bind each queue's thread to one of the CPUs that the kernel maps to the queue")
	f.IntVar(&s.Realtime, "realtime", 0, fmt.Sprintf("SCHED_FIFO priority `N` of the queues' threads, 1 to %d (0: none)", api.MaxRealtime))
	outputFlag(cmd, &output, "text", "json")
	err := errors.Join(
		cmd.RegisterFlagCompletionFunc("hold", cobra.FixedCompletions(
			[]string{api.HoldSubmit, api.HoldComplete}, cobra.ShellCompDirectiveNoFileComp)),
		cmd.RegisterFlagCompletionFunc("zero-copy", cobra.FixedCompletions(
			[]string{api.Auto, api.On, api.Off}, cobra.ShellCompDirectiveNoFileComp)),
		cmd.RegisterFlagCompletionFunc("compensate", cobra.FixedCompletions(
			[]string{api.Off, api.Auto}, cobra.ShellCompDirectiveNoFileComp)),
		cmd.RegisterFlagCompletionFunc("spin", cobra.FixedCompletions(
			[]string{api.Auto, api.Off}, cobra.ShellCompDirectiveNoFileComp)),
		cmd.RegisterFlagCompletionFunc("queues", cobra.FixedCompletions(
			[]string{api.Auto}, cobra.ShellCompDirectiveNoFileComp)),
		cmd.RegisterFlagCompletionFunc("backing", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)),
	)
	if err != nil {
		panic(err) // the flags were added above
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.Name = args[0]
		if err := finishSpec(cmd, &s, offset, length, queues); err != nil {
			return &usageError{fmt.Errorf("add %s: %w", oneLine(s.Name), err)}
		}
		return p.work("add "+oneLine(s.Name), func() error {
			d, err := p.client().Add(cmd.Context(), s)
			if err != nil {
				return err
			}
			for _, w := range d.Warnings {
				if _, err := fmt.Fprintf(p.err, "delayctl: warning: %s\n", w); err != nil {
					return err
				}
			}
			if output == "json" {
				return writeJSON(p.out, d)
			}
			_, err = fmt.Fprintln(p.out, d.Path)
			return err
		})
	}
	return cmd
}

// finishSpec reads what flags hold as text and judges what needs no daemon.
func finishSpec(cmd *cobra.Command, s *api.Spec, offset, length, queues string) error {
	var err error
	if s.Offset, err = api.ParseSize("offset", offset); err != nil {
		return asFlag(err)
	}
	if s.Size, err = api.ParseSize("size", length); err != nil {
		return asFlag(err)
	}
	for _, name := range []string{"delay", "read", "write", "flush", "discard", "queues", "depth", "hold", "compensate", "spin", "zero-copy"} {
		// Left out and empty or 0 are one to the API, but not to a person.
		if f := cmd.Flags().Lookup(name); f.Changed && (f.Value.String() == "" || f.Value.String() == "0" && (name == "queues" || name == "depth")) {
			return &api.FieldError{Field: "--" + name, Value: f.Value.String(), Err: errors.New("no value at all"), Hint: "leave --" + name + " out for its default"}
		}
	}
	if s.Queues, err = api.ParseQueues(queues); err != nil {
		return asFlag(err)
	}
	// The daemon is in another directory.
	if b := s.Backing; b != "" && !strings.HasPrefix(b, "mem:") && !strings.HasPrefix(b, "null:") && !filepath.IsAbs(b) {
		if s.Backing, err = filepath.Abs(b); err != nil {
			return fmt.Errorf("find the directory of %s: %w", b, err)
		}
	}
	// How many queues there can be depends on the daemon's CPUs.
	return asFlag(s.Validate(0))
}

// asFlag gives an error of a field the name of the flag that set it.
func asFlag(err error) error {
	var field *api.FieldError
	if !errors.As(err, &field) || field.Field == "name" {
		return err
	}
	flag := *field
	flag.Field = "--" + strings.ReplaceAll(field.Field, "_", "-")
	return &flag
}
