package control

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/delayd/delayd/pkg/api"
)

// Starter makes devices.
type Starter interface {
	// Start returns when the device is announced and delays. The spec was
	// validated and has its defaults filled in. On error nothing is left
	// behind; an error that is not an *[api.Problem] becomes
	// [api.ProblemFailed]. It calls numbered once the device has its number,
	// long before it returns: whoever starts several at once can have them
	// numbered in order.
	Start(ctx context.Context, s api.Spec, numbered func()) (Device, error)
}

// Device is one that runs.
type Device interface {
	// Describe returns what is known now; the manager adds the warnings. A
	// device that has ended by itself is [api.StateFailed] and says why.
	Describe() api.Device
	// Users says who has the block device open, in words such as
	// "mounted on /mnt"; empty if nobody has.
	Users() ([]string, error)
	// Compensate changes what is taken off every delay; word was validated. On
	// error nothing has changed.
	Compensate(ctx context.Context, word string) error
	// Stop dispatches what is held at once, waits for it and removes the
	// device.
	Stop(ctx context.Context) error
	// Kill answers what is held with EIO, then does as Stop.
	Kill(ctx context.Context) error
}

// ProbeWait is how long a device that somebody has open is watched before it is
// said to be in use: udev opens each new device for a moment.
const ProbeWait = 2 * time.Second

// probePoll is how often it is looked at meanwhile.
const probePoll = 20 * time.Millisecond

// Options are those of a [Manager].
type Options struct {
	Starter Starter
	Log     *slog.Logger
	// CPUs bounds the queues of a device; 0 stands for those of the process.
	CPUs int
	// ProbeWait replaces [ProbeWait] where it is not 0.
	ProbeWait time.Duration
	// OnChange is called, if set, with the number of devices after one came
	// or went, one call at a time.
	OnChange func(devices int)
}

// Manager is the set of devices by name. Its methods may be called by several
// goroutines at once.
type Manager struct {
	o Options

	mu       sync.Mutex
	entries  map[string]*entry // by name
	stopping bool              // no more is added or removed

	// ops counts additions and removals under way. It grows only under mu while
	// stopping is false.
	ops sync.WaitGroup
	// ending ends when stopping is set.
	ending context.Context
	end    context.CancelFunc

	notify sync.Mutex // held around OnChange
}

// phase is what is being done with a name.
type phase uint8

const (
	adding phase = iota
	ready
	removing
)

// entry is a name that is taken. Manager.mu guards phase, dev and interrupt; the
// rest is written once before phase leaves adding.
type entry struct {
	phase     phase
	dev       Device // nil while adding
	warnings  []string
	interrupt context.CancelFunc // ends the change that is under way; nil: none is
}

// NewManager returns a manager without devices.
func NewManager(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.CPUs == 0 {
		o.CPUs = runtime.NumCPU()
	}
	if o.ProbeWait == 0 {
		o.ProbeWait = ProbeWait
	}
	m := &Manager{o: o, entries: map[string]*entry{}}
	m.ending, m.end = context.WithCancel(context.Background())
	return m
}

// Add makes a device. A caller that goes away (ctx) while it starts has it
// undone. Errors are *[api.Problem] or *[api.FieldError].
func (m *Manager) Add(ctx context.Context, s api.Spec) (api.Device, error) {
	return m.add(ctx, s, func() {})
}

// atOnce is how many devices are started at the same time. Most of a start is
// waiting for the kernel, where it has several CPUs: for the change of a disk's
// scheduler alone some tens of ms.
const atOnce = 16

// AddAll makes several devices, whose numbers are in the order of specs. The error
// is that of the first that fails; those that were there by then stay.
func (m *Manager) AddAll(ctx context.Context, specs []api.Spec) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for _, s := range specs {
		if ctx.Err() != nil {
			break
		}
		numbered := make(chan struct{})
		all.Go(func() error {
			_, err := m.add(ctx, s, sync.OnceFunc(func() { close(numbered) }))
			if err != nil {
				err = fmt.Errorf("add %s: %w", s.Name, err)
			}
			return err
		})
		select {
		case <-numbered:
		case <-ctx.Done():
		}
	}
	return all.Wait()
}

func (m *Manager) add(ctx context.Context, s api.Spec, numbered func()) (api.Device, error) {
	if err := s.Validate(m.o.CPUs); err != nil {
		return api.Device{}, err
	}
	s = s.WithDefaults().WithQueues(m.o.CPUs)
	e, err := m.reserve(s)
	if err != nil {
		return api.Device{}, err
	}
	defer m.ops.Done()

	// The daemon's end undoes it too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ending, cancel)()

	dev, err := m.o.Starter.Start(ctx, s, numbered)
	if err != nil {
		m.release(s.Name)
		if ctx.Err() != nil {
			// The reason is with whoever gave it up.
			m.o.Log.Info("device given up while it was added", "device", s.Name, "backing", s.Backing)
		} else {
			m.o.Log.Error("device not added", "device", s.Name, "backing", s.Backing, "error", err)
		}
		return api.Device{}, problemOf(err)
	}
	m.mu.Lock()
	e.dev, e.phase = dev, ready
	m.mu.Unlock()

	d := m.describe(e, dev)
	for _, w := range e.warnings {
		m.o.Log.Warn(w, "device", d.Name)
	}
	m.changed()
	return d, nil
}

// reserve takes the name of s, or says why it cannot be had. The caller owes
// an ops.Done.
func (m *Manager) reserve(s api.Spec) (*entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return nil, endingProblem()
	}
	if e, ok := m.entries[s.Name]; ok {
		return nil, takenProblem(s.Name, e.phase)
	}
	e := &entry{warnings: s.Warnings()}
	m.entries[s.Name] = e
	m.ops.Add(1)
	return e, nil
}

// release frees a name.
func (m *Manager) release(name string) {
	m.mu.Lock()
	delete(m.entries, name)
	m.mu.Unlock()
}

// Delete removes a device. One that somebody has open is refused, if that is
// still so after [ProbeWait]; force answers what is held with EIO and removes
// it anyhow. Once the removal has begun it goes on without its caller.
// Errors are *[api.Problem].
func (m *Manager) Delete(ctx context.Context, name string, force bool) error {
	e, err := m.claim(name)
	if err != nil {
		return err
	}
	defer m.ops.Done()
	if !force {
		users, err := m.users(ctx, e.dev)
		if err == nil && len(users) > 0 {
			err = inUseProblem(name, users)
		}
		if err != nil {
			m.unclaim(e)
			return problemOf(err)
		}
	}
	if err := m.remove(context.WithoutCancel(ctx), e.dev, force); err != nil {
		m.unclaim(e)
		m.o.Log.Error("device not removed", "device", name, "error", err)
		return problemOf(err)
	}
	m.release(name)
	m.o.Log.Info("device removed", "device", name, "force", force)
	m.changed()
	return nil
}

// atRest returns a device that is neither being added nor removed, or says why
// there is none. It is called with mu held.
func (m *Manager) atRest(name string) (*entry, error) {
	if m.stopping {
		return nil, endingProblem()
	}
	e, ok := m.entries[name]
	switch {
	case !ok:
		return nil, m.noDevice(name)
	case e.phase != ready:
		return nil, busyProblem(name, e.phase)
	}
	return e, nil
}

// claim takes a device that is ready for its removal. The caller owes an
// ops.Done.
func (m *Manager) claim(name string) (*entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.atRest(name)
	if err != nil {
		return nil, err
	}
	e.phase = removing
	if e.interrupt != nil {
		e.interrupt()
	}
	m.ops.Add(1)
	return e, nil
}

func (m *Manager) unclaim(e *entry) {
	m.mu.Lock()
	e.phase = ready
	m.mu.Unlock()
}

func (m *Manager) remove(ctx context.Context, dev Device, force bool) error {
	if force {
		return dev.Kill(ctx)
	}
	return dev.Stop(ctx)
}

// users returns who has dev open, once that has been so for ProbeWait.
func (m *Manager) users(ctx context.Context, dev Device) ([]string, error) {
	deadline := time.NewTimer(m.o.ProbeWait)
	defer deadline.Stop()
	poll := time.NewTicker(probePoll)
	defer poll.Stop()
	for {
		users, err := dev.Users()
		if err != nil {
			return nil, fmt.Errorf("find out who has it open: %w", err)
		}
		if len(users) == 0 {
			return nil, nil
		}
		select {
		case <-poll.C:
		case <-deadline.C:
			return users, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
