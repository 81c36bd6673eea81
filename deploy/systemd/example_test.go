package systemd

import (
	"testing"

	"github.com/delayd/delayd/pkg/config"
)

// TestExample reads the example as the daemon would.
func TestExample(t *testing.T) {
	specs, err := config.Load("example.toml")
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) != 1 {
		t.Fatalf("%d devices", len(specs))
	}
	s := specs[0]
	if s.Name != "slow" || s.Backing != "mem:64MiB" || s.Delay != "2ms" || s.Flush != "20ms" {
		t.Errorf("%+v", s)
	}
}
