package device

import (
	"fmt"
	"os"
	"testing"
)

// TestMain lets the test binary be its own helper, as delayd is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "helper" {
		if err := Helper(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
