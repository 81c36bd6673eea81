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

// ublksMaxPath has the driver's limit of devices: of all of them up to Linux
// 6.14, of unprivileged ones later (ublk_drv.c, ublks_max).
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
	case errno == unix.ENODEV && op.code != cmdAddDev && op.code != cmdGetFeatures:
		return fmt.Errorf("%s: %w (%w)", target, ErrNotFound, errno)
	case errno == unix.EEXIST:
		return fmt.Errorf("%s: %w (%w)", target, ErrExists, errno)
	}
	return fmt.Errorf("%s: %w", target, errno)
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
