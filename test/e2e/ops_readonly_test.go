package e2e

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// A backing that cannot be written makes a device that cannot, and nothing that
// is tried on it arrives.
func TestReadOnlyBackingReadOnlyDevice(t *testing.T) {
	setReadOnly := func(t *testing.T) (string, string) {
		path := newBacking(t, "block", opsSize).spec
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, unix.IoctlSetPointerInt(fd, unix.BLKROSET, 1))
		return path, path
	}
	scsi := func(t *testing.T) (string, string) {
		path := fixture.For(t).ScsiDebug("dev_size_mb=8", "delay=0", "wp=1").Path
		return path, path
	}
	file := func(t *testing.T) (string, string) {
		f := fixture.For(t)
		n := f.NullBlk(fixture.MemoryBacked(64))
		f.Mkfs("ext4", n.Path, "-q")
		m := f.Mount(n.Path, "ext4")
		spec := newFile(t, m.Dir, opsSize)
		must(t, unix.Mount("", m.Dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		return spec, n.Path
	}
	asked := func(t *testing.T) (string, string) {
		path := newBacking(t, "block", opsSize).spec
		return path, path
	}
	d := startDaemon(t)
	for _, c := range []struct {
		name  string
		open  func(t *testing.T) (spec, disk string)
		flags []string
	}{
		{"blockdev --setro", setReadOnly, nil},
		{"write-protected scsi_debug", scsi, nil},
		{"file on a read-only file system", file, []string{"--read-only"}},
		{"asked for", asked, []string{"--read-only"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := d.with(t)
			spec, disk := c.open(t)
			before := imageOf(t, spec)
			path := d.add(shortName(t), append([]string{"--backing", spec, "--delay", "1ms"}, c.flags...)...)
			if !d.show(shortName(t)).ReadOnly {
				t.Error("show does not say that it is read-only")
			}
			name, err := fixture.SysfsName(path)
			must(t, err)
			if ro := readAttr(t, "/sys/block/"+name+"/ro"); ro != "1" {
				t.Errorf("/sys/block/%s/ro is %q, want 1", name, ro)
			}
			stat := statOf(t, disk)
			tryToWrite(t, path)
			if done := statOf(t, disk).since(stat); done.writes != 0 || done.discards != 0 {
				t.Errorf("%+v has arrived at a read-only backing", done)
			}
			same(t, "the device", before, imageOf(t, path))
			d.del(shortName(t))
			same(t, "the backing", before, imageOf(t, spec))
		})
	}
}

// tryToWrite fails the test if a device can be opened for writing and then
// written in any way.
func tryToWrite(t *testing.T, path string) {
	t.Helper()
	// The last is for what a device says that it cannot do at all.
	refusals := []error{unix.EACCES, unix.EPERM, unix.EROFS, unix.EOPNOTSUPP}
	refused := func(err error) bool {
		for _, r := range refusals {
			if errors.Is(err, r) {
				return true
			}
		}
		return false
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		if !refused(err) {
			t.Errorf("open for writing: %v, want one of %v", err, refusals)
		}
		return
	}
	k := &disk{t: t, path: path, fd: fd, size: opsSize}
	defer k.close()
	for what, err := range map[string]error{
		"write":   k.write(alignedMemory(t, 4096), 0, 0),
		"discard": k.discard(0, mib),
		"zero":    k.zero(0, mib),
		"punch":   k.punch(0, mib),
	} {
		if !refused(err) {
			t.Errorf("%s: %v, want one of %v", what, err, refusals)
		}
	}
}
