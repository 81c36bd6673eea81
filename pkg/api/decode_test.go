package api

import (
	"encoding/json"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDecodeSpec(t *testing.T) {
	for _, c := range []struct {
		text, want, hint string
	}{
		{`{"name":"a","backing":"mem:1M","offset":512,"read_only":true}`, "", ""},
		{"", `the body is empty; want a JSON object such as {"name":"slow","backing":"mem:64M","delay":"5ms"}`, ""},
		{" \n", `the body is empty; want a JSON object such as {"name":"slow","backing":"mem:64M","delay":"5ms"}`, ""},
		{`{"name":"a"`, "the JSON ends in the middle", ""},
		{`{"name":"a",}`, "not JSON at byte 13: invalid character '}' looking for beginning of object key string", ""},
		{`[]`, "an array where a JSON object is wanted", ""},
		{`"x"`, "a string where a JSON object is wanted", ""},
		{`{"name":"a"} {}`, "more text after the JSON object, at byte 14", ""},
		{`{"dealy":"5ms"}`, "dealy: unknown field", "did you mean delay?"},
		{`{"read-only":true}`, "read-only: unknown field", "did you mean read_only?"},
		{`{"bogus":1}`, "bogus: unknown field", "the fields are " + strings.Join(SpecFields(), ", ")},
		{`{"delay":5}`, "delay: a number where a string is wanted", `write it in quotes, for example "5ms"`},
		{`{"size":"64M"}`, "size: a string where an integer is wanted", "write a whole number without quotes; sizes are bytes"},
		{`{"size":1.5}`, "size: a number 1.5 where an integer is wanted", "write a whole number without quotes; sizes are bytes"},
		{`{"queues":"auto"}`, "", ""},
		{`{"queues":null}`, "", ""},
		{`{"queues":"many"}`, `queues "many": neither auto nor a whole number`, "want auto, or 1 to the number of CPUs"},
		{`{"queues":1.5}`, `queues "1.5": neither auto nor a whole number`, "want auto, or 1 to the number of CPUs"},
		{`{"queues":-1}`, "queues -1: negative", "want auto, or 1 to the number of CPUs"},
		{`{"queues":[]}`, `queues "[]": neither a number nor a string`, "want auto, or 1 to the number of CPUs"},
		{`{"shared":"yes"}`, "shared: a string where a boolean is wanted", "write true or false without quotes"},
	} {
		_, err := DecodeSpec([]byte(c.text))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want || HintOf(err) != c.hint {
			t.Errorf("%s:\n got %q (hint %q)\nwant %q (hint %q)", c.text, got, HintOf(err), c.want, c.hint)
		}
	}
}

func TestDecodeSpecReadsWhatIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Spec{
			Name: rapid.String().Draw(t, "name"), Backing: rapid.String().Draw(t, "backing"),
			Delay: rapid.String().Draw(t, "delay"), Offset: rapid.Int64().Draw(t, "offset"),
			Queues: Queues(rapid.IntRange(-1, 1<<20).Draw(t, "queues")), ReadOnly: rapid.Bool().Draw(t, "read_only"),
		}
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		out, err := DecodeSpec(text)
		if err != nil || out != in {
			t.Fatalf("%+v came back as %+v, %v", in, out, err)
		}
	})
}

func TestDecodeSpecNeverPanics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if _, err := DecodeSpec(rapid.SliceOf(rapid.Byte()).Draw(t, "text")); err != nil && err.Error() == "" {
			t.Fatal("an error without words")
		}
	})
}

func TestNearest(t *testing.T) {
	for _, c := range []struct {
		typed string
		names []string
		want  string
	}{
		{"slwo", []string{"disk", "slow"}, "slow"},
		{"slow", []string{"slow"}, "slow"},
		{"slo", []string{"slow"}, "slow"},
		{"xlow", []string{"slow"}, "slow"},
		{"disk", []string{"slow"}, ""},
		{"", []string{"slow"}, ""},
		{"a", nil, ""},
		{"backign", []string{"backing"}, "backing"},
		{"db2", []string{"db1", "db3"}, "db1"},
	} {
		if got := Nearest(c.typed, c.names); got != c.want {
			t.Errorf("Nearest(%q, %q) is %q, want %q", c.typed, c.names, got, c.want)
		}
	}
}

func TestDistanceIsSymmetricAndZeroForEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		if distance(a, b) != distance(b, a) || (distance(a, b) == 0) != (a == b) {
			t.Fatalf("distance(%q, %q) is %d, the other way %d", a, b, distance(a, b), distance(b, a))
		}
	})
}

// Every type of problem has a section that its address leads to, and no other.
func TestProblemsAreDescribed(t *testing.T) {
	text, err := os.ReadFile("../../docs/api/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			described[strings.TrimSpace(name)] = true
		}
	}
	known := map[string]bool{}
	for _, kind := range ProblemTypes() {
		known[string(kind)] = true
		p := NewProblem(kind, "x")
		if !p.OfType(kind) || p.Status < 400 || p.Title == "" {
			t.Errorf("%s is %+v", kind, p)
		}
	}
	if diff := cmp.Diff(described, known); diff != "" {
		t.Errorf("described (-) and known (+):\n%s", diff)
	}
	if p := NewProblem("made-up", "x"); !p.OfType(ProblemFailed) {
		t.Errorf("an unknown type is %+v", p)
	}
}

func TestBuild(t *testing.T) {
	info := func(main string, settings ...string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: main}}
		for i := 0; i < len(settings); i += 2 {
			b.Settings = append(b.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return b
	}
	for _, c := range []struct {
		linked          string
		info            *debug.BuildInfo
		version, commit string
	}{
		{"", nil, "devel", ""},
		{"", info("(devel)"), "devel", ""},
		{"", info("v1.0.0"), "v1.0.0", ""},
		{"v1.2.3", info("(devel)", "vcs.revision", "abc", "vcs.modified", "false"), "v1.2.3", "abc"},
		{"", info("(devel)", "vcs.revision", "abc", "vcs.modified", "true"), "devel", "abc+dirty"},
	} {
		want := Version{Version: c.version, Commit: c.commit, Go: runtime.Version(), API: "v1"}
		if diff := cmp.Diff(want, build(c.linked, c.info)); diff != "" {
			t.Error(diff)
		}
	}
}
