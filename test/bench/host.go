package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
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
func versions(bin, kublk string) map[string]string {
	v := map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}
	for name, program := range map[string]string{"fio": "fio", "nbdkit": "nbdkit", "delayd": filepath.Join(bin, "delayd")} {
		if out, err := fixture.Command(program, "--version"); err == nil {
			v[name] = versionIn(out)
		}
	}
	// The cache says which source it was built from.
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(kublk), "version")); err == nil {
		v["kublk"] = strings.TrimSpace(string(text))
	}
	return v
}

// versionIn finds the version in what a program says: the first word that begins
// with a digit, after the program's name and a dash if they are glued to it; else
// the last word.
func versionIn(said string) string {
	for _, word := range strings.Fields(said) {
		for _, w := range []string{word, word[strings.IndexByte(word, '-')+1:]} {
			if w != "" && w[0] >= '0' && w[0] <= '9' {
				return w
			}
		}
	}
	if words := strings.Fields(said); len(words) > 0 {
		return words[len(words)-1]
	}
	return "unknown"
}
