package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/client"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is an error of the command line, as opposed to one of the work.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// program is what the commands share.
type program struct {
	socket  string
	out     io.Writer
	err     io.Writer
	running bool // a command's own work has begun: errors are not of usage any more
}

func (p *program) client() *client.Client { return client.New(p.socket) }

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	p := &program{out: out, err: errOut}
	root := p.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	return p.report(cmd, err)
}

// report writes an error and its hint, and returns the exit code.
func (p *program) report(cmd *cobra.Command, err error) int {
	hint := api.HintOf(err)
	code := exitFailed
	usage, field := (*usageError)(nil), (*api.FieldError)(nil)
	if errors.As(err, &usage) || !p.running {
		code = exitUsage
	}
	if code == exitUsage && usage == nil && cmd.HasParent() {
		err = fmt.Errorf("%s: %w", cmd.Name(), err)
	}
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	message, suggestion, _ := strings.Cut(err.Error(), "\n\n")
	if hint == "" && strings.HasPrefix(suggestion, "Did you mean this?") {
		hint = "did you mean " + strings.TrimSpace(strings.TrimPrefix(suggestion, "Did you mean this?")) + "?"
	}
	if hint == "" && code == exitUsage && !errors.As(err, &field) {
		hint = "`" + cmd.CommandPath() + " --help` shows what can be typed"
	}
	// A terminal that is gone cannot be told.
	_, _ = fmt.Fprintf(p.err, "delayctl: %s\n", message)
	if hint != "" {
		_, _ = fmt.Fprintf(p.err, "hint: %s\n", hint)
	}
	return code
}

func (p *program) root() *cobra.Command {
	socket := os.Getenv(api.SocketEnv)
	if socket == "" {
		socket = api.DefaultSocket
	}
	cmd := &cobra.Command{
		Use:   "delayctl",
		Short: "Add, remove and show delayed block devices",
		Long: `delayctl speaks to delayd, which puts a precise delay in front of a block device.

  delayctl add slow --backing mem:64M --delay 5ms    # prints /dev/ublkb0
  delayctl add db --backing /dev/sdb --write 2ms --flush 20ms
  delayctl list
  delayctl del slow`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(*cobra.Command, []string) error {
			return errors.New("no command given")
		},
	}
	cmd.PersistentFlags().StringVar(&p.socket, "socket", socket, "unix `PATH` of delayd's control socket (environment: "+api.SocketEnv+")")
	cmd.AddCommand(p.addCommand(), p.delCommand(), p.listCommand(), p.showCommand(), p.compensateCommand(), p.versionCommand(), p.completionCommand())
	cmd.SetFlagErrorFunc(flagError)
	cmd.SetUsageTemplate(usageTemplate)
	return cmd
}

// usageTemplate is cobra's with the examples first.
const usageTemplate = `{{if .HasExample}}Examples:
{{.Example}}

{{end}}Usage:{{if .Runnable}}{{if .HasParent}}
  {{.UseLine}}{{end}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}}  {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
`

// work marks where a command's own work begins and puts what was tried in front
// of its errors: before it, every error is one of usage.
func (p *program) work(what string, f func() error) error {
	p.running = true
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// flagError says what is wrong with a flag's value without naming a Go function.
func flagError(_ *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	want := "not a whole number"
	if invalid.GetFlag().Value.Type() == "bool" {
		want = "neither true nor false"
	}
	return &api.FieldError{Field: "--" + invalid.GetFlag().Name, Value: invalid.GetValue(), Err: errors.New(want)}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("nothing is wanted after it, not %q", strings.Join(args, " "))
	}
	return nil
}

// oneName is the arguments' check of commands that take a device's name.
func oneName(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return errors.New("no NAME given")
	case len(args) > 1:
		return fmt.Errorf("one NAME is wanted, not %d: %s", len(args), strings.Join(args, " "))
	}
	return nil
}

// checkName refuses a name that no device can have.
func checkName(command, name string) error {
	if err := api.ValidateName(name); err != nil {
		return &usageError{fmt.Errorf("%s: %w", command, err)}
	}
	return nil
}

// oneLine is a name as it can be part of a line: as it is, or quoted if it has
// anything in it that would not show.
func oneLine(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// completeNames offers the names of the devices there are. Without a daemon
// there are none.
func (p *program) completeNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	devices, err := p.client().Devices(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.Name+"\t"+d.Backing)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
