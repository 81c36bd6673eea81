package uring

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func iovec(b []byte) unix.Iovec {
	return unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))}
}

// tempFile is a file with content.
func tempFile(t *testing.T, content []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, content, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestFixedFileAndBuffer(t *testing.T) {
	for _, name := range []string{"plain", "queue", "queue, large"} {
		t.Run(name, func(t *testing.T) {
			r := open(t, configs[name])
			f := tempFile(t, bytes.Repeat([]byte("0123456789abcdef"), 512))
			must(t, r.RegisterFiles([]int32{-1, -1, int32(f.Fd()), -1}))
			mem := memory(t, 3*4096)
			for i := range mem {
				mem[i] = byte(i * 7)
			}
			must(t, r.RegisterBuffers([]unix.Iovec{iovec(mem[:4096]), iovec(mem[4096:])}))

			write := next(t, r)
			write.Opcode, write.Flags, write.FD = OpWriteFixed, FlagFixedFile|FlagIOLink, 2
			write.Addr, write.Len, write.Off, write.BufIndex, write.UserData = addr(mem[4096:]), 8192, 4096, 1, 1
			sync := next(t, r)
			sync.Opcode, sync.Flags, sync.FD, sync.OpFlags, sync.UserData = OpFsync, FlagFixedFile|FlagIOLink, 2, FsyncDatasync, 2
			read := next(t, r)
			read.Opcode, read.Flags, read.FD = OpReadFixed, FlagFixedFile, 2
			read.Addr, read.Len, read.Off, read.BufIndex, read.UserData = addr(mem), 4096, 8192, 0, 3
			for i, c := range collect(t, r, 3) {
				if want := (CQE{UserData: uint64(i + 1), Res: []int32{8192, 0, 4096}[i]}); c != want {
					t.Errorf("got %+v, want %+v", c, want)
				}
			}
			if !bytes.Equal(mem[:4096], mem[8192:]) {
				t.Error("read what was not written")
			}
			got, err := os.ReadFile(f.Name())
			must(t, err)
			if len(got) != 4096+8192 || !bytes.Equal(got[4096:], mem[4096:]) || string(got[:16]) != "0123456789abcdef" {
				t.Errorf("the file has %d bytes, %.32q…", len(got), got)
			}

			for _, c := range []struct {
				what string
				slot int32
				buf  uint16
				addr uint64
				want syscall.Errno
			}{
				{"empty file slot", 1, 0, addr(mem), unix.EBADF},
				{"file slot beyond the table", 4, 0, addr(mem), unix.EBADF},
				{"buffer slot beyond the table", 2, 2, addr(mem), unix.EFAULT},
				{"address outside the buffer", 2, 0, addr(mem[4096:]), unix.EFAULT},
			} {
				s := next(t, r)
				s.Opcode, s.Flags, s.FD, s.BufIndex, s.Addr, s.Len = OpReadFixed, FlagFixedFile, c.slot, c.buf, c.addr, 512
				if got := one(t, r).Res; got != -int32(c.want) {
					t.Errorf("%s: %d, want %v", c.what, got, c.want)
				}
			}
			must(t, r.UnregisterBuffers())
			must(t, r.UnregisterFiles())
		})
	}
}

// readByte reads the first byte of a file slot into a buffer slot.
func readByte(t *testing.T, r *Ring, slot int32, buf uint16, mem []byte) (byte, int32) {
	t.Helper()
	mem[0] = 0
	s := next(t, r)
	s.Opcode, s.Flags, s.FD, s.BufIndex, s.Addr, s.Len = OpReadFixed, FlagFixedFile, slot, buf, addr(mem), 1
	res := one(t, r).Res
	return mem[0], res
}

func TestUpdateFile(t *testing.T) {
	r := open(t, queueConfig)
	a, b := tempFile(t, []byte("a")), tempFile(t, []byte("b"))
	mem := memory(t, 4096)
	must(t, r.RegisterBuffers([]unix.Iovec{iovec(mem)}))
	must(t, r.RegisterFiles([]int32{-1, int32(a.Fd())}))
	expect := func(slot int32, want byte, res int32) {
		t.Helper()
		if got, n := readByte(t, r, slot, 0, mem); got != want || n != res {
			t.Errorf("slot %d: read %q, %d; want %q, %d", slot, got, n, want, res)
		}
	}
	expect(0, 0, -int32(unix.EBADF))
	expect(1, 'a', 1)
	must(t, r.UpdateFile(0, int32(b.Fd())))
	expect(0, 'b', 1)
	must(t, r.UpdateFile(1, int32(b.Fd())))
	expect(1, 'b', 1)
	// The table's reference outlives the descriptor.
	must(t, b.Close())
	expect(0, 'b', 1)
	must(t, r.UpdateFile(0, -1))
	expect(0, 0, -int32(unix.EBADF))
	expect(1, 'b', 1)
}

func TestSparseBuffers(t *testing.T) {
	r := open(t, queueConfig)
	f := tempFile(t, []byte("x"))
	must(t, r.RegisterFiles([]int32{int32(f.Fd())}))
	mem := memory(t, 4096)
	must(t, r.RegisterBuffersSparse(1024))
	if _, n := readByte(t, r, 0, 1023, mem); n != -int32(unix.EFAULT) {
		t.Errorf("empty slot: %d", n)
	}
	must(t, r.UpdateBuffer(1023, iovec(mem)))
	if got, n := readByte(t, r, 0, 1023, mem); got != 'x' || n != 1 {
		t.Errorf("filled slot: %q, %d", got, n)
	}
	must(t, r.UpdateBuffer(1023, unix.Iovec{}))
	if _, n := readByte(t, r, 0, 1023, mem); n != -int32(unix.EFAULT) {
		t.Errorf("emptied slot: %d", n)
	}
	must(t, r.UnregisterBuffers())
}

func TestRegisterErrors(t *testing.T) {
	r := open(t, queueConfig)
	mem := memory(t, 4096)
	closed, err := unix.Dup(0)
	must(t, err)
	unix.Close(closed)
	unmapped := memory(t, 4096)
	must(t, unix.Mprotect(unmapped, unix.PROT_NONE))

	for _, c := range []struct {
		what string
		f    func() error
		is   error
		says string
	}{
		{"no files", func() error { return r.RegisterFiles(nil) }, nil, "want one or more"},
		{"no buffers", func() error { return r.RegisterBuffers(nil) }, nil, "want one or more"},
		{"no empty buffers", func() error { return r.RegisterBuffersSparse(0) }, nil, "register 0 empty buffers"},
		{"too many empty buffers", func() error { return r.RegisterBuffersSparse(1 << 20) }, unix.EINVAL, "1048576 empty buffers"},
		{"no table to unregister", r.UnregisterFiles, unix.ENXIO, "unregister the files"},
		{"no buffers to unregister", r.UnregisterBuffers, unix.ENXIO, "unregister the buffers"},
		{"no table to update", func() error { return r.UpdateFile(0, 0) }, unix.ENXIO, "file 0 into slot 0"},
		{"no buffers to update", func() error { return r.UpdateBuffer(0, iovec(mem)) }, unix.ENXIO, "slot 0"},
		{"closed file", func() error { return r.RegisterFiles([]int32{int32(closed)}) }, unix.EBADF, "register 1 files"},
		{"inaccessible buffer", func() error { return r.RegisterBuffers([]unix.Iovec{iovec(unmapped)}) }, unix.EFAULT, "register 1 buffers"},
		{"files", func() error { return r.RegisterFiles([]int32{0, -1}) }, nil, ""},
		{"files twice", func() error { return r.RegisterFiles([]int32{0}) }, unix.EBUSY, "register 1 files"},
		{"slot beyond the table", func() error { return r.UpdateFile(2, 0) }, unix.EINVAL, "file 0 into slot 2"},
		{"negative slot", func() error { return r.UpdateFile(-1, 0) }, unix.EINVAL, "slot -1"},
		{"update to a closed file", func() error { return r.UpdateFile(0, int32(closed)) }, unix.EBADF, "slot 0"},
		{"buffers", func() error { return r.RegisterBuffers([]unix.Iovec{iovec(mem)}) }, nil, ""},
		{"buffers twice", func() error { return r.RegisterBuffersSparse(1) }, unix.EBUSY, "register 1 empty buffers"},
		{"buffer slot beyond the table", func() error { return r.UpdateBuffer(1, iovec(mem)) }, unix.EINVAL, "slot 1"},
		{"negative buffer slot", func() error { return r.UpdateBuffer(-1, iovec(mem)) }, unix.EINVAL, "slot -1"},
	} {
		err := c.f()
		switch {
		case c.says == "":
			must(t, err)
		case err == nil:
			t.Errorf("%s: no error", c.what)
		case !strings.Contains(err.Error(), c.says) || (c.is != nil && !errors.Is(err, c.is)):
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// An operation with a result in the second half of a 32-byte completion, where
// the kernel has one: IORING_NOP_CQE32 (Linux 6.18) returns sqe.off and
// sqe.addr there.
func TestBigCompletion(t *testing.T) {
	const nopCQE32 = 1 << 5
	r := open(t, configs["queue, large"])
	for i := range uint64(300) {
		s := next(t, r)
		s.OpFlags, s.Off, s.Addr, s.UserData = nopCQE32, i, ^i, i
		must(t, r.Wait(1, -1, HoldP))
		var c [2]BigCQE
		if n := r.ReapBig(c[:]); n != 1 || c[0].UserData != i {
			t.Fatalf("%d completions, %+v", n, c[0])
		}
		if c[0].Res == -int32(unix.EINVAL) {
			t.Skip("this kernel has no NOP with a 32-byte completion (Linux 6.18)")
		}
		if want := (BigCQE{CQE: CQE{UserData: i, Flags: c[0].Flags}, Extra: [2]uint64{i, ^i}}); c[0] != want {
			t.Fatalf("got %+v, want %+v", c[0], want)
		}
	}
}
