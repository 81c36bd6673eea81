package device

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/test/fixture"
)

// wasPolled fails a test whose device says that its backing is polled, but sent
// nothing there, or the other way round. It stops the device.
func wasPolled(t *testing.T, d *Device, want bool) {
	t.Helper()
	if info := d.Info(); info.Polled != want || (len(info.Remarks) == 0) != want {
		t.Errorf("polled %v, remarks %q; want polled %v, and remarks only if not", info.Polled, info.Remarks, want)
	}
	must(t, d.Stop(limit(t)))
	sent := false
	for _, q := range d.queues {
		sent = sent || q.polled.since > 0
		if q.polled.flying != 0 {
			t.Errorf("queue %d ended with %d polled requests that were never answered", q.id, q.polled.flying)
		}
	}
	if sent != want {
		t.Errorf("requests were polled for: %v, want %v", sent, want)
	}
}

// churn writes and reads n blocks at random, many at once, and checks every
// read against what was last written there; then the backing itself.
func churn(t *testing.T, d *Device, requests int) {
	t.Helper()
	const depth = 128 // more than null_blk has tags
	size := d.Info().Limits.Size
	k := openDisk(t, d.Info().Path, depth)
	model := make([]uint64, size/block)
	var at [depth]int64
	var wrote [depth]bool
	random := rand.New(rand.NewPCG(1, 2))
	left := requests
	send := func(i int) {
		// Each slot has blocks of its own, so that no two requests overlap.
		at[i] = random.Int64N(size/block/depth)*depth + int64(i)
		if wrote[i] = random.IntN(2) == 0; wrote[i] {
			model[at[i]] = random.Uint64()
			fill(k.buf(i), model[at[i]])
		}
		k.queue(i, wrote[i], at[i]*block)
	}
	for i := range depth {
		send(i)
	}
	k.submit()
	want := make([]byte, block)
	must(t, k.reap(requests, 120*time.Second, func(i int, res int32) {
		if res != block {
			t.Errorf("block %d, write %v: answer %d, want %d", at[i], wrote[i], res, block)
		}
		if fill(want, model[at[i]]); !wrote[i] && !bytes.Equal(k.buf(i), want) {
			t.Errorf("block %d is not what was last written", at[i])
		}
		if left--; left >= depth {
			send(i)
			k.submit()
		}
	}))
	k.close()
	b := openDisk(t, d.Spec().Backing, 1)
	defer b.close()
	for i, v := range model {
		_, err := unix.Pread(b.fd, b.buf(0), int64(i)*block)
		must(t, err)
		if fill(want, v); !bytes.Equal(b.buf(0), want) {
			t.Fatalf("block %d of the backing is not what was last written", i)
		}
	}
}

// fill makes a block of v; 0 is one that was never written.
func fill(b []byte, v uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], v)
	}
}

// Promise 2: what goes through the second ring comes to the backing and back.
func TestPromise2PolledData(t *testing.T) {
	for _, hold := range []Hold{HoldSubmit, HoldComplete} {
		for _, delay := range []time.Duration{0, 200 * time.Microsecond} {
			t.Run(fmt.Sprintf("%v-%v", hold, delay), func(t *testing.T) {
				h := newHost(t)
				disk := fixture.For(t).Filled(fixture.Polled(16))
				d := start(t, h, Spec{
					Backing: disk.Path, Poll: true, Shared: true, Hold: hold,
					Delays: scheduler.Constant(delay), Queues: min(2, runtime.NumCPU()),
				})
				churn(t, d, 3000)
				wasPolled(t, d, true)
			})
		}
	}
}

// A write with FUA is one polled request, and no flush.
func TestPolledFUA(t *testing.T) {
	h := newHost(t)
	disk := fixture.For(t).Filled(fixture.Polled(16).With("cache_size", 4))
	d := start(t, h, Spec{Backing: disk.Path, Poll: true})
	if !d.Info().Limits.FUA {
		t.Fatal("this null_blk has no FUA")
	}
	// The kernel asks for a flush after each such write, besides its FUA.
	asked, did := d.Counters().Snapshot().Ops[op.Flush].Arrived, flushes(t, disk)
	_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Write, Count: 200, Sync: true})
	must(t, err)
	asked, did = d.Counters().Snapshot().Ops[op.Flush].Arrived-asked, flushes(t, disk)-did
	if asked != did {
		t.Errorf("of 200 writes with FUA and %d flushes the backing made %d flushes", asked, did)
	}
	wasPolled(t, d, true)
}

// flushes is how many the disk has done (Documentation/block/stat.rst).
func flushes(t *testing.T, n *fixture.NullBlk) uint64 {
	t.Helper()
	text, err := os.ReadFile("/sys/block/" + n.Name + "/stat")
	must(t, err)
	count, err := strconv.ParseUint(strings.Fields(string(text))[15], 10, 64)
	must(t, err)
	return count
}

// A backing that cannot be polled works without, and the device says why.
func TestPollNotPossible(t *testing.T) {
	h, f := newHost(t), fixture.For(t)
	plain := f.NullBlk(fixture.MemoryBacked(16).With("poll_queues", 0))
	polled := f.Filled(fixture.Polled(16))
	for _, c := range []struct{ name, backing, why string }{
		{"no-queues", plain.Path, "has no queues to poll"},
		// Its queue says that it can.
		{"dm", f.DM(fmt.Sprintf("0 %d linear %s 0", 8<<20/512, polled.Path)).Path, "is a device of the device mapper"},
		{"file", tempFile(t, 16<<20), "is not a block device"},
		{"memory", "mem:16M", "is not a block device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := start(t, h, Spec{Backing: c.backing, Poll: true, Shared: true, Delays: scheduler.Constant(100 * time.Microsecond)})
			if r := d.Info().Remarks; len(r) != 1 || !strings.Contains(r[0], c.why) {
				t.Errorf("remarks %q, want one with %q", r, c.why)
			}
			_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 50})
			must(t, err)
			wasPolled(t, d, false)
		})
	}
	if _, err := h.Start(limit(t), Spec{Name: "both", Backing: "mem:1M", Poll: true, ZeroCopy: On}); err == nil || !strings.Contains(err.Error(), "zero copy on and poll") {
		t.Errorf("zero copy insisted on and polled: %v", err)
	}
}

// A backing that stops to be one that can be polled, while there are requests,
// is used without from then on; no request fails for it.
func TestPollLost(t *testing.T) {
	h := newHost(t)
	disk := fixture.For(t).Filled(fixture.Polled(16))
	d := start(t, h, Spec{Backing: disk.Path, Poll: true, Shared: true})
	_, err := fixture.Measure(d.Info().Path, fixture.Load{Op: op.Read, Count: 50})
	must(t, err)
	if !d.Info().Polled {
		t.Fatalf("not polled: %q", d.Info().Remarks)
	}
	must(t, disk.Set("poll_queues", 0))
	churn(t, d, 2000)
	info := d.Info()
	if info.Polled || len(info.Remarks) != 1 || info.Remarks[0] != refused {
		t.Errorf("polled %v, remarks %q; want %q", info.Polled, info.Remarks, refused)
	}
	if failed := d.Counters().Snapshot().Ops[op.Read]; failed.Failed() > 0 {
		t.Errorf("%d reads failed", failed.Failed())
	}
}
