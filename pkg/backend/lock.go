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
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return ""
	}
	f, err := os.Open(procRoot + "/locks")
	if err != nil {
		return ""
	}
	defer f.Close()
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
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
