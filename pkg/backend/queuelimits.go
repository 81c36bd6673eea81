package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// attrs reads the attributes of a directory in sysfs. One that an older kernel
// does not have is 0; the first other trouble is kept in err.
type attrs struct {
	dir string
	err error
}

func (a *attrs) text(name string) string {
	b, err := os.ReadFile(filepath.Join(a.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && a.err == nil {
		a.err = err
	}
	return strings.TrimSpace(string(b))
}

func (a *attrs) number(name string) uint64 {
	s := a.text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil && a.err == nil {
		a.err = fmt.Errorf("read %s: %w", filepath.Join(a.dir, name), err)
	}
	return n
}

// queueLimits reads the limits of a whole block device from sysfs
// (Documentation/ABI/stable/sysfs-block). A partition has its disk's queue, and
// an alignment for discards of its own.
//
// The largest request is max_sectors_kb, what the block layer gives the disk
// now, and not max_hw_sectors_kb, what it could take: a device that shows more
// than the first would have its requests split.
func queueLimits(d DevNo) (Limits, error) {
	dir, err := sysDir(d)
	if err != nil {
		return Limits{}, err
	}
	dev := &attrs{dir: dir}
	q := &attrs{dir: filepath.Join(diskDir(dir), "queue")}
	if z := q.text("zoned"); z != "" && z != "none" {
		return Limits{}, fmt.Errorf("%w (this one is %s): use a conventional device", ErrZoned, z)
	}
	l := Limits{
		LogicalBlock:     clamp32(q.number("logical_block_size"), 1),
		PhysicalBlock:    clamp32(q.number("physical_block_size"), 1),
		IOMin:            clamp32(q.number("minimum_io_size"), 1),
		IOOpt:            clamp32(q.number("optimal_io_size"), 1),
		MaxSegments:      uint32(min(q.number("max_segments"), 1<<16-1)),
		MaxSegmentSize:   clamp32(q.number("max_segment_size"), 1),
		ChunkSectors:     clamp32(q.number("chunk_sectors"), 1),
		VirtBoundaryMask: q.number("virt_boundary_mask"),
		DMAAlignment:     uint32(min(q.number("dma_alignment"), uint64(os.Getpagesize()-1))),
		VolatileCache:    q.text("write_cache") == "write back",
		FUA:              q.number("fua") == 1,
		Rotational:       q.number("rotational") == 1,
		ReadOnly:         dev.number("ro") == 1,
		StableWrites:     q.number("stable_writes") == 1,
	}
	page := uint32(os.Getpagesize())
	if !isPowerOf2(l.LogicalBlock) || l.LogicalBlock < sector || l.LogicalBlock > page {
		return Limits{}, errors.Join(q.err, fmt.Errorf("its logical block has %d bytes: a ublk device can have %d to %d", l.LogicalBlock, sector, page))
	}
	if !isPowerOf2(l.PhysicalBlock) || l.PhysicalBlock < l.LogicalBlock {
		l.PhysicalBlock = l.LogicalBlock
	}
	l.PhysicalBlock = min(l.PhysicalBlock, largestBlockHint)
	l.setMaxIO(q.number("max_sectors_kb") << 10)
	l.IOMin = max(l.IOMin, l.LogicalBlock)
	if l.MaxSegmentSize != 0 {
		l.MaxSegmentSize = max(l.MaxSegmentSize, minSegmentSize)
	}
	l.Discard = discardLimits(dev, q, l.LogicalBlock)
	l.WriteZeroesMaxBytes = clamp32(q.number("write_zeroes_max_bytes"), l.LogicalBlock)
	return l, errors.Join(dev.err, q.err)
}

// discardLimits takes what the hardware can, unless an administrator turned
// discards off: then the disk refuses them. A lower limit set by hand makes the
// disk split a discard, so it need not be shown.
func discardLimits(dev, q *attrs, lb uint32) Discard {
	d := Discard{MaxBytes: clamp32(q.number("discard_max_hw_bytes"), lb), MaxSegments: 1}
	if q.number("discard_max_bytes") == 0 || d.MaxBytes == 0 {
		return Discard{}
	}
	d.Granularity = max(clamp32(q.number("discard_granularity"), 1), lb)
	d.Alignment = clamp32(dev.number("discard_alignment"), 1)
	return d
}

// diskIs says two things of a file system's disk; false where they cannot be
// told.
func diskIs(d DevNo) (rotational, stableWrites bool) {
	dir, err := sysDir(d)
	if err != nil {
		return false, false
	}
	q := &attrs{dir: filepath.Join(diskDir(dir), "queue")}
	return q.number("rotational") == 1, q.number("stable_writes") == 1
}

// deviceReadOnly asks the open device itself.
func deviceReadOnly(fd int) bool {
	ro, err := unix.IoctlGetInt(fd, unix.BLKROGET)
	return err == nil && ro != 0
}
