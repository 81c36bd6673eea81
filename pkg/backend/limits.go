package backend

import (
	"fmt"
	"math"
	"os"

	"github.com/delayd/delayd/pkg/size"
)

// Limits is what a backing is like, in bytes unless said otherwise: what the
// device in front of it should show. The values are such that the ublk driver
// takes them (drivers/block/ublk_drv.c, ublk_validate_params).
//
// What ublk has no words for is not here: alignment_offset, atomic writes,
// write streams, more than one segment per discard, integrity data, zones, and
// an optimal or minimum I/O size that is not a power of two.
type Limits struct {
	Size          int64  // of the selected part, a multiple of LogicalBlock
	LogicalBlock  uint32 // a power of two, 512 to the page size
	PhysicalBlock uint32 // a power of two, at least LogicalBlock
	IOMin         uint32 // smallest efficient I/O, at least LogicalBlock
	IOOpt         uint32 // best I/O size; 0: none is named

	MaxSectors     uint32 // largest read or write in 512-byte sectors: whole blocks, at least a page
	MaxIOBytes     uint32 // room that one needs: MaxSectors rounded up to whole pages
	MaxSegments    uint32 // per request, less than 65536; 0: no limit of its own
	MaxSegmentSize uint32 // at least 4096; 0: no limit of its own
	ChunkSectors   uint32 // requests should not cross a multiple of this; 512-byte sectors; 0: none
	// VirtBoundaryMask, SegBoundaryMask and DMAAlignment constrain a request's
	// memory: see the queue_limits of include/linux/blkdev.h. 0: no constraint.
	// The kernel does not tell SegBoundaryMask to user space, so it is 0.
	VirtBoundaryMask uint64
	SegBoundaryMask  uint64
	DMAAlignment     uint32 // a mask, 2^n-1, less than the page size

	VolatileCache bool // a flush is needed and does something
	FUA           bool // a write can be made durable by itself
	Rotational    bool
	ReadOnly      bool
	// StableWrites: the bytes of a write may not change while it is under way
	// (it is checksummed, or mirrored). ublk cannot say so to an application.
	StableWrites bool

	Discard             Discard
	WriteZeroesMaxBytes uint32 // 0: none
}

// Discard says what of a discard a backing takes.
type Discard struct {
	MaxBytes    uint32 // 0: none, and then all is 0
	Granularity uint32 // at least the logical block
	Alignment   uint32 // of the first granule, relative to the selected part
	MaxSegments uint16 // 1, which is all that ublk takes
}

const (
	sector = 512 // the unit of the block layer
	// defaultMaxIO is the largest request of a backing that has no limit.
	defaultMaxIO = 1 << 20
	// largestMaxIO is what an address in ublk's user-copy offsets can name
	// (ublk_cmd.h, UBLK_IO_BUF_BITS).
	largestMaxIO = 32 << 20
	// minSegmentSize is ublk_cmd.h's UBLK_MIN_SEGMENT_SIZE.
	minSegmentSize = 4096
	// largestBlockHint is ublk_validate_params' bound of the physical block.
	largestBlockHint = 256 << 20
)

// isPowerOf2 says whether n is one.
func isPowerOf2(n uint32) bool { return n != 0 && n&(n-1) == 0 }

// clamp32 makes a 64-bit limit fit a request's length, in whole units.
func clamp32(n uint64, unit uint32) uint32 {
	return uint32(min(n, math.MaxUint32)) / unit * unit
}

// setMaxIO makes n bytes the largest request, as near as ublk takes it: whole
// blocks, at least a page. A disk can have one that is not whole pages (127 KiB
// is common), a buffer cannot.
func (l *Limits) setMaxIO(n uint64) {
	page := uint32(os.Getpagesize())
	n = max(min(n, largestMaxIO), uint64(page))
	l.MaxSectors = clamp32(n, l.LogicalBlock) / sector
	l.MaxIOBytes = (l.MaxSectors*sector + page - 1) / page * page
}

// selectPart makes l those of a part of a backing that has total bytes, and
// returns where the part begins.
func (l *Limits) selectPart(spec string, total int64, o Options) (offset int64, err error) {
	lb := int64(l.LogicalBlock)
	whole := total / lb * lb
	switch {
	case total <= 0:
		return 0, fmt.Errorf("backing %s is empty: it needs at least one block of %d bytes", spec, lb)
	case whole == 0:
		return 0, fmt.Errorf("backing %s has %d bytes: it needs at least one block of %d", spec, total, lb)
	case o.Offset%lb != 0:
		return 0, fmt.Errorf("backing %s: offset %d is not a multiple of its logical block of %d bytes: use %d or %d",
			spec, o.Offset, lb, o.Offset/lb*lb, (o.Offset/lb+1)*lb)
	case o.Offset >= whole:
		return 0, fmt.Errorf("backing %s: offset %s is not inside it: it has %s", spec, size.Format(o.Offset), size.Format(whole))
	}
	l.Size = whole - o.Offset
	if o.Size != 0 {
		want := o.Size / lb * lb
		switch {
		case want == 0:
			return 0, fmt.Errorf("backing %s: size %d is less than its logical block of %d bytes", spec, o.Size, lb)
		case want > l.Size:
			return 0, fmt.Errorf("backing %s: offset %s + size %s is beyond its end: it has %s, so the size can be at most %s",
				spec, size.Format(o.Offset), size.Format(o.Size), size.Format(whole), size.Format(l.Size))
		}
		l.Size = want
	}
	l.shift(o.Offset)
	return o.Offset, nil
}

// shift makes the alignments those of a part that begins at offset.
func (l *Limits) shift(offset int64) {
	if g := int64(l.Discard.Granularity); g != 0 {
		// include/linux/blkdev.h, queue_limit_discard_alignment, for the part's
		// first byte. Alignment is that of the whole backing until now.
		l.Discard.Alignment = uint32((g + int64(l.Discard.Alignment)%g - offset%g) % g)
	}
	if c := int64(l.ChunkSectors) * sector; c != 0 && offset%c != 0 {
		// The boundaries would be drawn at the wrong places, and the backing
		// splits what crosses one anyway.
		l.ChunkSectors = 0
	}
}

// setReadOnly takes away what a device that is never written to cannot do.
func (l *Limits) setReadOnly() {
	l.ReadOnly = true
	l.Discard = Discard{}
	l.WriteZeroesMaxBytes = 0
}
