package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Promise 2, from outside: a daemon that is told to end while a device is open
// and has a thousand writes in flight names it, and finishes every one of them:
// none is lost, none fails, none is answered before its time has come or the
// end has.
func TestPromise2StopFinishesWhatIsInFlight(t *testing.T) {
	const n, block = 1000, 4096
	for _, c := range []struct {
		backing string
		delay   time.Duration
		hold    string
		atOnce  bool // the end comes long before the deadline
	}{
		{"block", 2 * time.Second, "submit", false},
		{"file", time.Hour, "submit", true},
		{"mem", time.Hour, "complete", true},
	} {
		t.Run(fmt.Sprintf("%s/%v/%s", c.backing, c.delay, c.hold), func(t *testing.T) {
			b := newBacking(t, c.backing, 16*mib)
			d := startDaemon(t)
			name := shortName(t)
			k := openDisk(t, d.add(name, "--backing", b.spec, "--delay", c.delay.String(), "--hold", c.hold), unix.O_RDWR)
			r := newAppRing(t, n)
			// The file of mem: goes with its device, so its bytes are kept open.
			var behind *disk
			if b.kind == "mem" {
				behind = openDisk(t, b.path(d, name), unix.O_RDONLY)
			}
			want := make([]byte, 16*mib)
			bufs := alignedMemory(t, n*block)
			sent := time.Now()
			for i := range n {
				// With a gap between them, so that none is merged.
				p, at := bufs[i*block:(i+1)*block], int64(i)*2*block
				stamp(p, at, uint64(i))
				copy(want[at:], p)
				r.queue(k, p, at, 0, uint64(i))
			}
			r.submit()
			if c.atOnce {
				awaitInFlight(t, d, name, n)
			}
			answers := make([]int, n)
			count := func(id uint64, res int32) {
				answers[id]++
				if res != block {
					t.Errorf("write %d: answer %d, want %d bytes", id, res, block)
				}
			}
			missing := r.reap(n, 0, count)
			if took := time.Since(sent); missing < n && took < c.delay {
				t.Errorf("%d writes were answered within %v, asked %v", n-missing, took, c.delay)
			}
			d.signal(unix.SIGTERM)
			told := time.Now()
			missing = r.reap(missing, stopLimit, count)
			if missing != 0 {
				t.Errorf("%d of %d writes were never answered", missing, n)
			}
			for i, a := range answers {
				if a > 1 {
					t.Errorf("write %d was answered %d times", i, a)
				}
			}
			if took := time.Since(told); c.atOnce && took > 30*time.Second {
				t.Errorf("the last was answered %v after the daemon was told to end", took)
			}
			if err := d.wait(stopLimit); err != nil {
				t.Errorf("delayd: %v", err)
			}
			k.close()
			d.stop()
			if !named(d.log(), name) {
				t.Errorf("the log does not say that %s is in use, and by whom\n%s", name, d.log())
			}
			if behind != nil {
				same(t, "the backing", want, behind.image())
			} else {
				same(t, "the backing", want, imageOf(t, b.spec))
			}
		})
	}
}

// named says whether a line of the log tells that the device is in use by this
// process.
func named(log, device string) bool {
	return slices.ContainsFunc(strings.Split(log, "\n"), func(line string) bool {
		return strings.Contains(line, "in use") && strings.Contains(line, "device="+device) && strings.Contains(line, fmt.Sprintf("(pid %d)", os.Getpid()))
	})
}

// awaitInFlight waits until the device has n requests, held or at its backing.
func awaitInFlight(t testing.TB, d *daemon, name string, n int64) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		dev := d.show(name)
		if dev.Held+dev.InFlight == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d requests are held and %d at the backing, want %d", dev.Held, dev.InFlight, n)
		}
	}
}

// Writers that go on while the daemon is told to end: every write that was
// answered with success is on the backing, and every other has failed, not
// vanished.
func TestPromise2StopUnderWriters(t *testing.T) {
	const writers, block, size = 16, 4096, 128 * mib
	kinds := []string{"block", "file"}
	if testing.Short() {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			b := newBacking(t, kind, size)
			d := startDaemon(t)
			path := d.add("busy", "--backing", b.spec, "--delay", "5ms")
			k := openDisk(t, path, unix.O_RDWR)

			acknowledged := make([]int64, writers) // blocks, from the start of the region
			errs := make([]error, writers)
			var all sync.WaitGroup
			for w := range writers {
				buf := alignedMemory(t, block)
				all.Go(func() {
					const region = size / writers
					for at := int64(0); at < region; at += block {
						offset := int64(w)*region + at
						stamp(buf, offset, 77)
						if errs[w] = k.write(buf, offset, 0); errs[w] != nil {
							return
						}
						acknowledged[w]++
					}
				})
			}
			time.Sleep(500 * time.Millisecond)
			d.signal(unix.SIGTERM)
			if err := d.wait(stopLimit); err != nil {
				t.Errorf("delayd: %v", err)
			}
			all.Wait()
			k.close()
			d.stop()
			if !named(d.log(), "busy") {
				t.Errorf("the log does not say that the device is in use, and by whom\n%s", d.log())
			}

			behind := openDisk(t, b.spec, unix.O_RDONLY)
			want, got := make([]byte, block), alignedMemory(t, block)
			for w := range writers {
				if acknowledged[w] == 0 {
					t.Errorf("writer %d has written nothing", w)
				}
				if errs[w] == nil {
					t.Errorf("writer %d has not met the end of the device", w)
				}
				for i := range acknowledged[w] {
					at := int64(w)*size/writers + i*block
					stamp(want, at, 77)
					must(t, behind.read(got, at))
					if diff := difference(want, got); diff != "" {
						t.Errorf("writer %d, write %d of %d at %d was acknowledged: %s", w, i, acknowledged[w], at, diff)
						break
					}
				}
			}
		})
	}
}
