package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/ublkdev"
)

// ErrOwnDevice is wrapped by the error of a backing that is, or is made of, a
// device of the same daemon: the daemon would wait for itself.
var ErrOwnDevice = errors.New("a device cannot be made of a device of the same daemon")

// Users says who uses the device or one of its partitions: "mounted on /data",
// "holder dm-0", "swap", "open in fio (pid 4711)". It looks at /proc and /sys
// and never opens the device. Who comes and goes while it looks may be missed.
func (d *Device) Users() ([]string, error) {
	dev, err := diskNumber(d.id)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // gone, and with it whoever used it
	}
	if err != nil {
		return nil, err
	}
	return backend.Users(dev), nil
}

// diskNumber is the number of /dev/ublkbN.
func diskNumber(id int) (backend.DevNo, error) {
	file := filepath.Join("/sys/block", filepath.Base(ublkdev.BlockPath(id)), "dev")
	text, err := os.ReadFile(file)
	if err != nil {
		return backend.DevNo{}, err
	}
	var dev backend.DevNo
	if _, err := fmt.Sscanf(string(text), "%d:%d", &dev.Major, &dev.Minor); err != nil {
		return backend.DevNo{}, fmt.Errorf("read %s: %w", file, err)
	}
	return dev, nil
}

// refuseOwn refuses a backing that has a device of this daemon at its bottom,
// or in between. It opens nothing.
func (h *Host) refuseOwn(spec string) error {
	for _, dev := range backend.SpecDevices(spec) {
		below, err := backend.DependsOn(dev)
		if err != nil {
			return err
		}
		for _, n := range below {
			if id, ok := ublkID(n); ok && h.own(id) {
				return fmt.Errorf("backing %s is on %s, which this daemon serves: %w; use its backing, or a second daemon with another --owner",
					spec, ublkdev.BlockPath(id), ErrOwnDevice)
			}
		}
	}
	return nil
}

// ublkID tells whether a block device is /dev/ublkbN, and which.
func ublkID(dev backend.DevNo) (int, bool) {
	link, err := os.Readlink("/sys/dev/block/" + dev.String())
	if err != nil {
		return 0, false
	}
	number, ok := strings.CutPrefix(filepath.Base(link), "ublkb")
	if !ok {
		return 0, false
	}
	id, err := strconv.Atoi(number)
	return id, err == nil
}
