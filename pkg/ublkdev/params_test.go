package ublkdev

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// testParams are valid parameters of every kind.
func testParams() *Params {
	return &Params{
		Basic: BasicParams{
			Attrs: VolatileCache | FUA, LogicalBlockShift: 9, PhysicalBlockShift: 12, IOOptShift: 17, IOMinShift: 12,
			MaxSectors: 1024, ChunkSectors: 2048, DevSectors: 1 << 16,
		},
		Discard:  &DiscardParams{Granularity: 4096, MaxSectors: 8192, MaxWriteZeroesSectors: 4096, MaxSegments: 1},
		DMAAlign: &DMAAlignParams{Mask: 511},
		Segment:  &SegmentParams{BoundaryMask: 1<<32 - 1, MaxSize: 1 << 17, MaxSegments: 64},
	}
}

func TestParamsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u8, u16, u32, u64 := rapid.Uint8(), rapid.Uint16(), rapid.Uint32(), rapid.Uint64()
		p := &Params{Basic: BasicParams{
			Attrs:             Attrs(u32.Draw(t, "attrs")),
			LogicalBlockShift: u8.Draw(t, "lbs"), PhysicalBlockShift: u8.Draw(t, "pbs"),
			IOOptShift: u8.Draw(t, "opt"), IOMinShift: u8.Draw(t, "min"),
			MaxSectors: u32.Draw(t, "max"), ChunkSectors: u32.Draw(t, "chunk"),
			DevSectors: u64.Draw(t, "dev"), VirtBoundaryMask: u64.Draw(t, "virt"),
		}}
		if rapid.Bool().Draw(t, "discard") {
			p.Discard = &DiscardParams{u32.Draw(t, "align"), u32.Draw(t, "gran"), u32.Draw(t, "maxd"), u32.Draw(t, "maxz"), u16.Draw(t, "segs")}
		}
		if rapid.Bool().Draw(t, "dma") {
			p.DMAAlign = &DMAAlignParams{u32.Draw(t, "mask")}
		}
		if rapid.Bool().Draw(t, "segment") {
			p.Segment = &SegmentParams{u64.Draw(t, "boundary"), u32.Draw(t, "size"), u16.Draw(t, "n")}
		}
		u := p.uapi()
		if diff := cmp.Diff(p, u.friendly()); diff != "" {
			t.Fatalf("through ublk_params and back (-want +got):\n%s", diff)
		}
		if u.len != 152 || u.types&paramTypeBasic == 0 || u.types&paramTypeDevt != 0 {
			t.Fatalf("len %d types %#x, want 152, with BASIC, without DEVT", u.len, u.types)
		}
	})
}

func TestParamsNumbersOnlyRead(t *testing.T) {
	p := testParams()
	p.Numbers = &DeviceNumbers{CharMajor: 1}
	if u := p.uapi(); u.types&paramTypeDevt != 0 || u.devt != (paramDevt{}) {
		t.Errorf("device numbers are sent to the kernel, which refuses them: %+v", u.devt)
	}
	u := p.uapi()
	u.types |= paramTypeDevt
	u.devt = paramDevt{charMajor: 1, charMinor: 2, diskMajor: 3, diskMinor: 4}
	want := &DeviceNumbers{CharMajor: 1, CharMinor: 2, DiskMajor: 3, DiskMinor: 4}
	if diff := cmp.Diff(want, u.friendly().Numbers); diff != "" {
		t.Errorf("device numbers (-want +got):\n%s", diff)
	}
}

func TestParamsValidate(t *testing.T) {
	if err := testParams().Validate(); err != nil {
		t.Fatalf("good parameters: %v", err)
	}
	for _, tt := range []struct {
		name   string
		change func(*Params)
		want   string // in the message
	}{
		{"logical too small", func(p *Params) { p.Basic.LogicalBlockShift = 8 }, "logical block shift 8"},
		{"logical over a page", func(p *Params) { p.Basic.LogicalBlockShift, p.Basic.PhysicalBlockShift = 20, 20 }, "logical block shift 20"},
		{"physical below logical", func(p *Params) { p.Basic.LogicalBlockShift, p.Basic.PhysicalBlockShift = 12, 9 }, "physical block shift 9"},
		{"physical over 256 MiB", func(p *Params) { p.Basic.PhysicalBlockShift = 29 }, "physical block shift 29"},
		{"io min", func(p *Params) { p.Basic.IOMinShift = 29 }, "minimum I/O shift 29"},
		{"io opt", func(p *Params) { p.Basic.IOOptShift = 29 }, "optimal I/O shift 29"},
		{"max sectors under a page", func(p *Params) { p.Basic.MaxSectors = 7 }, "at most 7 sectors"},
		{"discard granularity", func(p *Params) { p.Discard.Granularity = 0 }, "granularity 0"},
		{"discard segments", func(p *Params) { p.Discard.MaxSegments = 2 }, "2 segments"},
		{"dma mask", func(p *Params) { p.DMAAlign.Mask = 512 }, "mask 0x200"},
		{"dma mask of a page", func(p *Params) { p.DMAAlign.Mask = 1<<16 - 1 }, "mask 0xffff"},
		{"segment boundary", func(p *Params) { p.Segment.BoundaryMask = 4096 }, "mask 0x1000"},
		{"segment boundary too small", func(p *Params) { p.Segment.BoundaryMask = 2047 }, "mask 0x7ff"},
		{"segment size", func(p *Params) { p.Segment.MaxSize = 4095 }, "at most 4095 bytes"},
		{"segments", func(p *Params) { p.Segment.MaxSegments = 0 }, "at most 0 segments"},
	} {
		p := testParams()
		tt.change(p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.want)
		}
	}
	// What the kernel allows.
	for name, change := range map[string]func(*Params){
		"no discard, only zeroes": func(p *Params) { p.Discard.MaxSectors, p.Discard.MaxSegments = 0, 0 },
		"nothing optional":        func(p *Params) { *p = Params{Basic: p.Basic} },
		"any boundary":            func(p *Params) { p.Segment.BoundaryMask = ^uint64(0) },
		"bytewise memory":         func(p *Params) { p.DMAAlign.Mask = 0 },
	} {
		p := testParams()
		change(p)
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAttrs(t *testing.T) {
	for a, want := range map[Attrs]string{
		0:                         "none",
		ReadOnly | FUA:            "read-only|fua",
		Rotational:                "rotational",
		VolatileCache | Attrs(64): "volatile-cache|0x40",
	} {
		if got := a.String(); got != want {
			t.Errorf("Attrs(%d) = %q, want %q", uint32(a), got, want)
		}
	}
	if !(ReadOnly | FUA).Has(FUA) || FUA.Has(ReadOnly|FUA) {
		t.Error("Has must want all of its argument")
	}
}
