package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/ublkdev"
)

// Device is one delayed block device. Its methods may be called from any
// goroutine.
type Device struct {
	// Written once, before the device is announced.
	host    *Host
	spec    Spec
	id      int
	back    backend.Backend
	direct  bool // zero copy: no request has a buffer
	char    *os.File
	queues  []*queue
	cells   *counters.Set
	created time.Time
	log     *slog.Logger

	unpolled *unpolled // nil: polling is not asked for

	policy atomic.Pointer[policy] // what the queues' threads go by
	state  atomic.Uint32          // State
	comp   compensating

	started chan error    // one from each queue's thread
	ended   chan error    // one from each queue's thread
	gone    chan struct{} // closed when the ublk device is: the threads may return
	done    chan struct{} // closed when the device has ended, by itself or not

	stopping sync.Mutex // held by whoever is stopping the device
	running  int        // queue threads that have not reported on ended. stopping
	removed  bool       // nothing is left to be done. stopping

	failing sync.Mutex
	err     error // why it ended by itself. failing
}

// Spec is what the device was made from, with every default filled in.
// Compensate is what was asked for last.
func (d *Device) Spec() Spec {
	s := d.spec
	s.Compensate, _ = d.comp.get()
	return s
}

// Counters are the device's counters; they end with it.
func (d *Device) Counters() *counters.Set { return d.cells }

// Done is closed when the device has ended: stopped, or failed ([Device.Err]).
func (d *Device) Done() <-chan struct{} { return d.done }

// Err says why the device ended by itself; nil while it has not.
func (d *Device) Err() error {
	d.failing.Lock()
	defer d.failing.Unlock()
	return d.err
}

// Info describes the device at this moment.
func (d *Device) Info() Info {
	info := Info{
		ID:          d.id,
		Path:        ublkdev.BlockPath(d.id),
		State:       State(d.state.Load()),
		Queues:      d.spec.Queues,
		Depth:       d.spec.Depth,
		Limits:      d.back.Limits(),
		Created:     d.created,
		ZeroCopied:  d.direct,
		BufferBytes: d.bufferBytes(),

		Compensation: time.Duration(d.policy.Load().compensation),
	}
	_, remark := d.comp.get()
	if remark != "" {
		info.Remarks = append(info.Remarks, remark)
	}
	if info.Polled, remark = d.polled(); remark != "" {
		info.Remarks = append(info.Remarks, remark)
	}
	return info
}

// bufferBytes is the most that requests in flight can occupy.
func (d *Device) bufferBytes() int64 {
	if d.direct {
		return 0
	}
	return int64(d.spec.Queues) * int64(d.spec.Depth) * int64(d.back.Limits().MaxIOBytes)
}

// arm puts the device's delays in force, less a compensation.
func (d *Device) arm(compensation time.Duration) {
	d.policy.Store(newPolicy(&d.spec, compensation))
	d.state.Store(uint32(Delaying))
}

// tell gives an order to every queue, and returns how many requests it touched
// when all have carried it out. A queue whose loop has ended, before or after it
// was told, holds nothing any more. New requests must not be delayed any more.
func (d *Device) tell(ctx context.Context, what order) (int, error) {
	replies := make([]chan int, len(d.queues))
	for i, q := range d.queues {
		replies[i] = make(chan int, 1)
		q.mail.post(message{what: what, reply: replies[i]}, q.over)
	}
	touched := 0
	for i, q := range d.queues {
		select {
		case n := <-replies[i]:
			touched += n
		case <-q.over:
			select {
			case n := <-replies[i]:
				touched += n
			default:
			}
		case <-ctx.Done():
			return touched, fmt.Errorf("%s: its queues do not answer: %w", d.spec.Name, ctx.Err())
		}
	}
	return touched, nil
}

// Stop dispatches everything that is held, waits until the backing has answered
// all of it, and removes the device. Who has it open gets an error for each
// later request; see [Device.Users]. When ctx ends first the device stays, and
// Stop may be called again.
func (d *Device) Stop(ctx context.Context) error { return d.end(ctx, release) }

// Kill is Stop, but what is held is answered with EIO instead of being
// dispatched. What is at the backing is finished.
func (d *Device) Kill(ctx context.Context) error { return d.end(ctx, fail) }

func (d *Device) end(ctx context.Context, what order) error {
	d.stopping.Lock()
	defer d.stopping.Unlock()
	if d.removed {
		return nil
	}
	if d.Err() == nil {
		d.state.Store(uint32(Stopping))
	}
	d.policy.Store(undelayed)
	if _, err := d.tell(ctx, what); err != nil && d.Err() == nil {
		return err
	}
	return d.teardown(ctx)
}

// teardown removes a device whose requests are not held any more, at whatever
// point of its start it has arrived. It can be repeated after an error.
func (d *Device) teardown(ctx context.Context) error {
	if err := d.host.control.Stop(ctx, d.id); err != nil && !errors.Is(err, ublkdev.ErrNotFound) {
		return fmt.Errorf("%s: %w; requests that the backing has not answered are waited for", d.spec.Name, err)
	}
	// The driver gives back every tag; the threads end their loops, free their
	// rings, and wait.
	for d.running > 0 {
		select {
		case err := <-d.ended:
			d.running--
			if err != nil {
				d.log.Error("a queue did not end well", "err", err)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s: its queues do not end: %w", d.spec.Name, ctx.Err())
		}
	}
	// The driver lets the device go when nothing of it is open or mapped.
	for _, q := range d.queues {
		if err := q.ublk.Close(); err != nil {
			d.log.Error("cannot unmap a queue's descriptors", "err", err)
		}
	}
	if d.char != nil {
		if err := d.char.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			d.log.Error("cannot close the char device", "err", err)
		}
	}
	if err := d.host.remove(ctx, d.id); err != nil {
		return err
	}
	d.removed = true
	d.host.serves(d.id, false)
	close(d.gone)
	d.finish()
	var errs []error
	for _, q := range d.queues {
		d.untune(q.tune)
		errs = append(errs, q.mem.close(), q.mail.close())
	}
	errs = append(errs, d.cells.Close(), d.back.Close(), d.host.records.remove(d.spec.Name))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s is removed, but: %w", d.spec.Name, err)
	}
	return nil
}

// removeLimit is how long a deleted device may stay before it is reported:
// udev's probe of a new or changed device holds it for a moment.
const removeLimit = 2 * time.Second

// remove deletes a stopped ublk device and waits, within a limit, until it is
// gone. A device that somebody has open goes when he closes it; that is not an
// error.
func (h *Host) remove(ctx context.Context, id int) error {
	err := h.control.DeleteAsync(ctx, id)
	if errors.Is(err, ublkdev.ErrNotSupported) {
		err = h.control.Delete(ctx, id)
	}
	if err != nil {
		if errors.Is(err, ublkdev.ErrNotFound) {
			return nil
		}
		return fmt.Errorf("remove %s: %w", ublkdev.BlockPath(id), err)
	}
	limit := time.Now().Add(removeLimit)
	for time.Now().Before(limit) {
		if _, err := h.control.Info(ctx, id); errors.Is(err, ublkdev.ErrNotFound) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Millisecond):
		}
	}
	h.log.Warn("a removed device is still open somewhere; its id is free when it is closed", "path", ublkdev.BlockPath(id))
	return nil
}

// finish closes done, once.
func (d *Device) finish() {
	d.failing.Lock()
	defer d.failing.Unlock()
	select {
	case <-d.done:
	default:
		close(d.done)
	}
}

// fail marks a device that cannot go on.
func (d *Device) fail(err error) {
	d.failing.Lock()
	d.err = err
	d.failing.Unlock()
	d.state.Store(uint32(Failed))
	d.log.Error("the device has failed; remove it with delayctl del --force", "err", err)
	d.finish()
}
