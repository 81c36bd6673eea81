package device

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/ublkdev"
	"github.com/delayd/delayd/test/fixture"
)

// bothWays runs a test as the device is by default, without copying where that
// can be, and with copying.
func bothWays(t *testing.T, test func(t *testing.T, zero Choice)) {
	for _, zero := range []Choice{Auto, Off} {
		t.Run("zero-copy="+zero.String(), func(t *testing.T) { test(t, zero) })
	}
}

// Zero copy is used where the kernel and the backing can, and shown.
func TestZeroCopied(t *testing.T) {
	h := newHost(t)
	kernel := h.features.Has(zeroCopyFeatures)
	null := fixture.For(t).NullBlk(fixture.MemoryBacked(16))
	for _, c := range []struct {
		name, backing string
		asked         Choice
		want          bool
	}{
		{"block", null.Path, Auto, kernel},
		{"block-off", null.Path, Off, false},
		{"file", tempFile(t, 1<<20), Auto, kernel},
		{"mem", "mem:1M", Auto, false},
		{"null", "null:1M", Auto, false},
	} {
		d := start(t, h, Spec{Name: c.name, Backing: c.backing, ZeroCopy: c.asked})
		i := d.Info()
		if i.ZeroCopied != c.want || (i.BufferBytes == 0) != c.want {
			t.Errorf("%s: zero copied %v with %d bytes of buffers, want %v", c.name, i.ZeroCopied, i.BufferBytes, c.want)
		}
		must(t, d.Stop(limit(t)))
	}
}

// On a kernel without zero copy, real or as a Host takes this one to be, data is
// copied; insisting is refused, says why, and leaves nothing (newHost looks).
func TestZeroCopyWithoutTheKernel(t *testing.T) {
	h := newHost(t)
	h.features &^= zeroCopyFeatures
	file := tempFile(t, 1<<20)
	_, err := h.Start(limit(t), Spec{Name: "insists", Backing: file, ZeroCopy: On})
	if !errors.Is(err, ublkdev.ErrNotSupported) {
		t.Errorf("zero copy on without the features: %v, want ErrNotSupported", err)
	}
	for _, want := range []string{"SUPPORT_ZERO_COPY (Linux 6.15)", "AUTO_BUF_REG (Linux 6.16)", "use auto or off"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal %q does not say %q", err, want)
		}
	}
	ids, err := ublkdev.List()
	must(t, err)
	if len(ids) > 0 {
		t.Errorf("devices %v are left", ids)
	}
	d := start(t, h, Spec{Backing: file})
	if i := d.Info(); i.ZeroCopied || i.BufferBytes == 0 {
		t.Errorf("zero copied %v with %d bytes of buffers", i.ZeroCopied, i.BufferBytes)
	}
	roundTrip(t, d, file, 1<<20)
}

// A backing whose bytes the daemon itself copies cannot do without.
func TestZeroCopyWithoutTheBacking(t *testing.T) {
	h := needZeroCopy(t)
	for _, backing := range []string{"mem:1M", "null:1M"} {
		_, err := h.Start(limit(t), Spec{Name: "insists", Backing: backing, ZeroCopy: On})
		for _, want := range []string{"zero copy on", backing, "by the daemon", "use auto or off"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the refusal %q does not say %q", err, want)
			}
		}
	}
}

// What is written through a device is in its backing, and what is read is what
// is there: lengths from one block to the largest request, memory that begins in
// the middle of a page, requests of many pieces, a part that begins off a page.
func TestZeroCopyData(t *testing.T) {
	const size, offset = 4 << 20, 1536
	null := func(t *testing.T) string {
		return fixture.For(t).NullBlk(fixture.MemoryBacked(8).With("blocksize", 512)).Path
	}
	file := func(t *testing.T) string { return tempFile(t, 8<<20) }
	for _, c := range []struct {
		name    string
		backing func(*testing.T) string
		hold    Hold
		delay   time.Duration
	}{
		{"block", null, HoldSubmit, 0},
		{"block held", null, HoldComplete, time.Millisecond},
		{"file", file, HoldSubmit, 100 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, zero Choice) {
				h := newHost(t)
				backing := c.backing(t)
				d := start(t, h, Spec{Name: "data", Backing: backing, Hold: c.hold, Delays: scheduler.Constant(c.delay),
					ZeroCopy: zero, Offset: offset, Size: size})
				roundTripAt(t, d, backing, offset, size)
			})
		})
	}
}

// When the driver cannot put a request's pages into the table, the queue does:
// here the driver is sent to slots that there are not.
func TestZeroCopyPagesLent(t *testing.T) {
	h := needZeroCopy(t)
	misplaced = MaxDepth
	t.Cleanup(func() { misplaced = 0 })
	for _, hold := range []Hold{HoldSubmit, HoldComplete} {
		t.Run(hold.String(), func(t *testing.T) {
			file := tempFile(t, 4<<20)
			d := start(t, h, Spec{Backing: file, Hold: hold, Delays: scheduler.Constant(500 * time.Microsecond), ZeroCopy: On})
			roundTrip(t, d, file, 4<<20)
			s := d.Counters().Snapshot()
			for _, o := range op.All() {
				if c := s.Ops[o]; c.Done != c.Arrived || c.Held != 0 || c.InFlight != 0 {
					t.Errorf("%v: %d arrived, %d done, %d held, %d in flight", o, c.Arrived, c.Done, c.Held, c.InFlight)
				}
			}
		})
	}
	t.Run("kill", func(t *testing.T) {
		checkKillFailsWhatIsHeld(t, Spec{Backing: tempFile(t, 256*block), ZeroCopy: On})
	})
	t.Run("stop", func(t *testing.T) {
		checkPromise2StopDispatchesWhatIsHeld(t, Spec{Backing: tempFile(t, 2048*block), ZeroCopy: On})
	})
}

// needZeroCopy is newHost for a test of what needs the kernel's zero copy.
func needZeroCopy(t *testing.T) *Host {
	t.Helper()
	h := newHost(t)
	if !h.features.Has(zeroCopyFeatures) {
		t.Skipf("this kernel's ublk driver has no zero copy: %v", h.features)
	}
	return h
}

func roundTrip(t *testing.T, d *Device, backing string, size int64) {
	t.Helper()
	roundTripAt(t, d, backing, 0, size)
}

// roundTripAt writes to a device that shows size bytes of backing from offset
// on, in many ways, and reads in many ways, beside and behind it.
func roundTripAt(t *testing.T, d *Device, backing string, offset, size int64) {
	t.Helper()
	fd, err := unix.Open(d.Info().Path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	must(t, err)
	most := int(d.Info().Limits.MaxIOBytes)
	mem, err := unix.Mmap(-1, 0, most+2*block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	defer unix.Munmap(mem)
	want := make([]byte, size)
	random := rand.New(rand.NewPCG(1, uint64(size)))
	// pieces are vectors of n bytes in all, each whole blocks, at odd places.
	pieces := func(n int) (v [][]byte) {
		at := sector * random.IntN(block/sector)
		if random.IntN(2) == 0 || n > most/2 {
			return [][]byte{mem[at : at+n]}
		}
		for n > 0 {
			k := min(n, sector*(1+random.IntN(16)))
			if at+k > len(mem) {
				at = 0
			}
			v = append(v, mem[at:at+k])
			at, n = at+k, n-k
			if len(v) == 64 {
				break
			}
		}
		return v
	}
	lengths := []int{sector, most, block, 3 * sector, most - sector, 128 << 10, 66048, sector}
	for i := range 60 {
		n := lengths[i%len(lengths)]
		at := int64(random.IntN(int((size-int64(n))/sector)+1)) * sector
		v := pieces(n)
		if i == 0 || random.IntN(3) > 0 {
			total := at
			for _, p := range v {
				for j := range p {
					p[j] = byte(random.Uint32())
				}
			}
			// After all are filled: pieces may lie over each other.
			for _, p := range v {
				total += int64(copy(want[total:], p))
			}
			flags := 0
			if i%5 == 0 {
				flags = unix.RWF_DSYNC
			}
			got, err := unix.Pwritev2(fd, v, at, flags)
			if err != nil || int64(got) != total-at {
				t.Fatalf("write %d: %d of %d bytes in %d pieces at %d: %v", i, got, total-at, len(v), at, err)
			}
			continue
		}
		if len(v) > 1 {
			v = [][]byte{mem[sector : sector+n]}
		}
		got, err := unix.Preadv(fd, v, at)
		if err != nil || got != n {
			t.Fatalf("read %d: %d of %d bytes at %d: %v", i, got, n, at, err)
		}
		if !bytes.Equal(v[0], want[at:at+int64(n)]) {
			t.Fatalf("read %d: %d bytes at %d are not what was written", i, n, at)
		}
	}
	// What carries no data has no pages.
	must(t, rangeIoctl(fd, unix.BLKZEROOUT, size/2, 64<<10))
	clear(want[size/2 : size/2+64<<10])
	must(t, unix.Fsync(fd))
	must(t, unix.Close(fd))
	must(t, d.Stop(limit(t)))
	whole, err := os.ReadFile(backing)
	must(t, err)
	if !bytes.Equal(whole[offset:offset+size], want) {
		t.Fatal("the backing does not hold what was written")
	}
	for _, beside := range [][]byte{whole[:offset], whole[offset+size:]} {
		if !bytes.Equal(beside, make([]byte, len(beside))) {
			t.Fatal("the backing was written beside the part that the device shows")
		}
	}
}
