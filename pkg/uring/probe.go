package uring

import (
	"fmt"
	"sync"
	"unsafe"
)

// Opcodes is the set of operations that a kernel has.
type Opcodes struct{ has [256]bool }

// Supported reports whether op is in the set.
func (o *Opcodes) Supported(op uint8) bool { return o.has[op] }

// since names the kernel that brought an operation, for error messages.
var since = map[uint8]string{
	OpNop: "5.1", OpReadv: "5.1", OpWritev: "5.1", OpFsync: "5.1",
	OpReadFixed: "5.1", OpWriteFixed: "5.1", OpPollAdd: "5.1", OpPollRemove: "5.1",
	OpTimeout: "5.4", OpAsyncCancel: "5.5", OpFallocate: "5.6", OpRead: "5.6", OpWrite: "5.6",
	OpMsgRing: "5.18", OpURingCmd: "5.19",
}

var probed = sync.OnceValues(func() (*Opcodes, error) {
	r, err := New(Config{Entries: 1})
	if err != nil {
		return nil, fmt.Errorf("probe io_uring: %w", err)
	}
	defer r.Close()
	var p probe
	if _, err := r.register(registerProbe, unsafe.Pointer(&p), len(p.ops)); err != nil {
		return nil, fmt.Errorf("probe io_uring: %w", err)
	}
	return p.opcodes(), nil
})

// opcodes reads what the kernel has filled in.
func (p *probe) opcodes() *Opcodes {
	o := new(Opcodes)
	for _, e := range p.ops[:p.opsLen] {
		o.has[e.op] = e.flags&opSupported != 0
	}
	return o
}

// Probe asks the running kernel once which operations it has
// (IORING_REGISTER_PROBE, Linux 5.6) and remembers the answer. Its errors are
// those of [New].
func Probe() (*Opcodes, error) { return probed() }

// Supported reports whether the running kernel has an operation. It is false
// also where it has no io_uring at all.
func Supported(op uint8) bool {
	o, err := probed()
	return err == nil && o.Supported(op)
}

// Have returns nil if the running kernel has an operation, else an error that
// wraps [ErrNotSupported] and names the kernel that brought it, or the error of
// [Probe].
func Have(op uint8) error {
	o, err := probed()
	if err != nil || o.Supported(op) {
		return err
	}
	if v, ok := since[op]; ok {
		return fmt.Errorf("io_uring operation %d: %w (Linux %s has it)", op, ErrNotSupported, v)
	}
	return fmt.Errorf("io_uring operation %d: %w", op, ErrNotSupported)
}
