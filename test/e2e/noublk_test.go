package e2e

import (
	"os"
	"testing"
)

// Promise 8: a kernel without ublk. It runs only where that is promised
// (DELAYD_EXPECT_NO_UBLK=1): everywhere else a test of this would pass or be
// skipped for the wrong reason.
//
//	DELAYD_EXPECT_NO_UBLK=1 go test -run TestPromise8NoUblk \
//	    -exec "$PWD/test/vm/run --kernel 6.12 --no-ublk --" ./test/e2e
func TestPromise8NoUblk(t *testing.T) {
	if os.Getenv("DELAYD_EXPECT_NO_UBLK") != "1" {
		t.Skip("needs a kernel without ublk, and to be told so by DELAYD_EXPECT_NO_UBLK=1")
	}
	if _, err := os.Stat("/dev/ublk-control"); err == nil {
		t.Fatal("DELAYD_EXPECT_NO_UBLK=1, but there is /dev/ublk-control")
	}
	p := newPlace(t)
	for name, args := range map[string][]string{
		"manager": p.args(),
		"file":    p.args("--config", deviceFile(t)),
	} {
		t.Run(name, func(t *testing.T) {
			text, code := attempt{args: args}.run(t)
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			says(t, "delayd", text, "no ublk driver", "/dev/ublk-control is missing", "modprobe ublk_drv", "CONFIG_BLK_DEV_UBLK")
			p.untouched(t)
		})
	}
}

func deviceFile(t *testing.T) string {
	path := t.TempDir() + "/slow.toml"
	must(t, os.WriteFile(path, []byte("backing = \"mem:1M\"\ndelay = \"5ms\"\n"), 0o600))
	return path
}
