package backend

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// driver does requests the way a queue does: inline, or through a ring.
type driver struct {
	t    testing.TB
	ring *uring.Ring
	buf  []byte // outside the Go heap
	sqes int    // entries used since it was last set to 0
}

func newDriver(t testing.TB, bufLen int) *driver {
	t.Helper()
	ring, err := uring.New(uring.Config{Entries: 8})
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, ring: ring, buf: mmap(t, bufLen)}
	t.Cleanup(func() {
		if err := ring.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func mmap(t testing.TB, n int) []byte {
	t.Helper()
	buf, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(buf) })
	return buf
}

// do answers r and returns its result.
func (d *driver) do(b Backend, r *Request) int32 {
	d.t.Helper()
	if b.Inline(r) {
		return r.Result
	}
	for {
		sqe := d.ring.Next()
		b.Prepare(r, sqe)
		if sqe.FD != int32(b.FD()) {
			d.t.Fatalf("entry for fd %d, backing has %d", sqe.FD, b.FD())
		}
		d.sqes++
		if b.Complete(r, d.wait()) {
			return r.Result
		}
	}
}

func (d *driver) wait() int32 {
	d.t.Helper()
	var cqe [1]uring.CQE
	for range 1000 {
		if d.ring.Reap(cqe[:]) == 1 {
			return cqe[0].Res
		}
		if err := d.ring.Wait(1, 10*time.Second, uring.ReleaseP); err != nil {
			d.t.Fatal(err)
		}
	}
	d.t.Fatal("no completion")
	return 0
}

// write writes data at offset through the driver's buffer.
func (d *driver) write(b Backend, offset int64, data []byte, fua bool) int32 {
	copy(d.buf, data)
	return d.do(b, &Request{Op: op.Write, FUA: fua, Offset: offset, Length: uint32(len(data)), Buf: unsafe.Pointer(&d.buf[0])})
}

// read reads n bytes into the driver's buffer.
func (d *driver) read(b Backend, offset int64, n uint32) ([]byte, int32) {
	for i := range d.buf[:n] {
		d.buf[i] = 0xee
	}
	res := d.do(b, &Request{Op: op.Read, Offset: offset, Length: n, Buf: unsafe.Pointer(&d.buf[0])})
	return d.buf[:n], res
}

// errno is a result as the errno that it is, or 0.
func errno(res int32) unix.Errno {
	if res < 0 {
		return unix.Errno(-res)
	}
	return 0
}

// open opens a backing that is closed when the test ends.
func open(t testing.TB, spec string, o Options) Backend {
	t.Helper()
	b, err := Open(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// tempFile is a file of n pseudo-random bytes in dir.
func tempFile(t testing.TB, dir string, n int64) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "delayd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(f.Name()) })
	if _, err := f.Write(pattern(int(n), 7)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// pattern is n bytes that differ from each other and between seeds.
func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i>>9)*31 + byte(i)*7 + seed
	}
	return p
}

// openFDs counts this process's open descriptors.
func openFDs(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// wantError checks that err is there and says every one of want.
func wantError(t testing.TB, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// childEnv, if set, makes this test binary a helper: see TestMain.
const childEnv = "DELAYD_BACKEND_CHILD"

// TestMain also serves as the other process that some tests need: one that
// opens a backing, says how that went, and has it until its input ends.
func TestMain(m *testing.M) {
	spec, ok := os.LookupEnv(childEnv)
	if !ok {
		os.Exit(m.Run())
	}
	if dir := os.Getenv(childEnv + "_MEMDIR"); dir != "" {
		memDir = dir
	}
	b, err := Open(spec, Options{Name: "child"})
	if err != nil {
		fmt.Println(err)
		os.Exit(0)
	}
	fmt.Println("open")
	_, _ = os.Stdin.Read(make([]byte, 1))
	_ = b.Close()
}

// child opens spec in another process and returns what that said: "open" or
// its error. With uid it runs as that user.
func child(t *testing.T, spec string, uid uint32) (said string, pid int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+spec, childEnv+"_MEMDIR="+memDir)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, os.ErrPermission) {
			t.Skipf("cannot run a process as user %d: %v", uid, err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("child: %v", err)
		}
	})
	line := make([]byte, 4096)
	n, err := out.Read(line)
	if err != nil {
		t.Fatalf("child said nothing: %v", err)
	}
	return strings.TrimSpace(string(line[:n])), cmd.Process.Pid
}
