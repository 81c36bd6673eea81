package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/size"
	"github.com/delayd/delayd/pkg/ublkdev"
)

// undoLimit bounds the removal of a device whose start has failed.
const undoLimit = 30 * time.Second

// complete fills in the defaults and refuses what no device can have.
func (s Spec) complete() (Spec, error) {
	if s.Queues == 0 {
		s.Queues = 1
	}
	if s.Depth == 0 {
		s.Depth = DefaultDepth
	}
	switch {
	case s.Name == "" || len(s.Name) > MaxNameLen || strings.ContainsRune(s.Name, '/'):
		return s, fmt.Errorf("name %q: want 1 to %d characters without a slash", s.Name, MaxNameLen)
	case s.Queues < 1 || s.Queues > runtime.NumCPU():
		return s, fmt.Errorf("%d queues: want 1 to %d, the number of CPUs", s.Queues, runtime.NumCPU())
	case s.Depth < 1 || s.Depth > MaxDepth:
		return s, fmt.Errorf("depth %d: want 1 to %d", s.Depth, MaxDepth)
	case s.Offset < 0:
		return s, fmt.Errorf("offset %d: want 0 or more bytes", s.Offset)
	case s.Size < 0:
		return s, fmt.Errorf("size %d: want 0 (to the end) or more bytes", s.Size)
	case s.Hold > HoldComplete:
		return s, fmt.Errorf("hold %d: want submit or complete", s.Hold)
	case s.Compensate < CompensateAuto:
		return s, fmt.Errorf("compensate %v: want 0 or more", s.Compensate)
	case s.ZeroCopy > Off:
		return s, fmt.Errorf("zero copy %d: want auto, on or off", s.ZeroCopy)
	case s.ZeroCopy == On && s.Poll:
		return s, errors.New("zero copy on and poll: a request's pages are in the ring that fetched it, " +
			"polled I/O is in another: choose one")
	case s.Realtime < 0 || s.Realtime > 99:
		return s, fmt.Errorf("realtime %d: want 1 to 99, or 0 for none", s.Realtime)
	}
	return s, s.Delays.Validate()
}

// Start makes a device and returns when it is announced: its partitions are
// read, and from then on every request is delayed. On error nothing is left.
func (h *Host) Start(ctx context.Context, spec Spec) (*Device, error) {
	spec, err := spec.complete()
	if err != nil {
		return nil, err
	}
	if err := h.refuseOwn(spec.Backing); err != nil {
		return nil, err
	}
	// First, so that the next daemon finds whatever a kill leaves of the rest.
	nonce := newNonce()
	if err := h.records.write(record{Name: spec.Name, Nonce: nonce, Backing: spec.Backing}); err != nil {
		return nil, err
	}
	d, err := h.add(ctx, spec, nonce)
	if err != nil {
		return nil, errors.Join(err, h.records.remove(spec.Name))
	}
	if spec.Numbered != nil {
		spec.Numbered()
	}
	// From here on there is a ublk device, and teardown knows how to undo all.
	if err := d.announce(ctx); err != nil {
		return nil, errors.Join(err, d.undo(ctx))
	}
	go d.watchPolling()
	d.log.Info("delaying", "path", ublkdev.BlockPath(d.id), "backing", spec.Backing, "delays", spec.Delays.String())
	return d, nil
}

// add opens the backing and makes the ublk device. On error neither is left.
func (h *Host) add(ctx context.Context, spec Spec, nonce uint64) (*Device, error) {
	back, err := backend.Open(spec.Backing, backend.Options{
		Offset:   spec.Offset,
		Size:     spec.Size,
		ReadOnly: spec.ReadOnly,
		Shared:   spec.Shared,
		Name:     spec.Name,
		Owner:    h.opts.Owner,
	})
	if err != nil {
		return nil, err
	}
	d := &Device{
		host:    h,
		spec:    spec,
		back:    back,
		created: time.Now(),
		log:     h.log.With("device", spec.Name),
		started: make(chan error, spec.Queues),
		ended:   make(chan error, spec.Queues),
		gone:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	d.policy.Store(undelayed)
	if d.direct, err = d.zeroCopies(); err != nil {
		return nil, errors.Join(err, back.Close())
	}
	d.wantsPoll()
	d.comp.set(spec.Compensate, "")
	if err := d.admit(); err != nil {
		return nil, errors.Join(err, back.Close())
	}
	if d.cells, err = counters.Create(h.records.counters(spec.Name), spec.Queues); err != nil {
		return nil, errors.Join(err, back.Close())
	}
	info, err := h.control.Add(ctx, ublkdev.AddOptions{
		ID:         -1,
		Queues:     uint16(spec.Queues),
		Depth:      uint16(spec.Depth),
		MaxIOBytes: back.Limits().MaxIOBytes,
		Flags:      d.flags(),
		OwnerFlags: nonce,
	})
	if err == nil && info.Queues != spec.Queues {
		err = errors.Join(fmt.Errorf("the driver made %d queues of the %d asked", info.Queues, spec.Queues), h.remove(ctx, info.ID))
	}
	if err != nil {
		return nil, errors.Join(err, d.cells.Close(), back.Close())
	}
	d.id = info.ID
	h.serves(d.id, true)
	return d, nil
}

// admit refuses what would take too much memory.
func (d *Device) admit() error {
	each := d.back.Limits().MaxIOBytes
	if n, limit := d.bufferBytes(), d.host.opts.MaxBufferBytes; n > limit {
		return fmt.Errorf("%d queues × depth %d × %s a request can occupy %s, over the limit of %s: lower --queues or --depth",
			d.spec.Queues, d.spec.Depth, size.Format(int64(each)), size.Format(n), size.Format(limit))
	}
	return nil
}

// flags are the features that a device is made with, as far as the kernel has
// them.
func (d *Device) flags() ublkdev.Features {
	f := d.host.features & (ublkdev.FeatureCmdIoctlEncode |
		// The partitions are read by a child instead, before the delays are
		// armed.
		ublkdev.FeatureNoAutoPartScan)
	if d.direct {
		f |= zeroCopyFeatures
	}
	return f
}

// announce brings a ublk device that was added into service.
func (d *Device) announce(ctx context.Context) error {
	h := d.host
	if err := h.control.SetParams(ctx, d.id, params(d.back.Limits())); err != nil {
		return err
	}
	char, err := ublkdev.OpenChar(ctx, d.id)
	if err != nil {
		return err
	}
	d.char = char
	for i := range d.spec.Queues {
		q, err := d.newQueue(ctx, i)
		if err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
		d.queues = append(d.queues, q)
	}
	for _, q := range d.queues {
		d.running++
		go q.serve(d)
	}
	if err := d.awaitQueues(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.goLive(ctx); err != nil {
		return err
	}
	compensation, err := d.firstCompensation(ctx)
	if err != nil {
		return err
	}
	if err := d.Err(); err != nil {
		return err
	}
	d.arm(compensation)
	return nil
}

// startLimit bounds how long the queues' threads take to send their fetches: a
// few system calls each.
const startLimit = 20 * time.Second

// awaitQueues waits until every queue's thread has sent all its fetches, or has
// failed to. It does not end with the caller's context: a stop that comes while
// fetches are still being sent cancels those that are there, and nobody the rest.
func (d *Device) awaitQueues() error {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	var errs []error
	for range d.queues {
		select {
		case err := <-d.started:
			errs = append(errs, err)
		case <-limit.C:
			return fmt.Errorf("the queues did not start within %v", startLimit)
		}
	}
	return errors.Join(errs...)
}

// goLive starts the ublk device, has its partitions read and its I/O scheduler
// set.
func (d *Device) goLive(ctx context.Context) error {
	h, id := d.host, strconv.Itoa(d.id)
	if !d.flags().Has(ublkdev.FeatureNoAutoPartScan) {
		if _, err := h.settle(ctx, "start", id, strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
		return awaitNode(ctx, ublkdev.BlockPath(d.id))
	}
	if err := h.control.Start(ctx, d.id, os.Getpid()); err != nil {
		return err
	}
	if err := awaitNode(ctx, ublkdev.BlockPath(d.id)); err != nil {
		return err
	}
	remark, err := h.settle(ctx, "settle", id)
	if remark != "" {
		d.log.Warn("the partitions could not be read", "reason", remark)
	}
	return err
}

func (d *Device) newQueue(ctx context.Context, id int) (*queue, error) {
	ublk, err := ublkdev.NewQueue(int(d.char.Fd()), id, d.spec.Depth)
	if err != nil {
		return nil, err
	}
	var mem *buffers
	if !d.direct {
		if mem, err = newBuffers(d.spec.Depth, d.back.Limits().MaxIOBytes); err != nil {
			return nil, errors.Join(err, ublk.Close())
		}
	}
	mail, err := newMailbox()
	if err != nil {
		return nil, errors.Join(err, ublk.Close(), mem.close())
	}
	tune, err := d.tuning(ctx, id)
	if err != nil {
		return nil, errors.Join(err, ublk.Close(), mem.close(), mail.close())
	}
	return &queue{
		id:       id,
		depth:    d.spec.Depth,
		char:     int(d.char.Fd()),
		policy:   &d.policy,
		ublk:     ublk,
		back:     d.back,
		mem:      mem,
		mail:     mail,
		clock:    d.host.clock,
		budget:   d.host.budget,
		spinning: d.spec.Spin,
		tune:     tune,
		clocked:  clocked{dear: d.host.isDear()},
		cells:    d.cells.Queue(id),
		over:     make(chan struct{}),
		unpolled: d.unpolled,
	}, nil
}

// undo removes a device whose start has failed, also when ctx has ended.
func (d *Device) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	d.stopping.Lock()
	defer d.stopping.Unlock()
	d.state.Store(uint32(Stopping))
	return d.teardown(ctx)
}

// awaitNode waits for a device node: devtmpfs makes it before START_DEV
// returns, but a container or a static /dev may be slower.
func awaitNode(ctx context.Context, path string) error {
	const limit = 5 * time.Second
	for end := time.Now().Add(limit); ; {
		_, err := os.Stat(path)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the device was started, but its node does not appear within %v: is devtmpfs mounted on /dev? (%w)", limit, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}
