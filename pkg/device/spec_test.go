package device

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/ublkdev"
)

func TestSpecDefaults(t *testing.T) {
	got, err := Spec{Name: "a"}.complete()
	must(t, err)
	if got.Queues != 1 || got.Depth != DefaultDepth || got.Hold != HoldSubmit {
		t.Errorf("%+v", got)
	}
}

func TestPromise8SpecsThatAreRefused(t *testing.T) {
	for want, s := range map[string]Spec{
		`name ""`:        {},
		`name "a/b"`:     {Name: "a/b"},
		"1 to 64":        {Name: strings.Repeat("a", 65)},
		"-1 queues":      {Name: "a", Queues: -1},
		"number of CPUs": {Name: "a", Queues: runtime.NumCPU() + 1},
		"depth 4097":     {Name: "a", Depth: 4097},
		"depth -1":       {Name: "a", Depth: -1},
		"offset -1":      {Name: "a", Offset: -1},
		"size -1":        {Name: "a", Size: -1},
		"hold 2":         {Name: "a", Hold: 2},
		"compensate -2":  {Name: "a", Compensate: -2},
		"zero copy 3":    {Name: "a", ZeroCopy: 3},
		"and poll":       {Name: "a", ZeroCopy: On, Poll: true},
		"realtime 100":   {Name: "a", Realtime: 100},
		"25h":            {Name: "a", Delays: scheduler.Constant(25 * time.Hour)},
		"-1ns":           {Name: "a", Delays: scheduler.Constant(-1)},
	} {
		if _, err := s.complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %q", s, err, want)
		}
	}
}

func TestParseHold(t *testing.T) {
	for word, want := range map[string]Hold{"": HoldSubmit, "submit": HoldSubmit, "complete": HoldComplete} {
		if got, err := ParseHold(word); err != nil || got != want {
			t.Errorf("%q: %v, %v", word, got, err)
		}
	}
	if _, err := ParseHold("never"); err == nil || !strings.Contains(err.Error(), `"never"`) {
		t.Errorf("an unknown word: %v", err)
	}
}

func TestParseChoice(t *testing.T) {
	for word, want := range map[string]Choice{"": Auto, "auto": Auto, "on": On, "off": Off} {
		if got, err := ParseChoice(word); err != nil || got != want || word != "" && got.String() != word {
			t.Errorf("%q: %v, %v", word, got, err)
		}
	}
	if _, err := ParseChoice("never"); err == nil || !strings.Contains(err.Error(), `"never"`) {
		t.Errorf("an unknown word: %v", err)
	}
}

// Promise 6: what the backing is like is what the driver is told.
func TestPromise6Params(t *testing.T) {
	l := backend.Limits{
		Size: 1 << 30, LogicalBlock: 4096, PhysicalBlock: 8192, IOMin: 16384, IOOpt: 1 << 20,
		MaxSectors: 254, MaxIOBytes: 128 << 10, MaxSegments: 33, MaxSegmentSize: 8192, ChunkSectors: 256,
		VirtBoundaryMask: 4095, DMAAlignment: 511,
		VolatileCache: true, FUA: true, Rotational: true, ReadOnly: true,
		Discard: backend.Discard{MaxBytes: 1 << 20, Granularity: 8192, Alignment: 4096, MaxSegments: 1}, WriteZeroesMaxBytes: 2 << 20,
	}
	want := &ublkdev.Params{
		Basic: ublkdev.BasicParams{
			Attrs:             ublkdev.ReadOnly | ublkdev.Rotational | ublkdev.VolatileCache | ublkdev.FUA,
			LogicalBlockShift: 12, PhysicalBlockShift: 13, IOMinShift: 14, IOOptShift: 20,
			MaxSectors: 254, ChunkSectors: 256, DevSectors: 2 << 20, VirtBoundaryMask: 4095,
		},
		Discard:  &ublkdev.DiscardParams{Alignment: 4096, Granularity: 8192, MaxSectors: 2048, MaxWriteZeroesSectors: 4096, MaxSegments: 1},
		DMAAlign: &ublkdev.DMAAlignParams{Mask: 511},
		Segment:  &ublkdev.SegmentParams{BoundaryMask: 1<<32 - 1, MaxSize: 8192, MaxSegments: 33},
	}
	if d := cmp.Diff(want, params(l)); d != "" {
		t.Error(d)
	}
	bare := params(backend.Limits{Size: 1 << 20, LogicalBlock: 512, PhysicalBlock: 512, IOMin: 512, MaxSectors: 2048, MaxIOBytes: 1 << 20})
	if bare.Discard != nil || bare.DMAAlign != nil || bare.Segment != nil || bare.Basic.Attrs != 0 || bare.Basic.IOOptShift != 0 {
		t.Errorf("a backing without limits: %+v", bare)
	}
}
