package ublkdev

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What can be wrong, for errors.Is. An error of a command also wraps the errno
// that the kernel gave.
var (
	// ErrNotSupported: the running kernel's driver lacks the command or feature.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrNoDriver: there is no ublk driver.
	ErrNoDriver = errors.New("no ublk driver: /dev/ublk-control is missing; " +
		"load it with \"modprobe ublk_drv\" (it needs Linux 6.0 or later with CONFIG_BLK_DEV_UBLK)")
	// ErrPermission: not root.
	ErrPermission = errors.New("not permitted: ublk devices are made by root (CAP_SYS_ADMIN)")
	// ErrTooMany: the driver's limit of devices is reached.
	ErrTooMany = errors.New("too many ublk devices")
	// ErrNotFound: no device has the id.
	ErrNotFound = errors.New("no such ublk device")
	// ErrExists: the id is taken, or the device is started already.
	ErrExists = errors.New("ublk device exists already")
	// ErrTimeout: the kernel did not answer within the command's limit.
	ErrTimeout = errors.New("the kernel did not answer")
)

// ublksMaxPath has the driver's limit of devices (ublk_drv.c, ublks_max). Up to
// Linux 6.14 it counted all of them; since then, and in stable kernels that took
// the change over (6.12.95 has it), only those of unprivileged users.
const ublksMaxPath = "/sys/module/ublk_drv/parameters/ublks_max"

// openError says what is wrong when /dev/ublk-control cannot be opened.
func openError(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w (%w)", ErrNoDriver, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (%w)", ErrPermission, err)
	}
	return err
}

// commandError makes the error of a command that the kernel answered with errno.
func commandError(op command, id int, errno unix.Errno) error {
	target := op.target(id)
	switch {
	case errno == unix.EOPNOTSUPP || errno == unix.ENOTTY:
		return fmt.Errorf("%s: %w (it came with Linux %s; %w)", target, ErrNotSupported, op.since, errno)
	case errno == unix.EPERM:
		return fmt.Errorf("%s: %w (%w)", target, ErrPermission, errno)
	case errno == unix.EACCES && op.code == cmdAddDev:
		return fmt.Errorf("%s: %w: %s (%w)", target, ErrTooMany, tooManyHint(ublksMaxPath), errno)
	case errno == unix.ENODEV && (op.code == cmdTryStopDev || op.code == cmdQuiesceDev || op.code == cmdUpdateSize):
		return fmt.Errorf("%s: %w, or it is not started (%w)", target, ErrNotFound, errno)
	case errno == unix.ENODEV && op.code != cmdAddDev && op.code != cmdGetFeatures:
		return fmt.Errorf("%s: %w (%w)", target, ErrNotFound, errno)
	case errno == unix.EEXIST:
		return fmt.Errorf("%s: %w (%w)", target, ErrExists, errno)
	}
	if why := reason(op.code, errno); why != "" {
		return fmt.Errorf("%s: %w (%s)", target, errno, why)
	}
	return fmt.Errorf("%s: %w", target, errno)
}

// reason says what an errno of a command means, where the driver
// (ublk_drv.c, ublk_ctrl_*) uses it for little else; or "".
func reason(code uint32, errno unix.Errno) string {
	type answer struct {
		code  uint32
		errno unix.Errno
	}
	return map[answer]string{
		{cmdSetParams, unix.EACCES}:         "parameters cannot change once the device was started",
		{cmdStartDev, unix.EINVAL}:          "its parameters are not set, or do not fit together, or the pid is not that of the process that opened /dev/ublkcN",
		{cmdStartDev, unix.EBUSY}:           "it was stopped: its server must close /dev/ublkcN first",
		{cmdTryStopDev, unix.EBUSY}:         "somebody has it open",
		{cmdQuiesceDev, unix.EBUSY}:         "a queue had all its tags at work for too long",
		{cmdStartUserRecovery, unix.EINVAL}: "it was added without USER_RECOVERY",
		{cmdStartUserRecovery, unix.EBUSY}:  "it has a server, or the last one's files are not all closed",
		{cmdEndUserRecovery, unix.EBUSY}:    "it is not waiting for a server",
	}[answer{code, errno}]
}

// tooManyHint says what the limit is and how to raise it. path is
// [ublksMaxPath], or a test's own.
func tooManyHint(path string) string {
	value := "of the module parameter ublks_max"
	if b, err := os.ReadFile(path); err == nil {
		value = "is " + strings.TrimSpace(string(b))
	}
	return fmt.Sprintf("the kernel's limit %s; raise it with \"echo N > %s\", "+
		"or for every boot with \"options ublk_drv ublks_max=N\" in /etc/modprobe.d", value, path)
}
