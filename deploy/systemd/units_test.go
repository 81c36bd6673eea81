// Package systemd holds the units, and the test that systemd accepts them.
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// units are the files, and the names under which systemd is asked about them.
var units = map[string]string{
	"delayd.service":  "delayd.service",
	"delayd@.service": "delayd@slow.service",
}

// TestVerify asks systemd-analyze about the units in a root directory that has
// no more than what they refer to, so that nothing of this machine has a say.
func TestVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here (package systemd)")
	}
	out, err := verify(t, analyze, nil)
	if err != nil || out != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestVerifySees proves that the check above finds what it is there for.
func TestVerifySees(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here (package systemd)")
	}
	for old, wrong := range map[string]string{
		"KillMode=mixed":               "KillMode=sometimes",
		"RuntimeDirectoryPreserve=yes": "RuntimeDirectoryPreserved=yes",
		"ExecStart=delayd":             "ExecStart=delayed",
	} {
		out, err := verify(t, analyze, strings.NewReplacer(old, wrong))
		if err == nil && out == "" {
			t.Errorf("%q was accepted", wrong)
		}
	}
}

// verify runs systemd-analyze over the units, changed by edit if there is one.
func verify(t *testing.T, analyze string, edit *strings.Replacer) (string, error) {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string, mode os.FileMode) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/bin/delayd", "#!/bin/sh\n", 0o755)
	write("usr/sbin/modprobe", "#!/bin/sh\n", 0o755)
	for _, target := range []string{"sysinit", "basic", "shutdown", "multi-user"} {
		write("usr/lib/systemd/system/"+target+".target", "[Unit]\nDescription="+target+"\n", 0o644)
	}
	args := []string{"verify", "--man=no", "--recursive-errors=yes", "--root=" + root}
	for file, name := range units {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		unit := string(text)
		if edit != nil {
			unit = edit.Replace(unit)
		}
		write("etc/systemd/system/"+file, unit, 0o644)
		args = append(args, name)
	}
	out, err := exec.Command(analyze, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
