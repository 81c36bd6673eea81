package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

func (p *program) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Example: `  delayctl completion bash > /etc/bash_completion.d/delayctl
  delayctl completion zsh > "${fpath[1]}/_delayctl"
  delayctl completion fish > ~/.config/fish/completions/delayctl.fish
  source <(delayctl completion bash)          # this shell only`,
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return errors.New("one shell is wanted: bash, zsh or fish")
			case !slices.Contains(shells, args[0]):
				return fmt.Errorf("there is no completion for %q: want bash, zsh or fish", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.work("completion "+args[0], func() error {
				switch args[0] {
				case "bash":
					return cmd.Root().GenBashCompletionV2(p.out, true)
				case "zsh":
					return cmd.Root().GenZshCompletion(p.out)
				}
				return cmd.Root().GenFishCompletion(p.out, true)
			})
		},
	}
}
