package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// thisHost names the machine: processor, CPUs, kernel, system.
func thisHost() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	cpu := valueIn("/proc/cpuinfo", "model name")
	if cpu == "" {
		cpu = runtime.GOARCH
	}
	host := fmt.Sprintf("%s, %d CPUs, Linux %s", cpu, runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]))
	if system := strings.Trim(valueIn("/etc/os-release", "PRETTY_NAME"), `"`); system != "" {
		host += ", " + system
	}
	return host, nil
}

// valueIn finds the first line `KEY : VALUE` or `KEY=VALUE` of a file.
func valueIn(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		name, value, ok := strings.Cut(s.Text(), "=")
		if !ok {
			name, value, _ = strings.Cut(s.Text(), ":")
		}
		if strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// versions are those of the programs that measure and are measured.
func versions() map[string]string {
	v := map[string]string{"go": runtime.Version()}
	for _, name := range []string{"fio", "nbdkit"} {
		if out, err := fixture.Command(name, "--version"); err == nil {
			v[name] = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(out), name+"-"))
		}
	}
	return v
}
