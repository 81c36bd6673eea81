package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/delayd/delayd/pkg/api"
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

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	running := false
	root := rootCommand(errOut, &running)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	code, hint := exitFailed, api.HintOf(err)
	if usage := (*usageError)(nil); errors.As(err, &usage) || !running {
		code = exitUsage
		if hint == "" {
			hint = "`delayd --help` shows what can be typed"
		}
	}
	// A terminal that is gone cannot be told.
	_, _ = fmt.Fprintf(errOut, "delayd: %v\n", err)
	if hint != "" {
		_, _ = fmt.Fprintf(errOut, "hint: %s\n", hint)
	}
	return code
}

// rootCommand is the daemon itself. running is set when its work begins: before,
// every error is one of usage.
func rootCommand(errOut io.Writer, running *bool) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "delayd",
		Short: "Serve delayed block devices",
		Example: `  delayd                                   # the manager, for delayctl
  delayd --config /etc/delayd/slow.toml    # the devices of a file
  delayd --metrics localhost:9799 --log-format json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q", args[0])
			}
			return nil
		},
		Version:           api.Build().Version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(os.Getenv(api.SocketEnv)); err != nil {
				return &usageError{err}
			}
			log, err := newLogger(errOut, o.logLevel, o.logFormat)
			if err != nil {
				return &usageError{err}
			}
			*running = true
			return run(cmd.Context(), o, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "start with the devices of a TOML `FILE`")
	f.StringVar(&o.socket, "socket", "", "unix `PATH` of the control socket (environment: "+api.SocketEnv+"; default RUN-DIR/OWNER.sock)")
	f.StringVar(&o.owner, "owner", "", "`NAME` under which the devices are kept (default delayd, with --config that of the file)")
	f.StringVar(&o.runDir, "run-dir", defaultRunDir, "`DIR` of what outlives the daemon")
	f.StringVar(&o.metrics, "metrics", "", "serve Prometheus metrics on `ADDR` (HOST:PORT) under /metrics")
	f.StringVar(&o.spinners, "spinners", api.Auto, "at most `N` queues spin at once, 0 to the number of CPUs (auto: one less than those)")
	f.BoolVar(&o.mlock, "mlock", false, "keep the daemon's memory from being swapped out")
	f.StringVar(&o.logLevel, "log-level", "info", "`LEVEL`: debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "`FORMAT`: text or json")
	cmd.SetUsageTemplate(usageTemplate)
	cmd.SetVersionTemplate("delayd {{.Version}}\n")
	cmd.AddCommand(helperCommand(running))
	return cmd
}

// usageTemplate is cobra's with the examples first.
const usageTemplate = `{{if .HasExample}}Examples:
{{.Example}}

{{end}}Usage:
  {{.UseLine}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
`
