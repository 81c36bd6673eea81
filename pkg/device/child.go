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
		return setScheduler("/sys/block", args[1], args[2])
	}
	return fmt.Errorf("helper %q: want \"rescan DEVICE\" or \"scheduler DISK NAME\"", args)
}

// rescan has the kernel read the partitions of a block device. It is busy as
// long as somebody, like udev, has the disk or a partition exclusively open.
func rescan(path string) error {
	const tries = 50
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the partitions: %w", err)
	}
	for try := 1; ; try++ {
		err = unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0)
		if !errors.Is(err, unix.EBUSY) || try == tries {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if errors.Is(err, unix.EINVAL) {
		err = nil // a device without partitions to read: too small, or none allowed
	}
	if err != nil {
		err = fmt.Errorf("read the partitions of %s: %w", path, err)
	}
	return errors.Join(err, f.Close())
}

// setScheduler sets the I/O scheduler of a disk such as "ublkb0", below sysfs.
// The kernel waits for the disk's requests meanwhile.
func setScheduler(sysfs, disk, name string) error {
	if disk != filepath.Base(disk) {
		return fmt.Errorf("set the scheduler: %q is not the name of a disk", disk)
	}
	// Written as it is: sysfs files cannot be created or cut off.
	f, err := os.OpenFile(filepath.Join(sysfs, disk, "queue/scheduler"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set the scheduler: %w", err)
	}
	if _, err = f.WriteString(name); err != nil {
		err = fmt.Errorf("set the scheduler of %s to %q: %w", disk, name, err)
	}
	return errors.Join(err, f.Close())
}
