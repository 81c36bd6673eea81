package backend

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Users says in words who uses a block device, its disk or its partitions:
// "mounted on /data", "swap", "holder dm-0 (vg-root)", "open in fio (pid 123)".
// It looks at this mount namespace's mounts and at the processes that it may
// look at, and never opens a device. Nil means that nothing was found.
func Users(d DevNo) []string {
	devs := family(d)
	var users []string
	add := func(format string, args ...any) {
		if s := fmt.Sprintf(format, args...); !slices.Contains(users, s) {
			users = append(users, s)
		}
	}
	if mounts, err := readMounts(); err == nil {
		for _, m := range mounts {
			if slices.Contains(devs, m.dev) || slices.Contains(devs, m.source) {
				add("mounted on %s", m.point)
			}
		}
	}
	if slices.ContainsFunc(swaps(), func(path string) bool {
		n, ok := blockNode(path)
		return ok && slices.Contains(devs, n)
	}) {
		add("swap")
	}
	for _, h := range holders(devs) {
		add("holder %s", h)
	}
	for _, pid := range openers(devs) {
		add("open in %s", processName(pid))
	}
	return users
}

// family is d with its partitions, or with its disk if it is a partition: an
// exclusive user of one keeps the others from being opened exclusively.
func family(d DevNo) []DevNo {
	devs := []DevNo{d}
	dir, err := sysDir(d)
	if err != nil {
		return devs
	}
	if isPartition(dir) {
		if n, err := sysDevNo(filepath.Dir(dir)); err == nil {
			devs = append(devs, n)
		}
		return devs
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if part := filepath.Join(dir, e.Name()); e.IsDir() && isPartition(part) {
			if n, err := sysDevNo(part); err == nil {
				devs = append(devs, n)
			}
		}
	}
	return devs
}

// mount is one line of mountinfo.
type mount struct {
	id     int
	dev    DevNo // st_dev of its files
	source DevNo // the block device it was mounted from, if it was
	point  string
}

// readMounts reads the mounts of this process's namespace
// (Documentation/filesystems/proc.rst, /proc/<pid>/mountinfo).
func readMounts() ([]mount, error) {
	f, err := os.Open(procRoot + "/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mounts []mount
	s := bufio.NewScanner(f)
	for s.Scan() {
		// 36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw
		before, after, ok := strings.Cut(s.Text(), " - ")
		b, a := strings.Fields(before), strings.Fields(after)
		if !ok || len(b) < 5 || len(a) < 2 {
			continue
		}
		m := mount{point: unescape(b[4])}
		if m.id, err = strconv.Atoi(b[0]); err != nil {
			continue
		}
		if m.dev, err = parseDevNo(b[2]); err != nil {
			continue
		}
		m.source, _ = blockNode(unescape(a[1]))
		mounts = append(mounts, m)
	}
	return mounts, s.Err()
}

// blockNode is the number of a device node below /dev. It looks nowhere else:
// a look at a file could wait for the file system that it is in.
func blockNode(path string) (DevNo, bool) {
	var st unix.Stat_t
	if !strings.HasPrefix(path, "/dev/") || unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return DevNo{}, false
	}
	return devNo(st.Rdev), true
}

// unescape undoes the octal escapes of /proc's tables: \040 is a space.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// fileUsers says in words which parts of the kernel use the file at path, which
// has no symbolic links in it: "swap", "loop0". They take no lock.
func fileUsers(path string) []string {
	var users []string
	if slices.Contains(swaps(), path) {
		users = append(users, "swap")
	}
	loops, _ := filepath.Glob(filepath.Join(sysRoot, "block/loop*/loop/backing_file"))
	for _, l := range loops {
		if file, err := os.ReadFile(l); err == nil && strings.TrimSuffix(string(file), "\n") == path {
			users = append(users, filepath.Base(filepath.Dir(filepath.Dir(l))))
		}
	}
	return users
}

// swaps are the paths of the devices and files that are swapped to.
func swaps() []string {
	text, err := os.ReadFile(procRoot + "/swaps")
	if err != nil {
		return nil
	}
	var paths []string
	for line := range strings.Lines(string(text)) {
		if w := strings.Fields(line); len(w) > 1 && strings.HasPrefix(w[0], "/") {
			paths = append(paths, unescape(w[0]))
		}
	}
	return paths
}

// holders are the block devices that are made of devs.
func holders(devs []DevNo) []string {
	var found []string
	for _, d := range devs {
		dir, err := sysDir(d)
		if err != nil {
			continue
		}
		entries, _ := os.ReadDir(filepath.Join(dir, "holders"))
		for _, e := range entries {
			name := e.Name()
			if dm, err := os.ReadFile(filepath.Join(dir, "holders", name, "dm/name")); err == nil {
				name += " (" + strings.TrimSpace(string(dm)) + ")"
			}
			found = append(found, name)
		}
	}
	return found
}

// openers are the processes that have one of devs open.
func openers(devs []DevNo) []int {
	var pids []int
	procs, _ := os.ReadDir(procRoot)
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(procRoot, p.Name(), "fd")
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			link := filepath.Join(dir, fd.Name())
			// Only what looks like a device: a look at another file could wait
			// for the file system that it is in.
			to, err := os.Readlink(link)
			if err != nil || !strings.HasPrefix(to, "/dev/") {
				continue
			}
			var st unix.Stat_t
			if unix.Stat(link, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && slices.Contains(devs, devNo(st.Rdev)) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}
