package device

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	r, err := openRecords(dir, "me")
	must(t, err)
	if _, err := openRecords(dir, "me"); err == nil || !strings.Contains(err.Error(), `owner "me" has a daemon already`) {
		t.Errorf("a second daemon of the same owner: %v", err)
	}
	other, err := openRecords(dir, "you")
	must(t, err)
	must(t, other.close())

	want := []record{{Version: recordVersion, Name: "a", Nonce: newNonce(), Backing: "mem:1M"}, {Version: recordVersion, Name: "b.c", Nonce: newNonce(), Backing: "/dev/sdb"}}
	for _, rec := range want {
		must(t, r.write(rec))
	}
	if err := r.write(want[0]); err == nil || !strings.Contains(err.Error(), "has a record already") {
		t.Errorf("a second record of one name: %v", err)
	}
	got, err := r.all()
	must(t, err)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	info, err := os.Stat(r.path("a"))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("a record has mode %v, want 0600", info.Mode().Perm())
	}
	for _, rec := range want {
		must(t, r.remove(rec.Name))
		must(t, r.remove(rec.Name)) // twice is no error
	}
	must(t, r.close())
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A record that cannot be read is named, and does not hide the others.
func TestRecordsThatAreBad(t *testing.T) {
	r, err := openRecords(t.TempDir(), "me")
	must(t, err)
	defer r.close()
	good := record{Version: recordVersion, Name: "good", Nonce: 2}
	must(t, r.write(good))
	for name, text := range map[string]string{
		"half":    `{"version":1,"name":"ha`,
		"old":     `{"version":0,"name":"old","nonce":2}`,
		"renamed": `{"version":1,"name":"other","nonce":2}`,
	} {
		must(t, os.WriteFile(r.path(name), []byte(text), 0o600))
	}
	got, err := r.all()
	if d := cmp.Diff([]record{good}, got); d != "" {
		t.Error(d)
	}
	for _, name := range []string{"half", "old", "renamed"} {
		if err == nil || !strings.Contains(err.Error(), filepath.Base(r.path(name))) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
}

// What was half written when a daemon was killed goes with the next start.
func TestRecordsHalfWritten(t *testing.T) {
	dir := t.TempDir()
	r, err := openRecords(dir, "me")
	must(t, err)
	for _, path := range []string{r.path("a") + half, r.counters("a") + half} {
		must(t, os.WriteFile(path, []byte("ha"), 0o600))
	}
	must(t, r.lock.Close()) // as a kill does
	r, err = openRecords(dir, "me")
	must(t, err)
	must(t, r.close())
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
