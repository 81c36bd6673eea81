package backend

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSelectPart(t *testing.T) {
	for _, tc := range []struct {
		name         string
		lb           uint32
		total        int64
		offset, size int64
		want         int64  // size
		wantErr      string // else
	}{
		{"whole", 512, 1 << 20, 0, 0, 1 << 20, ""},
		{"tail lost", 512, 1<<20 + 511, 0, 0, 1 << 20, ""},
		{"tail of a large block lost", 4096, 10000, 0, 0, 8192, ""},
		{"one block", 4096, 4096, 0, 0, 4096, ""},
		{"to the end", 4096, 1 << 20, 8192, 0, 1<<20 - 8192, ""},
		{"part", 4096, 1 << 20, 8192, 16384, 16384, ""},
		{"size rounded down", 4096, 1 << 20, 0, 10000, 8192, ""},
		{"exactly to the end", 512, 1 << 20, 1<<20 - 512, 512, 512, ""},
		{"rounds down to the end", 4096, 1 << 20, 0, 1<<20 + 4095, 1 << 20, ""},
		{"empty", 512, 0, 0, 0, 0, "backing X is empty: it needs at least one block of 512 bytes"},
		{"less than a block", 4096, 4095, 0, 0, 0, "backing X has 4095 bytes: it needs at least one block of 4096"},
		{"offset between blocks", 4096, 1 << 20, 5000, 0, 0, "backing X: offset 5000 is not a multiple of its logical block of 4096 bytes: use 4096 or 8192"},
		{"offset at the end", 512, 1 << 20, 1 << 20, 0, 0, "backing X: offset 1MiB is not inside it: it has 1MiB"},
		{"size less than a block", 4096, 1 << 20, 0, 4095, 0, "backing X: size 4095 is less than its logical block of 4096 bytes"},
		{"beyond the end", 512, 1 << 20, 512 << 10, 1 << 20, 0, "backing X: offset 512KiB + size 1MiB is beyond its end: it has 1MiB, so the size can be at most 512KiB"},
		{"no overflow", 512, 1 << 20, 1<<63 - 512, 1<<63 - 1, 0, "is not inside it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := Limits{LogicalBlock: tc.lb}
			offset, err := l.selectPart("X", tc.total, Options{Offset: tc.offset, Size: tc.size})
			if tc.wantErr != "" {
				wantError(t, err, tc.wantErr)
				return
			}
			if err != nil || offset != tc.offset || l.Size != tc.want {
				t.Errorf("offset %d, size %d, error %v; want %d, %d", offset, l.Size, err, tc.offset, tc.want)
			}
		})
	}
}

func TestSelectPartModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{LogicalBlock: 512 << rapid.IntRange(0, 3).Draw(t, "shift")}
		total := rapid.Int64Range(0, 1<<62).Draw(t, "total")
		o := Options{
			Offset: rapid.Int64Range(0, 1<<62).Draw(t, "offset") >> rapid.IntRange(0, 62).Draw(t, "by") / 512 * 512,
			Size:   rapid.Int64Range(0, 1<<62).Draw(t, "size") >> rapid.IntRange(0, 62).Draw(t, "by"),
		}
		offset, err := l.selectPart("X", total, o)
		if err != nil {
			return
		}
		lb := int64(l.LogicalBlock)
		if l.Size <= 0 || l.Size%lb != 0 || offset%lb != 0 || offset != o.Offset || offset+l.Size > total || o.Size != 0 && l.Size > o.Size {
			t.Fatalf("total %d, %+v: offset %d, size %d", total, o, offset, l.Size)
		}
	})
}

// TestShift compares with the kernel's rule by looking for granules: the first
// multiple of the granularity, counted from the disk's own alignment.
func TestShift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := 512 * rapid.Int64Range(1, 64).Draw(t, "granularity")
		a := 512 * rapid.Int64Range(0, 63).Draw(t, "alignment") % g
		offset := 512 * rapid.Int64Range(0, 1000).Draw(t, "offset")
		want := int64(0)
		for (offset+want-a)%g != 0 {
			want += 512
		}
		l := Limits{Discard: Discard{MaxBytes: 1 << 20, Granularity: uint32(g), Alignment: uint32(a)}}
		l.shift(offset)
		if int64(l.Discard.Alignment) != want {
			t.Fatalf("granularity %d, alignment %d, offset %d: %d, want %d", g, a, offset, l.Discard.Alignment, want)
		}
	})
}

func TestShiftDropsChunks(t *testing.T) {
	for offset, want := range map[int64]uint32{0: 256, 128 << 10: 256, 64 << 10: 0} {
		l := Limits{ChunkSectors: 256}
		if l.shift(offset); l.ChunkSectors != want {
			t.Errorf("offset %d: chunk %d, want %d", offset, l.ChunkSectors, want)
		}
	}
}

func TestBounds(t *testing.T) {
	page := uint32(os.Getpagesize())
	for _, tc := range []struct {
		n               uint64
		lb, sectors, io uint32
	}{
		{0, 512, page / 512, page},
		{1280 << 10, 512, 2560, 1280 << 10},
		{127 << 10, 512, 254, 128 << 10},
		{127 << 10, 4096, 248, 124 << 10},
		{127<<10 + 100, 1024, 254, 128 << 10},
		{largestMaxIO, 512, largestMaxIO / 512, largestMaxIO},
		{1 << 40, 512, largestMaxIO / 512, largestMaxIO},
	} {
		l := Limits{LogicalBlock: tc.lb}
		if l.setMaxIO(tc.n); l.MaxSectors != tc.sectors || l.MaxIOBytes != tc.io {
			t.Errorf("%d bytes, blocks of %d: %d sectors in %d bytes, want %d in %d", tc.n, tc.lb, l.MaxSectors, l.MaxIOBytes, tc.sectors, tc.io)
		}
	}
	if got := clamp32(1<<40, 512); got != 1<<32-512 {
		t.Errorf("clamp32(1 TiB) = %d", got)
	}
}

func TestQueueLimits(t *testing.T) {
	fakeSys(t, map[string]string{
		"block/sda/dev":                          "8:0\n",
		"block/sda/ro":                           "0\n",
		"block/sda/discard_alignment":            "0\n",
		"block/sda/queue/logical_block_size":     "512\n",
		"block/sda/queue/physical_block_size":    "4096\n",
		"block/sda/queue/minimum_io_size":        "4096\n",
		"block/sda/queue/optimal_io_size":        "65536\n",
		"block/sda/queue/max_sectors_kb":         "1282\n",
		"block/sda/queue/max_hw_sectors_kb":      "32767\n",
		"block/sda/queue/max_segments":           "168\n",
		"block/sda/queue/max_segment_size":       "65536\n",
		"block/sda/queue/chunk_sectors":          "256\n",
		"block/sda/queue/virt_boundary_mask":     "4095\n",
		"block/sda/queue/dma_alignment":          "3\n",
		"block/sda/queue/write_cache":            "write back\n",
		"block/sda/queue/fua":                    "1\n",
		"block/sda/queue/rotational":             "1\n",
		"block/sda/queue/zoned":                  "none\n",
		"block/sda/queue/discard_granularity":    "8192\n",
		"block/sda/queue/discard_max_bytes":      "1048576\n",
		"block/sda/queue/discard_max_hw_bytes":   "2199023255040\n",
		"block/sda/queue/max_discard_segments":   "256\n",
		"block/sda/queue/write_zeroes_max_bytes": "2147483136\n",
		"block/sda/sda1/dev":                     "8:1\n",
		"block/sda/sda1/partition":               "1\n",
		"block/sda/sda1/ro":                      "1\n",
		"block/sda/sda1/discard_alignment":       "4608\n",
		"block/old/dev":                          "9:0\n",
		"block/old/queue/logical_block_size":     "4096\n",
		"block/old/queue/max_sectors_kb":         "2\n",
		"block/old/queue/max_segment_size":       "512\n",
		"block/off/dev":                          "9:1\n",
		"block/off/queue/logical_block_size":     "512\n",
		"block/off/queue/discard_max_bytes":      "0\n",
		"block/off/queue/discard_max_hw_bytes":   "4096\n",
		"block/zone/dev":                         "9:2\n",
		"block/zone/queue/logical_block_size":    "512\n",
		"block/zone/queue/zoned":                 "host-managed\n",
		"block/big/dev":                          "9:3\n",
		"block/big/queue/logical_block_size":     "65536\n",
		"block/odd/dev":                          "9:4\n",
		"block/odd/queue/logical_block_size":     "what\n",
	}, map[string]string{
		"8:0": "block/sda", "8:1": "block/sda/sda1", "9:0": "block/old", "9:1": "block/off",
		"9:2": "block/zone", "9:3": "block/big", "9:4": "block/odd",
	})
	sda := Limits{
		LogicalBlock: 512, PhysicalBlock: 4096, IOMin: 4096, IOOpt: 65536,
		MaxSectors: 2564, MaxIOBytes: 1284 << 10, MaxSegments: 168, MaxSegmentSize: 65536, ChunkSectors: 256,
		VirtBoundaryMask: 4095, DMAAlignment: 3, VolatileCache: true, FUA: true, Rotational: true,
		Discard:             Discard{MaxBytes: 1<<32 - 512, Granularity: 8192, MaxSegments: 1},
		WriteZeroesMaxBytes: 1<<31 - 512,
	}
	sda1 := sda
	sda1.ReadOnly = true
	sda1.Discard.Alignment = 4608
	for d, want := range map[DevNo]Limits{
		{8, 0}: sda,
		{8, 1}: sda1,
		{9, 0}: {LogicalBlock: 4096, PhysicalBlock: 4096, IOMin: 4096, MaxSectors: 8, MaxIOBytes: 4096, MaxSegmentSize: 4096},
		{9, 1}: {LogicalBlock: 512, PhysicalBlock: 512, IOMin: 512, MaxSectors: 8, MaxIOBytes: 4096},
	} {
		got, err := queueLimits(d)
		if err != nil {
			t.Errorf("%v: %v", d, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", d, diff)
		}
	}
	for d, want := range map[DevNo]string{
		{9, 2}: "zoned block devices are not supported (this one is host-managed)",
		{9, 3}: "its logical block has 65536 bytes: a ublk device can have 512 to 4096",
		{9, 4}: `logical_block_size: strconv.ParseUint: parsing "what"`,
		{9, 5}: "find block device 9:5 in sysfs",
	} {
		_, err := queueLimits(d)
		wantError(t, err, want)
	}
}
