package device

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// tuning is what a queue's thread was asked to be: written once, before it starts.
type tuning struct {
	cpus     []int // where it may run; nil: anywhere
	realtime int   // SCHED_FIFO priority; 0: the normal scheduler
}

// tuning finds out what the thread of a queue was asked to be.
func (d *Device) tuning(ctx context.Context, queue int) (tuning, error) {
	t := tuning{realtime: d.spec.Realtime}
	if !d.spec.Pin {
		return t, nil
	}
	cpus, err := d.host.control.Affinity(ctx, d.id, queue)
	if err == nil && len(cpus) == 0 {
		err = errors.New("the driver maps no CPU to it")
	}
	if err != nil {
		return t, fmt.Errorf("pin queue %d: %w", queue, err)
	}
	t.cpus = cpus
	return t, nil
}

// apply makes the calling thread so. It must end with its goroutine: nothing of
// this is undone.
func (t tuning) apply() error {
	if t.cpus != nil {
		set := unix.NewCPUSet(slices.Max(t.cpus) + 1)
		for _, cpu := range t.cpus {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinityDynamic(0, set); err != nil {
			return fmt.Errorf("pin its thread to CPUs %v: %w: are they among those that the daemon may run on? Leave pin out", t.cpus, err)
		}
	}
	if t.realtime == 0 {
		return nil
	}
	err := unix.SchedSetAttr(0, &unix.SchedAttr{
		Size:     unix.SizeofSchedAttr,
		Policy:   unix.SCHED_FIFO,
		Priority: uint32(t.realtime),
		// No thread or child that comes of this one inherits it.
		Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
	if err != nil {
		return fmt.Errorf("give its thread the SCHED_FIFO priority %d: %w: run delayd with CAP_SYS_NICE, or with LimitRTPRIO=%d in its unit",
			t.realtime, err, t.realtime)
	}
	return nil
}
