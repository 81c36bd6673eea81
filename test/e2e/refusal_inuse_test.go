package e2e

import (
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

// Promise 7: a backing that somebody uses is refused, with his name; --shared
// insists.
func TestPromise7BackingInUse(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	for _, c := range []struct {
		name string
		// use returns the backing, in use until the test ends.
		use  func(t *testing.T, f fixture.T) string
		says []string
		// alone is true where --shared does not help.
		alone bool
	}{
		{name: "mounted", use: func(t *testing.T, f fixture.T) string {
			n := f.NullBlk(fixture.MemoryBacked(32))
			f.Mkfs("ext4", n.Path)
			dir := filepath.Join(t.TempDir(), "a mount point")
			must(t, os.Mkdir(dir, 0o755))
			m, err := fixture.NewMount(n.Path, dir, "ext4", 0, "")
			must(t, err)
			t.Cleanup(func() { must(t, m.Close()) })
			return n.Path
		}, says: []string{"device or resource busy", "mounted on /", "/a mount point", "unmount it", "--shared"}},
		{name: "with a mounted partition", use: func(t *testing.T, f fixture.T) string {
			n := f.NullBlk(fixture.MemoryBacked(32))
			p := partition(t, n.Path, mbr, span{2048, 40960})
			f.Mkfs("ext4", p)
			f.Mount(p, "ext4")
			return n.Path
		}, says: []string{"mounted on ", "fixture-mount-", "unmount it", "--shared"}},
		{name: "a partition of a held disk", use: func(t *testing.T, f fixture.T) string {
			n := f.NullBlk(fixture.MemoryBacked(32))
			p := partition(t, n.Path, mbr, span{2048, 40960})
			f.DM(fmt.Sprintf("0 8192 linear %s 0", p))
			return p
		}, says: []string{"holder dm-", "use or remove its holder", "--shared"}},
		{name: "held by device mapper", use: func(_ *testing.T, f fixture.T) string {
			n := f.NullBlk(fixture.MemoryBacked(16))
			f.DM(fmt.Sprintf("0 8192 linear %s 0", n.Path))
			return n.Path
		}, says: []string{"holder dm-", "(fxd", "use or remove its holder", "--shared"}},
		{name: "swap", use: func(t *testing.T, f fixture.T) string {
			n := f.NullBlk(fixture.MemoryBacked(16))
			swapOn(t, n.Path)
			return n.Path
		}, says: []string{"(swap)", "swapoff it", "--shared"}},
		{name: "open exclusively in a process", use: func(t *testing.T, f fixture.T) string {
			n := f.NullBlk(fixture.MemoryBacked(16))
			fd, err := unix.Open(n.Path, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
			must(t, err)
			t.Cleanup(func() { must(t, unix.Close(fd)) })
			return n.Path
		}, says: []string{"open in e2e.test", fmt.Sprintf("(pid %d)", os.Getpid()), "end that", "--shared"}},
		{name: "backing of another device", use: func(t *testing.T, f fixture.T) string {
			n := f.NullBlk(fixture.MemoryBacked(16))
			d.add("first", "--backing", n.Path)
			t.Cleanup(func() { d.del("first") })
			return n.Path
		}, says: []string{"open in this process", "--shared"}},
		{name: "a file locked by a process", use: func(t *testing.T, _ fixture.T) string {
			file := emptyFile(t, 1<<20)
			lockInProcess(t, file)
			return file
		}, says: []string{"in use by ", "(pid ", "use another file", "--shared"}},
		{name: "a file that is the backing of another device", use: func(t *testing.T, _ fixture.T) string {
			file := emptyFile(t, 1<<20)
			d.add("first", "--backing", file)
			t.Cleanup(func() { d.del("first") })
			return file
		}, says: []string{"in use by this process", fmt.Sprintf("(pid %d)", d.pid()), "use another file", "--shared"}},
		{name: "a file under another name", use: func(t *testing.T, _ fixture.T) string {
			file := emptyFile(t, 1<<20)
			d.add("first", "--backing", file)
			t.Cleanup(func() { d.del("first") })
			link := file + "-too"
			must(t, os.Link(file, link))
			return link
		}, says: []string{"in use by this process", "--shared"}},
		{name: "a file behind a loop device", use: func(t *testing.T, f fixture.T) string {
			file, err := filepath.EvalSymlinks(emptyFile(t, 1<<20))
			must(t, err)
			f.Loop(file, fixture.LoopOptions{})
			return file
		}, says: []string{"in use by the kernel (loop", "--shared"}},
		{name: "memory of another daemon of the owner's name", use: func(t *testing.T, _ fixture.T) string {
			// The file of mem: in the name of a device to come, with a lock.
			path := fmt.Sprintf("/dev/shm/delayd-%s:second", d.owner)
			must(t, os.WriteFile(path, nil, 0o600))
			t.Cleanup(func() { _ = os.Remove(path) })
			lockInProcess(t, path)
			return "mem:1M"
		}, says: []string{"mem:1M", "in use by ", "give the device another name"}, alone: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			backing := c.use(t, fixture.For(t))
			before := look(t, d)
			_, errOut, code := d.ctl(add("second", "--backing", backing)...)
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			says(t, "delayctl", errOut, append([]string{backing}, c.says...)...)
			sameTraces(t, d, before)
			_, errOut, code = d.ctl(add("second", "--backing", backing, "--shared")...)
			switch {
			case c.alone && code != 1:
				t.Errorf("--shared has taken it: exit code %d", code)
			case c.alone:
			case code != 0:
				t.Errorf("--shared: exit code %d, %s", code, errOut)
			default:
				d.del("second")
			}
			sameTraces(t, d, before)
		})
	}
}

// swapOn makes a disk swap until the test ends.
func swapOn(t *testing.T, path string) {
	t.Helper()
	_, err := fixture.Command("mkswap", path)
	must(t, err)
	_, err = fixture.Command("swapon", path)
	must(t, err)
	t.Cleanup(func() {
		if _, err := fixture.Command("swapoff", path); err != nil {
			t.Error(err)
		}
	})
}

// lockInProcess has another process lock a file until the test ends.
func lockInProcess(t *testing.T, path string) {
	t.Helper()
	cmd := exec.Command("flock", "--exclusive", path, "cat")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		must(t, in.Close())
		must(t, cmd.Wait())
	})
	// cat runs when the lock is there.
	_, err = in.Write([]byte{'.'})
	must(t, err)
	_, err = out.Read(make([]byte, 1))
	must(t, err)
}

// Promise 7: a daemon's own device, and whatever is made of one, is no backing
// for the same daemon: it would wait for itself. Not even with --shared.
func TestPromise7OwnDevice(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	f := fixture.For(t)
	disk := f.NullBlk(fixture.MemoryBacked(64))
	writeTable(t, disk.Path, mbr, span{2048, 8192}, span{16384, 81920})
	own := d.add("own", "--backing", disk.Path, "--delay", "1ms")

	part := filepath.Join("/dev", partName(own, 1))
	_, err := fixture.WaitDisk(filepath.Base(part), 0)
	must(t, err)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(own, link))
	onPart := filepath.Join("/dev", partName(own, 2))
	f.Mkfs("ext4", onPart)
	m, err := fixture.NewMount(onPart, "", "ext4", 0, "")
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	file := filepath.Join(m.Dir, "file")
	must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	linkToFile := filepath.Join(t.TempDir(), "link-to-file")
	must(t, os.Symlink(file, linkToFile))
	loopFile := filepath.Join(m.Dir, "loop")
	must(t, os.WriteFile(loopFile, make([]byte, 1<<20), 0o600))
	loop, err := fixture.NewLoop(loopFile, fixture.LoopOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, loop.Close()) })
	dm, err := fixture.NewDM(fmt.Sprintf("0 4096 linear %s 0", part))
	must(t, err)
	t.Cleanup(func() { must(t, dm.Close()) })
	dmOnDM, err := fixture.NewDM(fmt.Sprintf("0 2048 linear %s 0", dm.Path))
	must(t, err)
	t.Cleanup(func() { must(t, dmOnDM.Close()) })

	var refusals []refusal
	for name, backing := range map[string]string{
		"itself":                        own,
		"by another name":               link,
		"a partition of it":             part,
		"a file on it":                  file,
		"a file on it, by another name": linkToFile,
		"device mapper on it":           dm.Path,
		"device mapper on that":         dmOnDM.Path,
		"a loop device of a file on it": loop.Path,
		"a file on it that loop device": loopFile,
	} {
		for _, flags := range [][]string{nil, {"--shared"}, {"--read-only", "--shared"}} {
			refusals = append(refusals, refusal{
				strings.Join(append([]string{name}, flags...), " "), add("b", append([]string{"--backing", backing}, flags...)...), 1,
				[]string{backing, own, "which this daemon serves", "use its backing", "--owner"},
			})
		}
	}
	if testing.Short() {
		// One way to insist is enough where each takes a second.
		kept := refusals[:0]
		for _, r := range refusals {
			if !strings.Contains(r.name, "--read-only") {
				kept = append(kept, r)
			}
		}
		refusals = kept
	}
	refused(t, d, refusals)

	// As it says, another daemon may have it: that one waits for this one, and
	// not for itself.
	second := startDaemon(t)
	second.add("on-top", "--backing", part, "--shared")
	second.stop()
}

// Promise 8: a device that is in use is not removed, and who uses it is told;
// when he has let go, it is.
func TestPromise8DeleteInUse(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	f := fixture.For(t)
	for _, c := range []struct {
		name string
		use  func(t *testing.T, device string) (letGo func())
		says []string
	}{
		{"open in a process", func(t *testing.T, device string) func() {
			fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			must(t, err)
			return func() { must(t, unix.Close(fd)) }
		}, []string{"open in e2e.test", fmt.Sprintf("(pid %d)", os.Getpid())}},
		{"mounted", func(t *testing.T, device string) func() {
			f.Mkfs("ext4", device)
			dir := filepath.Join(t.TempDir(), "in use")
			must(t, os.Mkdir(dir, 0o755))
			m, err := fixture.NewMount(device, dir, "ext4", 0, "")
			must(t, err)
			return func() { must(t, m.Close()) }
		}, []string{"mounted on /", "/in use"}},
		{"with a mounted partition", func(t *testing.T, device string) func() {
			p := partition(t, device, gpt, span{2048, 40960})
			f.Mkfs("ext4", p)
			m, err := fixture.NewMount(p, "", "ext4", 0, "")
			must(t, err)
			return func() { must(t, m.Close()) }
		}, []string{"mounted on /", "fixture-mount-"}},
		{"swap", func(t *testing.T, device string) func() {
			_, err := fixture.Command("mkswap", device)
			must(t, err)
			_, err = fixture.Command("swapon", device)
			must(t, err)
			return func() {
				_, err := fixture.Command("swapoff", device)
				must(t, err)
			}
		}, []string{"swap"}},
		{"held by device mapper", func(t *testing.T, device string) func() {
			dm, err := fixture.NewDM(fmt.Sprintf("0 8192 linear %s 0", device))
			must(t, err)
			return func() { must(t, dm.Close()) }
		}, []string{"holder dm-"}},
	} {
		if testing.Short() && c.name != "mounted" && c.name != "open in a process" {
			continue // each waits for what udev may have open
		}
		t.Run(c.name, func(t *testing.T) {
			before := look(t, d)
			device := d.add("a", "--backing", "mem:32M", "--delay", "1ms")
			letGo := c.use(t, device)
			used := look(t, d)
			began := time.Now()
			out, errOut, code := d.ctl("del", "a")
			if code != 1 || out != "" {
				t.Errorf("exit code %d, output %q; want 1 and none", code, out)
			}
			says(t, "delayctl", errOut, append([]string{"del a", "in use", "stop using it", "--force"}, c.says...)...)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the refusal took %v", took)
			}
			if s := d.show("a"); s.State != "delaying" {
				t.Errorf("after the refusal it is %s", s.State)
			}
			sameTraces(t, d, used)
			letGo()
			d.del("a")
			sameTraces(t, d, before)
		})
	}
}
