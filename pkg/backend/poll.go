package backend

import (
	"fmt"
	"os"
	"path/filepath"
)

// Pollable says why the completions of b's reads and writes cannot be polled
// for; nil if they can. It looks at the device at this moment: a driver may
// change its queues later.
func Pollable(b Backend) error {
	if p, ok := b.(interface{ pollable() error }); ok {
		return p.pollable()
	}
	return fmt.Errorf("backing %s is not a block device, and only those can be polled", b.Spec())
}

// pollable asks the queue, which a partition has from its disk
// (Documentation/ABI/stable/sysfs-block, queue/io_poll).
//
// A device of the device mapper is never polled, whatever its queue says: Linux
// 7.3.4 reads a request that is gone when it completes one there
// (dm_poll_bio, __dm_io_complete), and goes down within seconds of a load.
func (b *block) pollable() error {
	dir, err := sysDir(b.dev)
	if err != nil {
		return fmt.Errorf("backing %s: ask whether it can be polled: %w", b.spec, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "dm")); err == nil {
		return fmt.Errorf("backing %s is a device of the device mapper, and polling one crashes kernels (7.3.4 for one): "+
			"take a device below it", b.spec)
	}
	q := &attrs{dir: filepath.Join(diskDir(dir), "queue")}
	switch n := q.number("io_poll"); {
	case q.err != nil:
		return fmt.Errorf("backing %s: ask whether it can be polled: %w", b.spec, q.err)
	case n != 1:
		return fmt.Errorf("backing %s has no queues to poll (queue/io_poll is %d): "+
			"its driver may have an option for them, such as nvme.poll_queues", b.spec, n)
	}
	return nil
}
