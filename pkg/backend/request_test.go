package backend

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// entry is what matters of an SQE in these tests.
type entry struct {
	Opcode  uint8
	Off     uint64
	Skip    uint64 // of a read or write: bytes of the buffer left out
	Len     uint32
	OpFlags uint32
}

// turn is one entry and the result that the kernel is made to give for it.
type turn struct {
	want entry
	res  int32
}

func neg(e unix.Errno) int32 { return -int32(e) }

// TestContinue plays the kernel: short results, interruptions, and errors.
func TestContinue(t *testing.T) {
	const start = 1 << 20 // of the part
	buf := mmap(t, 16<<10)
	if err := mapZeroes(); err != nil {
		t.Fatal(err)
	}
	limits := Limits{Size: 1 << 30, LogicalBlock: 512}
	direct := func() Backend {
		return &block{base: base{limits: limits, fd: 3, offset: start, align: 512}}
	}
	buffered := func() Backend {
		return &file{base: base{limits: limits, fd: 3, offset: start, align: 1}, punch: true}
	}
	rd := Request{Op: op.Read, Offset: 4096, Length: 8192}
	wr := Request{Op: op.Write, Offset: 4096, Length: 8192, FUA: true}
	from := func(o uint8, done uint64, flags uint32) entry {
		return entry{Opcode: o, Off: start + 4096 + done, Skip: done, Len: 8192 - uint32(done), OpFlags: flags}
	}
	falloc := func(mode uint32) entry {
		return entry{Opcode: uring.OpFallocate, Off: start + 4096, Len: mode}
	}
	zeroWrite := func(done uint64, n uint32) entry {
		return entry{Opcode: uring.OpWrite, Off: start + 4096 + done, Len: n}
	}
	many := func(tn turn, n int) (ts []turn) {
		for range n {
			ts = append(ts, tn)
		}
		return ts
	}
	for _, tc := range []struct {
		name    string
		backend func() Backend
		r       Request
		turns   []turn
		want    int32
	}{
		{"whole", direct, rd, []turn{{from(uring.OpRead, 0, 0), 8192}}, 8192},
		{"short", direct, rd, []turn{{from(uring.OpRead, 0, 0), 512}, {from(uring.OpRead, 512, 0), 4096}, {from(uring.OpRead, 4608, 0), 3584}}, 8192},
		{"short inside a block", direct, rd, []turn{{from(uring.OpRead, 0, 0), 1023}, {from(uring.OpRead, 512, 0), 7680}}, 8192},
		{"short inside a block, buffered", buffered, rd, []turn{{from(uring.OpRead, 0, 0), 1023}, {from(uring.OpRead, 1023, 0), 7169}}, 8192},
		{"less than a block", direct, rd, []turn{{from(uring.OpRead, 0, 0), 511}}, neg(unix.EIO)},
		{"the end", direct, rd, []turn{{from(uring.OpRead, 0, 0), 0}}, neg(unix.EIO)},
		{"the end later", direct, rd, []turn{{from(uring.OpRead, 0, 0), 4096}, {from(uring.OpRead, 4096, 0), 0}}, neg(unix.EIO)},
		{"nothing written", direct, wr, []turn{{from(uring.OpWrite, 0, unix.RWF_DSYNC), 0}}, neg(unix.EIO)},
		{"more than asked", direct, rd, []turn{{from(uring.OpRead, 0, 0), 9000}}, 8192},
		{"interrupted", direct, rd, []turn{{from(uring.OpRead, 0, 0), neg(unix.EINTR)}, {from(uring.OpRead, 0, 0), 8192}}, 8192},
		{"interrupted after a part", direct, wr, []turn{
			{from(uring.OpWrite, 0, unix.RWF_DSYNC), 512},
			{from(uring.OpWrite, 512, unix.RWF_DSYNC), neg(unix.EAGAIN)},
			{from(uring.OpWrite, 512, unix.RWF_DSYNC), 7680}}, 8192},
		{"busy for ever", direct, rd, many(turn{from(uring.OpRead, 0, 0), neg(unix.EAGAIN)}, maxRetries+1), neg(unix.EAGAIN)},
		{"an error", direct, wr, []turn{{from(uring.OpWrite, 0, unix.RWF_DSYNC), neg(unix.ENOSPC)}}, neg(unix.ENOSPC)},
		{"an error after a part", direct, rd, []turn{{from(uring.OpRead, 0, 0), 512}, {from(uring.OpRead, 512, 0), neg(unix.EREMOTEIO)}}, neg(unix.EREMOTEIO)},

		{"flush", direct, Request{Op: op.Flush}, []turn{{entry{Opcode: uring.OpFsync, OpFlags: fsyncDatasync}, 0}}, 0},
		{"flush interrupted", direct, Request{Op: op.Flush}, []turn{
			{entry{Opcode: uring.OpFsync, OpFlags: fsyncDatasync}, neg(unix.EINTR)},
			{entry{Opcode: uring.OpFsync, OpFlags: fsyncDatasync}, neg(unix.EIO)}}, neg(unix.EIO)},

		{"block: unmap", direct, Request{Op: op.WriteZeroes, Offset: 4096, Length: 8192}, []turn{{falloc(punchHole), 0}}, 0},
		{"block: keep", direct, Request{Op: op.WriteZeroes, NoUnmap: true, Offset: 4096, Length: 8192}, []turn{{falloc(zeroRange), 0}}, 0},
		{"block: unmap impossible", direct, Request{Op: op.WriteZeroes, Offset: 4096, Length: 8192},
			[]turn{{falloc(punchHole), neg(unix.EOPNOTSUPP)}, {falloc(zeroRange), neg(unix.EINTR)}, {falloc(zeroRange), 0}}, 0},
		{"block: nothing possible", direct, Request{Op: op.WriteZeroes, Offset: 4096, Length: 8192},
			[]turn{{falloc(punchHole), neg(unix.EOPNOTSUPP)}, {falloc(zeroRange), neg(unix.EOPNOTSUPP)}}, neg(unix.EOPNOTSUPP)},
		{"file: discard", buffered, Request{Op: op.Discard, Offset: 4096, Length: 8192}, []turn{{falloc(punchHole), 0}}, 0},
		{"file: discard impossible", buffered, Request{Op: op.Discard, Offset: 4096, Length: 8192}, []turn{{falloc(punchHole), neg(unix.EOPNOTSUPP)}}, neg(unix.EOPNOTSUPP)},
		{"file: unmap", buffered, Request{Op: op.WriteZeroes, Offset: 4096, Length: 8192}, []turn{{falloc(punchHole), 0}}, 0},
		{"file: keep", buffered, Request{Op: op.WriteZeroes, NoUnmap: true, Offset: 4096, Length: 8192}, []turn{{falloc(zeroRange), 0}}, 0},
		{"file: keep, zeroes written", buffered, Request{Op: op.WriteZeroes, NoUnmap: true, Offset: 4096, Length: 5 << 19}, []turn{
			{falloc(zeroRange), neg(unix.EOPNOTSUPP)},
			{zeroWrite(0, 1<<20), neg(unix.EINTR)}, {zeroWrite(0, 1<<20), 1 << 20},
			{zeroWrite(1<<20, 1<<20), 1 << 19}, {zeroWrite(3<<19, 1<<20), 1 << 20}}, 0},
		{"file: no room", buffered, Request{Op: op.WriteZeroes, NoUnmap: true, Offset: 4096, Length: 8192},
			[]turn{{falloc(zeroRange), neg(unix.ENOSPC)}}, neg(unix.ENOSPC)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, r := tc.backend(), tc.r
			r.Buf = unsafe.Pointer(&buf[0])
			// Twice: a request that was answered starts afresh.
			for round := range 2 {
				turns := tc.turns
				if round == 1 && turns[0].res == neg(unix.EOPNOTSUPP) && len(turns) > 1 {
					turns = turns[1:] // what the backing cannot do is not asked again
				}
				play(t, b, &r, turns)
				if r.Result != tc.want {
					t.Errorf("round %d: result %d (%v), want %d", round, r.Result, errno(r.Result), tc.want)
				}
			}
		})
	}
}

func play(t *testing.T, b Backend, r *Request, turns []turn) {
	t.Helper()
	for i, tn := range turns {
		var sqe uring.SQE
		b.Prepare(r, &sqe)
		got := entry{Opcode: sqe.Opcode, Off: sqe.Off, Len: sqe.Len, OpFlags: sqe.OpFlags}
		switch {
		case r.Op == op.Read || r.Op == op.Write:
			got.Skip = sqe.Addr - uint64(uintptr(r.Buf))
		case sqe.Opcode == uring.OpFallocate && sqe.Addr != uint64(r.Length):
			t.Errorf("turn %d: fallocate of %d bytes, want %d", i, sqe.Addr, r.Length)
		case sqe.Opcode == uring.OpWrite && sqe.Addr != uint64(uintptr(unsafe.Pointer(&zeroes[0]))):
			t.Errorf("turn %d: zeroes are not written from the zeroes", i)
		}
		if diff := cmp.Diff(tn.want, got); diff != "" {
			t.Fatalf("turn %d (-want +got):\n%s", i, diff)
		}
		if done := b.Complete(r, tn.res); done != (i == len(turns)-1) {
			t.Fatalf("turn %d of %d: done %v", i+1, len(turns), done)
		}
	}
}

func TestPrepareDiscardOnBlockDevice(t *testing.T) {
	b := &block{base: base{limits: Limits{Size: 1 << 30}, fd: 3, offset: 1 << 20, align: 512}}
	// All other fields must be zero: block/ioctl.c, blkdev_uring_cmd.
	want := uring.SQE{Opcode: uring.OpURingCmd, FD: 3, Off: 0x1200, Addr: 1<<20 + 4096, Addr3: 1<<32 - 512}
	var got uring.SQE
	b.Prepare(&Request{Op: op.Discard, Offset: 4096, Length: 1<<32 - 512}, &got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadOnlyIsGuarded(t *testing.T) {
	for _, b := range []Backend{
		open(t, tempFile(t, t.TempDir(), 8192), Options{ReadOnly: true}),
		open(t, "mem:8K", Options{ReadOnly: true, Name: "ro"}),
		open(t, "null:8K", Options{ReadOnly: true}),
	} {
		l := b.Limits()
		if !l.ReadOnly || l.Discard != (Discard{}) || l.WriteZeroesMaxBytes != 0 {
			t.Errorf("%s: limits %+v", b.Spec(), l)
		}
		for _, o := range []op.Op{op.Write, op.Discard, op.WriteZeroes} {
			r := Request{Op: o, Length: 512}
			if !b.Inline(&r) || errno(r.Result) != unix.EROFS {
				t.Errorf("%s: %v: %v, want EROFS", b.Spec(), o, errno(r.Result))
			}
		}
	}
}

// TestNoAllocation covers what a queue does for each request (promise 9).
func TestNoAllocation(t *testing.T) {
	d := newDriver(t, 64<<10)
	for _, b := range []Backend{
		open(t, tempFile(t, t.TempDir(), modelSize), Options{}),
		open(t, tempFile(t, "/dev/shm", modelSize), Options{}),
		open(t, "mem:1M", Options{Name: "alloc"}),
		open(t, "null:1M", Options{}),
	} {
		for _, o := range op.All() {
			for _, flag := range []bool{false, true} {
				r := &Request{Op: o, FUA: flag, NoUnmap: flag, Offset: 4096, Length: 64 << 10, Buf: unsafe.Pointer(&d.buf[0])}
				n := testing.AllocsPerRun(20, func() {
					if res := d.do(b, r); res < 0 {
						t.Fatalf("%s: %v: %v", b.Spec(), o, errno(res))
					}
				})
				if n != 0 {
					t.Errorf("%s: %v: %v allocations", b.Spec(), o, n)
				}
			}
		}
	}
}
