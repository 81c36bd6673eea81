// Package e2e tests delayd as a user meets it: the two programs that `make
// build` makes, a real block device between them and an application, and a
// backing that is looked at from the other side.
//
// The tests need a kernel with ublk, and root:
//
//	make build && go test -exec "$PWD/test/vm/run --" ./test/e2e
package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	if name, ok := os.LookupEnv(childEnv); ok {
		child, ok := children[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "there is no child %q\n", name)
			os.Exit(2)
		}
		os.Exit(child(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// childEnv names the function of [children] that the test binary is to be
// instead of running tests: for what must be a process of its own.
const childEnv = "DELAYD_E2E_CHILD"

// children are what the test binary can be; a test file adds its own in an
// init function. A child gets the arguments and returns the exit code.
var children = map[string]func(args []string) int{}

// needUblk skips a test where the kernel has no ublk, unless that is said to be
// a mistake (DELAYD_REQUIRE_UBLK=1).
func needUblk(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/dev/ublk-control"); err != nil {
		if os.Getenv("DELAYD_REQUIRE_UBLK") == "1" {
			t.Fatalf("no ublk here: %v", err)
		}
		t.Skipf("needs a kernel with ublk (run it with test/vm/run): %v", err)
	}
}

// program returns the path of delayd or delayctl: the one that the environment
// names ($DELAYD_BIN, $DELAYCTL_BIN), else that of `make build`.
func program(t testing.TB, name, env string) string {
	t.Helper()
	path := os.Getenv(env)
	if path == "" {
		path = filepath.Join(repository(t), "bin", name)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make build, or set %s", err, env)
	}
	return path
}

// repository returns the folder of go.mod.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d
		}
		if d == filepath.Dir(d) {
			t.Fatalf("no go.mod above %s", dir)
		}
	}
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
