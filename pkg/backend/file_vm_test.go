package backend

import (
	"testing"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/test/fixture"
)

// TestFileOnVMFileSystems covers what this machine's own file systems do not:
// 4096-byte sectors below, and a file system that cannot do direct I/O to this
// file.
func TestFileOnVMFileSystems(t *testing.T) {
	for _, tc := range []struct {
		name   string
		attrs  fixture.NullBlkAttrs
		data   string
		lb     uint32
		direct bool
	}{
		{"direct, 512", fixture.MemoryBacked(64), "", 512, true},
		{"direct, 4096", fixture.MemoryBacked(64).With("blocksize", 4096), "", 4096, true},
		{"journalled data", fixture.MemoryBacked(64), "data=journal", 512, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.lb == 512 {
				tc.attrs = tc.attrs.With("blocksize", 512)
			}
			n := disk(t, tc.attrs)
			fixture.For(t).Mkfs("ext4", n.Path, "-q")
			m, err := fixture.NewMount(n.Path, "", "ext4", 0, tc.data)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			path := tempFile(t, m.Dir, modelSize)
			b := open(t, path, Options{})
			if l := b.Limits(); l.LogicalBlock != tc.lb || isDirect(t, b) != tc.direct || l.Discard.MaxBytes == 0 {
				t.Errorf("direct %v, limits %+v", isDirect(t, b), l)
			}
			// A flush of either reaches the disk below.
			d := newDriver(t, 64<<10)
			before := stat(t, n.Name, statWriteSectors)
			if res := d.write(b, 0, pattern(64<<10, 3), false); res != 64<<10 {
				t.Fatal(errno(res))
			}
			if res := d.do(b, &Request{Op: op.Flush}); res != 0 {
				t.Fatal(errno(res))
			}
			if got := stat(t, n.Name, statWriteSectors) - before; got < 128 {
				t.Errorf("%d sectors written to the disk after a flush, want at least 128", got)
			}
			modelCheck(t, path, Options{Shared: true})
		})
	}
}
