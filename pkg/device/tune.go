package device

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// tuning is what a queue's thread was asked to be: written once, before it starts.
type tuning struct {
	cpu      int // where it is to run; -1: anywhere
	realtime int // SCHED_FIFO priority; 0: the normal scheduler
}

// tuning finds out what the thread of a queue was asked to be.
func (d *Device) tuning(ctx context.Context, queue int) (tuning, error) {
	t := tuning{cpu: -1, realtime: d.spec.Realtime}
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
	t.cpu = d.host.pins.take(cpus)
	return t, nil
}

// untune gives back what tuning has taken.
func (d *Device) untune(t tuning) {
	if t.cpu >= 0 {
		d.host.pins.giveBack(t.cpu)
	}
}

// pins counts the threads that are bound to each CPU.
type pins struct {
	mu    sync.Mutex
	bound map[int]int
}

// take chooses the one of the CPUs with the fewest threads, and of those the last:
// the first have the machine's interrupts more often.
func (p *pins) take(cpus []int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	best := cpus[0]
	for _, cpu := range cpus {
		if p.bound[cpu] < p.bound[best] || p.bound[cpu] == p.bound[best] && cpu > best {
			best = cpu
		}
	}
	if p.bound == nil {
		p.bound = map[int]int{}
	}
	p.bound[best]++
	return best
}

func (p *pins) giveBack(cpu int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound[cpu]--
}

// apply makes the calling thread so. It must end with its goroutine: nothing of
// this is undone.
func (t tuning) apply() error {
	if t.cpu >= 0 {
		set := unix.NewCPUSet(t.cpu + 1)
		set.Set(t.cpu)
		if err := unix.SchedSetaffinityDynamic(0, set); err != nil {
			return fmt.Errorf("pin its thread to CPU %d: %w: may the daemon run there? Leave pin out", t.cpu, err)
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
