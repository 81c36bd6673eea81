package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/ublkdev"
	"github.com/delayd/delayd/test/fixture"
)

// On SIGTERM and SIGINT devices that nobody has open are removed, whatever their
// delay; one that is in use is named, and its requests are finished.
func TestSignalEndsCleanly(t *testing.T) {
	needUblk(t)
	for _, s := range []syscall.Signal{unix.SIGTERM, unix.SIGINT} {
		t.Run(unix.SignalName(s), func(t *testing.T) {
			d := startDaemon(t)
			f := fixture.For(t)
			disk := f.NullBlk(fixture.MemoryBacked(8))
			pattern := filepath.Join(t.TempDir(), "pattern")
			must(t, os.WriteFile(pattern, []byte(strings.Repeat("delayed!", 8<<10)), 0o600))
			d.add("idle", "--backing", "mem:4M", "--delay", "24h")
			d.add("locked", "--backing", emptyFile(t, 1<<20), "--delay", "60s", "--hold", "complete")
			busy := d.add("busy", "--backing", disk.Path, "--delay", "60s")
			open := d.add("open", "--backing", "mem:4M")
			fd, err := unix.Open(open, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			must(t, err)

			written := make(chan error, 1)
			go func() {
				_, err := fixture.Command("dd", "if="+pattern, "of="+busy, "bs=64K", "count=1", "oflag=direct", "conv=notrunc")
				written <- err
			}()
			for end := time.Now().Add(10 * time.Second); d.show("busy").Held == 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the write does not come to be held")
				}
			}
			began := time.Now()
			d.signal(s)
			select {
			case err := <-written:
				if err != nil {
					t.Errorf("the write that was held: %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Error("the write that was held is not finished")
			}
			f.Compare(fixture.Area{Path: disk.Path, Length: 64 << 10}, fixture.Area{Path: pattern})
			must(t, d.wait(stopLimit))
			t.Logf("ended in %v", time.Since(began))
			for _, line := range []string{
				`msg="device is in use; its requests are finished before it ends" device=busy`,
				`msg="device is in use; its requests are finished before it ends" device=open`,
				fmt.Sprintf("open in e2e.test (pid %d)", os.Getpid()),
				"open in dd (pid ",
			} {
				says(t, "delayd's log", d.log(), line)
			}
			for _, idle := range []string{"idle", "locked"} {
				if strings.Contains(d.log(), "before it ends\" device="+idle) {
					t.Errorf("%s is said to be in use:\n%s", idle, d.log())
				}
			}
			// The last who has it open lets go of what is left of it.
			if n, err := unix.Pread(fd, make([]byte, 4096), 1<<20); n > 0 {
				t.Errorf("%d bytes can be read of a device that is gone, %v", n, err)
			}
			must(t, unix.Close(fd))
			must(t, fixture.WaitGone("/sys/class/ublk-char/"+strings.Replace(filepath.Base(open), "ublkb", "ublkc", 1), 0))
			d.stop() // looks for what is left
		})
	}
}

// addTime is how long an addition takes here.
func addTime(t *testing.T, backing string) time.Duration {
	t.Helper()
	d := startDaemon(t)
	d.warm()
	began := time.Now()
	d.add("a", "--backing", backing)
	took := time.Since(began)
	d.stop()
	return took
}

// moments are n times within an addition, spread over all of it.
func moments(t *testing.T, backing string, n int) (at []time.Duration) {
	t.Helper()
	whole := addTime(t, backing)
	for i := range n {
		at = append(at, whole*time.Duration(2*i+1)/time.Duration(2*n))
	}
	return at
}

// SIGTERM in the middle of an addition: it is undone, or it was done and is
// removed; the daemon ends well and leaves nothing either way.
func TestSignalInTheMiddleOfAdd(t *testing.T) {
	needUblk(t)
	disk := fixture.For(t).NullBlk(fixture.MemoryBacked(8))
	writeTable(t, disk.Path, mbr, span{2048, 8192})
	outcomes := map[int]int{}
	for _, at := range moments(t, disk.Path, shortOr(4, 12)) {
		d := startDaemon(t)
		done := make(chan string, 1)
		go func() {
			out, errOut, code := d.ctl(add("a", "--backing", disk.Path, "--delay", "60s")...)
			outcomes[code]++
			if code != 0 && code != 1 {
				done <- fmt.Sprintf("exit code %d, %s%s", code, out, errOut)
			}
			close(done)
		}()
		time.Sleep(at)
		d.signal(unix.SIGTERM)
		if bad := <-done; bad != "" {
			t.Errorf("after %v add was answered with %s", at, bad)
		}
		d.judge() // exit code 0, and nothing left; a second signal would kill
		exclusive(t, disk.Path)
	}
	t.Logf("exit codes of add: %v", outcomes)
}

// exclusive fails the test unless the disk is nobody's any more.
func exclusive(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Errorf("open %s exclusively: %v", path, err)
		return
	}
	must(t, unix.Close(fd))
}

// kill -9 in the middle of an addition: the next daemon of the owner removes
// whatever there is of it.
func TestKilledInTheMiddleOfAdd(t *testing.T) {
	needUblk(t)
	for _, b := range []struct{ name, backing string }{
		{"memory", "mem:4M"},
		{"disk", fixture.For(t).NullBlk(fixture.MemoryBacked(8)).Path},
	} {
		// The first two are the moment in which there is a device of which
		// nothing may be on record yet.
		whenThere := func() {
			for end := time.Now().Add(startLimit); len(ublkDevices()) == 0 && time.Now().Before(end); {
				runtime.Gosched()
			}
		}
		waits := []func(){whenThere, whenThere}
		for _, at := range moments(t, b.backing, shortOr(3, 10)) {
			waits = append(waits, func() { time.Sleep(at) })
		}
		for i, wait := range waits {
			if !t.Run(fmt.Sprint(b.name, " ", i), func(t *testing.T) { killedInAdd(t, b.backing, wait) }) {
				return // the next would find the same
			}
		}
	}
}

// killedInAdd kills a daemon that is adding a device when wait returns, and
// looks what the next one makes of it.
func killedInAdd(t *testing.T, backing string, wait func()) {
	d := startDaemon(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.ctl(add("a", "--backing", backing, "--delay", "60s")...)
	}()
	wait()
	d.kill()
	<-done
	records, _ := filepath.Glob(filepath.Join(d.runDir, d.owner, "*"))
	t.Logf("killed; there are %v and %v", ublkDevices(), records)
	next := startDaemon(t, "--owner", d.owner, "--socket", d.socket, "--run-dir", d.runDir)
	cleaned(t, next)
	if t.Failed() {
		purge(t, d)
	}
	readBlock(t, next.add("a", "--backing", backing, "--delay", "1ms"))
	next.stop()
}

// purge removes what delayd should have, so that one failure does not become
// that of every test after it.
func purge(t *testing.T, d *daemon) {
	t.Helper()
	ctl, err := ublkdev.Open()
	must(t, err)
	ids, err := ublkdev.List()
	must(t, err)
	for _, id := range ids {
		must(t, ctl.Delete(t.Context(), id))
	}
	must(t, ctl.Close())
	files, _ := filepath.Glob("/dev/shm/delayd-" + d.owner + ":*")
	records, _ := filepath.Glob(filepath.Join(d.runDir, d.owner, "a.*"))
	for _, f := range append(files, records...) {
		must(t, os.Remove(f))
	}
}

// cleaned fails the test unless a daemon that has no device has, within a time,
// nothing of an earlier one either.
func cleaned(t *testing.T, d *daemon) {
	t.Helper()
	var left []string
	for end := time.Now().Add(settle); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		tr := look(t, d)
		left = tr.Devices
		for _, f := range tr.Files {
			own := []string{d.runDir, filepath.Join(d.runDir, d.owner), filepath.Join(d.runDir, d.owner, "lock"), filepath.Dir(d.socket), d.socket}
			if !slices.Contains(own, f) {
				left = append(left, f)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("the next daemon has not removed %v\n%s", left, d.log())
}

// A daemon that was killed: its requests fail, its socket is in nobody's way,
// and the next daemon of the owner removes its devices and can have all its
// backings.
func TestKilledDaemon(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	disk := fixture.For(t).NullBlk(fixture.MemoryBacked(8))
	file := emptyFile(t, 4<<20)
	held := d.add("held", "--backing", disk.Path, "--delay", "24h")
	d.add("file", "--backing", file, "--delay", "1ms")
	d.add("memory", "--backing", "mem:4M", "--queues", "1")
	open := d.add("open", "--backing", "null:1G")
	fd, err := unix.Open(open, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	answered := readOnce(held)
	for end := time.Now().Add(10 * time.Second); d.show("held").Held == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the read does not come to be held")
		}
	}

	d.kill()
	select {
	case err := <-answered:
		if err == nil {
			t.Error("a read that was held for ever has succeeded when the daemon was killed")
		}
	case <-time.After(15 * time.Second):
		t.Error("a read is not answered although its daemon is dead")
	}
	if _, err := os.Lstat(d.socket); err != nil {
		t.Fatalf("there is no stale socket, so the test tests nothing: %v", err)
	}
	_, errOut, code := d.ctl("list")
	if code != 1 {
		t.Errorf("delayctl list without a daemon: exit code %d", code)
	}
	says(t, "delayctl", errOut, "delayd is not running", "start it with")

	// It does not wait for ever for somebody who has a dead device open.
	began := time.Now()
	next := startDaemon(t, "--owner", d.owner, "--socket", d.socket, "--run-dir", d.runDir)
	t.Logf("the next daemon was ready after %v", time.Since(began))
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the next daemon was ready only after %v", took)
	}
	must(t, unix.Close(fd))
	cleaned(t, next)
	says(t, "delayd's log", next.log(), "removed a device that an earlier daemon left")
	for name, backing := range map[string]string{"held": disk.Path, "file": file, "memory": "mem:4M", "open": "null:1G"} {
		readBlock(t, next.add(name, "--backing", backing))
		next.del(name)
	}
	next.stop()
}
