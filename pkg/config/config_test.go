package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/delayd/delayd/pkg/api"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []api.Spec
	}{
		{"one, named for the file", `
backing = "/dev/sdb"
delay = "5ms"
`, []api.Spec{{Name: "slow", Backing: "/dev/sdb", Delay: "5ms"}}},
		{"everything", `
name = "db"
backing = "mem:64M"
delay = "1ms"
read = "2ms"
write = "3ms"
flush = "4ms"
discard = "5ms"
offset = 4096
size = "1.5MiB"
queues = 1
depth = 16
read_only = true
shared = true
hold = "complete"
`, []api.Spec{{
			Name: "db", Backing: "mem:64M", Delay: "1ms", Read: "2ms", Write: "3ms", Flush: "4ms", Discard: "5ms",
			Offset: 4096, Size: 3 << 19, Queues: 1, Depth: 16, ReadOnly: true, Shared: true, Hold: "complete",
		}}},
		{"a relative backing", `backing = "img/disk"`, []api.Spec{{Name: "slow", Backing: "/etc/delayd/img/disk"}}},
		{"several", `
[[device]]
name = "a"
backing = "mem:1M"
[[device]]
name = "b"
backing = "null:1G"
delay = "1s"
`, []api.Spec{{Name: "a", Backing: "mem:1M"}, {Name: "b", Backing: "null:1G", Delay: "1s"}}},
	} {
		got, err := Parse("/etc/delayd/slow.toml", []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
	}
}

// TestRefusals has every refusal with its place and words.
func TestRefusals(t *testing.T) {
	keys := "the keys are " + strings.Join(api.SpecFields(), ", ")
	for _, c := range []struct{ text, want, hint string }{
		{"backing = \"mem:1M\"\ndealy = \"5ms\"\n", "f.toml:2:1: dealy: unknown key", "did you mean delay?"},
		{"backing = \"mem:1M\"\nread-only = true\n", "f.toml:2:1: read-only: unknown key", "did you mean read_only?"},
		{"bogus = 1\n", "f.toml:1:1: bogus: unknown key", keys},
		{"[[device]]\nname = \"a\"\n  bogus = 1\n", "f.toml:3:3: device.bogus: unknown key", keys},
		{"[[devices]]\nname = \"a\"\n", "f.toml:1:3: devices: unknown key", "did you mean device?"},
		{"backing = \n", "f.toml:1:11: ", ""},
		{"delay = 5\nbacking = \"mem:1M\"\n", "f.toml:1:9: ", ""},
		{"backing = \"mem:1M\"\nbacking = \"mem:2M\"\n", "f.toml:2:1: ", ""},
		{"backing = \"mem:1M\"\n\n delay = \"5\"\n", `f.toml:3:2: delay "5": unit missing; did you mean 5ms or 5us?`, ""},
		{"backing = \"mem:1M\"\nsize = \"1X\"\n", `f.toml:2:1: size "1X": unknown unit "X"; type `, ""},
		{"backing = \"mem:1M\"\nsize = 1.5\n", `f.toml:2:1: size "1.5": neither a string nor a whole number`, "write \"64MiB\", or the bytes as a number"},
		{"backing = \"mem:1M\"\noffset = -1\n", "f.toml:2:1: offset -1: negative", "want 0 or more bytes"},
		{"backing = \"mem:1M\"\nname = \"\"\n", "f.toml:2:1: name: empty", "want 1 to 64 of A-Z a-z 0-9 . _ - and neither a dot nor a dash first"},
		{"delay = \"5ms\"\n", "f.toml: backing: missing", `want a block device or file by its absolute path, "mem:SIZE" or "null:SIZE"`},
		{"", "f.toml: backing: missing", `want a block device or file by its absolute path, "mem:SIZE" or "null:SIZE"`},
		{"[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n[[device]]\nbacking = \"mem:1M\"\n", "f.toml:4:3: name: empty", "want 1 to 64 of A-Z a-z 0-9 . _ - and neither a dot nor a dash first"},
		{"[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n", `f.toml:5:1: name "a": taken by [[device]] number 1`, "give each device a name of its own"},
		{"delay = \"5ms\"\n[[device]]\nname = \"a\"\nbacking = \"mem:1M\"\n", "f.toml:1:1: delay: at the top level of a file that has [[device]]", "move it below a [[device]], or write one device without [[device]]"},
	} {
		specs, err := Parse("f.toml", []byte(c.text))
		if err == nil {
			t.Errorf("%q was not refused: %+v", c.text, specs)
			continue
		}
		// Where go-toml has the words, only the place is ours.
		match := err.Error() == c.want
		if strings.HasSuffix(c.want, " ") {
			match = strings.HasPrefix(err.Error(), c.want) && len(err.Error()) > len(c.want)
		}
		if !match || api.HintOf(err) != c.hint {
			t.Errorf("%q:\n got %q (hint %q)\nwant %q (hint %q)", c.text, err, api.HintOf(err), c.want, c.hint)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "my-disk.toml")
	if err := os.WriteFile(path, []byte("backing = \"mem:1M\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]api.Spec{{Name: "my-disk", Backing: "mem:1M"}}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := Load(path + "x"); err == nil || err.Error() != "read the device file: stat "+path+"x: no such file or directory" {
		t.Errorf("got %v", err)
	}
	bad := filepath.Join(t.TempDir(), "my disk.toml")
	if err := os.WriteFile(bad, []byte("backing = \"mem:1M\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(bad); err == nil || err.Error() != bad+`: name "my disk": has " " in it` {
		t.Errorf("got %v", err)
	}
	huge := filepath.Join(t.TempDir(), "huge.toml")
	if err := os.WriteFile(huge, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 1<<30); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(huge); err == nil || err.Error() != huge+": 1073741824 bytes is too long for a device file" {
		t.Errorf("got %v", err)
	}
}

// What Format writes, Parse reads back.
func TestFormatIsReadBack(t *testing.T) {
	delay := rapid.SampledFrom([]string{"", "0", "50us", "1.5ms", "1h0m0s"})
	rapid.Check(t, func(t *rapid.T) {
		in := api.Spec{
			Name:     rapid.StringMatching(`[A-Za-z0-9_][A-Za-z0-9._-]{0,63}`).Draw(t, "name"),
			Backing:  "/" + rapid.StringMatching(`[^\x00]{0,40}`).Draw(t, "backing"),
			Delay:    delay.Draw(t, "delay"),
			Read:     delay.Draw(t, "read"),
			Write:    delay.Draw(t, "write"),
			Flush:    delay.Draw(t, "flush"),
			Discard:  delay.Draw(t, "discard"),
			Offset:   rapid.Int64Range(0, 1<<62).Draw(t, "offset"),
			Size:     rapid.Int64Range(0, 1<<62).Draw(t, "size"),
			Queues:   api.Queues(rapid.IntRange(-1, 1).Draw(t, "queues")),
			Depth:    rapid.IntRange(0, 4096).Draw(t, "depth"),
			ReadOnly: rapid.Bool().Draw(t, "read_only"),
			Shared:   rapid.Bool().Draw(t, "shared"),
			Hold:     rapid.SampledFrom([]string{"", "submit", "complete"}).Draw(t, "hold"),

			Compensate: rapid.SampledFrom([]string{"", "off", "auto", "80us"}).Draw(t, "compensate"),
			Spin:       rapid.SampledFrom([]string{"", "auto", "off", "50us"}).Draw(t, "spin"),
			ZeroCopy:   rapid.SampledFrom([]string{"", "auto", "on", "off"}).Draw(t, "zero_copy"),
			Poll:       rapid.Bool().Draw(t, "poll"),
			Pin:        rapid.Bool().Draw(t, "pin"),
			Realtime:   rapid.IntRange(0, api.MaxRealtime).Draw(t, "realtime"),
		}
		if in.Poll && in.ZeroCopy == "on" {
			in.ZeroCopy = "off" // the two are refused together
		}
		text, err := Format(in)
		if err != nil {
			t.Fatal(err)
		}
		out, err := Parse("other.toml", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if diff := cmp.Diff([]api.Spec{in}, out); diff != "" {
			t.Fatalf("%s\n%s", diff, text)
		}
	})
}

func TestParseNeverPanics(t *testing.T) {
	words := rapid.SampledFrom([]string{"[[device]]\n", "[device]\n", "name", "backing", "size", "=", "\"mem:1M\"", "\"a\"", "1", "\n", "{", "}", "[", "]", ",", "device", ".", "'"})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(words, 0, 20).Draw(t, "words"), " ")
		if _, err := Parse("f.toml", []byte(text)); err != nil && !strings.HasPrefix(err.Error(), "f.toml") {
			t.Fatalf("%q: an error without its file: %v", text, err)
		}
	})
}
