package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/client"
)

// versions is the JSON of `delayctl version`.
type versions struct {
	Client api.Version `json:"client"`
	// Daemon is null where none is running.
	Daemon *api.Version `json:"daemon"`
}

func (p *program) versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version [-o text|json]",
		Short: "Show the versions of delayctl and of the running daemon",
		Example: `  delayctl version
  delayctl version -o json | jq -r .daemon.version`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	outputFlag(cmd, &output, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.work("version", func() error {
			v := versions{Client: api.Build()}
			daemon, err := p.client().Version(cmd.Context())
			unreachable := (*client.UnreachableError)(nil)
			switch {
			case err == nil:
				v.Daemon = &daemon
			case !errors.As(err, &unreachable):
				return err
			}
			if output == "json" {
				return writeJSON(p.out, v)
			}
			if v.Daemon == nil {
				if err := writeTable(p.out, [][]string{versionRow("delayctl", v.Client)}); err != nil {
					return err
				}
				_, err := fmt.Fprintln(p.err, "delayctl: "+unreachable.Error())
				return err
			}
			return writeTable(p.out, [][]string{versionRow("delayctl", v.Client), versionRow("delayd", *v.Daemon)})
		})
	}
	return cmd
}

func versionRow(program string, v api.Version) []string {
	row := []string{program, v.Version}
	if v.Commit != "" {
		row = append(row, v.Commit[:min(12, len(v.Commit))])
	}
	return append(row, v.Go, "api "+v.API)
}
