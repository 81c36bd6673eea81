package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// Random requests of every op from several threads at once, each on a region of
// its own, against a model in memory: what is read is what the model holds, and
// so is, at the end, the backing; beyond the part that the device shows, the
// backing is as it was.
func TestDataModel(t *testing.T) {
	type way struct {
		backing string
		delay   time.Duration
		queues  int
		hold    string
		offset  int64 // of the part that the device shows; as much is left over behind it
		copying bool  // also where the kernel and the backing can do without
	}
	ways := []way{
		{"block", 500 * time.Microsecond, 2, "complete", mib, false},
		{"block", 0, 2, "submit", mib / 2, true},
		{"file", 200 * time.Microsecond, 2, "submit", mib, false},
		{"file", 200 * time.Microsecond, 1, "complete", 512, true},
		{"tmpfs", 0, 1, "submit", 512, false},
		{"tmpfs", 0, 1, "submit", 0, true},
		{"mem", 200 * time.Microsecond, 2, "complete", mib, false},
	}
	size, rounds := int64(4*mib), 100
	if !testing.Short() {
		size, rounds = 16*mib, 300
		ways = append(ways, way{"block", 0, 1, "submit", 512, false}, way{"file", 0, 1, "complete", 512, false}, way{"mem", 0, 1, "submit", 0, false})
	}
	d := startDaemon(t)
	for _, c := range ways {
		t.Run(fmt.Sprintf("%s/%v/%s/at-%d/%s", c.backing, c.delay, c.hold, c.offset, wayOf(c.copying)), func(t *testing.T) {
			if c.queues > runtime.NumCPU() {
				t.Skipf("a device has no more queues than there are CPUs: %d", runtime.NumCPU())
			}
			d := d.with(t)
			b := newBacking(t, c.backing, size+2*c.offset)
			before := make([]byte, b.size)
			if c.backing != "mem" {
				fillImage(t, b.spec, before)
			}
			name := shortName(t)
			path := d.add(name, append(copyFlags(c.copying), "--backing", b.spec, "--delay", c.delay.String(), "--hold", c.hold,
				"--queues", strconv.Itoa(c.queues), "--offset", strconv.FormatInt(c.offset, 10), "--size", strconv.FormatInt(size, 10))...)
			checkWay(t, d, name, b, c.copying)

			seed := modelSeed(t)
			k := openDisk(t, path, unix.O_RDWR)
			zeroMax, err := fixture.QueueNumber(path, "write_zeroes_max_bytes")
			must(t, err)
			whole := append([]byte(nil), before...)
			part := whole[c.offset : c.offset+size]
			same(t, "the device before the first write", part, k.image())
			const threads = 4
			var all sync.WaitGroup
			failed := make(chan error, threads)
			for i := range threads {
				region := size / threads
				m := &model{
					disk: k, block: blockSize(t, path), start: int64(i) * region, want: part[int64(i)*region : int64(i+1)*region],
					buf: alignedMemory(t, mib), unmap: zeroMax != 0, random: rand.New(rand.NewPCG(seed, uint64(i))),
				}
				all.Go(func() {
					for n := range rounds {
						if err := m.step(); err != nil {
							failed <- fmt.Errorf("request %d of thread %d, seed %d: %w", n, i, seed, err)
							return
						}
					}
				})
			}
			all.Wait()
			close(failed)
			for err := range failed {
				t.Error(err)
			}
			if t.Failed() {
				return
			}
			must(t, k.sync())
			same(t, "the device at the end", part, k.image())
			k.close()
			if c.backing == "mem" {
				same(t, "the backing", whole, imageOf(t, b.path(d, name)))
			}
			d.del(name)
			if c.backing != "mem" {
				same(t, "the backing", whole, imageOf(t, b.spec))
			}
		})
	}
}

// modelSeed is of this run, or what DELAYD_E2E_SEED says.
func modelSeed(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv("DELAYD_E2E_SEED")
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	must(t, err)
	return seed
}

// fillImage makes path hold what is then in image.
func fillImage(t testing.TB, path string, image []byte) {
	t.Helper()
	for at := 0; at < len(image); at += mib {
		stamp(image[at:min(at+mib, len(image))], int64(at), 0xfeed)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.Write(image)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}

// model is one thread's region of a disk, and what is expected in it.
type model struct {
	disk   *disk
	block  int
	start  int64 // of the region on the disk
	want   []byte
	buf    []byte // aligned
	unmap  bool   // the device can zero by unmapping
	random *rand.Rand
	writes uint64
}

// step makes one random request.
func (m *model) step() error {
	at, n := m.pick()
	want, buf, offset := m.want[at:at+n], m.buf[:n], m.start+int64(at)
	switch r := m.random.IntN(100); {
	case r < 40:
		return m.write(want, buf, offset, 0)
	case r < 50:
		return m.write(want, buf, offset, unix.RWF_DSYNC)
	case r < 80:
		return m.read(want, buf, offset, "what was written")
	case r < 85:
		return m.disk.sync()
	case r < 90:
		clear(want)
		return m.disk.zero(offset, int64(n))
	case r < 94 && m.unmap:
		clear(want)
		return m.disk.punch(offset, int64(n))
	default:
		return m.discard(want, buf, offset)
	}
}

// pick is a random run of blocks within the region, often a short one.
func (m *model) pick() (at, n int) {
	blocks := len(m.want) / m.block
	most := min(blocks, len(m.buf)/m.block)
	if m.random.IntN(10) < 7 {
		most = min(most, 32)
	}
	n = 1 + m.random.IntN(most)
	return m.random.IntN(blocks-n+1) * m.block, n * m.block
}

func (m *model) write(want, buf []byte, offset int64, flags int) error {
	m.writes++
	stamp(buf, offset, m.writes)
	copy(want, buf)
	return m.disk.write(buf, offset, flags)
}

func (m *model) read(want, buf []byte, offset int64, what string) error {
	if err := m.disk.read(buf, offset); err != nil {
		return err
	}
	if d := difference(want, buf); d != "" {
		return fmt.Errorf("read of %d bytes at %d is not %s: %s", len(buf), offset, what, d)
	}
	return nil
}

// discard lets go of blocks. Each then holds what it held or zeroes, and keeps
// holding it.
func (m *model) discard(want, buf []byte, offset int64) error {
	if err := m.disk.discard(offset, int64(len(buf))); err != nil {
		return err
	}
	if err := m.disk.read(buf, offset); err != nil {
		return err
	}
	for at := 0; at < len(buf); at += m.block {
		b := buf[at : at+m.block]
		if d := difference(want[at:at+m.block], b); d != "" && !isZero(b) {
			return fmt.Errorf("a discarded block at %d holds neither zeroes nor what it did: %s", offset+int64(at), d)
		}
	}
	copy(want, buf)
	return nil
}

func isZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
