package e2e

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// A daemon that is killed while requests are at the backing dies, every request
// is answered, and the backing and the pages of the requests are free again, in
// whichever way they were at it.
func TestKilledWithRequestsAtTheBacking(t *testing.T) {
	needUblk(t)
	for _, c := range []struct {
		name  string
		disk  fixture.NullBlkAttrs
		flags []string

		zeroCopied, polled bool
	}{
		{"as-it-is", fixture.MemoryBacked(1), nil, kernelZeroCopies(t), false},
		{"copying", fixture.MemoryBacked(1), []string{"--zero-copy", "off"}, false, false},
		{"polled", fixture.Polled(1), []string{"--poll"}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := startDaemon(t)
			disk := fixture.For(t).Filled(c.disk.Throttled())
			path := d.add("killed", append([]string{"--backing", disk.Path}, c.flags...)...)
			if s := d.show("killed"); s.ZeroCopied != c.zeroCopied || s.Polled != c.polled {
				t.Errorf("zero copied %v, polled %v; want %v, %v", s.ZeroCopied, s.Polled, c.zeroCopied, c.polled)
			}
			killedUnderLoad(t, d, path, disk.Path)
			// What is left is the ublk device, which the next daemon removes.
			next := startDaemon(t, "--owner", d.owner, "--socket", d.socket, "--run-dir", d.runDir)
			cleaned(t, next)
			next.stop()
		})
	}
}

// killedUnderLoad kills a daemon whose device has 128 writes at the backing,
// which takes half a second for them.
func killedUnderLoad(t *testing.T, d *daemon, device, backing string) {
	t.Helper()
	k := openDisk(t, device, unix.O_RDWR)
	ring := newAppRing(t, 128)
	p := alignedMemory(t, 4096)
	for i := range 128 {
		ring.queue(k, p, int64(i)*8192%mib, 0, uint64(i))
	}
	ring.submit()
	time.Sleep(20 * time.Millisecond)
	d.kill()
	failed := 0
	missing := ring.reap(128, 30*time.Second, func(_ uint64, res int32) {
		if res != int32(len(p)) {
			failed++
		}
	})
	if missing > 0 {
		t.Errorf("%d requests are without an answer after the daemon was killed", missing)
	}
	if failed == 0 {
		t.Error("every write was done before the daemon was killed, so the test tests nothing")
	}
	k.close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		fd, err := unix.Open(backing, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			must(t, unix.Close(fd))
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the backing is still in use: %v", err)
		}
	}
}
