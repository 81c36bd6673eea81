package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/ublkdev"
)

// Helper runs in a child process what [Host] must not do itself (helper.go says
// why). Its args are what Host appends to [HostOptions].Helper:
//
//	serve           do what standard input says (see settle), one after the
//	                other, and answer each on standard output
//	measure ID …    read the device and its backing and print how long each took
//	                (see measurement)
func Helper(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serveSettling(os.Stdin, os.Stdout)
	case len(args) > 0 && args[0] == "measure":
		return measureAndPrint(args[1:])
	}
	return fmt.Errorf("helper %q: want \"serve\" or \"measure ID …\"", args)
}

// settle is what a child does to a device that is being made:
//
//	start ID PID    start the ublk device, which process PID serves; the driver
//	                reads its partitions meanwhile
//	settle ID       read the partitions of a device that was started without that
//
// Both then set the device's I/O scheduler to none: one queue gets mq-deadline by
// default, which merges, reorders and keeps all but 256 requests to itself. What
// is said is what went wrong without being an error.
func settle(args []string) (said string, err error) {
	numbers := make([]int, max(0, len(args)-1))
	for i := range numbers {
		n, err := strconv.Atoi(args[i+1])
		if err != nil || n < 0 {
			return "", fmt.Errorf("%q is not a number", args[i+1])
		}
		numbers[i] = n
	}
	switch {
	case len(numbers) == 2 && args[0] == "start":
		if err := startDevice(numbers[0], numbers[1]); err != nil {
			return "", err
		}
		return "", setScheduler("/sys/block", filepath.Base(ublkdev.BlockPath(numbers[0])), "none")
	case len(numbers) == 1 && args[0] == "settle":
		path := ublkdev.BlockPath(numbers[0])
		if err := setScheduler("/sys/block", filepath.Base(path), "none"); err != nil {
			return "", err
		}
		// A disk whose first blocks cannot be read is no less a disk.
		if err := rescan(path); err != nil {
			return err.Error(), nil
		}
		return "", nil
	}
	return "", fmt.Errorf("%q: want \"start ID PID\" or \"settle ID\"", args)
}

// startDevice is START_DEV, for another process.
func startDevice(id, pid int) error {
	control, err := ublkdev.Open()
	if err != nil {
		return err
	}
	return errors.Join(control.Start(context.Background(), id, pid), control.Close())
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
