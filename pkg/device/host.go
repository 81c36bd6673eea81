package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"

	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/ublkdev"
)

// HostOptions say how one daemon runs its devices.
type HostOptions struct {
	// Owner names the daemon: "delayd" for the manager. Two daemons that run at
	// once must not share it.
	Owner string
	// RunDir keeps what outlives a daemon, in a folder named for the owner; ""
	// stands for /run/delayd.
	RunDir string
	// Helper is the command that runs in a child process what the daemon must
	// not do itself (see helper.go): the words to which what [Helper] takes is
	// appended. Empty: this executable with "helper".
	Helper []string
	// MaxBufferBytes bounds what the requests of one device can occupy; 0
	// stands for DefaultMaxBufferBytes.
	MaxBufferBytes int64
	// Spinners is how many queues of all devices may spin at once, -1 for none;
	// 0 stands for one less than there are CPUs, but one in any case.
	Spinners int
	Log      *slog.Logger // nil: discard
}

// DefaultMaxBufferBytes is enough for 4096 requests of 1 MiB on two queues.
const DefaultMaxBufferBytes = 8 << 30

// DefaultRunDir is where a daemon keeps what outlives it.
const DefaultRunDir = "/run/delayd"

// Host is what the devices of one daemon share: the way to the driver, what the
// driver can do, and the CPUs' budget for spinning.
type Host struct {
	opts     HostOptions
	control  *ublkdev.Control
	features ublkdev.Features
	clock    scheduler.Clock
	budget   *scheduler.SpinBudget
	log      *slog.Logger
	records  *records
	settlers settlers
	pins     pins
	// dearClock, if set, replaces what was measured of the clock. For tests.
	dearClock *bool

	// measuring is taken by whoever measures the path of a device: two at once
	// would measure each other.
	measuring chan struct{}

	mu      sync.Mutex
	threads int          // queue threads alive
	procs   int          // GOMAXPROCS before the first of them
	ids     map[int]bool // devices that are served here
}

// NewHost opens the driver and removes what a dead daemon of the same owner has
// left. It returns [ublkdev.ErrNoDriver] or [ublkdev.ErrPermission] where there
// is no driver or no right to use it.
func NewHost(ctx context.Context, opts HostOptions) (*Host, error) {
	if opts.Owner == "" {
		return nil, errors.New("a host needs an owner")
	}
	if opts.RunDir == "" {
		opts.RunDir = DefaultRunDir
	}
	if opts.MaxBufferBytes == 0 {
		opts.MaxBufferBytes = DefaultMaxBufferBytes
	}
	if opts.Spinners == 0 {
		opts.Spinners = scheduler.DefaultSpinners(runtime.NumCPU())
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if len(opts.Helper) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this executable: %w", err)
		}
		opts.Helper = []string{self, "helper"}
	}
	control, err := ublkdev.Open()
	if err != nil {
		return nil, err
	}
	features, err := control.Features(ctx)
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	if err := features.Require(ublkdev.FeatureCmdIoctlEncode); err != nil {
		return nil, errors.Join(err, control.Close())
	}
	recs, err := openRecords(opts.RunDir, opts.Owner)
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	h := &Host{
		opts:     opts,
		control:  control,
		features: features,
		clock:    scheduler.Monotonic(),
		budget:   scheduler.NewSpinBudget(opts.Spinners),
		log:      opts.Log,
		records:  recs,
		ids:      map[int]bool{},

		measuring: make(chan struct{}, 1),
	}
	h.removeOrphans(ctx)
	return h, nil
}

// Close gives the driver back. No device may be left.
func (h *Host) Close() error {
	h.settlers.close()
	return errors.Join(h.records.close(), h.control.Close())
}

// Features is what the running kernel's driver can do.
func (h *Host) Features() ublkdev.Features { return h.features }

// thread counts queue threads that come (n > 0) or go. Each brings a P of its
// own: it keeps one while it waits for less than a few milliseconds, and
// without this a few busy queues would keep the API, a scrape and the garbage
// collector from running until the runtime interrupts one of them.
func (h *Host) thread(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.threads == 0 {
		h.procs = runtime.GOMAXPROCS(0)
	}
	h.threads += n
	runtime.GOMAXPROCS(h.procs + h.threads)
}

// isDear reports whether a look at the clock costs a system call.
func (h *Host) isDear() bool {
	if h.dearClock != nil {
		return *h.dearClock
	}
	return scheduler.Cost() >= dearClock
}

func (h *Host) serves(id int, yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if yes {
		h.ids[id] = true
	} else {
		delete(h.ids, id)
	}
}

func (h *Host) own(id int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids[id]
}
