package backend

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// fakeSys puts a tree in sysfs's place: files with their text, and the
// directories of block devices by number.
func fakeSys(t *testing.T, files, devs map[string]string) {
	t.Helper()
	root := fakeTree(t, files)
	for dev, dir := range devs {
		link := filepath.Join(root, "dev/block", dev)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(root, dir), link); err != nil {
			t.Fatal(err)
		}
	}
	old := sysRoot
	sysRoot = root
	t.Cleanup(func() { sysRoot = old })
}

// fakeProc puts a tree in procfs's place.
func fakeProc(t *testing.T, files map[string]string) string {
	t.Helper()
	old := procRoot
	procRoot = fakeTree(t, files)
	t.Cleanup(func() { procRoot = old })
	return procRoot
}

func fakeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// aDisk is sda with two partitions, of which one is held by a volume that is
// held by another.
func aDisk(t *testing.T) {
	fakeSys(t, map[string]string{
		"block/sda/dev":                       "8:0\n",
		"block/sda/sda1/dev":                  "8:1\n",
		"block/sda/sda1/partition":            "1\n",
		"block/sda/sda2/dev":                  "8:2\n",
		"block/sda/sda2/partition":            "2\n",
		"block/sda/sda2/holders/dm-0/dm/name": "vg-root\n",
		"block/dm-0/dev":                      "254:0\n",
		"block/dm-0/slaves/sda2/dev":          "8:2\n",
		"block/dm-0/holders/dm-1/dev":         "254:1\n",
		"block/dm-1/dev":                      "254:1\n",
		"block/dm-1/slaves/dm-0/dev":          "254:0\n",
		"block/dm-1/slaves/sda1/dev":          "8:1\n",
		"block/loop0/dev":                     "7:0\n",
		"block/loop0/loop/backing_file":       "/no/such/file\n",
		"block/loop1/dev":                     "7:1\n",
		"block/loop1/loop/backing_file":       "/srv/disk.img\n",
		"block/loop2/dev":                     "7:2\n",
		"block/loop2/loop/backing_file":       "/srv/tmp/disk.img\n",
	}, map[string]string{
		"8:0": "block/sda", "8:1": "block/sda/sda1", "8:2": "block/sda/sda2",
		"254:0": "block/dm-0", "254:1": "block/dm-1", "7:0": "block/loop0", "7:1": "block/loop1", "7:2": "block/loop2",
	})
}

func TestDependsOn(t *testing.T) {
	aDisk(t)
	fakeProc(t, map[string]string{"self/mountinfo": `22 1 0:9 / / rw - tmpfs tmpfs rw
23 22 8:1 / /srv rw - ext4 /no/such/node rw
24 23 0:30 / /srv/tmp rw - tmpfs tmpfs rw
`})
	for _, tc := range []struct {
		dev  DevNo
		want []DevNo
	}{
		{DevNo{8, 0}, []DevNo{{8, 0}}},
		{DevNo{8, 1}, []DevNo{{8, 1}, {8, 0}}},
		{DevNo{254, 0}, []DevNo{{254, 0}, {8, 2}, {8, 0}}},
		{DevNo{254, 1}, []DevNo{{254, 1}, {254, 0}, {8, 1}, {8, 2}, {8, 0}}},
		{DevNo{7, 0}, []DevNo{{7, 0}}},
		{DevNo{7, 1}, []DevNo{{7, 1}, {8, 1}, {8, 0}}},
		{DevNo{7, 2}, []DevNo{{7, 2}}},
	} {
		got, err := DependsOn(tc.dev)
		if err != nil {
			t.Errorf("%v: %v", tc.dev, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.dev, diff)
		}
	}
	_, err := DependsOn(DevNo{9, 9})
	wantError(t, err, "find what block device 9:9 depends on")
}

func TestUsers(t *testing.T) {
	aDisk(t)
	fakeProc(t, map[string]string{
		"self/mountinfo": `22 1 8:1 / /boot rw,relatime shared:1 - ext4 /dev/sda1 rw
23 1 8:1 /sub /with\040space rw - ext4 /dev/sda1 rw
24 1 0:30 / /run rw - tmpfs tmpfs rw
25 1 8:2 / /home rw,noatime - xfs /dev/sda2 rw
a line that is none
`,
		"swaps": "Filename Type Size Used Priority\n/no/such/swap partition 1 0 -2\n",
	})
	for _, tc := range []struct {
		dev  DevNo
		want []string
	}{
		{DevNo{8, 0}, []string{"mounted on /boot", "mounted on /with space", "mounted on /home", "holder dm-0 (vg-root)"}},
		{DevNo{8, 1}, []string{"mounted on /boot", "mounted on /with space"}},
		{DevNo{8, 2}, []string{"mounted on /home", "holder dm-0 (vg-root)"}},
		{DevNo{254, 0}, []string{"holder dm-1"}},
		{DevNo{254, 1}, nil},
		{DevNo{9, 9}, nil},
	} {
		if diff := cmp.Diff(tc.want, Users(tc.dev)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.dev, diff)
		}
	}
}

func TestFileUsers(t *testing.T) {
	aDisk(t)
	fakeProc(t, map[string]string{"swaps": "Filename Type Size Used Priority\n/swap\\040file file 1 0 -2\n"})
	for path, want := range map[string][]string{
		"/swap file": {"swap"}, "/srv/disk.img": {"loop1"}, "/srv/other": nil,
	} {
		if diff := cmp.Diff(want, fileUsers(path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func TestFSDevice(t *testing.T) {
	aDisk(t)
	fakeProc(t, map[string]string{"self/mountinfo": "24 1 0:30 / /run rw - tmpfs tmpfs rw\n"})
	for _, tc := range []struct {
		dev DevNo
		ok  bool
	}{{DevNo{8, 1}, true}, {DevNo{0, 30}, false}, {DevNo{0, 31}, false}, {DevNo{8, 99}, false}} {
		if got, ok := fsDevice(tc.dev); ok != tc.ok || ok && got != tc.dev {
			t.Errorf("%v: %v, %v, want %v", tc.dev, got, ok, tc.ok)
		}
	}
}

func TestLockHolder(t *testing.T) {
	f, err := os.Open(tempFile(t, t.TempDir(), 512))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := lockHolder(int(f.Fd())); got != " by "+processName(os.Getpid()) {
		t.Errorf("the kernel's own table: %q", got)
	}
	fakeProc(t, map[string]string{"locks": "1: POSIX  ADVISORY  WRITE 1 00:01:2 0 EOF\nnonsense\n"})
	if got := lockHolder(int(f.Fd())); got != "" {
		t.Errorf("another's lock: %q", got)
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		`/a`: "/a", `/a\040b`: "/a b", `\134`: `\`, `\0`: `\0`, `\999`: `\999`, `/x\011`: "/x\t", ``: "",
	} {
		if got := unescape(in); got != want {
			t.Errorf("unescape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestParseDevNo(t *testing.T) {
	if d, err := parseDevNo("253:17\n"); err != nil || d != (DevNo{253, 17}) {
		t.Errorf("%v, %v", d, err)
	}
	for _, bad := range []string{"", "8", "8:", ":1", "a:b", "8:-1", "8:1:2"} {
		if d, err := parseDevNo(bad); err == nil {
			t.Errorf("parseDevNo(%q) = %v", bad, d)
		}
	}
}
