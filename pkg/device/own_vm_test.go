package device

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/delayd/delayd/test/fixture"
)

// A device cannot be made of a device of the same daemon, nor of a file on one.
func TestPromise7OwnDeviceIsRefused(t *testing.T) {
	h := newHost(t)
	d := start(t, h, Spec{Backing: "mem:64M"})
	_, err := h.Start(limit(t), Spec{Name: "on-own", Backing: d.Info().Path})
	if !errors.Is(err, ErrOwnDevice) {
		t.Errorf("a device on %s: %v, want ErrOwnDevice", d.Info().Path, err)
	}
	fixture.For(t).Mkfs("ext4", d.Info().Path)
	m := fixture.For(t).Mount(d.Info().Path, "ext4")
	file := filepath.Join(m.Dir, "backing")
	must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	if _, err := h.Start(limit(t), Spec{Name: "in-own", Backing: file}); !errors.Is(err, ErrOwnDevice) {
		t.Errorf("a device in a file on %s: %v, want ErrOwnDevice", d.Info().Path, err)
	}
	users, err := d.Users()
	must(t, err)
	if len(users) != 1 || users[0] != "mounted on "+m.Dir {
		t.Errorf("users %q, want the mount on %s", users, m.Dir)
	}
	must(t, m.Close())
}
