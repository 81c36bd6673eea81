package control

import (
	"slices"
	"strings"

	"github.com/delayd/delayd/pkg/api"
)

// Device returns the device of that name; the error is an *[api.Problem].
func (m *Manager) Device(name string) (api.Device, error) {
	m.mu.Lock()
	e, ok := m.entries[name]
	var err error
	var dev Device
	switch {
	case !ok:
		err = m.noDevice(name)
	case e.dev == nil:
		err = busyProblem(name, e.phase)
	default:
		dev = e.dev
	}
	m.mu.Unlock()
	if err != nil {
		return api.Device{}, err
	}
	return m.describe(e, dev), nil
}

// Devices returns all devices that are there, ordered by name.
func (m *Manager) Devices() []api.Device {
	type pair struct {
		e   *entry
		dev Device
	}
	m.mu.Lock()
	pairs := make([]pair, 0, len(m.entries))
	for _, e := range m.entries {
		if e.dev != nil {
			pairs = append(pairs, pair{e, e.dev})
		}
	}
	m.mu.Unlock()
	all := make([]api.Device, len(pairs))
	for i, p := range pairs {
		all[i] = m.describe(p.e, p.dev)
	}
	slices.SortFunc(all, func(a, b api.Device) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Each calls f with every device that is there, in no order and without a lock:
// for what gathers metrics.
func (m *Manager) Each(f func(name string, dev Device)) {
	m.mu.Lock()
	devs := make(map[string]Device, len(m.entries))
	for name, e := range m.entries {
		if e.dev != nil {
			devs[name] = e.dev
		}
	}
	m.mu.Unlock()
	for name, dev := range devs {
		f(name, dev)
	}
}

func (m *Manager) describe(e *entry, dev Device) api.Device {
	d := dev.Describe()
	d.Warnings = append(slices.Clone(e.warnings), d.Warnings...)
	return d
}

// noDevice is called with mu held.
func (m *Manager) noDevice(name string) error {
	names := make([]string, 0, len(m.entries))
	for n := range m.entries {
		names = append(names, n)
	}
	slices.Sort(names)
	return noDeviceProblem(name, names)
}

func (m *Manager) changed() {
	if m.o.OnChange == nil {
		return
	}
	m.notify.Lock()
	defer m.notify.Unlock()
	m.mu.Lock()
	n := 0
	for _, e := range m.entries {
		if e.dev != nil {
			n++
		}
	}
	m.mu.Unlock()
	m.o.OnChange(n)
}
