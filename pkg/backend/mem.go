package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/size"
	"github.com/delayd/delayd/pkg/uring"
)

// memory is a mem: backing: a file of its own in shared memory, so that it
// outlives a killed daemon. Reads, writes and zeroing are copies to and from a
// mapping of it, done at once. A first touch of a page that shared memory has
// no room for faults; the request then goes through the ring, where the kernel
// says ENOSPC to a write and gives a read its zeroes without a page.
type memory struct {
	base
	path string
	mem  []byte // the whole file
}

// memDir is where the files are; tests use a directory of their own.
var memDir = "/dev/shm"

const useAnotherName = "give the device another name"

func init() {
	register(kind{form: "mem:SIZE", prefix: "mem:", open: openMem, remove: removeMem})
}

// parseSize reads the size after "mem:" or "null:".
func parseSize(spec, s string) (int64, error) {
	n, err := size.Parse(s)
	if err != nil {
		return 0, fmt.Errorf("backing %s: %w", spec, err)
	}
	return n, nil
}

// memoryLimits are those of a backing that is not a disk.
func memoryLimits() Limits {
	page := uint32(os.Getpagesize())
	l := Limits{
		LogicalBlock: sector, PhysicalBlock: page, IOMin: page,
		Discard:             Discard{MaxBytes: clamp32(1<<32, page), Granularity: page, MaxSegments: 1},
		WriteZeroesMaxBytes: clamp32(1<<32, page),
	}
	l.setMaxIO(defaultMaxIO)
	return l
}

func openMem(spec string, o Options) (Backend, error) {
	total, err := parseSize(spec, strings.TrimPrefix(spec, "mem:"))
	if err != nil {
		return nil, err
	}
	if o.Name == "" || strings.ContainsAny(o.Name+o.Owner, "/\x00") {
		return nil, fmt.Errorf("backing %s: device name %q and owner %q cannot name its file", spec, o.Name, o.Owner)
	}
	l := memoryLimits()
	offset, err := l.selectPart(spec, total, o)
	if err != nil {
		return nil, err
	}
	if o.ReadOnly {
		l.setReadOnly()
	}
	if err := mapZeroes(); err != nil {
		return nil, err
	}
	if err := checkRoom(spec, total); err != nil {
		return nil, err
	}
	m := &memory{path: memPath(o)}
	m.base = base{spec: spec, limits: l, fd: -1, offset: offset, align: 1}
	if m.fd, err = createMemFile(spec, m.path); err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(m.fd, total); err != nil {
		return nil, errors.Join(fmt.Errorf("set the size of %s to %d for backing %s: %w", m.path, total, spec, err), m.Close())
	}
	m.mem, err = unix.Mmap(m.fd, 0, int(total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map %s for backing %s: %w", m.path, spec, err), m.Close())
	}
	return m, nil
}

// memPath names the file of a device.
func memPath(o Options) string {
	name := "delayd-" + o.Name
	if o.Owner != "" {
		// A colon is in no name, so two owners' devices never share a file.
		name = "delayd-" + o.Owner + ":" + o.Name
	}
	return filepath.Join(memDir, name)
}

// checkRoom refuses what shared memory cannot hold now. It can still fill up
// later; then writes get ENOSPC.
func checkRoom(spec string, total int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(memDir, &fs); err != nil {
		return fmt.Errorf("backing %s: look at the space in %s: %w", spec, memDir, err)
	}
	all, free := int64(fs.Blocks)*fs.Bsize, int64(fs.Bavail)*fs.Bsize
	if fs.Blocks != 0 && total > free { // 0 blocks: a tmpfs without a limit
		return fmt.Errorf("backing %s: %s has %s free of %s: ask for less, delete something there, or mount -o remount,size=… %s: %w",
			spec, memDir, size.Format(free), size.Format(all), memDir, unix.ENOSPC)
	}
	return nil
}

// createMemFile makes a new file that only its owner can open, and locks it. A
// file of that name that nobody locks was left by a dead daemon; it goes.
func createMemFile(spec, path string) (int, error) {
	const flags = unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW
	fd, err := unix.Open(path, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
	if errors.Is(err, unix.EEXIST) {
		old, busy := removeMemFile(spec, path)
		if busy != nil {
			return -1, busy
		}
		// Held until the new one is locked, so that of two who do this at once
		// only one goes on.
		defer unix.Close(old)
		fd, err = unix.Open(path, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
	}
	if err != nil {
		return -1, fmt.Errorf("backing %s: create %s: %w", spec, path, err)
	}
	if err := lockFile(spec, path, fd, unix.LOCK_EX, useAnotherName); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// removeMemFile removes a file that a daemon which is gone has left, and returns
// it locked: nobody else may take the name until it is closed.
func removeMemFile(spec, path string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("backing %s: open %s, which exists already: %w", spec, path, err)
	}
	if err = lockFile(spec, path, fd, unix.LOCK_EX, useAnotherName); err == nil {
		if err = unix.Unlink(path); err != nil {
			err = fmt.Errorf("backing %s: remove %s, left by a daemon that is gone: %w", spec, path, err)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// removeMem is the kind's remove.
func removeMem(spec string, o Options) error {
	fd, err := removeMemFile(spec, memPath(o))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (m *memory) Inline(r *Request) bool {
	if m.refuse(r) {
		return true
	}
	switch r.Op {
	case op.Flush:
		return r.finish(0)
	case op.Read:
		return guardedCopy(unsafe.Slice((*byte)(r.Buf), r.Length), m.at(r)) && r.finish(int32(r.Length))
	case op.Write:
		return guardedCopy(m.at(r), unsafe.Slice((*byte)(r.Buf), r.Length)) && r.finish(int32(r.Length))
	case op.WriteZeroes:
		return r.NoUnmap && guardedClear(m.at(r)) && r.finish(0)
	}
	return false
}

// at is the memory that r is about.
func (m *memory) at(r *Request) []byte {
	start := m.offset + r.Offset
	return m.mem[start : start+int64(r.Length)]
}

func (m *memory) Prepare(r *Request, sqe *uring.SQE) {
	switch {
	case r.Op == op.Read || r.Op == op.Write:
		r.prepareMove(sqe, m.fd, m.offset)
	case r.Op == op.WriteZeroes && r.NoUnmap:
		r.prepareZeroWrite(sqe, m.fd, m.offset)
	default:
		r.prepareFallocate(sqe, m.fd, m.offset, punchHole)
	}
}

func (m *memory) Complete(r *Request, res int32) bool {
	if r.Op == op.Discard || r.Op == op.WriteZeroes && !r.NoUnmap {
		return r.finished(res)
	}
	return r.moved(res, m.align)
}

// Close removes the file: the bytes are gone.
func (m *memory) Close() error {
	if m.fd < 0 {
		return nil
	}
	var errs []error
	if m.mem != nil {
		if err := unix.Munmap(m.mem); err != nil {
			errs = append(errs, fmt.Errorf("unmap %s: %w", m.path, err))
		}
		m.mem = nil
	}
	// Only while it is still ours.
	var mine, there unix.Stat_t
	if unix.Fstat(m.fd, &mine) == nil && unix.Lstat(m.path, &there) == nil && mine.Ino == there.Ino && mine.Dev == there.Dev {
		if err := unix.Unlink(m.path); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", m.path, err))
		}
	}
	return errors.Join(append(errs, m.base.Close())...)
}

// guardedCopy copies, and says false if a page of dst or src could not be had
// (SIGBUS). What was copied before stays.
func guardedCopy(dst, src []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverFault()
	copy(dst, src)
	return true
}

// guardedClear is guardedCopy of zeroes.
func guardedClear(dst []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverFault()
	clear(dst)
	return true
}

// recoverFault, deferred, turns a memory fault into a plain return.
func recoverFault() {
	switch e := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }: // runtime/debug.SetPanicOnFault
	default:
		panic(e)
	}
}

// ZeroCopy: shared memory has no I/O that does not wait, so that a ring hands
// every request to a worker thread: a single small one takes twice as long as
// with the copy.
func (m *memory) ZeroCopy() error {
	return fmt.Errorf("backing %s: its bytes are copied by the daemon, which cannot see the request's own pages", m.spec)
}
