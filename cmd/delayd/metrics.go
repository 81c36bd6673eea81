package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/control"
	"github.com/delayd/delayd/pkg/metrics"
)

// serveMetrics answers GET http://addr/metrics with the counts of m's devices.
func serveMetrics(addr string, m *control.Manager, log *slog.Logger) (*control.Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve metrics on %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics.Handler(func() []metrics.Source { return sources(m) }, api.Build().Version))
	log.Info("metrics", "address", l.Addr().String())
	return control.Serve(l, mux, log), nil
}

// sources are the devices of m that have counters.
func sources(m *control.Manager) []metrics.Source {
	var all []metrics.Source
	m.Each(func(name string, dev control.Device) {
		d, ok := dev.(control.Running)
		if !ok {
			return
		}
		info := d.Info()
		all = append(all, metrics.Source{
			Name: name, ID: info.ID, Path: info.Path, State: info.State.String(), Counters: d.Counters(),
			Compensation: info.Compensation,
		})
	})
	return all
}
