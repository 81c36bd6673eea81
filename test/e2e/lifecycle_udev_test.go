package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// probing has udev look what is on a ublk device and watch it, which is what it
// does with any disk that it knows; the list of names in its own rules
// (60-persistent-storage.rules, 60-block.rules) has no ublk yet everywhere.
const probing = `SUBSYSTEM=="block", KERNEL=="ublkb*", ACTION!="remove", IMPORT{builtin}="blkid", OPTIONS+="watch"
`

// startUdev runs systemd-udevd until the test ends.
func startUdev(t *testing.T) {
	t.Helper()
	if _, err := fixture.Command("udevadm", "control", "--ping", "--timeout=5"); err == nil {
		t.Skip("udevd runs already, with rules that are not the test's to change")
	}
	must(t, os.MkdirAll("/run/udev/rules.d", 0o755))
	must(t, os.WriteFile("/run/udev/rules.d/90-e2e.rules", []byte(probing), 0o644))
	const path = "/lib/systemd/systemd-udevd"
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: install the package udev (tools/setup test does)", err)
	}
	var out fixture.Output
	cmd := exec.Command(path)
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		must(t, cmd.Process.Signal(unix.SIGTERM))
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Errorf("udevd does not end:\n%s", out.String())
			_ = cmd.Process.Kill()
			<-ended
		}
		// What it made would be taken for signs of a live one.
		must(t, os.RemoveAll("/run/udev"))
	})
	for end := time.Now().Add(startLimit); ; time.Sleep(50 * time.Millisecond) {
		if _, err := fixture.Command("udevadm", "control", "--ping", "--timeout=5"); err == nil {
			break
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("udevd ended: %v\n%s", err, out.String())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("udevd is not ready:\n%s", out.String())
		}
	}
}

// seen waits until udev has worked on a device, and returns what it knows.
func seen(t *testing.T, device string) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(device, &st))
	data := fmt.Sprintf("/run/udev/data/b%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(data)
		if err == nil && bytes.Contains(text, []byte("E:ID_FS_TYPE=")) {
			return string(text)
		}
		if time.Now().After(end) {
			t.Fatalf("udev has not looked at %s: %s, %v", device, text, err)
		}
	}
}

// An addition that is followed at once by a removal works, although udev opens
// each new device, and each of its partitions, to look what is on it.
func TestAddThenDelUnderUdev(t *testing.T) {
	needUblk(t)
	startUdev(t)
	d := startDaemon(t)
	d.warm()
	f := fixture.For(t)
	// Something to find: a file system with a partition table in front.
	disk := f.NullBlk(fixture.MemoryBacked(64))
	p := partition(t, disk.Path, gpt, span{2048, 100000})
	f.Mkfs("ext4", p)
	whole := f.NullBlk(fixture.MemoryBacked(16))
	f.Mkfs("ext4", whole.Path)
	settleUdev(t)

	// That udev does look is what makes the test one.
	says(t, "udev", seen(t, d.add("look", "--backing", whole.Path, "--delay", "1ms")), "E:ID_FS_TYPE=ext4")
	d.del("look")
	before := look(t, d)
	n := shortOr(4, 8)
	for i := range n {
		for _, c := range []struct{ name, backing, delay string }{
			// udev reads some hundred blocks, one after the other, and del waits
			// 2 s for it: long enough to be met, and short enough to be over.
			{"whole", whole.Path, "5ms"},
			{"parts", disk.Path, "3ms"},
			{"memory", "mem:4M", "200us"},
		} {
			began := time.Now()
			path := d.add(c.name, "--backing", c.backing, "--delay", c.delay)
			added := time.Now()
			if out, errOut, code := d.ctl("del", c.name); code != 0 {
				t.Errorf("round %d: del of %s (%s), just added in %v: exit code %d after %v, %s%s",
					i, c.name, path, added.Sub(began), code, time.Since(added), out, errOut)
				settleUdev(t)
				d.mustCtl("del", c.name)
			}
		}
	}
	settleUdev(t)
	grown(t, before, sameTraces(t, d, before), 3*n, 1)
}

func settleUdev(t testing.TB) {
	t.Helper()
	if _, err := fixture.Command("udevadm", "settle", "--timeout=30"); err != nil {
		t.Error(err)
	}
}

// Partitions are there when add returns, although udev is looking at the disk
// and its partitions at the same time.
func TestPartitionsUnderUdev(t *testing.T) {
	needUblk(t)
	startUdev(t)
	d := startDaemon(t)
	disk := fixture.For(t).NullBlk(fixture.MemoryBacked(64))
	writeTable(t, disk.Path, gpt, span{2048, 20000}, span{40960, 20000})
	for i := range shortOr(4, 10) {
		device := d.add("a", "--backing", disk.Path, "--delay", "1ms")
		parts, _ := filepath.Glob("/sys/class/block/" + filepath.Base(device) + "p*")
		if len(parts) != 2 {
			t.Errorf("round %d: partitions %v, want 2\n%s", i, parts, d.log())
		}
		d.del("a")
	}
	if strings.Contains(d.log(), "cannot read the partitions") {
		t.Errorf("the partitions could not be read:\n%s", d.log())
	}
	settleUdev(t)
}

// 16 clients at once, each with udev at its heels.
func TestSixteenClientsUnderUdev(t *testing.T) {
	needUblk(t)
	startUdev(t)
	d := startDaemon(t)
	d.warm()
	before := look(t, d)
	together(t, d)
	settleUdev(t)
	after := sameTraces(t, d, before)
	if !testing.Short() { // the first 16 at once make threads that stay
		for range 3 {
			together(t, d)
		}
		settleUdev(t)
		grown(t, after, sameTraces(t, d, before), 3*16, 16)
	}
}

// With a delay of a minute udev's look at the new device may come to be held.
// Then the device is in use, and udev is named.
func TestLongDelayUnderUdev(t *testing.T) {
	needUblk(t)
	startUdev(t)
	d := startDaemon(t)
	d.add("a", "--backing", "mem:16M", "--delay", "60s")
	_, errOut, code := d.ctl("del", "a")
	if code == 0 {
		return
	}
	t.Logf("udev is held: %s", errOut)
	says(t, "delayctl", errOut, "in use", "udev", "--force")
	began := time.Now()
	d.mustCtl("del", "a", "--force")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("del --force took %v", took)
	}
	settleUdev(t)
}
