package backend

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// procRoot is where procfs is; tests use a tree of their own.
var procRoot = "/proc"

// lockFile locks an open file for as long as it is open; how is LOCK_EX or
// LOCK_SH. The error names the process that has it, where it can be seen, and
// ends with hint: what to do about it.
func lockFile(spec, path string, fd int, how int, hint string) error {
	err := unix.Flock(fd, how|unix.LOCK_NB)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("backing %s: lock %s: %w%s: %s",
			spec, path, ErrInUse, lockHolder(fd), hint)
	}
	return fmt.Errorf("backing %s: lock %s: %w: %s", spec, path, err, hint)
}

// lockHolder says who has a lock on the file behind fd, as " by NAME (pid N)",
// or nothing if that cannot be seen.
func lockHolder(fd int) string {
	want := lockKey(fd)
	f, err := os.Open(procRoot + "/locks")
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 1234 fd:00:131 0 EOF
		w := strings.Fields(s.Text())
		if len(w) >= 6 && w[1] == "FLOCK" && w[5] == want {
			if pid, err := strconv.Atoi(w[4]); err == nil && pid > 0 {
				return " by " + processName(pid)
			}
		}
	}
	return ""
}

// lockKey is how /proc/locks names the file behind fd: by its file system's own
// device number (fs/locks.c, lock_get_status). That of stat differs on btrfs
// and overlayfs, so it comes from the mount that fd was opened through.
func lockKey(fd int) string {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return ""
	}
	dev, ino := devNo(st.Dev), st.Ino
	info, _ := os.ReadFile(fmt.Sprintf("%s/self/fdinfo/%d", procRoot, fd))
	id := 0
	for line := range strings.Lines(string(info)) {
		// Other lines are not of these forms, and change nothing.
		_, _ = fmt.Sscanf(line, "mnt_id: %d", &id)
		_, _ = fmt.Sscanf(line, "ino: %d", &ino)
	}
	if mounts, err := readMounts(); err == nil {
		for _, m := range mounts {
			if m.id == id {
				dev = m.dev
			}
		}
	}
	return fmt.Sprintf("%02x:%02x:%d", dev.Major, dev.Minor, ino)
}

// processName is "fio (pid 123)", or "process 123" if its name cannot be read.
func processName(pid int) string {
	if pid == os.Getpid() {
		return fmt.Sprintf("this process (pid %d)", pid)
	}
	comm, err := os.ReadFile(fmt.Sprintf("%s/%d/comm", procRoot, pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(comm)), pid)
}
