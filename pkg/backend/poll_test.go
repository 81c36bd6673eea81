package backend

import (
	"strings"
	"testing"

	"github.com/delayd/delayd/test/fixture"
)

// TestPollable: what the queue says, which for a partition is its disk's.
func TestPollable(t *testing.T) {
	fakeSys(t, map[string]string{
		"disk/queue/io_poll":    "1\n",
		"disk/part/partition":   "1\n",
		"plain/queue/io_poll":   "0\n",
		"ancient/queue/nothing": "",
		"mapped/queue/io_poll":  "1\n",
		"mapped/dm/name":        "vg-x\n",
	}, map[string]string{"1:0": "disk", "1:1": "disk/part", "2:0": "plain", "3:0": "ancient", "5:0": "mapped"})
	for _, c := range []struct {
		dev  DevNo
		want string
	}{
		{DevNo{1, 0}, ""},
		{DevNo{1, 1}, ""},
		{DevNo{2, 0}, "backing /dev/x has no queues to poll (queue/io_poll is 0)"},
		{DevNo{3, 0}, "backing /dev/x has no queues to poll"},
		{DevNo{5, 0}, "backing /dev/x is a device of the device mapper"},
		{DevNo{4, 0}, "backing /dev/x: ask whether it can be polled: "},
	} {
		err := Pollable(&block{base: base{spec: "/dev/x", fd: -1}, dev: c.dev})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.dev, err, c.want)
		}
	}
	for _, spec := range []string{"mem:1M", "null:1M", tempFile(t, t.TempDir(), 1<<20)} {
		err := Pollable(open(t, spec, Options{Name: "pollable"}))
		if err == nil || !strings.Contains(err.Error(), "is not a block device") {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// TestBlockPollable asks a device that can be polled and one that cannot.
func TestBlockPollable(t *testing.T) {
	for queues, want := range map[int]bool{0: false, 1: true} {
		n := disk(t, fixture.MemoryBacked(1).With("poll_queues", queues))
		if err := Pollable(open(t, n.Path, Options{})); (err == nil) != want {
			t.Errorf("null_blk with %d queues to poll: %v", queues, err)
		}
	}
}
