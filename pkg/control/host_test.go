package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/device"
	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/ublkdev"
)

func TestStartProblem(t *testing.T) {
	for _, c := range []struct {
		err  error
		want api.ProblemType
	}{
		{fmt.Errorf("open backing /x: %w", unix.ENOENT), api.ProblemBacking},
		{fmt.Errorf("open backing /x: %w", unix.EACCES), api.ProblemBacking},
		{fmt.Errorf("backing /x: %w", backend.ErrInUse), api.ProblemBacking},
		{fmt.Errorf("backing /x: %w", backend.ErrZoned), api.ProblemBacking},
		{errors.New("backing mem:1M: offset 2MiB is not inside it"), api.ProblemBacking},
		{fmt.Errorf("ADD_DEV: %w: raise it (%w)", ublkdev.ErrTooMany, unix.EACCES), api.ProblemTooMany},
		{fmt.Errorf("START_DEV: %w", ublkdev.ErrTimeout), api.ProblemTimeout},
		{fmt.Errorf("wait for the queues: %w", context.DeadlineExceeded), api.ProblemTimeout},
		{fmt.Errorf("SET_PARAMS: %w", ublkdev.ErrNotSupported), api.ProblemFailed},
		{fmt.Errorf("ADD_DEV: %w (%w)", ublkdev.ErrPermission, unix.EPERM), api.ProblemFailed},
		{fmt.Errorf("map the buffers: %w", unix.ENOMEM), api.ProblemFailed},
	} {
		p := startProblem(api.Spec{Backing: "/x"}, c.err)
		if !p.OfType(c.want) || p.Detail != c.err.Error() {
			t.Errorf("%v became %+v, want %s", c.err, p, c.want)
		}
		if (p.Name == "backing" && p.Value == "/x") != (c.want == api.ProblemBacking) {
			t.Errorf("%v blames %s %q", c.err, p.Name, p.Value)
		}
	}
}

func TestDeviceSpec(t *testing.T) {
	got, err := deviceSpec(api.Spec{
		Name: "a", Backing: "mem:1M", Delay: "1ms", Write: "2ms", Offset: 512, Size: 1024, Queues: 2, Depth: 3,
		ReadOnly: true, Shared: true, Hold: "complete",
		Compensate: "auto", Spin: "50us", ZeroCopy: "off", Poll: true, Pin: true, Realtime: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	delays := scheduler.Constant(time.Millisecond)
	delays[op.Write], delays[op.WriteZeroes] = 2*time.Millisecond, 2*time.Millisecond
	want := device.Spec{
		Name: "a", Backing: "mem:1M", Delays: delays, Offset: 512, Size: 1024, Queues: 2, Depth: 3,
		ReadOnly: true, Shared: true, Hold: device.HoldComplete,
		Compensate: device.CompensateAuto, Spin: scheduler.SpinMode(50 * time.Microsecond), ZeroCopy: device.Off,
		Poll: true, Pin: true, Realtime: 7,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The words of the API are those of the device.
func TestWordsAgree(t *testing.T) {
	for word, state := range map[string]device.State{
		api.StateDelaying: device.Delaying, api.StateStopping: device.Stopping, api.StateFailed: device.Failed,
	} {
		if state.String() != word {
			t.Errorf("a device is %q, the API says %q", state, word)
		}
	}
	if api.MaxDepth != device.MaxDepth || api.DefaultDepth != device.DefaultDepth || api.MaxNameLength != device.MaxNameLen {
		t.Error("the bounds of the API are not those of a device")
	}
}
