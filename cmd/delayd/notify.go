package main

import (
	"fmt"
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifier tells the service manager, if there is one, what the daemon does.
type notifier struct{ log *slog.Logger }

func (n *notifier) ready() { n.send(daemon.SdNotifyReady) }
func (n *notifier) stopping() {
	n.send(daemon.SdNotifyStopping + "\nSTATUS=Ending: devices are finished and removed")
}

func (n *notifier) devices(count int) {
	word := "devices"
	if count == 1 {
		word = "device"
	}
	n.send(fmt.Sprintf("STATUS=%d %s", count, word))
}

func (n *notifier) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		n.log.Warn("cannot tell the service manager", "state", state, "error", err)
	}
}
