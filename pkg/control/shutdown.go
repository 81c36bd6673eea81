package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Shutdown ends all devices. What is being added is undone, what is being
// removed is waited for. Devices that nobody has open are stopped and removed;
// one that is in use is named in the log, its requests are finished as well,
// and then it is stopped too: its users find no device any more.
//
// The error names the devices that could not be stopped before ctx ended.
func (m *Manager) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	m.stopping = true
	m.end()
	m.mu.Unlock()
	if err := waitFor(ctx, &m.ops); err != nil {
		return fmt.Errorf("wait for devices that are being added or removed: %w", err)
	}

	m.mu.Lock()
	rest := map[string]*entry{}
	for name, e := range m.entries {
		e.phase = removing
		rest[name] = e
	}
	m.mu.Unlock()

	var all sync.WaitGroup
	errs := make(chan error, len(rest))
	for name, e := range rest {
		all.Go(func() { errs <- m.finish(ctx, name, e) })
	}
	all.Wait()
	close(errs)
	var failed []error
	for err := range errs {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// finish stops one device, whoever has it open.
func (m *Manager) finish(ctx context.Context, name string, e *entry) error {
	switch users, err := m.users(ctx, e.dev); {
	case err != nil:
		m.o.Log.Warn("device stopped without knowing whether it is in use", "device", name, "error", err)
	case len(users) > 0:
		m.o.Log.Warn("device is in use; its requests are finished before it ends",
			"device", name, "users", strings.Join(users, ", "))
	}
	if err := e.dev.Stop(ctx); err != nil {
		m.o.Log.Error("device not removed", "device", name, "error", err)
		return fmt.Errorf("stop %s: %w", name, err)
	}
	m.release(name)
	m.o.Log.Info("device removed", "device", name)
	return nil
}

func waitFor(ctx context.Context, wg *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
