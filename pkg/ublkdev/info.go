package ublkdev

import "fmt"

// State is what the driver says of a device, UBLK_S_DEV_*.
type State uint16

const (
	// Dead: added but not started, or stopped.
	Dead State = iota
	// Live: started; requests reach the server.
	Live
	// Quiesced: the server is gone, the block device stays and keeps its
	// requests for the next server. Needs FeatureUserRecovery.
	Quiesced
	// FailIO: the server is gone, the block device stays and fails every request.
	// Needs FeatureUserRecoveryFailIO.
	FailIO
)

// String returns "dead", "live", "quiesced" or "fail-io".
func (s State) String() string {
	switch s {
	case Dead:
		return "dead"
	case Live:
		return "live"
	case Quiesced:
		return "quiesced"
	case FailIO:
		return "fail-io"
	}
	return fmt.Sprintf("state(%d)", uint16(s))
}

// Info is what the driver knows of a device.
type Info struct {
	ID         int
	Queues     int    // what the driver made of the number asked: at most the CPUs
	Depth      int    // requests per queue
	MaxIOBytes uint32 // most data of one request; a multiple of the page size
	State      State
	PID        int // the server's process, as this process sees it; -1: none
	Flags      Features
	OwnerFlags uint64 // the server's own (ublksrv_flags)
	OwnerUID   uint32 // who added the device
	OwnerGID   uint32
}

func (d *devInfo) info() Info {
	return Info{
		ID:         int(d.devID),
		Queues:     int(d.nrHWQueues),
		Depth:      int(d.queueDepth),
		MaxIOBytes: d.maxIOBufBytes,
		State:      State(d.state),
		PID:        int(d.ublksrvPID),
		Flags:      Features(d.flags),
		OwnerFlags: d.ublksrvFlags,
		OwnerUID:   d.ownerUID,
		OwnerGID:   d.ownerGID,
	}
}

// AddOptions says what device to add.
type AddOptions struct {
	ID         int      // the N of /dev/ublkbN; -1: the lowest that is free
	Queues     uint16   // 1 to MaxQueues; the driver takes no more than the CPUs
	Depth      uint16   // requests per queue, 1 to MaxDepth
	MaxIOBytes uint32   // most data of one request, at least a page, at most 32 MiB
	Flags      Features // what the driver does not know it clears: see Info.Flags
	OwnerFlags uint64   // kept by the driver for the server (ublksrv_flags)
}

// maxIOBytes is the most that UBLK_IO_BUF_BITS leaves for one request.
const maxIOBytes = 1 << ioBufBits

// validate names what the driver would only answer with EINVAL
// (ublk_drv.c, ublk_ctrl_add_dev).
func (o *AddOptions) validate() error {
	const recovery = FeatureUserRecovery | FeatureUserRecoveryReissue | FeatureUserRecoveryFailIO
	switch {
	case o.ID < -1 || o.ID >= 1<<20:
		return fmt.Errorf("id %d: want 0 to %d, or -1 for any", o.ID, 1<<20-1)
	case o.Queues < 1 || o.Queues > MaxQueues:
		return fmt.Errorf("%d queues: want 1 to %d", o.Queues, MaxQueues)
	case o.Depth < 1 || o.Depth > MaxDepth:
		return fmt.Errorf("depth %d: want 1 to %d", o.Depth, MaxDepth)
	case o.MaxIOBytes < pageSize || o.MaxIOBytes > maxIOBytes:
		return fmt.Errorf("at most %d bytes a request: want %d to %d", o.MaxIOBytes, pageSize, maxIOBytes)
	case o.Flags&recovery != 0 && (!o.Flags.Has(FeatureUserRecovery) || o.Flags.Has(recovery)):
		return fmt.Errorf("recovery flags %v: want USER_RECOVERY, alone or with one of the two others", o.Flags&recovery)
	case o.Flags.Has(FeatureQuiesce) && !o.Flags.Has(FeatureUserRecovery):
		return fmt.Errorf("flag QUIESCE needs USER_RECOVERY")
	case o.Flags.Has(FeatureIODescSize):
		return fmt.Errorf("flag IO_DESC_SIZE: this package reads descriptors of the usual size only")
	}
	return nil
}
