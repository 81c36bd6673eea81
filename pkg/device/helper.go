package device

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// What waits for a device that the daemon serves must not be the daemon: a
// thread of it in uninterruptible sleep there would survive kill -9 and keep
// the device open for ever. So whatever opens or reads /dev/ublkbN, or freezes
// its queue, runs in a child: also START_DEV where the driver reads the
// partitions in it (Linux 6.12), on a worker thread of whoever sent it.

// helperLimit is how long a child may take. The device is undelayed while one
// runs, so that only a slow backing can make it long.
const helperLimit = 20 * time.Second

// dieLimit is how long a killed child is waited for. One that the kernel does
// not let die, because the backing hangs, must not hold up the daemon.
const dieLimit = time.Second

// help runs the helper command with args and returns what it had to say.
func (h *Host) help(ctx context.Context, args ...string) (said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	words := append(append([]string(nil), h.opts.Helper...), args...)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = dieLimit
	cmd.SysProcAttr = dieWithUs()
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // see dieWithUs
		defer runtime.UnlockOSThread()
		ended <- cmd.Run()
	}()
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(2 * dieLimit):
			h.log.Warn("a child process does not end; it will when the kernel lets it", "command", strings.Join(words, " "))
			return "", fmt.Errorf("%s: %w", strings.Join(words, " "), ctx.Err())
		}
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // and not that the child was killed for it
	}
	said = strings.TrimSpace(out.String())
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, said)
	}
	return said, nil
}
