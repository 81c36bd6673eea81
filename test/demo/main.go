// Demo measures direct 4 KiB writes, one at a time, on a memory-backed null_blk
// device: as it is, through the kernel's dm-delay, and through delayd, for delays
// from 100 µs to 20 ms, and prints one table. It needs root, null_blk and ublk,
// and removes what it makes. `make demo` runs it where these are.
//
// It exits with 1 if delayd answered one request earlier than asked.
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
	"syscall"
	"time"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/test/fixture"
)

var asked = []time.Duration{
	100 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond,
}

// How many requests one figure is of: as many as fit the time, within bounds.
const (
	perFigure  = time.Second
	minSamples = 50
	maxSamples = 1000
)

func init() {
	// The daemon is to end with this program's first thread; keep to it.
	runtime.LockOSThread()
}

func main() {
	bin := flag.String("bin", "bin", "the `DIRECTORY` with delayd and delayctl")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	r, err := measureAll(ctx, *bin)
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
	r.print(os.Stdout)
	if early := r.early(); len(early) > 0 {
		fmt.Fprintf(os.Stderr, "demo: delayd was EARLY: a request took less than the %v asked\n", early[0])
		os.Exit(1)
	}
}

// measureAll makes the device, measures every row, and removes all it made.
func measureAll(ctx context.Context, bin string) (r *report, err error) {
	var made fixture.Stack
	defer func() { err = errors.Join(err, made.Close()) }()

	bin, err = filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	kernel, err := fixture.ThisKernel()
	if err != nil {
		return nil, err
	}
	disk, err := fixture.NewNullBlk(fixture.MemoryBacked(256))
	if err != nil {
		return nil, err
	}
	made.Push(disk.Path, disk.Close)
	daemon, err := fixture.StartDaemon(bin, "demo")
	if err != nil {
		return nil, err
	}
	made.Push("delayd", daemon.Close)

	r = &report{kernel: kernel}
	r.dmMissing = fixture.HaveDMTarget("delay")
	if r.dmMissing != nil && !errors.Is(r.dmMissing, fixture.ErrNotAvailable) {
		return nil, r.dmMissing
	}

	say("measuring the undelayed device ...")
	if r.undelayed, err = measure(disk.Path, 0); err != nil {
		return nil, err
	}
	for _, delay := range asked {
		row := row{asked: delay}
		if r.dmMissing == nil && delay%time.Millisecond == 0 {
			if row.dm, err = onDMDelay(ctx, disk.Path, delay); err != nil {
				return nil, err
			}
		}
		if row.delayd, err = onDelayd(ctx, daemon, disk.Path, delay); err != nil {
			return nil, err
		}
		r.rows = append(r.rows, row)
	}
	return r, nil
}

func onDMDelay(ctx context.Context, disk string, delay time.Duration) (lat fixture.Latencies, err error) {
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	say("measuring dm-delay %v ...", delay)
	dm, err := fixture.NewDMDelay(disk, delay)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dm.Close()) }()
	return measure(dm.Path, delay)
}

func onDelayd(ctx context.Context, d *fixture.Daemon, disk string, delay time.Duration) (lat fixture.Latencies, err error) {
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	say("measuring delayd %v ...", delay)
	path, err := d.Add("demo", disk, "--delay", delay.String())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Del("demo")) }()
	return measure(path, delay)
}

// measure takes the samples of one figure. The two targets are measured with the
// same load.
func measure(path string, delay time.Duration) (fixture.Latencies, error) {
	count := maxSamples
	if delay > 0 {
		count = min(max(int(perFigure/delay), minSamples), maxSamples)
	}
	load := fixture.Load{Op: op.Write, Count: count, Random: true, Warmup: 10, Raw: true}
	// Where a delay becomes a multiple of itself, time is the limit, and the
	// least number of samples comes first.
	load.Duration = max(2*perFigure, minSamples*2*delay)
	return fixture.Measure(path, load)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "demo: "+format+"\n", args...)
}
