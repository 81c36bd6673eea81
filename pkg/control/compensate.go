package control

import (
	"context"

	"github.com/delayd/delayd/pkg/api"
)

// Compensate changes what is taken off the delays of a device and returns it as
// it is then. A measurement ends with ctx, with the daemon, and with the device's
// removal; nothing has changed then. Errors are *[api.Problem] or
// *[api.FieldError].
func (m *Manager) Compensate(ctx context.Context, name string, c api.Compensation) (api.Device, error) {
	word := c.Compensate
	if word == "" {
		word = api.Auto
	}
	if _, err := api.ParseCompensate(word); err != nil {
		return api.Device{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ending, cancel)()
	e, err := m.change(name, cancel)
	if err != nil {
		return api.Device{}, err
	}
	defer m.ops.Done()
	err = e.dev.Compensate(ctx, word)

	m.mu.Lock()
	e.interrupt = nil
	removed, ending := e.phase == removing, m.stopping
	m.mu.Unlock()
	switch {
	case err == nil:
		m.o.Log.Info("device compensated", "device", name, "compensate", word)
		return m.describe(e, e.dev), nil
	case ending:
		return api.Device{}, endingProblem()
	case removed:
		return api.Device{}, busyProblem(name, removing)
	}
	m.o.Log.Error("device not compensated", "device", name, "compensate", word, "error", err)
	return api.Device{}, problemOf(err)
}

// change takes a device that is ready for a change, one at a time; interrupt is
// what its removal calls. The caller owes an ops.Done.
func (m *Manager) change(name string, interrupt context.CancelFunc) (*entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.atRest(name)
	if err != nil {
		return nil, err
	}
	if e.interrupt != nil {
		return nil, changingProblem(name)
	}
	e.interrupt = interrupt
	m.ops.Add(1)
	return e, nil
}
