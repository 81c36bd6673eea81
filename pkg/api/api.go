// Package api holds the wire types of the control API: what delayd answers and
// accepts as JSON under /v1, and the one place where what a person typed is
// judged ([Spec.Validate]).
//
// Units: sizes and offsets are bytes, times are RFC 3339, delays are delay
// expressions (a Go duration such as "1.5ms").
//
// docs/api/openapi.yaml describes the same types for other languages; a test
// of pkg/control holds the server to it.
package api

import "time"

// Paths of the API on the control socket.
const (
	PathDevices = "/v1/devices"
	PathVersion = "/v1/version"

	// Compensating comes after the path of a device and a slash.
	Compensating = "compensation"
)

// DefaultSocket is where the manager listens and where delayctl looks, unless
// --socket or the environment variable [SocketEnv] says otherwise.
const DefaultSocket = "/run/delayd/delayd.sock"

// SocketEnv names the environment variable that replaces [DefaultSocket].
const SocketEnv = "DELAYD_SOCKET"

// MediaType is what bodies of requests and of answers other than problems are.
const MediaType = "application/json"

// Spec says what device to make. Only Name and Backing must be given.
type Spec struct {
	// Name is 1 to 64 characters of A-Z a-z 0-9 . _ - and starts with neither
	// a dot nor a dash.
	Name string `json:"name"`
	// Backing is the absolute path of a block device or regular file,
	// "mem:SIZE" or "null:SIZE".
	Backing string `json:"backing"`

	// Delay holds for every op that is not named below.
	Delay string `json:"delay,omitempty"`
	// Read, Write, Flush and Discard replace Delay for one op each.
	// Write-zeroes goes by Write, as with the kernel's dm-delay.
	Read    string `json:"read,omitempty"`
	Write   string `json:"write,omitempty"`
	Flush   string `json:"flush,omitempty"`
	Discard string `json:"discard,omitempty"`

	// Offset and Size select a part of the backing, in bytes. A Size of 0 goes
	// to the end.
	Offset int64 `json:"offset,omitempty"`
	Size   int64 `json:"size,omitempty"`

	// Queues is 1 to the number of CPUs, or [QueuesAuto]; 0 stands for
	// [DefaultQueues].
	Queues Queues `json:"queues,omitempty"`
	// Depth is how many requests each queue takes, 1 to [MaxDepth]; 0 stands
	// for [DefaultDepth].
	Depth int `json:"depth,omitempty"`

	// ReadOnly makes a device that cannot be written.
	ReadOnly bool `json:"read_only,omitempty"`
	// Shared takes a backing that is mounted or in use.
	Shared bool `json:"shared,omitempty"`
	// Hold is [HoldSubmit] or [HoldComplete]; "" stands for HoldSubmit.
	Hold string `json:"hold,omitempty"`

	// Compensate is what is taken off every delay for the path of a request
	// through the driver and the daemon: "off", "auto" (measured before the
	// device is announced) or a duration. "" stands for "off".
	Compensate string `json:"compensate,omitempty"`
	// Spin is how long before a deadline a queue stops sleeping and looks at the
	// clock: "auto" (learned from the machine), "off" or a duration. "" stands
	// for "auto".
	Spin string `json:"spin,omitempty"`
	// ZeroCopy lets the backing work on the request's own pages: "auto" (where
	// the kernel and the backing can), "on" (refuse the device where they
	// cannot) or "off". "" stands for "auto".
	ZeroCopy string `json:"zero_copy,omitempty"`
	// Poll has the backing polled for completions while it has requests,
	// instead of waiting for its interrupts.
	Poll bool `json:"poll,omitempty"`
	// Pin binds each queue's thread to one of the CPUs that the driver maps
	// to the queue.
	Pin bool `json:"pin,omitempty"`
	// Realtime is the SCHED_FIFO priority of the queues' threads, 1 to
	// [MaxRealtime]; 0 leaves them to the normal scheduler.
	Realtime int `json:"realtime,omitempty"`
}

// Words of several fields.
const (
	Auto = "auto"
	On   = "on"
	Off  = "off"
)

// The two modes of holding.
const (
	// HoldSubmit holds a request, then hands it to the backing: the
	// application sees delay + backing latency.
	HoldSubmit = "submit"
	// HoldComplete hands a request to the backing at once and answers it when
	// the delay is over: the application sees max(delay, backing latency).
	HoldComplete = "complete"
)

// Delays are the delay expressions in force, by op. The keys are the words that
// metrics use for the label "op".
type Delays struct {
	Read        string `json:"read"`
	Write       string `json:"write"`
	Flush       string `json:"flush"`
	Discard     string `json:"discard"`
	WriteZeroes string `json:"write-zeroes"`
}

// Limits are those of the backing, as the device announces them. Bytes, except
// where the name says otherwise.
type Limits struct {
	LogicalBlockSize   int64 `json:"logical_block_size"`
	PhysicalBlockSize  int64 `json:"physical_block_size"`
	MinimumIOSize      int64 `json:"minimum_io_size"`
	OptimalIOSize      int64 `json:"optimal_io_size"`
	MaxDiscardBytes    int64 `json:"max_discard_bytes"`
	DiscardGranularity int64 `json:"discard_granularity"`
	MaxWriteZeroes     int64 `json:"max_write_zeroes_bytes"`
	VolatileCache      bool  `json:"volatile_cache"`
	FUA                bool  `json:"fua"`
	Rotational         bool  `json:"rotational"`
}

// States that a device can be in. More will come: clients must accept others.
const (
	StateDelaying = "delaying"
	// StateStopping is that of a device that is being removed.
	StateStopping = "stopping"
	// StateFailed is that of a device that ended by itself: Device.Error says
	// why, and it stays on the list until it is removed.
	StateFailed = "failed"
)

// Device is a device that exists.
type Device struct {
	Name string `json:"name"`
	// ID is the N of /dev/ublkbN.
	ID int `json:"id"`
	// Path is the block device: "/dev/ublkbN".
	Path  string `json:"path"`
	State string `json:"state"`
	// Error is why the device failed; "" in any other state.
	Error string `json:"error,omitempty"`

	Backing string `json:"backing"`
	// Delays are those in force.
	Delays Delays `json:"delays"`
	Hold   string `json:"hold"`

	// Offset and Size are the part of the backing that the device shows, in
	// bytes; Size is the device's capacity.
	Offset int64 `json:"offset"`
	Size   int64 `json:"size"`

	Queues   int  `json:"queues"`
	Depth    int  `json:"depth"`
	ReadOnly bool `json:"read_only"`
	Shared   bool `json:"shared"`

	// Compensate is what was asked for, Compensation what is taken off every
	// delay now, a duration.
	Compensate   string `json:"compensate"`
	Compensation string `json:"compensation"`
	Spin         string `json:"spin"`
	// ZeroCopy and Poll are what was asked for, ZeroCopied and Polled whether
	// the device does so.
	ZeroCopy   string `json:"zero_copy"`
	ZeroCopied bool   `json:"zero_copied"`
	Poll       bool   `json:"poll"`
	Polled     bool   `json:"polled"`
	Pin        bool   `json:"pin"`
	Realtime   int    `json:"realtime"`

	Limits Limits `json:"limits"`
	// MaxIOBytes is the longest request.
	MaxIOBytes int64 `json:"max_io_bytes"`
	// BufferBytes is what the device's buffers can come to at worst:
	// queues × depth × max_io_bytes; 0 where ZeroCopied is true.
	BufferBytes int64 `json:"buffer_bytes"`

	// Held and InFlight are how many requests wait for their deadline and how
	// many are with the backing now; Requests is how many were answered.
	Held     int64  `json:"held"`
	InFlight int64  `json:"in_flight"`
	Requests uint64 `json:"requests"`

	Created time.Time `json:"created"`

	// Warnings tell what of the spec will not come out as a reader of it may
	// expect. Never null.
	Warnings []string `json:"warnings"`
}

// Compensation asks for a change of what is taken off a live device's delays.
type Compensation struct {
	// Compensate is "off", a duration, or "auto", which measures again; ""
	// stands for "auto".
	Compensate string `json:"compensate,omitempty"`
}

// DeviceList answers GET /v1/devices, ordered by name. Devices is never null.
type DeviceList struct {
	Devices []Device `json:"devices"`
}
