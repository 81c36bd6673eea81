package ublkdev

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// command is one kind of control command.
type command struct {
	code  uint32
	name  string // as in ublk_cmd.h, without UBLK_U_CMD_
	since string // the kernel that brought it, or its ioctl-encoded form
	long  bool   // waits for requests of others: Control.LongLimit
}

// target names the command and what it is sent to, for errors.
func (op command) target(id int) string {
	switch {
	case op.code == cmdGetFeatures:
		return "ublk " + op.name
	case id < 0:
		return "ublk " + op.name + " of a new device"
	}
	return fmt.Sprintf("ublk %s of device %d", op.name, id)
}

var (
	opAddDev            = command{code: cmdAddDev, name: "ADD_DEV", since: "6.4"}
	opDelDev            = command{code: cmdDelDev, name: "DEL_DEV", since: "6.4", long: true}
	opDelDevAsync       = command{code: cmdDelDevAsync, name: "DEL_DEV_ASYNC", since: "6.9"}
	opStartDev          = command{code: cmdStartDev, name: "START_DEV", since: "6.4", long: true}
	opStopDev           = command{code: cmdStopDev, name: "STOP_DEV", since: "6.4", long: true}
	opTryStopDev        = command{code: cmdTryStopDev, name: "TRY_STOP_DEV", since: "7.0", long: true}
	opSetParams         = command{code: cmdSetParams, name: "SET_PARAMS", since: "6.4"}
	opGetParams         = command{code: cmdGetParams, name: "GET_PARAMS", since: "6.4"}
	opGetDevInfo        = command{code: cmdGetDevInfo, name: "GET_DEV_INFO", since: "6.4"}
	opGetDevInfo2       = command{code: cmdGetDevInfo2, name: "GET_DEV_INFO2", since: "6.4"}
	opGetQueueAffinity  = command{code: cmdGetQueueAffinity, name: "GET_QUEUE_AFFINITY", since: "6.4"}
	opStartUserRecovery = command{code: cmdStartUserRecovery, name: "START_USER_RECOVERY", since: "6.4"}
	opEndUserRecovery   = command{code: cmdEndUserRecovery, name: "END_USER_RECOVERY", since: "6.4", long: true}
	opGetFeatures       = command{code: cmdGetFeatures, name: "GET_FEATURES", since: "6.5"}
	opUpdateSize        = command{code: cmdUpdateSize, name: "UPDATE_SIZE", since: "6.16"}
	opQuiesceDev        = command{code: cmdQuiesceDev, name: "QUIESCE_DEV", since: "6.16", long: true}
)

// Features asks the driver what it can do (Linux 6.5).
func (c *Control) Features(ctx context.Context) (f Features, err error) {
	err = c.call(ctx, opGetFeatures, -1,
		func(cmd *ctrlCmd, _ []byte) { cmd.len = uint16(unsafe.Sizeof(f)) },
		func(buf []byte) { f = *(*Features)(unsafe.Pointer(&buf[0])) })
	return f, err
}

// Add adds a device; /dev/ublkcN appears, see [OpenChar]. The answer has what
// the driver made of the options: its id, fewer queues, and only the flags that
// it knows, besides some of its own.
// The error wraps [ErrTooMany], [ErrExists] or [ErrPermission] where they apply.
func (c *Control) Add(ctx context.Context, o AddOptions) (Info, error) {
	if err := o.validate(); err != nil {
		return Info{}, fmt.Errorf("%s: %w", opAddDev.target(o.ID), err)
	}
	info := devInfo{
		nrHWQueues:    o.Queues,
		queueDepth:    o.Depth,
		maxIOBufBytes: o.MaxIOBytes,
		devID:         uint32(o.ID),
		flags:         uint64(o.Flags | FeatureCmdIoctlEncode),
		ublksrvFlags:  o.OwnerFlags,
		ublksrvPID:    -1,
	}
	err := c.call(ctx, opAddDev, o.ID,
		func(cmd *ctrlCmd, buf []byte) {
			cmd.len = uint16(unsafe.Sizeof(info))
			*(*devInfo)(unsafe.Pointer(&buf[0])) = info
		},
		func(buf []byte) { info = *(*devInfo)(unsafe.Pointer(&buf[0])) })
	if err != nil {
		return Info{}, err
	}
	return info.info(), nil
}

// SetParams gives the device its parameters, before it is started. Parameters
// of a kind that the kernel does not know are ignored by it: GetParams tells
// which it took.
func (c *Control) SetParams(ctx context.Context, id int, p *Params) error {
	if err := p.Validate(); err != nil {
		return fmt.Errorf("%s: %w", opSetParams.target(id), err)
	}
	err := c.call(ctx, opSetParams, id, func(cmd *ctrlCmd, buf []byte) {
		cmd.len = uint16(unsafe.Sizeof(params{}))
		*(*params)(unsafe.Pointer(&buf[0])) = p.uapi()
	}, nil)
	// The one rule that Validate cannot check: it needs what Add was given.
	if errors.Is(err, unix.EINVAL) {
		if info, ierr := c.Info(ctx, id); ierr == nil && p.Basic.MaxSectors > info.MaxIOBytes/512 {
			return fmt.Errorf("%w (requests of up to %d sectors asked, but the device was added with %d bytes, %d sectors)",
				err, p.Basic.MaxSectors, info.MaxIOBytes, info.MaxIOBytes/512)
		}
	}
	return err
}

// GetParams returns the parameters that the driver has for a device.
func (c *Control) GetParams(ctx context.Context, id int) (*Params, error) {
	var p *Params
	err := c.call(ctx, opGetParams, id,
		func(cmd *ctrlCmd, buf []byte) {
			cmd.len = uint16(unsafe.Sizeof(params{}))
			(*params)(unsafe.Pointer(&buf[0])).len = uint32(unsafe.Sizeof(params{}))
		},
		func(buf []byte) { p = (*params)(unsafe.Pointer(&buf[0])).friendly() })
	return p, err
}

// Start starts a device: it waits until every tag of every queue was fetched,
// then /dev/ublkbN appears. pid is the process that opened /dev/ublkcN. An
// older kernel (6.12) scans for partitions inside, so the queues must be
// answering reads; a newer one (7.3) afterwards, or not at all with
// [FeatureNoAutoPartScan].
func (c *Control) Start(ctx context.Context, id, pid int) error {
	return c.inline(ctx, opStartDev, id, uint64(pid))
}

// Stop removes /dev/ublkbN, even under its users. It waits until every request
// that was started is answered; then the tags' commands complete with
// [ResAbort].
func (c *Control) Stop(ctx context.Context, id int) error {
	return c.inline(ctx, opStopDev, id, 0)
}

// TryStop is Stop for a device that nobody has open, else the error wraps
// EBUSY. Needs [FeatureSafeStopDev].
func (c *Control) TryStop(ctx context.Context, id int) error {
	return c.inline(ctx, opTryStopDev, id, 0)
}

// Delete stops the device if it is started and removes it. It waits until the
// id is free, which is when /dev/ublkcN is closed, the rings that fetched from
// it are gone, and nobody has /dev/ublkbN open. When the wait is given up the
// device goes all the same once that has come true.
//
// Stop a live device first: a Delete that has to wait for a request that its
// server does not answer blocks every Add and Delete on the machine.
func (c *Control) Delete(ctx context.Context, id int) error {
	return c.inline(ctx, opDelDev, id, 0)
}

// DeleteAsync is Delete without waiting for the id to be free (Linux 6.9). It
// does wait for requests that were started, as Stop does, and stands in the way
// of others like Delete.
func (c *Control) DeleteAsync(ctx context.Context, id int) error {
	return c.inline(ctx, opDelDevAsync, id, 0)
}

// StartRecovery prepares a device in state [Quiesced] or [FailIO] for a new
// server. While the last server's files are not all gone the error wraps EBUSY:
// try again.
func (c *Control) StartRecovery(ctx context.Context, id int) error {
	return c.inline(ctx, opStartUserRecovery, id, 0)
}

// EndRecovery makes the device live again under the new server. Like Start it
// waits until every tag was fetched; pid is the process that opened
// /dev/ublkcN.
func (c *Control) EndRecovery(ctx context.Context, id, pid int) error {
	return c.inline(ctx, opEndUserRecovery, id, uint64(pid))
}

// Quiesce takes a live device from its server without stopping it: the tags'
// commands complete with [ResAbort], and once /dev/ublkcN is closed the device
// is quiesced. timeout is how long the kernel waits until each queue has a tag
// that is not at work, in whole milliseconds, 0 for ever; EBUSY when it has
// passed. Needs [FeatureQuiesce], of the device too.
func (c *Control) Quiesce(ctx context.Context, id int, timeout time.Duration) error {
	ms := (max(timeout, 0) + time.Millisecond - 1) / time.Millisecond
	return c.inline(ctx, opQuiesceDev, id, uint64(ms))
}

// UpdateSize changes the size of a started device, in sectors of 512 bytes.
// Needs [FeatureUpdateSize].
func (c *Control) UpdateSize(ctx context.Context, id int, sectors uint64) error {
	return c.inline(ctx, opUpdateSize, id, sectors)
}

// inline sends a command whose only argument is a number.
func (c *Control) inline(ctx context.Context, op command, id int, data uint64) error {
	if id < 0 {
		return fmt.Errorf("ublk %s of device %d: %w", op.name, id, ErrNotFound)
	}
	return c.call(ctx, op, id, func(cmd *ctrlCmd, _ []byte) { cmd.data = data }, nil)
}

// Info returns what the driver knows of a device. The error wraps [ErrNotFound]
// if there is none with the id.
func (c *Control) Info(ctx context.Context, id int) (Info, error) {
	// GET_DEV_INFO2 is the only one that answers for unprivileged devices; it
	// needs the device's path, which may be missing or not readable.
	info, err := c.devInfo(ctx, opGetDevInfo2, id, CharPath(id))
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrTimeout) {
		info, err = c.devInfo(ctx, opGetDevInfo, id, "")
	}
	return info, err
}

func (c *Control) devInfo(ctx context.Context, op command, id int, path string) (info Info, err error) {
	at := 0
	if path != "" {
		at = (len(path) + 8) &^ 7 // with its NUL, and the answer behind it aligned
	}
	err = c.call(ctx, op, id,
		func(cmd *ctrlCmd, buf []byte) {
			copy(buf, path)
			cmd.devPathLen = uint16(at)
			cmd.len = uint16(at + int(unsafe.Sizeof(devInfo{})))
		},
		func(buf []byte) { info = (*devInfo)(unsafe.Pointer(&buf[at])).info() })
	return info, err
}

// affinityBytes is the mask that GET_QUEUE_AFFINITY gets: 8192 CPUs, the most
// that any kernel is built for (it refuses a mask shorter than its own).
const affinityBytes = 1024

// Affinity returns the CPUs whose requests go to a queue, in rising order.
func (c *Control) Affinity(ctx context.Context, id, queue int) (cpus []int, err error) {
	err = c.call(ctx, opGetQueueAffinity, id,
		func(cmd *ctrlCmd, _ []byte) {
			cmd.len = affinityBytes
			cmd.data = uint64(queue)
		},
		func(buf []byte) {
			for cpu := range affinityBytes * 8 {
				if buf[cpu/8]>>(cpu%8)&1 != 0 {
					cpus = append(cpus, cpu)
				}
			}
		})
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w (queue %d)", err, queue)
	}
	return cpus, err
}
