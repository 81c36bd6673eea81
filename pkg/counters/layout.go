package counters

import (
	"fmt"
	"hash/fnv"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/delayd/delayd/pkg/op"
)

// Kind is a stretch of a request's life that is measured.
type Kind uint8

// The kinds, in the words used in metrics.
const (
	Held     Kind = iota // arrival to dispatch
	Lateness             // deadline to dispatch
	Backing              // dispatch to the backing's answer
	Total                // arrival to commit

	// KindCount is the number of kinds.
	KindCount = int(Total) + 1
)

var kindNames = [KindCount]string{"held", "lateness", "backing", "total"}

// String returns the kind's word.
func (k Kind) String() string {
	if int(k) < KindCount {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Kinds returns every kind, in order.
func Kinds() [KindCount]Kind { return [KindCount]Kind{Held, Lateness, Backing, Total} }

// errnos have a cell each: what the block layer can answer (blk_errors in
// block/blk-core.c), and what files and memory can besides. The rest share the
// last cell.
var errnos = [...]syscall.Errno{
	syscall.EIO, syscall.ENOSPC, syscall.EOPNOTSUPP, syscall.EINVAL, syscall.ETIMEDOUT,
	syscall.ENODATA, syscall.EILSEQ, syscall.EREMOTEIO, syscall.ENOLINK, syscall.EBADE,
	syscall.ENOMEM, syscall.EAGAIN, syscall.EBUSY, syscall.ENODEV, syscall.ENXIO,
	syscall.EROFS, syscall.EPERM, syscall.EFBIG, syscall.EDQUOT, syscall.EINTR,
}

var errnoNames = [ErrnoCount]string{
	"EIO", "ENOSPC", "EOPNOTSUPP", "EINVAL", "ETIMEDOUT",
	"ENODATA", "EILSEQ", "EREMOTEIO", "ENOLINK", "EBADE",
	"ENOMEM", "EAGAIN", "EBUSY", "ENODEV", "ENXIO",
	"EROFS", "EPERM", "EFBIG", "EDQUOT", "EINTR",
	"other",
}

// ErrnoCount is the number of error cells: the length of OpCounts.Errors.
const ErrnoCount = len(errnos) + 1

// ErrnoName returns what the i-th error cell counts, "EIO", "ENOSPC", …, and
// "other" for the last.
func ErrnoName(i int) string { return errnoNames[i] }

// errnoCell returns the cell that counts errno.
func errnoCell(errno uint16) int {
	for i, e := range errnos {
		if e == syscall.Errno(errno) {
			return i
		}
	}
	return ErrnoCount - 1
}

// A cell is one count. It has one writer, the queue's thread, and any number of
// readers.
type cell struct{ v uint64 }

// add is for the writer only. That the store is a single one, so that a reader
// sees the old value or the new, and a kill leaves one of them, is what store
// is for.
func (c *cell) add(n uint64) { store(&c.v, c.v+n) }

func (c *cell) set(n uint64) { store(&c.v, n) }

// own reads a cell as its writer.
func (c *cell) own() uint64 { return c.v }

// load reads a cell as anybody.
func (c *cell) load() uint64 { return atomic.LoadUint64(&c.v) }

// A Queue is the cells of one queue, in the mapping. Its methods are for the
// queue's thread only: they neither lock nor allocate nor enter the kernel, and
// must not be called after the Set is closed.
type Queue struct {
	ops  [op.Count]opCells
	loop loopCells
}

type opCells struct {
	arrived, arrivedBytes cell
	done, doneBytes       cell
	held, inFlight        cell // gauges; two's complement
	errors                [ErrnoCount]cell
	latency               [KindCount]histogramCells
}

type histogramCells struct {
	sum, max, least cell // least is the minimum + 1; 0 if there was none
	buckets         [Buckets]cell
}

type loopCells struct {
	turns, completions  cell
	sleeps, sleepNS     cell
	spins, spinNS       cell
	penalties, noTagsNS cell
}

// header is the first page of the mapping.
type header struct {
	magic   [8]byte
	version uint64
	layout  uint64 // layoutHash
	queues  uint64
	ops     uint64 // op.Count
	kinds   uint64 // KindCount
	buckets uint64 // Buckets
	created uint64 // wall clock, Unix ns
}

const (
	version = 1

	// page is what the header and each queue's cells are rounded up to, so that
	// two threads never write to one cache line.
	page       = 4096
	headerSize = page
	queueSize  = (int(unsafe.Sizeof(Queue{})) + page - 1) / page * page
)

var magic = [8]byte{'d', 'e', 'l', 'a', 'y', 'd', 'C', '\n'}

// MaxQueues is the most queues of a Set.
const MaxQueues = 4096

// mapSize returns the size of a mapping in bytes.
func mapSize(queues int) int { return headerSize + queues*queueSize }

// expect returns the header of a mapping of this program's layout, without its
// time of creation.
func expect(queues int) header {
	return header{
		magic:   magic,
		version: version,
		layout:  layoutHash(),
		queues:  uint64(queues),
		ops:     uint64(op.Count),
		kinds:   uint64(KindCount),
		buckets: uint64(Buckets),
	}
}

// matches reports whether a mapping with the header h continues as one with the
// header want.
func (h *header) matches(want header) bool {
	want.created = h.created
	return *h == want
}

// layoutHash changes when a cell moves or changes its meaning.
var layoutHash = sync.OnceValue(func() uint64 {
	h := fnv.New64a()
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Struct:
			for i := range t.NumField() {
				f := t.Field(i)
				fmt.Fprintf(h, "%s@%d{", f.Name, f.Offset)
				walk(f.Type)
				fmt.Fprint(h, "}")
			}
		case reflect.Array:
			fmt.Fprintf(h, "[%d]", t.Len())
			walk(t.Elem())
		default:
			fmt.Fprint(h, t.Kind(), t.Size())
		}
	}
	walk(reflect.TypeFor[Queue]())
	fmt.Fprintln(h, op.All(), Kinds(), errnoNames, queueSize)
	for i := range Buckets {
		fmt.Fprintln(h, Upper(i))
	}
	return h.Sum64()
})
