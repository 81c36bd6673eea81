package main

import (
	"github.com/spf13/cobra"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/size"
)

func (p *program) listCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list [-o table|json]",
		Short: "List the devices",
		Example: `  delayctl list
  delayctl list -o json | jq -r '.devices[].path'`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	outputFlag(cmd, &output, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.work("list", func() error {
			devices, err := p.client().Devices(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(p.out, api.DeviceList{Devices: devices})
			}
			rows := [][]string{{"NAME", "PATH", "STATE", "SIZE", "BACKING", "DELAY"}}
			for _, d := range devices {
				rows = append(rows, []string{d.Name, d.Path, d.State, size.Format(d.Size), d.Backing, delays(d.Delays)})
			}
			return writeTable(p.out, rows)
		})
	}
	return cmd
}
