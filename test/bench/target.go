package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/test/fixture"
)

// Names of the targets, in the order in which a round measures them.
const (
	rawTarget        = "raw"               // the null_blk itself
	limitTarget      = "limit"             // null_blk that completes from an hrtimer
	dmTarget         = "dm-delay"          //
	loopTarget       = "loop"              // the kernel's loop device, direct
	kublkTarget      = "kublk"             // the kernel tree's ublk server, zero copy where there is
	kublkCopyTarget  = "kublk copy"        //
	kublkWideTarget  = "kublk wide"        // with a queue for each CPU
	kublkBatchTarget = "kublk batch"       // with batch I/O: a command for many requests
	nbdkitTarget     = "nbdkit"            // its delay filter, over the nbd driver
	delaydTarget     = "delayd"            // as it is by default
	delaydCompTarget = "delayd+compensate" // --compensate auto
	delaydCopyTarget = "delayd copy"       // --zero-copy off
	delaydPollTarget = "delayd+poll"       // --poll, on a null_blk with poll_queues
	delaydWideTarget = "delayd wide"       // --queues: one for each CPU
)

// target is something that a block device can be put on or behind.
type target struct {
	name string
	can  func(delay time.Duration) bool
	// open makes it for so many requests in flight.
	open func(delay time.Duration, inFlight int) (*served, error)
	// classic: the classic five are run on it
	classic bool
}

// served is an open target.
type served struct {
	path  string // its block device
	pids  []int  // the processes that serve it; none: the kernel does
	close func() error
}

// Close removes the device and ends its server.
func (s *served) Close() error { return s.close() }

func anyDelay(time.Duration) bool       { return true }
func noDelay(d time.Duration) bool      { return d == 0 }
func someDelay(d time.Duration) bool    { return d > 0 }
func milliseconds(d time.Duration) bool { return d%time.Millisecond == 0 }

// bench is the place: the memory-backed disk that every target is on, and the
// programs.
type bench struct {
	bin     string // the folder of delayd and delayctl
	kublk   string // the kernel's ublk server; "": there is none
	kernel  fixture.Kernel
	disk    *fixture.NullBlk
	flags   []string          // of `delayctl add`
	leftOut map[string]string // targets, and why they are not measured
}

const (
	diskMiB = 1024
	// spanMiB is the part of the disk that is measured: written before, so that
	// null_blk has its pages.
	spanMiB = 16
	span    = "16M"
)

// diskAttrs are those of the one disk.
func diskAttrs() fixture.NullBlkAttrs {
	return fixture.MemoryBacked(diskMiB).With("submit_queues", runtime.NumCPU()).With("hw_queue_depth", 1024)
}

// targets are those that can be measured here; leftOut says why others are not.
func (b *bench) targets() []target {
	all := []target{
		{rawTarget, noDelay, b.openRaw, false},
		{limitTarget, anyDelay, b.openLimit, true},
		{dmTarget, milliseconds, b.openDM, true},
		{loopTarget, noDelay, b.openLoop, false},
		{kublkTarget, noDelay, func(time.Duration, int) (*served, error) { return b.openKublk(1, true) }, false},
		{kublkCopyTarget, noDelay, func(time.Duration, int) (*served, error) { return b.openKublk(1, false) }, false},
		{kublkWideTarget, noDelay, func(time.Duration, int) (*served, error) { return b.openKublk(runtime.NumCPU(), true) }, false},
		{kublkBatchTarget, noDelay, func(time.Duration, int) (*served, error) { return b.openKublk(1, true, "--batch") }, false},
		{nbdkitTarget, milliseconds, b.openNBDKit, true},
		{delaydTarget, anyDelay, func(d time.Duration, n int) (*served, error) { return b.openDelayd(d, n) }, true},
		{delaydCompTarget, someDelay, func(d time.Duration, n int) (*served, error) { return b.openDelayd(d, n, "--compensate", "auto") }, true},
		{delaydCopyTarget, noDelay, func(d time.Duration, n int) (*served, error) { return b.openDelayd(d, n, "--zero-copy", "off") }, false},
		{delaydWideTarget, noDelay, func(d time.Duration, n int) (*served, error) {
			return b.openDelayd(d, n, "--queues", strconv.Itoa(runtime.NumCPU()))
		}, false},
		{delaydPollTarget, noDelay, b.openPolled, false},
	}
	b.findMissing()
	return slices.DeleteFunc(all, func(t target) bool { return b.leftOut[t.name] != "" })
}

func (b *bench) openRaw(time.Duration, int) (*served, error) {
	return &served{path: b.disk.Path, close: func() error { return nil }}, nil
}

// openLimit makes another null_blk like the disk, which answers from a timer.
func (b *bench) openLimit(delay time.Duration, _ int) (*served, error) {
	attrs := diskAttrs()
	if delay > 0 {
		attrs = attrs.With("irqmode", 2).With("completion_nsec", delay.Nanoseconds())
	}
	disk, err := fixture.NewNullBlk(attrs)
	if err != nil {
		return nil, err
	}
	if err := fill(disk.Path); err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	return &served{path: disk.Path, close: disk.Close}, nil
}

func (b *bench) openDM(delay time.Duration, _ int) (*served, error) {
	dm, err := fixture.NewDMDelay(b.disk.Path, delay)
	if err != nil {
		return nil, err
	}
	return &served{path: dm.Path, close: dm.Close}, nil
}

func (b *bench) openLoop(time.Duration, int) (*served, error) {
	l, err := fixture.NewLoop(b.disk.Path, fixture.LoopOptions{DirectIO: true})
	if err != nil {
		return nil, err
	}
	return &served{path: l.Path, close: l.Close}, nil
}

// openDelayd starts a daemon for one device with flags of `delayctl add`.
func (b *bench) openDelayd(delay time.Duration, inFlight int, flags ...string) (*served, error) {
	if inFlight > api.DefaultDepth {
		flags = append([]string{"--depth", strconv.Itoa(inFlight)}, flags...)
	}
	return b.openDelaydOn(b.disk.Path, delay, flags...)
}

func (b *bench) openDelaydOn(backing string, delay time.Duration, flags ...string) (*served, error) {
	d, err := fixture.StartDaemon(b.bin, "bench")
	if err != nil {
		return nil, err
	}
	if delay > 0 {
		flags = append([]string{"--delay", delay.String()}, flags...)
	}
	path, err := d.Add("bench", backing, flags...)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &served{path: path, pids: []int{d.PID()}, close: func() error {
		return errors.Join(d.Del("bench"), d.Close())
	}}, nil
}

// openPolled is delayd that polls a disk made like the one of the others, with
// queues to poll.
func (b *bench) openPolled(delay time.Duration, _ int) (*served, error) {
	disk, err := fixture.NewNullBlk(diskAttrs().With("poll_queues", 1))
	if err != nil {
		return nil, err
	}
	if err := fill(disk.Path); err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	s, err := b.openDelaydOn(disk.Path, delay, "--poll")
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	inner := s.close
	s.close = func() error { return errors.Join(inner(), disk.Close()) }
	return s, nil
}

// findMissing fills leftOut.
func (b *bench) findMissing() {
	missing := func(target, format string, args ...any) {
		if b.leftOut[target] == "" {
			b.leftOut[target] = fmt.Sprintf(format, args...)
		}
	}
	if err := fixture.HaveDMTarget("delay"); err != nil {
		missing(dmTarget, "%v", err)
	}
	for _, t := range kublkModes {
		if b.kublk == "" {
			missing(t, "the kernel's ublk server was not built")
		}
	}
	for _, t := range []string{kublkWideTarget, delaydWideTarget} {
		if runtime.NumCPU() == 1 {
			missing(t, "one queue is all that one CPU can have")
		}
	}
	if b.leftOut[kublkTarget] == "" {
		if !b.kublkHas("AUTO_BUF_REG") {
			missing(kublkCopyTarget, "this kernel has no zero copy for ublk: kublk itself copies")
		}
		if !b.kublkHas("BATCH_IO") {
			missing(kublkBatchTarget, "this kernel has no batch I/O for ublk")
		}
	}
	for _, tool := range []string{"nbdkit", "nbd-client"} {
		if err := haveProgram(tool); err != nil {
			missing(nbdkitTarget, "%v", err)
		}
	}
	if err := haveNBD(); err != nil {
		missing(nbdkitTarget, "%v", err)
	}
	for target, flag := range map[string]string{
		delaydCompTarget: "--compensate", delaydCopyTarget: "--zero-copy", delaydPollTarget: "--poll",
	} {
		if !slices.Contains(b.flags, flag) {
			missing(target, "this delayd has no %s", flag)
		}
	}
}
