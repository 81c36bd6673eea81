package uring

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What the probe says, tried: an operation that it lacks is refused with
// EINVAL, one that it has is not refused for its number.
func TestProbe(t *testing.T) {
	ops, err := Probe()
	must(t, err)
	for op := range since {
		if !ops.Supported(op) || !Supported(op) || Have(op) != nil {
			t.Errorf("operation %d: %v, this kernel is older than the project needs", op, Have(op))
		}
	}
	r := open(t, configs["plain"])
	for _, op := range []uint8{200, 254, 255} {
		if ops.Supported(op) || Supported(op) {
			t.Errorf("operation %d exists", op)
		}
		if err := Have(op); !errors.Is(err, ErrNotSupported) {
			t.Errorf("operation %d: %v", op, err)
		}
		next(t, r).Opcode = op
		if c := one(t, r); c.Res != -int32(unix.EINVAL) {
			t.Errorf("operation %d: %+v", op, c)
		}
	}
	again, err := Probe()
	if err != nil || again != ops {
		t.Error("probed twice")
	}
}

func TestProbeReadsTheAnswer(t *testing.T) {
	var p probe
	p.opsLen, p.lastOp = 3, 2
	for i := range p.ops {
		p.ops[i] = probeOp{op: uint8(i), flags: opSupported}
	}
	p.ops[1].flags = 0x8000
	o := p.opcodes()
	for op, want := range map[uint8]bool{0: true, 1: false, 2: true, 3: false, 255: false} {
		if o.Supported(op) != want {
			t.Errorf("operation %d: %v", op, !want)
		}
	}
	for op, v := range since {
		if !strings.HasPrefix(v, "5.") {
			t.Errorf("operation %d came with Linux %s, which has no ublk", op, v)
		}
	}
}
