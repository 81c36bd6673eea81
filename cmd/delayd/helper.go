package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// helperCommand holds what delayd has done by a child process: it waits for a
// device that the parent serves, and a thread in uninterruptible sleep there
// would survive kill -9 and keep the device open for ever.
func helperCommand(running *bool) *cobra.Command {
	cmd := &cobra.Command{Use: "helper", Short: "What delayd does in a child process", Hidden: true,
		Args: cobra.MinimumNArgs(1), RunE: func(_ *cobra.Command, args []string) error {
			return fmt.Errorf("unknown helper %q", args[0])
		}}
	cmd.AddCommand(&cobra.Command{Use: "rescan DEVICE", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		*running = true
		return rescan(args[0])
	}})
	cmd.AddCommand(&cobra.Command{Use: "scheduler DISK NAME", Args: cobra.ExactArgs(2), RunE: func(_ *cobra.Command, args []string) error {
		*running = true
		return setScheduler("/sys/block", args[0], args[1])
	}})
	return cmd
}

// rescan has the kernel read the partitions of a block device.
func rescan(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the partitions: %w", err)
	}
	err = unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0)
	if err != nil {
		err = fmt.Errorf("read the partitions of %s: %w", path, err)
	}
	return errors.Join(err, f.Close())
}

// setScheduler sets the I/O scheduler of a disk such as "ublkb0", below sysfs.
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
