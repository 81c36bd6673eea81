package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/delayd/delayd/pkg/device"
)

// helperCommand is what delayd has done by a child process: see [device.Helper].
func helperCommand(running *bool) *cobra.Command {
	cmd := &cobra.Command{Use: "helper", Short: "What delayd does in a child process", Hidden: true,
		Args: cobra.MinimumNArgs(1), RunE: func(_ *cobra.Command, args []string) error {
			return fmt.Errorf("unknown helper %q", args[0])
		}}
	for use, args := range map[string]int{
		"serve": 0,
		"measure ID AT LENGTH WARMUP READS BUDGET BACKING BACKING-AT": 8,
	} {
		cmd.AddCommand(&cobra.Command{Use: use, Args: cobra.ExactArgs(args), RunE: func(c *cobra.Command, args []string) error {
			*running = true
			return device.Helper(append([]string{c.Name()}, args...))
		}})
	}
	return cmd
}
