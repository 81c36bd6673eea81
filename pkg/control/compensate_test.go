package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/delayd/delayd/pkg/api"
)

func TestCompensate(t *testing.T) {
	ctx := context.Background()
	m, starter := newManager(t, Options{})
	mustAdd(t, m, spec("a"))
	for _, c := range []struct{ word, want string }{{"", "auto"}, {"off", "off"}, {"auto", "auto"}, {"80us", "80us"}} {
		d, err := m.Compensate(ctx, "a", api.Compensation{Compensate: c.word})
		if err != nil || d.Compensate != c.want {
			t.Errorf("%q: %q, %v", c.word, d.Compensate, err)
		}
	}
	_, err := m.Compensate(ctx, "a", api.Compensation{Compensate: "1s"})
	wantProblem(t, err, api.ProblemInvalid, `compensate "1s": too long`, "want off, auto, or a duration up to 100ms, such as 80us")
	_, err = m.Compensate(ctx, "b", api.Compensation{})
	wantProblem(t, err, api.ProblemNoDevice, `there is no device "b"`, "did you mean a?")
	starter.device("a").setMeasure(func(context.Context) error { return errors.New("a: measure the path: no") })
	_, err = m.Compensate(ctx, "a", api.Compensation{})
	wantProblem(t, err, api.ProblemFailed, "a: measure the path: no", "")
	if d, err := m.Device("a"); err != nil || d.Compensate != "80us" {
		t.Errorf("changed by what failed: %q, %v", d.Compensate, err)
	}
}

// measuring starts a measurement that does not end by itself.
func measuring(t *testing.T, m *Manager, d *fakeDevice) <-chan error {
	t.Helper()
	entered, done := make(chan struct{}), make(chan error, 1)
	d.setMeasure(func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	})
	go func() {
		_, err := m.Compensate(context.Background(), "a", api.Compensation{})
		done <- err
	}()
	<-entered
	return done
}

// A measurement gives way to the device's removal and to the daemon's end.
func TestAMeasurementGivesWay(t *testing.T) {
	ctx := context.Background()
	m, starter := newManager(t, Options{})
	mustAdd(t, m, spec("a"))
	done := measuring(t, m, starter.device("a"))
	_, err := m.Compensate(ctx, "a", api.Compensation{Compensate: "off"})
	wantProblem(t, err, api.ProblemBusy, `device "a" is just being changed`, "try again in a moment")
	if _, err := m.Device("a"); err != nil {
		t.Errorf("not shown while it is measured: %v", err)
	}
	if err := m.Delete(ctx, "a", false); err != nil {
		t.Error(err)
	}
	wantProblem(t, <-done, api.ProblemBusy, `device "a" is just being removed`, "try again in a moment")

	mustAdd(t, m, spec("a"))
	done = measuring(t, m, starter.device("a"))
	short, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := m.Shutdown(short); err != nil {
		t.Error(err)
	}
	wantProblem(t, <-done, api.ProblemStopping, "delayd is ending", "")
	if starter.alive() != 0 {
		t.Error("a device is left")
	}
	_, err = m.Compensate(ctx, "a", api.Compensation{})
	wantProblem(t, err, api.ProblemStopping, "delayd is ending", "")
}
