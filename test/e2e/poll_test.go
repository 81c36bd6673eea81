package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delayd/delayd/test/fixture"
)

// A backing that can be polled is, and one that cannot works without; add, show
// and the daemon's log say so.
func TestPollIsSaid(t *testing.T) {
	d := startDaemon(t)
	f := fixture.For(t)
	polled := f.Filled(fixture.Polled(8))
	plain := f.NullBlk(fixture.MemoryBacked(8).With("poll_queues", 0))
	d.add("polled", "--backing", polled.Path, "--poll")
	if s := d.show("polled"); !s.Poll || !s.Polled || len(s.Warnings) != 0 {
		t.Errorf("poll %v, polled %v, warnings %q of a backing that can be polled", s.Poll, s.Polled, s.Warnings)
	}
	const why = "not polled: backing "
	_, warned, code := d.ctl("add", "plain", "--backing", plain.Path, "--poll")
	if code != 0 || !strings.Contains(warned, "delayctl: warning: "+why+plain.Path) {
		t.Errorf("add ended with %d and said %q", code, warned)
	}
	if s := d.show("plain"); !s.Poll || s.Polled || !slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.HasPrefix(w, why) }) {
		t.Errorf("poll %v, polled %v, warnings %q of a backing that cannot be polled", s.Poll, s.Polled, s.Warnings)
	}
	for end := time.Now().Add(10 * time.Second); !strings.Contains(d.log(), "the backing is not polled"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the log does not say it")
		}
	}
	d.del("polled")
	d.del("plain")
}
