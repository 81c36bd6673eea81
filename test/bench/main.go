// Bench compares delayd with what else delays a block device, and with what
// serves one without delay, side by side on one kernel. test/bench/run calls it:
//
//	bench guest    measures one part, in the guest
//	bench native   measures what needs no ublk, on the machine itself
//	bench report   makes KERNEL.jsonl, KERNEL.md and the plots of what these left
//
// docs/accuracy.md says how it is measured and how to read what comes out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func init() {
	// The servers are to end with this program's first thread; keep to it.
	runtime.LockOSThread()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want guest, native or report")
	}
	name, args := args[0], args[1:]
	f := flag.NewFlagSet("bench "+name, flag.ContinueOnError)
	var run func() error
	switch name {
	case "guest":
		var o guestOptions
		f.StringVar(&o.part, "part", accuracyPart, "`PART` to measure: accuracy or throughput")
		f.StringVar(&o.bin, "bin", "bin", "the `FOLDER` of delayd and delayctl")
		f.StringVar(&o.kublk, "kublk", "", "the kernel's own ublk server, a `FILE`")
		f.StringVar(&o.out, "out", ".", "the `FOLDER` for the results")
		f.BoolVar(&o.quick, "quick", false, "measure the core of it")
		f.StringVar(&o.only, "only", "", "measure one `TARGET`, to try it")
		run = func() (err error) {
			if !slices.Contains(guestParts, o.part) {
				return fmt.Errorf("-part %q: want %s", o.part, strings.Join(guestParts, ", "))
			}
			if o.bin, err = filepath.Abs(o.bin); err != nil {
				return err
			}
			return guest(ctx, o)
		}
	case "native":
		var o nativeOptions
		f.StringVar(&o.benchmarks, "benchmarks", "", "`FILE` with what go test -bench printed")
		f.StringVar(&o.bin, "bin", "bin", "the `FOLDER` of delayd")
		f.StringVar(&o.kublk, "kublk", "", "the kernel's own ublk server, a `FILE`")
		f.StringVar(&o.out, "out", "native.run.json", "the `FILE` for the results")
		f.BoolVar(&o.quick, "quick", false, "measure the core of it")
		run = func() error { return native(ctx, o) }
	case "report":
		var o reportOptions
		f.StringVar(&o.from, "from", ".", "the `FOLDER` with what the parts left")
		f.StringVar(&o.to, "to", "results", "the `FOLDER` for the report")
		f.StringVar(&o.kernel, "kernel", "uml", "the `NAME` of the report's files")
		run = func() error { return report(o) }
	default:
		return fmt.Errorf("%q: want guest, native or report", name)
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%s: unexpected argument %q", name, f.Arg(0))
	}
	return run()
}
