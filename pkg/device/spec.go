package device

import (
	"fmt"
	"time"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/scheduler"
)

// Hold says on which side of the backing a request is held.
type Hold uint8

const (
	// HoldSubmit holds a request and then dispatches it: an application sees
	// delay + backing latency. This is what the device-mapper's delay target
	// does.
	HoldSubmit Hold = iota
	// HoldComplete dispatches a request at once and commits its answer no
	// earlier than arrival + delay: an application sees the greater of the
	// delay and the backing's latency.
	HoldComplete
)

// String returns the word used in flags, JSON and TOML.
func (h Hold) String() string {
	if h == HoldComplete {
		return "complete"
	}
	return "submit"
}

// ParseHold is the inverse of [Hold.String]; an empty word is "submit".
func ParseHold(s string) (Hold, error) {
	switch s {
	case "", "submit":
		return HoldSubmit, nil
	case "complete":
		return HoldComplete, nil
	}
	return 0, fmt.Errorf("hold %q: want \"submit\" or \"complete\"", s)
}

// Limits of a [Spec] that do not depend on the backing.
const (
	MaxNameLen   = 64
	DefaultDepth = 1024
	// MaxDepth is the kernel's UBLK_MAX_QUEUE_DEPTH (ublk_cmd.h).
	MaxDepth = 4096
)

// Spec is what a device is made from.
type Spec struct {
	Name    string           // 1 to MaxNameLen characters
	Backing string           // block device, file, "mem:SIZE" or "null:SIZE"
	Delays  scheduler.Delays // how long a request of each op is held
	Offset  int64            // first byte of the backing that is used
	Size    int64            // bytes; 0: to the end of the backing
	Queues  int              // 1 to the number of CPUs; 0: 1
	Depth   int              // requests in flight per queue, 1 to MaxDepth; 0: DefaultDepth

	ReadOnly bool
	Shared   bool // use a backing that somebody else has open
	Hold     Hold

	// Compensate is taken off every delay; CompensateAuto: what is measured
	// before the device is announced.
	Compensate time.Duration
	Spin       scheduler.SpinMode // how long before a deadline a queue spins
	ZeroCopy   Choice             // let the backing work on the request's own pages
	Poll       bool               // poll the backing for completions
	Pin        bool               // bind each queue's thread to one of the CPUs of its queue
	Realtime   int                // SCHED_FIFO priority of the queues' threads; 0: none

	// Numbered, if set, is called when the driver has given the device its number.
	Numbered func()
}

// CompensateAuto as [Spec.Compensate] asks for a measurement.
const CompensateAuto time.Duration = -1

// Choice is whether to use something that not every kernel or backing has.
type Choice uint8

const (
	// Auto uses it where it is there.
	Auto Choice = iota
	// On refuses the device where it is not.
	On
	// Off does without.
	Off
)

// String returns the word used in flags, JSON and TOML.
func (c Choice) String() string {
	switch c {
	case On:
		return "on"
	case Off:
		return "off"
	}
	return "auto"
}

// ParseChoice is the inverse of [Choice.String]; an empty word is "auto".
func ParseChoice(s string) (Choice, error) {
	switch s {
	case "", "auto":
		return Auto, nil
	case "on":
		return On, nil
	case "off":
		return Off, nil
	}
	return 0, fmt.Errorf("%q: want \"auto\", \"on\" or \"off\"", s)
}

// State is what a device is doing, in the design page's words.
type State uint8

const (
	// Starting: not announced yet; requests pass undelayed.
	Starting State = iota
	// Delaying: requests are held as the device's delays say.
	Delaying
	// Stopping: what was held is let go; the device is about to disappear.
	Stopping
	// Failed: the device ended by itself; [Device.Err] says why.
	Failed
)

// String returns the word used in JSON, tables and metrics.
func (s State) String() string {
	switch s {
	case Starting:
		return "starting"
	case Delaying:
		return "delaying"
	case Stopping:
		return "stopping"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Info is a device's description at one moment.
type Info struct {
	ID      int    // N of /dev/ublkbN
	Path    string // "/dev/ublkbN"
	State   State
	Queues  int
	Depth   int
	Limits  backend.Limits
	Created time.Time

	Compensation time.Duration // taken off every delay now
	ZeroCopied   bool          // the backing works on the request's own pages
	Polled       bool          // the backing is polled
	// Remarks say what of the spec the kernel or the backing did not allow.
	Remarks []string

	// BufferBytes is the most memory that requests in flight can occupy:
	// queues × depth × the largest request, or nothing with ZeroCopied. Pages are
	// taken on first use.
	BufferBytes int64
}
