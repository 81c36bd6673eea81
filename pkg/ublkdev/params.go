package ublkdev

import (
	"fmt"
	"math/bits"
	"strings"
	"unsafe"
)

// Attrs are properties of the whole device, UBLK_ATTR_*.
type Attrs uint32

const (
	ReadOnly      Attrs = 1 << 0
	Rotational    Attrs = 1 << 1
	VolatileCache Attrs = 1 << 2 // flushes are sent
	FUA           Attrs = 1 << 3 // writes with FlagFUA are sent; counts only with VolatileCache
)

// Has reports whether a contains every attribute of want.
func (a Attrs) Has(want Attrs) bool { return a&want == want }

// String returns the names joined by "|", or "none".
func (a Attrs) String() string {
	var names []string
	for i, name := range []string{"read-only", "rotational", "volatile-cache", "fua"} {
		if a&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if rest := a &^ (1<<4 - 1); rest != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(rest)))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, "|")
}

// Params are the parameters of a device. Sectors are always 512 bytes. A part
// that is nil is not set.
type Params struct {
	Basic    BasicParams
	Discard  *DiscardParams
	DMAAlign *DMAAlignParams
	Segment  *SegmentParams
	Numbers  *DeviceNumbers // filled by GetParams, ignored by SetParams
}

// BasicParams is what every device needs. A shift is the binary logarithm of
// a size in bytes.
type BasicParams struct {
	Attrs              Attrs
	LogicalBlockShift  uint8  // 9 to that of a page
	PhysicalBlockShift uint8  // at least LogicalBlockShift
	IOOptShift         uint8  // best size of a request; 0 says none (the driver makes it 1 byte)
	IOMinShift         uint8  // smallest size without a penalty
	MaxSectors         uint32 // most of one request; a page to Info.MaxIOBytes
	ChunkSectors       uint32 // no request crosses a multiple of it; 0: none
	DevSectors         uint64 // size of the device
	VirtBoundaryMask   uint64 // gaps between segments allowed only at it plus one; 0: none
}

// DiscardParams says how a device discards and writes zeroes. In a device
// without it there are no such requests.
type DiscardParams struct {
	Alignment             uint32 // bytes
	Granularity           uint32 // bytes, not 0
	MaxSectors            uint32 // most of one discard; 0: none
	MaxWriteZeroesSectors uint32 // most of one write-zeroes; 0: none
	MaxSegments           uint16 // 1, as the driver takes no other
}

// DMAAlignParams is how the memory of an application's direct requests must be
// aligned (Linux 6.13; older: 4 bytes).
type DMAAlignParams struct {
	Mask uint32 // alignment in bytes, a power of two below a page, minus one
}

// SegmentParams are limits of the pieces of memory in a request (Linux 6.15).
type SegmentParams struct {
	BoundaryMask uint64 // no piece crosses it plus one, a power of two of 4096 at least
	MaxSize      uint32 // bytes, at least 4096
	MaxSegments  uint16 // at least 1
}

// DeviceNumbers are those of /dev/ublkcN and, once started, /dev/ublkbN.
type DeviceNumbers struct {
	CharMajor, CharMinor uint32
	DiskMajor, DiskMinor uint32 // 0: not started
}

// minSegment is UBLK_MIN_SEGMENT_SIZE.
const minSegment = 4096

// Validate names what the driver would only answer with EINVAL (ublk_drv.c,
// ublk_validate_params).
func (p *Params) Validate() error {
	b := &p.Basic
	pageShift := uint8(bits.TrailingZeros32(pageSize))
	const maxShift = 28 // 256 MiB
	switch {
	case b.LogicalBlockShift < 9 || b.LogicalBlockShift > pageShift:
		return fmt.Errorf("logical block shift %d: want 9 to %d", b.LogicalBlockShift, pageShift)
	case b.PhysicalBlockShift < b.LogicalBlockShift || b.PhysicalBlockShift > maxShift:
		return fmt.Errorf("physical block shift %d: want %d (the logical one) to %d", b.PhysicalBlockShift, b.LogicalBlockShift, maxShift)
	case b.IOMinShift > maxShift:
		return fmt.Errorf("minimum I/O shift %d: want at most %d", b.IOMinShift, maxShift)
	case b.IOOptShift > maxShift:
		return fmt.Errorf("optimal I/O shift %d: want at most %d", b.IOOptShift, maxShift)
	case b.MaxSectors < pageSize/512:
		return fmt.Errorf("requests of at most %d sectors: want %d (a page) or more", b.MaxSectors, pageSize/512)
	}
	if d := p.Discard; d != nil {
		switch {
		case d.Granularity == 0:
			return fmt.Errorf("discard granularity 0: want a block at least")
		case d.MaxSectors > 0 && d.MaxSegments != 1:
			return fmt.Errorf("discards of %d segments: want 1", d.MaxSegments)
		}
	}
	if a := p.DMAAlign; a != nil && (a.Mask >= pageSize || a.Mask&(a.Mask+1) != 0) {
		return fmt.Errorf("DMA alignment mask %#x: want a power of two minus one, below a page", a.Mask)
	}
	if s := p.Segment; s != nil {
		switch {
		case s.BoundaryMask < minSegment-1 || s.BoundaryMask&(s.BoundaryMask+1) != 0:
			return fmt.Errorf("segment boundary mask %#x: want a power of two minus one, %#x or more", s.BoundaryMask, minSegment-1)
		case s.MaxSize < minSegment:
			return fmt.Errorf("segments of at most %d bytes: want %d or more", s.MaxSize, minSegment)
		case s.MaxSegments == 0:
			return fmt.Errorf("at most 0 segments: want 1 or more")
		}
	}
	return nil
}

// uapi returns p as the kernel reads it.
func (p *Params) uapi() params {
	u := params{
		len:   uint32(unsafe.Sizeof(params{})),
		types: paramTypeBasic,
		basic: paramBasic{
			attrs:            uint32(p.Basic.Attrs),
			logicalBSShift:   p.Basic.LogicalBlockShift,
			physicalBSShift:  p.Basic.PhysicalBlockShift,
			ioOptShift:       p.Basic.IOOptShift,
			ioMinShift:       p.Basic.IOMinShift,
			maxSectors:       p.Basic.MaxSectors,
			chunkSectors:     p.Basic.ChunkSectors,
			devSectors:       p.Basic.DevSectors,
			virtBoundaryMask: p.Basic.VirtBoundaryMask,
		},
	}
	if d := p.Discard; d != nil {
		u.types |= paramTypeDiscard
		u.discard = paramDiscard{
			discardAlignment:      d.Alignment,
			discardGranularity:    d.Granularity,
			maxDiscardSectors:     d.MaxSectors,
			maxWriteZeroesSectors: d.MaxWriteZeroesSectors,
			maxDiscardSegments:    d.MaxSegments,
		}
	}
	if a := p.DMAAlign; a != nil {
		u.types |= paramTypeDMAAlign
		u.dma.alignment = a.Mask
	}
	if s := p.Segment; s != nil {
		u.types |= paramTypeSegment
		u.seg = paramSegment{segBoundaryMask: s.BoundaryMask, maxSegmentSize: s.MaxSize, maxSegments: s.MaxSegments}
	}
	return u
}

// friendly returns u as callers read it.
func (u *params) friendly() *Params {
	p := &Params{Basic: BasicParams{
		Attrs:              Attrs(u.basic.attrs),
		LogicalBlockShift:  u.basic.logicalBSShift,
		PhysicalBlockShift: u.basic.physicalBSShift,
		IOOptShift:         u.basic.ioOptShift,
		IOMinShift:         u.basic.ioMinShift,
		MaxSectors:         u.basic.maxSectors,
		ChunkSectors:       u.basic.chunkSectors,
		DevSectors:         u.basic.devSectors,
		VirtBoundaryMask:   u.basic.virtBoundaryMask,
	}}
	if u.types&paramTypeDiscard != 0 {
		p.Discard = &DiscardParams{
			Alignment:             u.discard.discardAlignment,
			Granularity:           u.discard.discardGranularity,
			MaxSectors:            u.discard.maxDiscardSectors,
			MaxWriteZeroesSectors: u.discard.maxWriteZeroesSectors,
			MaxSegments:           u.discard.maxDiscardSegments,
		}
	}
	if u.types&paramTypeDevt != 0 {
		p.Numbers = &DeviceNumbers{
			CharMajor: u.devt.charMajor, CharMinor: u.devt.charMinor,
			DiskMajor: u.devt.diskMajor, DiskMinor: u.devt.diskMinor,
		}
	}
	if u.types&paramTypeDMAAlign != 0 {
		p.DMAAlign = &DMAAlignParams{Mask: u.dma.alignment}
	}
	if u.types&paramTypeSegment != 0 {
		p.Segment = &SegmentParams{
			BoundaryMask: u.seg.segBoundaryMask,
			MaxSize:      u.seg.maxSegmentSize,
			MaxSegments:  u.seg.maxSegments,
		}
	}
	return p
}
