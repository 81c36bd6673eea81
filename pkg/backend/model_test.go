package backend

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/delayd/delayd/pkg/op"
)

const modelSize = 1 << 20

// mirror is what a backing must look like, and the backing.
type mirror struct {
	d     *driver
	b     Backend
	bytes []byte
}

// step does one random request to both.
func (m *mirror) step(t *rapid.T) {
	l := m.b.Limits()
	lb := int(l.LogicalBlock)
	kinds := []op.Op{op.Read, op.Write, op.Flush}
	if l.Discard.MaxBytes != 0 {
		kinds = append(kinds, op.Discard)
	}
	kinds = append(kinds, op.WriteZeroes)
	r := Request{Op: rapid.SampledFrom(kinds).Draw(t, "op")}
	if r.Op != op.Flush {
		blocks := len(m.bytes) / lb
		first := rapid.IntRange(0, blocks-1).Draw(t, "first")
		n := rapid.IntRange(1, min(blocks-first, len(m.d.buf)/lb)).Draw(t, "blocks")
		r.Offset, r.Length = int64(first*lb), uint32(n*lb)
		r.Buf = unsafe.Pointer(&m.d.buf[0])
	}
	part := m.bytes[r.Offset : r.Offset+int64(r.Length)]
	want := int32(0)
	switch r.Op {
	case op.Read:
		clear(m.d.buf)
		want = int32(r.Length)
	case op.Write:
		r.FUA = rapid.Bool().Draw(t, "fua")
		copy(part, pattern(len(part), rapid.Byte().Draw(t, "seed")))
		copy(m.d.buf, part)
		want = int32(r.Length)
	case op.WriteZeroes:
		r.NoUnmap = rapid.Bool().Draw(t, "nounmap")
		clear(part)
	case op.Discard:
		// Not promised by a discard in general, but done by every backing here.
		clear(part)
	}
	if got := m.d.do(m.b, &r); got != want {
		t.Fatalf("%v of %d at %d: result %d (%v), want %d", r.Op, r.Length, r.Offset, got, errno(got), want)
	}
	if r.Op == op.Read && !bytes.Equal(m.d.buf[:r.Length], part) {
		t.Fatalf("read of %d at %d differs at byte %d", r.Length, r.Offset, firstDifference(m.d.buf[:r.Length], part))
	}
}

// check compares every byte.
func (m *mirror) check(t interface{ Fatalf(string, ...any) }) {
	for at := 0; at < len(m.bytes); {
		n := min(len(m.d.buf), len(m.bytes)-at)
		got, res := m.d.read(m.b, int64(at), uint32(n))
		if res != int32(n) {
			t.Fatalf("read of %d at %d: %d (%v)", n, at, res, errno(res))
		}
		if want := m.bytes[at : at+n]; !bytes.Equal(got, want) {
			t.Fatalf("the backing differs at byte %d", at+firstDifference(got, want))
		}
		at += n
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// modelCheck does random requests to the backing at spec and compares it with a
// slice of bytes after each read and, whole, at the end.
func modelCheck(t *testing.T, spec string, o Options) {
	t.Helper()
	d := newDriver(t, 256<<10)
	b := open(t, spec, o)
	m := &mirror{d: d, b: b, bytes: make([]byte, b.Limits().Size)}
	for at := 0; at < len(m.bytes); at += len(d.buf) {
		part := m.bytes[at:min(at+len(d.buf), len(m.bytes))]
		copy(part, pattern(len(part), byte(at>>16)))
		if res := d.write(b, int64(at), part, false); res != int32(len(part)) {
			t.Fatalf("fill at %d: %v", at, errno(res))
		}
	}
	m.check(t)
	// One backing for all: each case goes on where the last one left off.
	rapid.Check(t, func(t *rapid.T) {
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			m.step(t)
		}
		m.check(t)
	})
}

// TestModel drives every kind that this machine has through a real ring.
func TestModel(t *testing.T) {
	const part = 64 << 10
	disk, shm := t.TempDir(), "/dev/shm"
	for _, tc := range []struct {
		name string
		spec func(t *testing.T) string
		o    Options
	}{
		{"file", func(t *testing.T) string { return tempFile(t, disk, modelSize) }, Options{}},
		{"part of a file", func(t *testing.T) string { return tempFile(t, disk, modelSize) }, Options{Offset: 4096, Size: part}},
		{"shared file", func(t *testing.T) string { return tempFile(t, disk, modelSize) }, Options{Shared: true}},
		{"file in tmpfs", func(t *testing.T) string { return tempFile(t, shm, modelSize) }, Options{}},
		{"memory", func(t *testing.T) string { return "mem:1M" }, Options{Name: "model"}},
		{"part of memory", func(t *testing.T) string { return "mem:1M" }, Options{Name: "model", Owner: "test", Offset: 512, Size: part}},
	} {
		t.Run(tc.name, func(t *testing.T) { modelCheck(t, tc.spec(t), tc.o) })
	}
}

// TestPartStaysInside looks for bytes that a part's requests changed beside it.
func TestPartStaysInside(t *testing.T) {
	path := tempFile(t, t.TempDir(), modelSize)
	whole := open(t, path, Options{Shared: true})
	before := pattern(modelSize, 7)
	part := open(t, path, Options{Shared: true, Offset: 64 << 10, Size: 128 << 10})
	d := newDriver(t, 128<<10)
	if res := d.write(part, 0, bytes.Repeat([]byte{0xa5}, 128<<10), true); res != 128<<10 {
		t.Fatal(errno(res))
	}
	for i := 64 << 10; i < 192<<10; i++ {
		before[i] = 0xa5
	}
	(&mirror{d: d, b: whole, bytes: before}).check(t)
	for _, r := range []Request{
		{Op: op.Read, Offset: 128 << 10, Length: 512},
		{Op: op.Write, Offset: 127 << 10, Length: 2048},
		{Op: op.Discard, Offset: 0, Length: 129 << 10},
		{Op: op.WriteZeroes, Offset: -512, Length: 512},
		{Op: op.WriteZeroes, Offset: 512, Length: 1<<32 - 512},
	} {
		r.Buf = unsafe.Pointer(&d.buf[0])
		if res := d.do(part, &r); errno(res) != unix.EIO {
			t.Errorf("%v of %d at %d beside the part: %v, want EIO", r.Op, r.Length, r.Offset, errno(res))
		}
	}
	(&mirror{d: d, b: whole, bytes: before}).check(t)
}

func TestNull(t *testing.T) {
	d := newDriver(t, 64<<10)
	b := open(t, "null:1G", Options{})
	if b.FD() != -1 {
		t.Errorf("fd %d, want -1", b.FD())
	}
	if l := b.Limits(); l.Size != 1<<30 || l.LogicalBlock != 512 || l.VolatileCache {
		t.Errorf("limits %+v", l)
	}
	if res := d.write(b, 4096, pattern(4096, 1), true); res != 4096 {
		t.Errorf("write: %d", res)
	}
	got, res := d.read(b, 0, 64<<10)
	if res != 64<<10 || !bytes.Equal(got, make([]byte, 64<<10)) {
		t.Errorf("read: %d, want 65536 zeroes", res)
	}
	for _, o := range []op.Op{op.Flush, op.Discard, op.WriteZeroes} {
		if res := d.do(b, &Request{Op: o, Length: 4096}); res != 0 {
			t.Errorf("%v: %d", o, res)
		}
	}
	if d.sqes != 0 {
		t.Errorf("%d entries used, want none", d.sqes)
	}
}
