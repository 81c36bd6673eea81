package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/config"
)

// defaultRunDir is where the control socket is and where the state of devices
// is kept.
const defaultRunDir = "/run/delayd"

// managerOwner is the name of the manager among the daemons that can run at
// once.
const managerOwner = "delayd"

// options are the flags.
type options struct {
	config    string
	socket    string
	owner     string
	runDir    string
	metrics   string
	spinners  string
	mlock     bool
	logLevel  string
	logFormat string
}

// complete fills in what depends on other flags and judges what needs no system.
func (o *options) complete(socketEnv string) error {
	if o.owner == "" {
		o.owner = managerOwner
		if o.config != "" {
			o.owner = config.Name(o.config)
		}
	}
	if err := api.ValidateName(o.owner); err != nil {
		var field *api.FieldError
		if errors.As(err, &field) {
			field.Field = "--owner"
		}
		return err
	}
	if o.socket == "" {
		o.socket = socketEnv
	}
	if o.socket == "" {
		o.socket = filepath.Join(o.runDir, o.owner+".sock")
	}
	if o.metrics != "" {
		if _, _, err := net.SplitHostPort(o.metrics); err != nil {
			return &api.FieldError{Field: "--metrics", Value: o.metrics, Err: errors.New("not HOST:PORT"), Hint: "for example localhost:9799, or :9799 for all addresses"}
		}
	}
	return nil
}

// spinLimit is what --spinners says, as [device.HostOptions] wants it.
func (o *options) spinLimit() (int, error) {
	if o.spinners == api.Auto {
		return 0, nil
	}
	n, err := strconv.Atoi(o.spinners)
	switch {
	case err != nil || n < 0 || n > runtime.NumCPU():
		return 0, &api.FieldError{Field: "--spinners", Value: o.spinners, Err: fmt.Errorf("not auto or 0 to %d, the number of CPUs", runtime.NumCPU()), Hint: "auto is one less than there are CPUs; 0 lets no queue spin"}
	case n == 0:
		return -1, nil
	}
	return n, nil
}

// lockMemory keeps what the process has touched, and will touch, from being
// swapped out. Pages are still taken only on first use.
func lockMemory() error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("lock the memory (--mlock): %w: run delayd with CAP_IPC_LOCK, or with LimitMEMLOCK=infinity in its unit", err)
	}
	return nil
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var o slog.HandlerOptions
	switch level {
	case "debug":
		o.Level = slog.LevelDebug
	case "info":
		o.Level = slog.LevelInfo
	case "warn":
		o.Level = slog.LevelWarn
	case "error":
		o.Level = slog.LevelError
	default:
		return nil, &api.FieldError{Field: "--log-level", Value: level, Err: errors.New("there is no such level"), Hint: "the levels are debug, info, warn and error"}
	}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, &o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &o)), nil
	}
	return nil, &api.FieldError{Field: "--log-format", Value: format, Err: fmt.Errorf("there is no such format"), Hint: "the formats are text and json"}
}
