package uring

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childEnv names, in the environment of a copy of this program, which of
// children it is.
const childEnv = "URING_TEST_CHILD"

var children = map[string]func() error{
	"EPERM":  func() error { return denied(unix.EPERM) },
	"ENOSYS": func() error { return denied(unix.ENOSYS) },
	"new": func() error {
		r, err := New(queueConfig)
		if err != nil {
			return err
		}
		return r.Close()
	},
}

// exitNoSeccomp tells that the kernel has no seccomp filters.
const exitNoSeccomp = 42

// denied denies this process io_uring_setup(2) as a container's seccomp profile
// does, and returns what New makes of it.
func denied(errno unix.Errno) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(errno)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                 // SECCOMP_RET_ALLOW
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const setModeFilter, tsync = 1, 1
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, tsync, uintptr(unsafe.Pointer(&prog))); e != 0 {
		fmt.Println("seccomp:", e)
		os.Exit(exitNoSeccomp)
	}
	r, err := New(queueConfig)
	if err == nil {
		r.Close()
		return nil
	}
	if Supported(OpNop) {
		return errors.New("operations are supported without a ring")
	}
	if _, probeErr := Probe(); !errors.Is(probeErr, errors.Unwrap(err)) && !errors.Is(probeErr, errno) {
		return fmt.Errorf("probe said %w", probeErr)
	}
	return err
}

// child runs one of children and returns what it printed and how it ended.
func child(t *testing.T, name string) (string, int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestDeniedByPolicy(t *testing.T) {
	for name, says := range map[string]string{
		"EPERM":  "io_uring is forbidden: a security policy denies io_uring_setup(2)",
		"ENOSYS": "want Linux 5.11 or later with CONFIG_IO_URING: not supported by this kernel",
	} {
		t.Run(name, func(t *testing.T) {
			out, code := child(t, name)
			if code == exitNoSeccomp {
				t.Skip("no seccomp filters in this kernel: ", out)
			}
			if code != 1 || !strings.Contains(out, says) {
				t.Errorf("exit code %d, %s", code, out)
			}
		})
	}
}

// The sysctl is the whole machine's, so this runs only in a guest.
func TestDisabledBySysctl(t *testing.T) {
	if !inVM() {
		t.Skip("would forbid io_uring to the whole machine: runs in test/vm/run only")
	}
	if _, err := os.Stat(disabledPath); err != nil {
		t.Skip("this kernel has no such sysctl: ", err)
	}
	must(t, os.WriteFile(disabledPath, []byte("2"), 0))
	defer os.WriteFile(disabledPath, []byte("0"), 0)
	out, code := child(t, "new")
	if want := "sysctl kernel.io_uring_disabled is 2 (nobody may); set it with"; code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit code %d, %s", code, out)
	}
}
