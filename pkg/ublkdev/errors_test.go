package ublkdev

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCommandErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		op    command
		id    int
		errno unix.Errno
		is    error
		want  []string
	}{
		{"unknown command", opQuiesceDev, 3, unix.EOPNOTSUPP, ErrNotSupported, []string{"QUIESCE_DEV of device 3", "Linux 6.16"}},
		{"no driver for it", opGetFeatures, -1, unix.ENOTTY, ErrNotSupported, []string{"ublk GET_FEATURES", "Linux 6.5"}},
		{"not root", opAddDev, -1, unix.EPERM, ErrPermission, []string{"ADD_DEV of a new device", "root"}},
		{"limit reached", opAddDev, 7, unix.EACCES, ErrTooMany, []string{"ADD_DEV of device 7", "limit", "ublks_max"}},
		{"unknown device", opStopDev, 9, unix.ENODEV, ErrNotFound, []string{"STOP_DEV of device 9", "no such ublk device"}},
		{"id taken", opAddDev, 2, unix.EEXIST, ErrExists, []string{"ADD_DEV of device 2"}},
		{"unknown, or no disk", opTryStopDev, 9, unix.ENODEV, ErrNotFound, []string{"TRY_STOP_DEV of device 9", "or it is not started"}},
		{"explained", opStartDev, 1, unix.EINVAL, unix.EINVAL, []string{"START_DEV of device 1", "invalid argument", "parameters are not set"}},
		{"explained too", opTryStopDev, 1, unix.EBUSY, unix.EBUSY, []string{"TRY_STOP_DEV of device 1", "somebody has it open"}},
		{"started", opSetParams, 1, unix.EACCES, unix.EACCES, []string{"SET_PARAMS of device 1", "once the device was started"}},
		{"other", opStartDev, 1, unix.ENOMEM, unix.ENOMEM, []string{"START_DEV of device 1: cannot allocate memory"}},
	} {
		err := commandError(tt.op, tt.id, tt.errno)
		if !errors.Is(err, tt.is) || !errors.Is(err, tt.errno) {
			t.Errorf("%s: %v must wrap %q and %q", tt.name, err, tt.is, tt.errno)
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", tt.name, err, want)
			}
		}
	}
	// EACCES means the limit for ADD_DEV alone: SET_PARAMS gives it for a device
	// that was started.
	if err := commandError(opSetParams, 1, unix.EACCES); errors.Is(err, ErrTooMany) {
		t.Errorf("SET_PARAMS: %v", err)
	}
}

func TestTooManyHint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ublks_max")
	if got := tooManyHint(path); !strings.Contains(got, "module parameter ublks_max") {
		t.Errorf("without the file: %q", got)
	}
	if err := os.WriteFile(path, []byte("64\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := tooManyHint(path)
	for _, want := range []string{"limit is 64;", "echo N > " + path, "options ublk_drv ublks_max=N"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "ublk-control")
	_, err := open(missing)
	if !errors.Is(err, ErrNoDriver) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("no control file: %v, want ErrNoDriver", err)
	}
	for _, want := range []string{"modprobe ublk_drv", "Linux 6.0", "CONFIG_BLK_DEV_UBLK", missing} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	for _, errno := range []unix.Errno{unix.EACCES, unix.EPERM} {
		if err := openError(errno); !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), "root") {
			t.Errorf("%v: %v, want ErrPermission", errno, err)
		}
	}
	if err := openError(unix.EMFILE); !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrNoDriver) {
		t.Errorf("EMFILE: %v", err)
	}
}

// A file that takes no commands answers like a kernel that lacks one, and the
// Control goes on. Needs io_uring, not ublk.
func TestNotTheDriver(t *testing.T) {
	before := openFiles(t)
	c, err := open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := c.Features(context.Background()); !errors.Is(err, ErrNotSupported) {
			t.Fatalf("Features of /dev/zero: %v, want ErrNotSupported", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Stop(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Stop with a context that has ended: %v", err)
	}
	if n := c.Unanswered(); n != 0 {
		t.Errorf("%d commands unanswered, want 0", n)
	}
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := c.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second close: %v, want os.ErrClosed", err)
	}
	if _, err := c.Features(context.Background()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Features after Close: %v, want os.ErrClosed", err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files open after Close, %d before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func TestBadArguments(t *testing.T) {
	ok := AddOptions{ID: -1, Queues: 1, Depth: 1, MaxIOBytes: pageSize}
	if err := ok.validate(); err != nil {
		t.Fatalf("good options: %v", err)
	}
	for _, tt := range []struct {
		change func(*AddOptions)
		want   string
	}{
		{func(o *AddOptions) { o.ID = -2 }, "id -2"},
		{func(o *AddOptions) { o.ID = 1 << 20 }, "id 1048576"},
		{func(o *AddOptions) { o.Queues = 0 }, "0 queues"},
		{func(o *AddOptions) { o.Queues = 4097 }, "4097 queues"},
		{func(o *AddOptions) { o.Depth = 0 }, "depth 0"},
		{func(o *AddOptions) { o.Depth = 4097 }, "depth 4097"},
		{func(o *AddOptions) { o.MaxIOBytes = 511 }, "at most 511 bytes"},
		{func(o *AddOptions) { o.MaxIOBytes = 1<<25 + 1 }, "at most 33554433 bytes"},
		{func(o *AddOptions) { o.Flags = FeatureUserRecoveryReissue }, "recovery flags USER_RECOVERY_REISSUE"},
		{func(o *AddOptions) {
			o.Flags = FeatureUserRecovery | FeatureUserRecoveryReissue | FeatureUserRecoveryFailIO
		}, "recovery flags"},
		{func(o *AddOptions) { o.Flags = FeatureQuiesce }, "QUIESCE needs USER_RECOVERY"},
		{func(o *AddOptions) { o.Flags = FeatureIODescSize }, "IO_DESC_SIZE"},
	} {
		o := ok
		tt.change(&o)
		if err := o.validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want an error with %q", o, err, tt.want)
		}
	}
}

func TestStates(t *testing.T) {
	for s, want := range map[State]string{Dead: "dead", Live: "live", Quiesced: "quiesced", FailIO: "fail-io", 9: "state(9)"} {
		if got := s.String(); got != want {
			t.Errorf("State(%d) = %q, want %q", uint16(s), got, want)
		}
	}
	if Dead != 0 || Live != 1 || Quiesced != 2 || FailIO != 3 {
		t.Error("states are not UBLK_S_DEV_*")
	}
}
