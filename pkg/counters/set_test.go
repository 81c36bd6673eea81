package counters

import (
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
)

func TestLayout(t *testing.T) {
	if headerSize < int(unsafe.Sizeof(header{})) {
		t.Errorf("the header has %d bytes", unsafe.Sizeof(header{}))
	}
	if queueSize%page != 0 || queueSize > 512<<10 {
		t.Errorf("a queue has %d bytes", queueSize)
	}
	set := create(t, "", 3)
	for i := range 3 {
		if at := uintptr(unsafe.Pointer(set.Queue(i))); at%page != 0 {
			t.Errorf("queue %d is at %#x", i, at)
		}
	}
	t.Logf("%d bytes a queue", queueSize)
}

func TestErrnoCells(t *testing.T) {
	seen := map[string]bool{}
	for i, e := range errnos {
		name := unix.ErrnoName(e)
		if ErrnoName(i) != name && !(e == syscall.EOPNOTSUPP && name == "ENOTSUP") {
			t.Errorf("cell %d counts %s and is called %s", i, name, ErrnoName(i))
		}
		if seen[name] {
			t.Errorf("%s twice", name)
		}
		seen[name] = true
		if got := errnoCell(uint16(e)); got != i {
			t.Errorf("%s is counted in cell %d", name, got)
		}
	}
	for _, e := range []uint16{uint16(syscall.ECHILD), 4095, 65535} {
		if got := ErrnoName(errnoCell(e)); got != "other" {
			t.Errorf("errno %d is counted as %s", e, got)
		}
	}
}

func TestKindString(t *testing.T) {
	want := []string{"held", "lateness", "backing", "total"}
	for i, k := range Kinds() {
		if int(k) != i || k.String() != want[i] {
			t.Errorf("kind %d is %v", i, k)
		}
	}
	if Kind(9).String() != "kind(9)" {
		t.Error(Kind(9))
	}
}

// play is one of everything, the n-th time.
func play(q *Queue) {
	q.Arrived(op.Read, 512)
	q.Arrived(op.Write, 4096)
	q.Arrived(op.Write, 8192)
	q.AddHeld(op.Write, 2)
	q.AddHeld(op.Write, -1)
	q.AddInFlight(op.Read, 3)
	q.AddInFlight(op.Read, -1)
	q.Done(op.Write, 4096, 0)
	q.Done(op.Write, 8192, uint16(syscall.EIO))
	q.Done(op.Discard, 1<<32-512, uint16(syscall.ECHILD))
	q.Observe(Held, op.Write, 1000)
	q.Observe(Total, op.Write, 3000)
	q.Observe(Total, op.Write, 2000)
	q.Batch(7)
	q.Slept(100)
	q.Slept(-1)
	q.Spun(10)
	q.Penalised()
	q.NoTags(5)
}

// played is what play makes of n queues, or n times of one but for the gauges.
func played(n uint64, gauges int64, since time.Time) *Snapshot {
	s := &Snapshot{Since: since}
	s.Ops[op.Read] = OpCounts{Arrived: n, ArrivedBytes: 512 * n, InFlight: 2 * gauges}
	w := &s.Ops[op.Write]
	*w = OpCounts{Arrived: 2 * n, ArrivedBytes: 12288 * n, Done: 2 * n, DoneBytes: 4096 * n, Held: gauges}
	w.Errors[errnoCell(uint16(syscall.EIO))] = n
	w.Latency[Held] = Histogram{Count: n, Sum: 1000 * n, Min: 1000, Max: 1000}
	w.Latency[Held].Buckets[Bucket(1000)] = n
	w.Latency[Total] = Histogram{Count: 2 * n, Sum: 5000 * n, Min: 2000, Max: 3000}
	w.Latency[Total].Buckets[Bucket(2000)] = n
	w.Latency[Total].Buckets[Bucket(3000)] = n
	d := &s.Ops[op.Discard]
	d.Done = n
	d.Errors[ErrnoCount-1] = n
	k := time.Duration(n)
	s.Loop = LoopCounts{Turns: n, Completions: 7 * n, Sleeps: 2 * n, Slept: 100 * k, Spins: n, Spun: 10 * k, Penalties: n, NoTags: 5 * k}
	return s
}

func TestSnapshotSumsQueues(t *testing.T) {
	set := create(t, "", 3)
	before := set.Snapshot()
	if d := diff(&Snapshot{Since: before.Since}, before); d != "" {
		t.Errorf("new (-want +got):\n%s", d)
	}
	if age := time.Since(before.Since); age < 0 || age > time.Minute {
		t.Errorf("counting since %v", before.Since)
	}
	for i := range 3 {
		play(set.Queue(i))
	}
	got := set.Snapshot()
	if d := diff(played(3, 3, before.Since), got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if n := got.Ops[op.Write].Failed(); n != 3 {
		t.Errorf("%d failed", n)
	}
	if set.Queues() != 3 || !panics(func() { set.Queue(3) }) || !panics(func() { set.Queue(-1) }) {
		t.Errorf("%d queues", set.Queues())
	}
}

// TestReadersDoNotDisturb runs one writer a queue and readers beside them, on
// ordinary memory: the race detector does not watch mappings.
func TestReadersDoNotDisturb(t *testing.T) {
	const queues, rounds = 3, 3000
	words := make([]uint64, mapSize(queues)/8+page/8)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), mapSize(queues))
	set := newSet("", mem, queues)

	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for i := range queues {
		writers.Go(func() {
			for range rounds {
				play(set.Queue(i))
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			last := set.Snapshot()
			for {
				s := set.Snapshot()
				for o := range s.Ops {
					for k := range s.Ops[o].Latency {
						h, was := &s.Ops[o].Latency[k], &last.Ops[o].Latency[k]
						var n uint64
						for i := range h.Buckets {
							if n += h.Buckets[i]; h.Buckets[i] < was.Buckets[i] {
								t.Errorf("bucket %d went from %d to %d", i, was.Buckets[i], h.Buckets[i])
							}
						}
						if n != h.Count || h.Max < h.Min || n > 0 && (h.Min < 1000-40 || h.Max > 3000) {
							t.Errorf("%d counted, %d in buckets, %d to %d ns", h.Count, n, h.Min, h.Max)
						}
					}
					if s.Ops[o].Arrived < last.Ops[o].Arrived || s.Ops[o].Done < last.Ops[o].Done {
						t.Errorf("a count went back")
					}
				}
				last = s
				select {
				case <-stop:
					return
				default:
				}
				if t.Failed() {
					return
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if d := diff(played(queues*rounds, queues*rounds, set.Snapshot().Since), set.Snapshot()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestSnapshotWhileClosing: a scrape that comes late gets the last counts.
func TestSnapshotWhileClosing(t *testing.T) {
	for range 20 {
		set := create(t, "", 1)
		play(set.Queue(0))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for range 5 {
					if n := set.Snapshot().Ops[op.Write].Arrived; n != 2 {
						t.Errorf("%d arrived", n)
					}
				}
			})
		}
		wg.Go(func() { set.Close() })
		wg.Wait()
	}
}

func TestWriterAllocatesNothing(t *testing.T) {
	q := create(t, filepath.Join(t.TempDir(), "x"), 1).Queue(0)
	if n := testing.AllocsPerRun(1000, func() { play(q) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkRequest counts one request as a queue does.
func BenchmarkRequest(b *testing.B) {
	set, err := Create("", 1)
	if err != nil {
		b.Fatal(err)
	}
	defer set.Close()
	q := set.Queue(0)
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		q.Arrived(op.Write, 4096)
		q.AddHeld(op.Write, 1)
		q.AddHeld(op.Write, -1)
		q.AddInFlight(op.Write, 1)
		q.Observe(Held, op.Write, 1_000_000+i&0xffff)
		q.Observe(Lateness, op.Write, i&0xfff)
		q.AddInFlight(op.Write, -1)
		q.Observe(Backing, op.Write, 50_000+i&0xffff)
		q.Observe(Total, op.Write, 1_050_000+i&0xffff)
		q.Done(op.Write, 4096, 0)
	}
}

func BenchmarkSnapshot(b *testing.B) {
	set, err := Create("", 2)
	if err != nil {
		b.Fatal(err)
	}
	defer set.Close()
	for b.Loop() {
		set.Snapshot()
	}
}

// create makes a Set that ends with the test.
func create(t *testing.T, path string, queues int) *Set {
	t.Helper()
	set, err := Create(path, queues)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	return set
}

// diff is cmp.Diff, which takes its time over what is the same.
func diff[T comparable](want, got *T) string {
	if *want == *got {
		return ""
	}
	return cmp.Diff(want, got)
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}
