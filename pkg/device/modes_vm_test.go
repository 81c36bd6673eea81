package device

import (
	"testing"

	"github.com/delayd/delayd/test/fixture"
)

// inEveryMode runs a test on a backing of n zero bytes that can be read behind
// the device, once for each way in which requests come to a backing. The Spec
// that the test gets has the backing and what the way asks for.
func inEveryMode(t *testing.T, n int64, test func(t *testing.T, s Spec)) {
	for _, m := range []struct {
		name string
		spec func(t *testing.T) Spec
	}{
		// Without copying, where the kernel can.
		{"file", func(t *testing.T) Spec { return Spec{Backing: tempFile(t, n)} }},
		{"copying", func(t *testing.T) Spec { return Spec{Backing: tempFile(t, n), ZeroCopy: Off} }},
		{"polled", func(t *testing.T) Spec {
			disk := fixture.For(t).Filled(fixture.Polled(int(n>>20)).With("discard", true))
			return Spec{Backing: disk.Path, Poll: true}
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			newHost(t) // skips before anything is made
			s := m.spec(t)
			test(t, s)
		})
	}
}
