package ublkdev

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/delayd/delayd/pkg/uring"
)

// descFile makes a file like /dev/ublkcN's descriptor memory.
func descFile(t *testing.T, size int64) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "char"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestQueueReadsItsOwnDescriptors(t *testing.T) {
	const stride = 4096 * 24 // UBLK_MAX_QUEUE_DEPTH descriptors: whole pages
	f := descFile(t, 4*stride)
	for queue := range 4 {
		for _, tag := range []int{0, 1, 99} {
			d := ioDesc{
				opFlags:     uint32(queue) | FlagFUA | FlagNoUnmap,
				nrSectors:   uint32(8 + tag),
				startSector: 1<<40 + uint64(tag),
				addr:        ^uint64(0),
			}
			raw := unsafe.Slice((*byte)(unsafe.Pointer(&d)), unsafe.Sizeof(d))
			if _, err := f.WriteAt(raw, int64(queue)*stride+int64(tag)*24); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id := range 4 {
		q, err := NewQueue(int(f.Fd()), id, 100)
		if err != nil {
			t.Fatal(err)
		}
		if q.ID() != id || q.Depth() != 100 || len(q.descs) != 4096 {
			t.Errorf("queue %d: id %d depth %d, %d bytes mapped, want 4096", id, q.ID(), q.Depth(), len(q.descs))
		}
		for _, tag := range []uint16{0, 1, 99} {
			want := IODesc{Op: uint8(id), Flags: 0xa000, Sectors: 8 + uint32(tag), StartSector: 1<<40 + uint64(tag)}
			if diff := cmp.Diff(want, q.Desc(tag)); diff != "" {
				t.Errorf("queue %d tag %d (-want +got):\n%s", id, tag, diff)
			}
		}
		if err := q.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := q.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	}
}

func TestQueueCommands(t *testing.T) {
	q := &Queue{fd: 17, id: 3, depth: 4096}
	var sqe uring.SQE
	q.Fetch(&sqe, 4095, 0x7f00_dead_b000)
	check := func(what string, code uint32, want ioCmd) {
		t.Helper()
		if sqe.Opcode != uring.OpURingCmd || sqe.FD != 17 || sqe.Off != uint64(code) || sqe.Len != 0 || sqe.OpFlags != 0 {
			t.Errorf("%s: %+v, want URING_CMD %#x of fd 17", what, sqe, code)
		}
		if got := *(*ioCmd)(sqe.Cmd()); got != want {
			t.Errorf("%s: command %+v, want %+v", what, got, want)
		}
	}
	check("fetch", 0xc0107520, ioCmd{qID: 3, tag: 4095, addr: 0x7f00_dead_b000})
	sqe = uring.SQE{}
	q.CommitAndFetch(&sqe, 5, -5, 0x1000)
	check("commit", 0xc0107521, ioCmd{qID: 3, tag: 5, result: -5, addr: 0x1000})
}

func TestQueueAllocatesNothing(t *testing.T) {
	f := descFile(t, 4096*24)
	q, err := NewQueue(int(f.Fd()), 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var sqe uring.SQE
	var sum uint64
	if n := testing.AllocsPerRun(100, func() {
		for tag := range uint16(64) {
			q.Fetch(&sqe, tag, 0x1000)
			sum += q.Desc(tag).StartSector
			q.CommitAndFetch(&sqe, tag, 4096, 0x1000)
		}
	}); n != 0 {
		t.Errorf("%v allocations a round, want 0", n)
	}
}

func TestNewQueueRefuses(t *testing.T) {
	f := descFile(t, 4096*24)
	for _, tt := range []struct{ fd, id, depth int }{
		{int(f.Fd()), -1, 1}, {int(f.Fd()), MaxQueues, 1}, {int(f.Fd()), 0, 0}, {int(f.Fd()), 0, MaxDepth + 1}, {-1, 0, 1},
	} {
		if q, err := NewQueue(tt.fd, tt.id, tt.depth); err == nil {
			_ = q.Close()
			t.Errorf("NewQueue(%d, %d, %d) succeeded", tt.fd, tt.id, tt.depth)
		}
	}
}
