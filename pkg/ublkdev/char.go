package ublkdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BlockPath returns the path of the block device: "/dev/ublkb3".
func BlockPath(id int) string { return fmt.Sprintf("/dev/ublkb%d", id) }

// CharPath returns the path of the server's side: "/dev/ublkc3".
func CharPath(id int) string { return fmt.Sprintf("/dev/ublkc%d", id) }

const (
	// openCharLimit bounds OpenChar beside its context.
	openCharLimit = 10 * time.Second
	// openCharPoll is how often it tries.
	openCharPoll = 3 * time.Millisecond
)

// OpenChar opens /dev/ublkcN, which one process at a time can have. It waits
// for up to 10 s, or until ctx ends, for the node to appear and for its last
// owner to be gone (EBUSY: its files and rings are closed asynchronously). The
// file is not registered with Go's poller.
func OpenChar(ctx context.Context, id int) (*os.File, error) {
	return openChar(ctx, CharPath(id), openCharLimit)
}

func openChar(ctx context.Context, path string, limit time.Duration) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(openCharPoll)
	defer tick.Stop()
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return nil, fmt.Errorf("open %s: %w (%w)", path, ErrPermission, err)
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV),
			errors.Is(err, unix.EBUSY), errors.Is(err, unix.EINTR):
		default:
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			why := "it did not appear"
			if errors.Is(err, unix.EBUSY) {
				why = "another server has it open, or is not quite gone"
			}
			return nil, fmt.Errorf("open %s: %s: %w (%w)", path, why, err, ctx.Err())
		case <-tick.C:
		}
	}
}

// charClass lists the server's side of every device (ublk_drv.c,
// ublk_chr_class).
const charClass = "/sys/class/ublk-char"

// List returns the ids of the devices that exist, whoever made them, in rising
// order. Without a driver there are none.
func List() ([]int, error) { return list(charClass, "/dev") }

func list(class, dev string) ([]int, error) {
	entries, err := os.ReadDir(class)
	if errors.Is(err, os.ErrNotExist) {
		entries, err = os.ReadDir(dev) // no driver, or no sysfs
	}
	if err != nil {
		return nil, fmt.Errorf("list ublk devices: %w", err)
	}
	var ids []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), "ublkc")
		if !ok {
			continue
		}
		if id, err := strconv.Atoi(digits); err == nil && id >= 0 && strconv.Itoa(id) == digits {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}
