package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/delayd/delayd/pkg/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeStarter makes devices that serve nobody. What goes wrong is set by tests.
type fakeStarter struct {
	nextID atomic.Int32
	// start, if set, is called in place of a start; a nil error goes on.
	start func(ctx context.Context, s api.Spec) error

	mu   sync.Mutex
	made map[string]*fakeDevice
	live int // devices started and not stopped
}

func (f *fakeStarter) Start(ctx context.Context, s api.Spec, numbered func()) (Device, error) {
	id := int(f.nextID.Add(1)) - 1
	numbered()
	if f.start != nil {
		if err := f.start(ctx, s); err != nil {
			return nil, err
		}
	}
	d := &fakeDevice{starter: f, spec: s, id: id}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made == nil {
		f.made = map[string]*fakeDevice{}
	}
	f.made[s.Name] = d
	f.live++
	return d, nil
}

func (f *fakeStarter) device(name string) *fakeDevice {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[name]
}

func (f *fakeStarter) alive() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live
}

type fakeDevice struct {
	starter *fakeStarter
	spec    api.Spec
	id      int

	mu      sync.Mutex
	users   func() ([]string, error)
	stop    func(ctx context.Context) error
	measure func(ctx context.Context) error
	failure string
	stops   int
	kills   int
	gone    bool
}

func (d *fakeDevice) Describe() api.Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	delays, err := d.spec.ParseDelays()
	if err != nil {
		panic(err) // the manager validates
	}
	out := api.Device{
		Name: d.spec.Name, ID: d.id, Path: fmt.Sprintf("/dev/ublkb%d", d.id), State: api.StateDelaying,
		Backing: d.spec.Backing, Delays: api.Describe(delays), Hold: d.spec.Hold, Size: 64 << 20,
		Queues: int(d.spec.Queues), Depth: d.spec.Depth,
		Compensate: d.spec.Compensate, Compensation: "0s", Spin: d.spec.Spin, ZeroCopy: d.spec.ZeroCopy,
		Poll: d.spec.Poll, Pin: d.spec.Pin, Realtime: d.spec.Realtime,
		Limits:     api.Limits{LogicalBlockSize: 512, PhysicalBlockSize: 4096},
		MaxIOBytes: 1 << 20, BufferBytes: 1 << 30, Created: time.Now().UTC(),
	}
	if d.failure != "" {
		out.State, out.Error = api.StateFailed, d.failure
	}
	return out
}

func (d *fakeDevice) Users() ([]string, error) {
	d.mu.Lock()
	f := d.users
	d.mu.Unlock()
	if f == nil {
		return nil, nil
	}
	return f()
}

func (d *fakeDevice) setUsers(f func() ([]string, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users = f
}

func (d *fakeDevice) setStop(f func(ctx context.Context) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stop = f
}

func (d *fakeDevice) setMeasure(f func(ctx context.Context) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.measure = f
}

func (d *fakeDevice) Compensate(ctx context.Context, word string) error {
	d.mu.Lock()
	f := d.measure
	d.mu.Unlock()
	if f != nil {
		if err := f(ctx); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spec.Compensate = word
	return nil
}

func (d *fakeDevice) Stop(ctx context.Context) error { return d.end(ctx, &d.stops) }
func (d *fakeDevice) Kill(ctx context.Context) error { return d.end(ctx, &d.kills) }

func (d *fakeDevice) end(ctx context.Context, count *int) error {
	d.mu.Lock()
	*count++
	stop := d.stop
	d.mu.Unlock()
	if stop != nil {
		if err := stop(ctx); err != nil {
			return err
		}
	}
	d.mu.Lock()
	first := !d.gone
	d.gone = true
	d.mu.Unlock()
	if first {
		d.starter.mu.Lock()
		d.starter.live--
		d.starter.mu.Unlock()
	}
	return nil
}

func (d *fakeDevice) counts() (stops, kills int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stops, d.kills
}

// newManager returns a manager of fakes whose wait for udev is short.
func newManager(t *testing.T, o Options) (*Manager, *fakeStarter) {
	t.Helper()
	starter := &fakeStarter{}
	if o.Starter != nil {
		starter = o.Starter.(*fakeStarter)
	}
	o.Starter = starter
	if o.CPUs == 0 {
		o.CPUs = 4
	}
	if o.ProbeWait == 0 {
		o.ProbeWait = 100 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return NewManager(o), starter
}

func spec(name string) api.Spec {
	return api.Spec{Name: name, Backing: "mem:64M", Delay: "5ms"}
}

func mustAdd(t *testing.T, m *Manager, s api.Spec) api.Device {
	t.Helper()
	d, err := m.Add(context.Background(), s)
	if err != nil {
		t.Fatalf("add %s: %v", s.Name, err)
	}
	return d
}

func unixClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
}

// post sends JSON to the devices and returns the status and the body.
func post(t *testing.T, socket, body string) (int, string) {
	t.Helper()
	resp, err := unixClient(socket).Post("http://delayd"+api.PathDevices, api.MediaType, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(text)
}
