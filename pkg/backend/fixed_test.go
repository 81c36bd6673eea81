package backend

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// A request whose bytes are in the ring's table names its slot, and goes on
// after a short piece at that many bytes from the slot's first.
func TestFixed(t *testing.T) {
	for _, c := range []struct {
		op   op.Op
		fua  bool
		code uint8
		how  uint32
	}{
		{op.Read, false, uring.OpReadFixed, 0},
		{op.Write, false, uring.OpWriteFixed, 0},
		{op.Write, true, uring.OpWriteFixed, unix.RWF_DSYNC},
	} {
		r := Request{Op: c.op, FUA: c.fua, Offset: 8192, Length: 16384, Fixed: true, Slot: 7}
		first := uring.SQE{Opcode: c.code, FD: 3, Off: 1<<20 + 8192, Len: 16384, OpFlags: c.how, BufIndex: 7}
		rest := first
		rest.Off, rest.Addr, rest.Len = first.Off+4096, 4096, 12288
		for i, want := range []uring.SQE{first, rest} {
			var got uring.SQE
			r.prepareMove(&got, 3, 1<<20)
			if got != want {
				t.Errorf("%v, piece %d: %+v, want %+v", c.op, i, got, want)
			}
			// 5000 bytes are one whole block of 4096, where direct I/O can go on.
			if i == 0 && r.moved(5000, 4096) {
				t.Errorf("%v: answered with %d after a short piece", c.op, r.Result)
			}
		}
		if !r.moved(12288, 4096) || r.Result != 16384 {
			t.Errorf("%v: result %d after all of it", c.op, r.Result)
		}
	}
}

// A disk that needs the bytes of a write to stay as they are is not given pages
// that an application may change; one that is only read does not care.
func TestZeroCopyAndStableWrites(t *testing.T) {
	stable := base{spec: "X", limits: Limits{StableWrites: true}}
	wantError(t, stable.changing(), "backing X", "queue/stable_writes is 1")
	stable.limits.setReadOnly()
	if err := stable.changing(); err != nil {
		t.Errorf("read-only: %v", err)
	}
	if err := (&base{spec: "X"}).changing(); err != nil {
		t.Errorf("without: %v", err)
	}
}
