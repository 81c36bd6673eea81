package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// A backing that can be polled is, and one that cannot works without; add, show
// and the daemon's log say so.
func TestPollIsSaid(t *testing.T) {
	d := startDaemon(t)
	f := fixture.For(t)
	polled := f.Filled(fixture.Polled(8))
	plain := f.NullBlk(fixture.MemoryBacked(8).With("poll_queues", 0))
	d.add("polled", "--backing", polled.Path, "--poll")
	if s := d.show("polled"); !s.Poll || !s.Polled || len(s.Warnings) != 0 {
		t.Errorf("poll %v, polled %v, warnings %q of a backing that can be polled", s.Poll, s.Polled, s.Warnings)
	}
	const why = "not polled: backing "
	_, warned, code := d.ctl("add", "plain", "--backing", plain.Path, "--poll")
	if code != 0 || !strings.Contains(warned, "delayctl: warning: "+why+plain.Path) {
		t.Errorf("add ended with %d and said %q", code, warned)
	}
	if s := d.show("plain"); !s.Poll || s.Polled || !slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.HasPrefix(w, why) }) {
		t.Errorf("poll %v, polled %v, warnings %q of a backing that cannot be polled", s.Poll, s.Polled, s.Warnings)
	}
	for end := time.Now().Add(10 * time.Second); !strings.Contains(d.log(), "the backing is not polled"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the log does not say it")
		}
	}
	d.del("polled")
	d.del("plain")
}

// A daemon that is killed while it polls for requests dies, with them, and frees
// the backing.
func TestPollKilled(t *testing.T) {
	d := startDaemon(t)
	disk := fixture.For(t).Filled(fixture.Polled(1).With("mbps", 1).With("max_sectors", 8))
	path := d.add("killed", "--backing", disk.Path, "--poll")
	k := openDisk(t, path, unix.O_RDWR)
	ring := newAppRing(t, 128)
	p := alignedMemory(t, 4096)
	for i := range 128 {
		ring.queue(k, p, int64(i)*8192%mib, 0, uint64(i))
	}
	ring.submit()
	time.Sleep(20 * time.Millisecond) // of the 500 ms that they take
	d.kill()
	if missing := ring.reap(128, 30*time.Second, func(uint64, int32) {}); missing > 0 {
		t.Errorf("%d requests are without an answer after the daemon was killed", missing)
	}
	k.close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		fd, err := unix.Open(disk.Path, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the backing is still in use: %v", err)
		}
	}
	// What is left is the ublk device, which the next daemon removes.
	next := startDaemon(t, "--owner", d.owner, "--socket", d.socket, "--run-dir", d.runDir)
	cleaned(t, next)
	next.stop()
}
