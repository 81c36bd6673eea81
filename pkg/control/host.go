package control

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/counters"
	"github.com/delayd/delayd/pkg/device"
	"github.com/delayd/delayd/pkg/ublkdev"
)

// OnHost makes devices on h.
func OnHost(h *device.Host) Starter { return hostStarter{h} }

type hostStarter struct{ host *device.Host }

// Running is the [Device] that a starter of [OnHost] makes.
type Running struct {
	*device.Device
	spec api.Spec
}

// Start makes a device on the host.
func (h hostStarter) Start(ctx context.Context, s api.Spec, numbered func()) (Device, error) {
	spec, err := deviceSpec(s)
	if err != nil {
		return nil, err
	}
	spec.Numbered = numbered
	dev, err := h.host.Start(ctx, spec)
	if err != nil {
		return nil, startProblem(s, err)
	}
	return Running{dev, s}, nil
}

// deviceSpec translates a spec that was validated.
func deviceSpec(s api.Spec) (device.Spec, error) {
	delays, err := s.ParseDelays()
	if err != nil {
		return device.Spec{}, err
	}
	hold, err := device.ParseHold(s.Hold)
	if err != nil {
		return device.Spec{}, err
	}
	spin, err := s.ParseSpin()
	if err != nil {
		return device.Spec{}, err
	}
	compensate, err := api.ParseCompensate(s.Compensate)
	if err != nil {
		return device.Spec{}, err
	}
	zeroCopy, err := device.ParseChoice(s.ZeroCopy)
	if err != nil {
		return device.Spec{}, err
	}
	return device.Spec{
		Name:       s.Name,
		Backing:    s.Backing,
		Delays:     delays,
		Offset:     s.Offset,
		Size:       s.Size,
		Queues:     int(s.Queues),
		Depth:      s.Depth,
		ReadOnly:   s.ReadOnly,
		Shared:     s.Shared,
		Hold:       hold,
		Compensate: time.Duration(compensate),
		Spin:       spin,
		ZeroCopy:   zeroCopy,
		Poll:       s.Poll,
		Pin:        s.Pin,
		Realtime:   s.Realtime,
	}, nil
}

// Compensate changes what is taken off every delay.
func (r Running) Compensate(ctx context.Context, word string) error {
	c, err := api.ParseCompensate(word)
	if err != nil {
		return err
	}
	err = r.Device.Compensate(ctx, time.Duration(c))
	if err == nil {
		return nil
	}
	p := problemOf(err)
	switch {
	case r.Err() != nil:
		p.Hint = "remove it with `delayctl del --force " + r.Spec().Name + "`"
	case errors.Is(err, device.ErrNotDelaying):
		p = api.NewProblem(api.ProblemBusy, err.Error())
		p.Hint = "try again in a moment"
	case errors.Is(err, device.ErrHeldTooLong):
		p = api.NewProblem(api.ProblemInvalid, err.Error())
		p.Name, p.Value = "compensate", word
		p.Hint = "give a duration, such as 80us"
	}
	return p
}

// Describe returns what is known of the device now.
func (r Running) Describe() api.Device {
	info, spec := r.Info(), r.Spec()
	l := info.Limits
	d := api.Device{
		Name:    spec.Name,
		ID:      info.ID,
		Path:    info.Path,
		State:   info.State.String(),
		Backing: spec.Backing,
		Delays:  api.Describe(spec.Delays),
		Hold:    spec.Hold.String(),
		Offset:  spec.Offset,
		Size:    l.Size,
		Queues:  info.Queues,
		Depth:   info.Depth,
		// A backing that cannot be written makes a device that cannot.
		ReadOnly: l.ReadOnly,
		Shared:   spec.Shared,

		Compensate:   api.Compensate(spec.Compensate).String(),
		Compensation: info.Compensation.String(),
		Spin:         spec.Spin.String(),
		ZeroCopy:     spec.ZeroCopy.String(),
		ZeroCopied:   info.ZeroCopied,
		Poll:         spec.Poll,
		Polled:       info.Polled,
		Pin:          spec.Pin,
		Realtime:     spec.Realtime,
		Warnings:     info.Remarks,

		Limits: api.Limits{
			LogicalBlockSize:   int64(l.LogicalBlock),
			PhysicalBlockSize:  int64(l.PhysicalBlock),
			MinimumIOSize:      int64(l.IOMin),
			OptimalIOSize:      int64(l.IOOpt),
			MaxDiscardBytes:    int64(l.Discard.MaxBytes),
			DiscardGranularity: int64(l.Discard.Granularity),
			MaxWriteZeroes:     int64(l.WriteZeroesMaxBytes),
			VolatileCache:      l.VolatileCache,
			FUA:                l.FUA,
			Rotational:         l.Rotational,
		},
		MaxIOBytes:  int64(l.MaxIOBytes),
		BufferBytes: info.BufferBytes,
		Created:     info.Created.Round(0).UTC(),
	}
	if err := r.Err(); err != nil {
		d.Error = err.Error()
	}
	count(&d, r.Counters())
	return d
}

// count fills in the counts of now.
func count(d *api.Device, set *counters.Set) {
	snap := set.Snapshot()
	for i := range snap.Ops {
		d.Held += snap.Ops[i].Held
		d.InFlight += snap.Ops[i].InFlight
		d.Requests += snap.Ops[i].Done
	}
}

// openErrnos are what opening a backing fails with because of the backing.
var openErrnos = []error{
	fs.ErrNotExist, fs.ErrPermission,
	unix.EBUSY, unix.EROFS, unix.ETXTBSY, unix.ENXIO, unix.ENOMEDIUM, unix.ENOTDIR, unix.ELOOP,
}

// startProblem says what a start failed of, in the API's types.
func startProblem(s api.Spec, err error) *api.Problem {
	kind := api.ProblemFailed
	switch {
	case errors.Is(err, ublkdev.ErrTooMany):
		kind = api.ProblemTooMany
	case errors.Is(err, ublkdev.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		kind = api.ProblemTimeout
	case errors.Is(err, ublkdev.ErrPermission), errors.Is(err, ublkdev.ErrNoDriver), errors.Is(err, ublkdev.ErrNotSupported):
	case ofBacking(err):
		kind = api.ProblemBacking
	}
	p := api.NewProblem(kind, err.Error())
	p.Hint = api.HintOf(err)
	if kind == api.ProblemBacking {
		p.Name, p.Value = "backing", s.Backing
	}
	if kind == api.ProblemTimeout {
		p.Hint = "the kernel's log may say more: `dmesg`"
	}
	return p
}

// ofBacking says whether it was what was asked of the backing that could not be
// had, not the kernel that failed: a refusal of our own carries no errno.
func ofBacking(err error) bool {
	var errno unix.Errno
	if errors.Is(err, backend.ErrInUse) || errors.Is(err, backend.ErrZoned) || !errors.As(err, &errno) {
		return true
	}
	for _, e := range openErrnos {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
