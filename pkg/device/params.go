package device

import (
	"math"
	"math/bits"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/ublkdev"
)

// sector is the block layer's unit.
const sector = 512

// params says to the driver what the backing's limits are (promise 6). What
// ublk has no words for is listed in docs/design.md.
func params(l backend.Limits) *ublkdev.Params {
	p := &ublkdev.Params{Basic: ublkdev.BasicParams{
		LogicalBlockShift:  shift(l.LogicalBlock),
		PhysicalBlockShift: shift(l.PhysicalBlock),
		IOMinShift:         shift(l.IOMin),
		IOOptShift:         shift(l.IOOpt),
		MaxSectors:         l.MaxSectors,
		ChunkSectors:       l.ChunkSectors,
		DevSectors:         uint64(l.Size) / sector,
		VirtBoundaryMask:   l.VirtBoundaryMask,
	}}
	for attr, has := range map[ublkdev.Attrs]bool{
		ublkdev.ReadOnly:      l.ReadOnly,
		ublkdev.Rotational:    l.Rotational,
		ublkdev.VolatileCache: l.VolatileCache,
		ublkdev.FUA:           l.FUA,
	} {
		if has {
			p.Basic.Attrs |= attr
		}
	}
	if l.Discard.MaxBytes > 0 || l.WriteZeroesMaxBytes > 0 {
		p.Discard = &ublkdev.DiscardParams{
			Alignment:             l.Discard.Alignment,
			Granularity:           max(l.Discard.Granularity, l.LogicalBlock),
			MaxSectors:            l.Discard.MaxBytes / sector,
			MaxWriteZeroesSectors: l.WriteZeroesMaxBytes / sector,
			MaxSegments:           1,
		}
	}
	if l.DMAAlignment > 0 {
		p.DMAAlign = &ublkdev.DMAAlignParams{Mask: l.DMAAlignment}
	}
	if l.MaxSegments > 0 || l.MaxSegmentSize > 0 || l.SegBoundaryMask > 0 {
		p.Segment = &ublkdev.SegmentParams{
			// The block layer's own defaults for what the backing does not say
			// (include/linux/blkdev.h, BLK_SEG_BOUNDARY_MASK, BLK_MAX_SEGMENT_SIZE).
			BoundaryMask: orDefault(l.SegBoundaryMask, math.MaxUint32),
			MaxSize:      orDefault(l.MaxSegmentSize, 64<<10),
			MaxSegments:  uint16(min(orDefault(l.MaxSegments, 128), math.MaxUint16)),
		}
	}
	return p
}

// shift is the binary logarithm of a power of two; 0 for 0.
func shift(n uint32) uint8 {
	if n == 0 {
		return 0
	}
	return uint8(bits.TrailingZeros32(n))
}

func orDefault[N uint32 | uint64](n, otherwise N) N {
	if n == 0 {
		return otherwise
	}
	return n
}
