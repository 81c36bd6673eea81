package metrics

import (
	"io"
	"log/slog"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves GET /metrics, the devices that sources returns at each scrape,
// the daemon's version and its own process and Go runtime, and GET /healthz,
// which says "ok" as long as the daemon answers.
//
// sources is called by several scrapes at once, and must not block on a device.
func Handler(sources func() []Source, version string) http.Handler {
	registry := Registry(sources, version)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		Registry: registry,
		// What can be shown is shown, and the rest is in the log.
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      slog.NewLogLogger(slog.Default().Handler(), slog.LevelError),
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	})
	return mux
}

// Registry returns a new registry with what Handler serves at /metrics.
func Registry(sources func() []Source, version string) *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "delayd_build_info",
		Help:        "Always 1; the version of the daemon and of the Go that built it.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)

	registry := prometheus.NewRegistry()
	registry.MustRegister(
		build,
		NewCollector(sources),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}
