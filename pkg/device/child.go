package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Helper runs in a child process what [Host] must not do itself. Its args are
// what Host appends to [HostOptions].Helper:
//
//	rescan DEVICE          read the partition table of a block device
//	scheduler DISK NAME    set the I/O scheduler of a disk ("ublkb0")
func Helper(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "rescan":
		return rescan(args[1])
	case len(args) == 3 && args[0] == "scheduler":
		return setScheduler(args[1], args[2])
	}
	return fmt.Errorf("helper %q: want \"rescan DEVICE\" or \"scheduler DISK NAME\"", args)
}

// rescan asks the kernel to read a partition table. It is busy as long as
// somebody, like udev, has a partition or the disk exclusively open.
func rescan(path string) error {
	const tries = 50
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		err = unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0)
		if !errors.Is(err, unix.EBUSY) || try == tries {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if errors.Is(err, unix.EINVAL) {
		err = nil // the device has no partitions to read: too small, or none allowed
	}
	if err != nil {
		err = fmt.Errorf("read the partitions of %s: %w", path, err)
	}
	return errors.Join(err, f.Close())
}

// setScheduler writes a disk's queue/scheduler, which waits for the disk's
// requests.
func setScheduler(disk, name string) error {
	if disk != filepath.Base(disk) {
		return fmt.Errorf("disk %q: want the name of a folder of /sys/block", disk)
	}
	return os.WriteFile(filepath.Join("/sys/block", disk, "queue/scheduler"), []byte(name), 0)
}
