package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/delayd/delayd/pkg/api"
)

func (p *program) compensateCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "compensate NAME [off|auto|D]",
		Short: "Change what is taken off a device's delays, or measure it again",
		Example: `  delayctl compensate slow          # measure it now, and print what is taken off
  delayctl compensate slow 80us
  delayctl compensate slow off

A request's own path through the driver and the daemon comes on top of its delay.
auto measures it by reading the device and its backing for some seconds at most;
what others do on the device is delayed as before.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("no NAME given")
			case len(args) > 2:
				return fmt.Errorf("a NAME and off, auto or a duration are wanted, not %s", strings.Join(args, " "))
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{api.Auto, api.Off}, cobra.ShellCompDirectiveNoFileComp
			}
			return p.completeNames(cmd, args, word)
		},
	}
	outputFlag(cmd, &output, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkName("compensate", args[0]); err != nil {
			return err
		}
		word := api.Auto
		if len(args) == 2 {
			word = args[1]
		}
		if word == "" {
			return &usageError{errors.New("compensate " + args[0] + ": no value at all: type off, auto or a duration")}
		}
		if _, err := api.ParseCompensate(word); err != nil {
			return &usageError{fmt.Errorf("compensate %s: %w", args[0], err)}
		}
		return p.work("compensate "+args[0], func() error {
			d, err := p.client().Compensate(cmd.Context(), args[0], word)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(p.out, d)
			}
			_, err = fmt.Fprintln(p.out, d.Compensation)
			return err
		})
	}
	return cmd
}
