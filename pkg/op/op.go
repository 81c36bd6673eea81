// Package op names the five kinds of request that a block device answers. The
// order is that of the kernel's UBLK_IO_OP_* values, which start at the same
// zero; [FromUblk] is the one place that knows it.
package op

import "fmt"

// Op is a kind of request. The zero value is Read.
type Op uint8

// The kinds of request, in the words used in flags, JSON, TOML and metrics.
const (
	Read Op = iota
	Write
	Flush
	Discard
	WriteZeroes

	// Count is the number of kinds: the length of an array indexed by Op.
	Count = int(WriteZeroes) + 1
)

var names = [Count]string{"read", "write", "flush", "discard", "write-zeroes"}

// String returns the word for o: "read", "write", "flush", "discard" or
// "write-zeroes".
func (o Op) String() string {
	if int(o) < Count {
		return names[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// All returns every kind of request, in order.
func All() [Count]Op {
	return [Count]Op{Read, Write, Flush, Discard, WriteZeroes}
}

// FromUblk translates the low eight bits of ublksrv_io_desc.op_flags
// (include/uapi/linux/ublk_cmd.h, UBLK_IO_OP_*). UBLK_IO_OP_WRITE_SAME is never
// sent by the driver and, with every other value, is reported as unknown.
func FromUblk(v uint8) (Op, bool) {
	switch v {
	case 0:
		return Read, true
	case 1:
		return Write, true
	case 2:
		return Flush, true
	case 3:
		return Discard, true
	case 5:
		return WriteZeroes, true
	}
	return 0, false
}
