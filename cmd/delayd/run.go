package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/config"
	"github.com/delayd/delayd/pkg/control"
	"github.com/delayd/delayd/pkg/device"
)

// endLimit bounds how long the daemon takes to end. It is less than systemd's
// TimeoutStopSec (90 s), so that the log says what it waited for.
const endLimit = 80 * time.Second

// run is the daemon: it returns when ctx ends, or on the first error. Whatever
// it made is gone then.
func run(ctx context.Context, o options, log *slog.Logger) (err error) {
	specs, err := readConfig(o.config)
	if err != nil {
		return err
	}
	spinners, err := o.spinLimit()
	if err != nil {
		return &usageError{err}
	}
	collectSeldom()
	if o.mlock {
		if err := lockMemory(); err != nil {
			return err
		}
	}
	host, err := device.NewHost(ctx, device.HostOptions{Owner: o.owner, RunDir: o.runDir, Spinners: spinners, Log: log})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	listener, err := listen(o.socket)
	if err != nil {
		return err
	}
	return serve(ctx, o, log, listener, specs, control.OnHost(host))
}

// collectSeldom has the heap grow to five times what is in use before garbage is
// collected, unless GOGC says otherwise: each collection stops the queues'
// threads for a moment, and the heap of a daemon that keeps its requests outside
// it is a few MiB.
func collectSeldom() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

func readConfig(path string) ([]api.Spec, error) {
	if path == "" {
		return nil, nil
	}
	return config.Load(path)
}

// listen returns the socket that systemd hands over, else makes it.
func listen(path string) (net.Listener, error) {
	passed, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("take the sockets of systemd: %w", err)
	}
	switch len(passed) {
	case 0:
		return control.Listen(path)
	case 1:
		if passed[0] != nil {
			return passed[0], nil
		}
	}
	for _, l := range passed {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return nil, errors.Join(fmt.Errorf("systemd hands over %d sockets; one stream socket is wanted", len(passed)), err)
}

// serve serves the devices of starter on listener, beginning with those of
// specs, until ctx ends.
func serve(ctx context.Context, o options, log *slog.Logger, listener net.Listener, specs []api.Spec, starter control.Starter) (err error) {
	state := &notifier{log: log}
	manager := control.NewManager(control.Options{Starter: starter, Log: log, OnChange: state.devices})
	var servers []*control.Server
	// Whatever happens from here on, all is undone.
	defer func() {
		state.stopping()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		err = errors.Join(err, manager.Shutdown(end))
		for _, s := range servers {
			err = errors.Join(err, s.Close(end))
		}
		if len(servers) == 0 {
			err = errors.Join(err, listener.Close())
		}
	}()

	if err := manager.AddAll(ctx, specs); err != nil {
		if ctx.Err() != nil {
			return nil // told to end before it had begun
		}
		return err
	}
	failed := make(chan error, 2)
	watch := func(s *control.Server) {
		servers = append(servers, s)
		go func() { failed <- <-s.Failed() }()
	}
	watch(control.Serve(listener, control.Handler(manager, log), log))
	if o.metrics != "" {
		s, err := serveMetrics(o.metrics, manager, log)
		if err != nil {
			return err
		}
		watch(s)
	}
	log.Info("ready", "socket", listener.Addr().String(), "owner", o.owner, "version", api.Build().Version)
	state.ready()
	select {
	case <-ctx.Done():
		log.Info("ending")
		return nil
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	}
}
