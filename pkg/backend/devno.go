package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DevNo is a block device's number.
type DevNo struct{ Major, Minor uint32 }

// String is as in sysfs: "253:0".
func (d DevNo) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

func devNo(dev uint64) DevNo { return DevNo{unix.Major(dev), unix.Minor(dev)} }

func parseDevNo(s string) (DevNo, error) {
	major, minor, ok := strings.Cut(strings.TrimSpace(s), ":")
	a, err1 := strconv.ParseUint(major, 10, 32)
	b, err2 := strconv.ParseUint(minor, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return DevNo{}, fmt.Errorf("device number %q: want MAJOR:MINOR", s)
	}
	return DevNo{uint32(a), uint32(b)}, nil
}

// sysRoot is where sysfs is; tests use a tree of their own.
var sysRoot = "/sys"

// sysDir is the directory of a block device in sysfs, with links resolved, so
// that a partition's parent is its disk.
func sysDir(d DevNo) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(sysRoot, "dev/block", d.String()))
	if err != nil {
		return "", fmt.Errorf("find block device %s in sysfs: %w", d, err)
	}
	return dir, nil
}

// diskDir is the sysfs directory of the disk that dir, or the partition dir, is.
func diskDir(dir string) string {
	if isPartition(dir) {
		return filepath.Dir(dir)
	}
	return dir
}

func isPartition(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "partition"))
	return err == nil
}

// sysDevNo reads the number of the block device with this sysfs directory.
func sysDevNo(dir string) (DevNo, error) {
	s, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		return DevNo{}, err
	}
	return parseDevNo(string(s))
}

// DeviceNumber returns the block device that b's bytes are on: b's own, or that
// of the file system a file is in. It is false for a backing that is on none
// (memory, null) or whose device cannot be told (a network or union file system).
func DeviceNumber(b Backend) (DevNo, bool) {
	if d, ok := b.(interface{ device() (DevNo, bool) }); ok {
		return d.device()
	}
	return DevNo{}, false
}

// SpecDevices are the block devices that the backing which spec names would be
// on, found without opening it: to open or read a device that the caller itself
// serves could wait for ever. The path is looked at by its name first, and then
// with its links followed.
func SpecDevices(spec string) []DevNo {
	for _, k := range kinds {
		if k.prefix != "" && strings.HasPrefix(spec, k.prefix) {
			return nil
		}
	}
	var devs []DevNo
	if n, ok := pathDevice(spec); ok {
		devs = append(devs, n)
	}
	if real, err := filepath.EvalSymlinks(spec); err == nil && real != spec {
		if n, ok := pathDevice(real); ok && !slices.Contains(devs, n) {
			devs = append(devs, n)
		}
	}
	return devs
}

// DependsOn returns dev and every block device below it, each once: a
// partition's disk, what a mapped or RAID device is made of (slaves in sysfs),
// the disk that a loop device's file is on. A daemon whose own device is among
// them must refuse dev as a backing, or it would wait for itself. What is below
// a device that another user-space server provides cannot be seen, nor the
// second and further devices of a btrfs, nor what an overlay is made of.
func DependsOn(dev DevNo) ([]DevNo, error) {
	seen := []DevNo{dev}
	for i := 0; i < len(seen); i++ {
		below, err := slaves(seen[i])
		if err != nil {
			return nil, fmt.Errorf("find what block device %s depends on: %w", dev, err)
		}
		for _, d := range below {
			if !slices.Contains(seen, d) {
				seen = append(seen, d)
			}
		}
	}
	return seen, nil
}

// slaves are the block devices that are directly below d.
func slaves(d DevNo) ([]DevNo, error) {
	dir, err := sysDir(d)
	if err != nil {
		return nil, err
	}
	if disk := diskDir(dir); disk != dir {
		n, err := sysDevNo(disk)
		return []DevNo{n}, err
	}
	entries, err := os.ReadDir(filepath.Join(dir, "slaves"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var below []DevNo
	for _, e := range entries {
		n, err := sysDevNo(filepath.Join(dir, "slaves", e.Name()))
		if err != nil {
			return nil, err
		}
		below = append(below, n)
	}
	if file, err := os.ReadFile(filepath.Join(dir, "loop/backing_file")); err == nil {
		if n, ok := pathDevice(strings.TrimSuffix(string(file), "\n")); ok {
			below = append(below, n)
		}
	}
	return below, nil
}

// pathDevice is the block device that path is, or that the file system is on
// which path is in by its name. The file itself is not looked at: that could
// wait for the very device that is looked for.
func pathDevice(path string) (DevNo, bool) {
	if n, ok := blockNode(path); ok {
		return n, true
	}
	mounts, err := readMounts()
	if err != nil {
		return DevNo{}, false
	}
	var in mount
	for _, m := range mounts {
		dir := strings.TrimSuffix(m.point, "/") + "/"
		// Of several on one point the last one listed is on top.
		if strings.HasPrefix(path, dir) && len(m.point) >= len(in.point) {
			in = m
		}
	}
	return fsDevice(in.dev)
}

// fsDevice is the block device of the file system that stat(2) numbers so. A
// file system with a number of its own, such as btrfs, is looked up by what it
// was mounted from.
func fsDevice(d DevNo) (DevNo, bool) {
	if d.Major != 0 {
		_, err := sysDir(d)
		return d, err == nil
	}
	mounts, err := readMounts()
	if err != nil {
		return DevNo{}, false
	}
	for _, m := range mounts {
		if m.dev == d && m.source != (DevNo{}) {
			return m.source, true
		}
	}
	return DevNo{}, false
}
