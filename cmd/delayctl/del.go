package main

import (
	"github.com/spf13/cobra"
)

func (p *program) delCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "del NAME [--force]",
		Short: "Remove a device",
		Example: `  delayctl del slow
  delayctl del slow --force

What is held is handed to the backing at once and waited for. A device that is
open or mounted is refused; --force answers what is held with an I/O error and
removes it anyhow. The backing keeps its bytes, except for mem:.`,
		Args:              oneName,
		ValidArgsFunction: p.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkName("del", args[0]); err != nil {
				return err
			}
			return p.work("del "+args[0], func() error {
				return p.client().Delete(cmd.Context(), args[0], force)
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove it even if it is in use")
	return cmd
}
