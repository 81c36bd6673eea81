package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// file is a regular file, locked with flock, read and written directly where
// its file system allows, and through the page cache where not. Either way a
// flush is fdatasync and FUA is a synchronous write. Bytes behind the last
// whole block are not part of the device. The file is never grown or truncated.
type file struct {
	base
	punch bool // the file system can make holes
	// noZeroRange is set once the file system said that it cannot zero a range:
	// later requests do not ask again. Any thread.
	noZeroRange atomic.Bool
}

func init() {
	register(kind{form: "a file", mode: fs.FileMode.IsRegular, open: openFile})
}

func openFile(spec string, o Options) (_ Backend, err error) {
	flags, lock := unix.O_RDWR, unix.LOCK_EX
	if o.ReadOnly {
		flags, lock = unix.O_RDONLY, unix.LOCK_SH
	}
	// O_NONBLOCK matters only if a pipe has taken the file's place meanwhile.
	fd, err := unix.Open(spec, flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open backing %s: %w%s", spec, err, openHint(err, o))
	}
	f := &file{base: base{spec: spec, fd: fd}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("backing %s: look at the open file: %w", spec, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("backing %s changed while it was opened: try again", spec)
	}
	// With it io_uring would not wait for a busy file system but say EAGAIN
	// (io_uring/rw.c, io_rw_init_file).
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, fmt.Errorf("backing %s: make it blocking: %w", spec, err)
	}
	if !o.Shared {
		if err := claim(spec, fd, lock); err != nil {
			return nil, err
		}
	}
	if err := mapZeroes(); err != nil {
		return nil, err
	}
	l := fileLimits(fd, devNo(st.Dev))
	f.align = 1
	if d, ok := goDirect(fd); ok {
		f.align = d.offset
		l.LogicalBlock = d.offset
		l.DMAAlignment = d.memory - 1
	} else {
		l.StableWrites = false // the page cache has a copy
	}
	l.PhysicalBlock = max(l.PhysicalBlock, l.LogicalBlock)
	l.IOMin = l.PhysicalBlock
	if f.offset, err = l.selectPart(spec, st.Size, o); err != nil {
		return nil, fmt.Errorf("%w%s", err, growHint(spec, st.Size, l.LogicalBlock))
	}
	if f.punch = !o.ReadOnly && canPunch(fd, st.Size); f.punch {
		l.Discard = Discard{MaxBytes: clamp32(math.MaxUint32, l.PhysicalBlock), Granularity: l.PhysicalBlock, MaxSegments: 1}
		l.WriteZeroesMaxBytes = l.Discard.MaxBytes
		l.shift(f.offset)
	}
	if o.ReadOnly {
		l.setReadOnly()
	}
	f.limits = l
	return f, nil
}

// claim locks the file, and refuses one that the kernel itself uses, which takes
// no lock.
func claim(spec string, fd, lock int) error {
	const hint = "use another file, or pass --shared to insist"
	if path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
		if users := fileUsers(path); len(users) > 0 {
			return fmt.Errorf("backing %s: %w by the kernel (%s): %s", spec, ErrInUse, strings.Join(users, ", "), hint)
		}
	}
	return lockFile(spec, spec, fd, lock, hint)
}

// growHint says what to do about a file that is too small.
func growHint(spec string, have int64, lb uint32) string {
	if have >= int64(lb) {
		return ""
	}
	return fmt.Sprintf(" (truncate -s 1G %s makes it larger)", spec)
}

// fileLimits are those that do not depend on how the file is read. The physical
// block and the unit of a discard are the file system's block.
func fileLimits(fd int, dev DevNo) Limits {
	fsBlock := uint32(4096)
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) == nil && st.Bsize >= sector && st.Bsize <= 64<<10 && isPowerOf2(uint32(st.Bsize)) {
		fsBlock = uint32(st.Bsize)
	}
	l := Limits{
		LogicalBlock: sector, PhysicalBlock: fsBlock,
		VolatileCache: true, FUA: true,
	}
	l.setMaxIO(defaultMaxIO)
	if d, ok := fsDevice(dev); ok {
		l.Rotational, l.StableWrites = diskIs(d)
	}
	return l
}

// canPunch asks whether the file system makes holes, with one behind the end of
// the file, where there is nothing to lose. A file system that cannot says
// EOPNOTSUPP.
func canPunch(fd int, fileSize int64) bool {
	const page = 4096
	start := (fileSize + page - 1) / page * page
	return unix.Fallocate(fd, punchHole, start, page) == nil
}

func (f *file) Inline(r *Request) bool { return f.refuse(r) }

func (f *file) Prepare(r *Request, sqe *uring.SQE) {
	switch r.Op {
	case op.Read, op.Write:
		r.prepareMove(sqe, f.fd, f.offset)
	case op.Flush:
		prepareFlush(sqe, f.fd)
	case op.Discard:
		r.prepareFallocate(sqe, f.fd, f.offset, punchHole)
	case op.WriteZeroes:
		f.prepareZero(r, sqe)
	}
}

// prepareZero asks for zeroes in the best way that is left: a hole if r allows
// one, a zeroed range that stays allocated, zeroes written.
func (f *file) prepareZero(r *Request, sqe *uring.SQE) {
	if r.step == stepFirst && (r.NoUnmap || !f.punch) {
		r.next(stepZeroRange)
	}
	if r.step == stepZeroRange && f.noZeroRange.Load() {
		r.next(stepZeroWrite)
	}
	switch r.step {
	case stepFirst:
		r.prepareFallocate(sqe, f.fd, f.offset, punchHole)
	case stepZeroRange:
		r.prepareFallocate(sqe, f.fd, f.offset, zeroRange)
	case stepZeroWrite:
		r.prepareZeroWrite(sqe, f.fd, f.offset)
	}
}

func (f *file) Complete(r *Request, res int32) bool {
	switch {
	case r.Op == op.Read || r.Op == op.Write || r.step == stepZeroWrite:
		return r.moved(res, f.align)
	case r.step == stepZeroRange && res == -int32(unix.EOPNOTSUPP):
		f.noZeroRange.Store(true)
		r.next(stepZeroWrite)
		return false
	}
	return r.finished(res)
}

// device is the disk of the file system that the file is in.
func (f *file) device() (DevNo, bool) {
	var st unix.Stat_t
	if f.fd < 0 || unix.Fstat(f.fd, &st) != nil {
		return DevNo{}, false
	}
	return fsDevice(devNo(st.Dev))
}

func (f *file) ZeroCopy() error { return f.changing() }
