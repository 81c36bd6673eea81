package device

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestSetScheduler(t *testing.T) {
	sysfs := t.TempDir()
	file := filepath.Join(sysfs, "ublkb0/queue/scheduler")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := setScheduler(sysfs, "ublkb0", "none"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "none" {
		t.Errorf("wrote %q, %v", text, err)
	}
	if err := setScheduler(sysfs, "ublkb1", "none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(sysfs, "ublkb1")); err == nil {
		t.Error("it was made")
	}
	if err := setScheduler(sysfs, "../x", "none"); err == nil || err.Error() != `set the scheduler: "../x" is not the name of a disk` {
		t.Errorf("got %v", err)
	}
}

func TestRescanOfWhatIsNoDisk(t *testing.T) {
	for path, want := range map[string]string{
		"/dev/null": "read the partitions of /dev/null: inappropriate ioctl for device",
		"/dev/none": "read the partitions: open /dev/none: no such file or directory",
	} {
		if err := rescan(path); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
