package backend

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// block is a block device, opened exclusively and read and written directly.
type block struct {
	base
	dev DevNo
	// noUnmap is set once the device said that it cannot zero by unmapping:
	// later requests do not ask again. Any thread.
	noUnmap atomic.Bool
}

// cmdDiscard is BLOCK_URING_CMD_DISCARD, _IO(0x12, 0), from Linux 6.12 on
// (include/uapi/linux/blkdev.h). There is no other way to discard through a
// ring that does not promise zeroes.
const cmdDiscard = 0x1200

func init() {
	register(kind{
		form: "a block device",
		mode: func(m fs.FileMode) bool { return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0 },
		open: openBlock,
	})
}

func openBlock(spec string, o Options) (_ Backend, err error) {
	var st unix.Stat_t
	if err := unix.Stat(spec, &st); err != nil {
		return nil, fmt.Errorf("open backing %s: %w", spec, err)
	}
	b := &block{dev: devNo(st.Rdev)}
	l, err := queueLimits(b.dev)
	if err != nil {
		return nil, fmt.Errorf("backing %s: %w", spec, err)
	}
	ro := o.ReadOnly || l.ReadOnly
	fd, err := openDevice(spec, b.dev, ro, o)
	if err != nil {
		return nil, err
	}
	b.base = base{spec: spec, fd: fd, align: l.LogicalBlock}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if err := unix.Fstat(fd, &st); err != nil || devNo(st.Rdev) != b.dev {
		return nil, fmt.Errorf("backing %s changed while it was opened: try again", spec)
	}
	if ro || deviceReadOnly(fd) {
		l.setReadOnly()
	}
	if l.Discard.MaxBytes != 0 {
		able, err := probeDiscard(fd)
		if err != nil {
			return nil, fmt.Errorf("backing %s: ask the kernel for discards: %w", spec, err)
		}
		if !able {
			l.Discard = Discard{}
		}
	}
	total, err := unix.Seek(fd, 0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("backing %s: find its size: %w", spec, err)
	}
	if b.offset, err = l.selectPart(spec, total, o); err != nil {
		return nil, err
	}
	b.limits = l
	return b, nil
}

// openDevice opens a block device directly and, unless it may be shared,
// exclusively. The error tells who has it.
func openDevice(spec string, dev DevNo, ro bool, o Options) (int, error) {
	flags := unix.O_RDWR | unix.O_DIRECT | unix.O_CLOEXEC
	if ro {
		flags = unix.O_RDONLY | unix.O_DIRECT | unix.O_CLOEXEC
	}
	how := ""
	if !o.Shared {
		flags |= unix.O_EXCL
		how = " exclusively"
	}
	fd, err := unix.Open(spec, flags, 0)
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.EBUSY) && !o.Shared:
		who := "its user is not to be seen from here"
		if users := Users(dev); len(users) != 0 {
			who = strings.Join(users, ", ")
		}
		return -1, fmt.Errorf("open %s exclusively: %w (%s): %s, or pass --shared to insist",
			spec, inUse{err}, who, remedy(who))
	}
	return -1, fmt.Errorf("open %s%s: %w%s", spec, how, err, openHint(err, o))
}

// inUse is an errno that is also ErrInUse.
type inUse struct{ error }

func (e inUse) Unwrap() []error { return []error{e.error, ErrInUse} }

// remedy is what to do about the first user.
func remedy(who string) string {
	switch {
	case strings.HasPrefix(who, "mounted"):
		return "unmount it"
	case strings.HasPrefix(who, "swap"):
		return "swapoff it"
	case strings.HasPrefix(who, "holder"):
		return "use or remove its holder"
	case strings.HasPrefix(who, "open"):
		return "end that"
	}
	return "free it"
}

// probeDiscard asks whether the kernel takes discards through a ring, with one
// of no bytes at no block's start: a kernel that knows the command looks at the
// range first and says EINVAL (block/ioctl.c, blkdev_cmd_discard), one before
// 6.12 says EOPNOTSUPP. Nothing is discarded.
func probeDiscard(fd int) (able bool, err error) {
	r, err := uring.New(uring.Config{Entries: 4})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	sqe := r.Next()
	prepareDiscard(sqe, fd, 1, 0)
	var cqe [1]uring.CQE
	for r.Reap(cqe[:]) == 0 {
		if err := r.Wait(1, -1, uring.ReleaseP); err != nil {
			return false, err
		}
	}
	switch e := unix.Errno(-cqe[0].Res); e {
	case unix.EINVAL:
		return true, nil
	case unix.EOPNOTSUPP, unix.ENOTTY:
		return false, nil
	default:
		return false, e
	}
}

func prepareDiscard(sqe *uring.SQE, fd int, start, length uint64) {
	sqe.Opcode = uring.OpURingCmd
	sqe.FD = int32(fd)
	sqe.SetCmdOp(cmdDiscard)
	sqe.Addr = start
	sqe.Addr3 = length
}

func (b *block) Inline(r *Request) bool { return b.refuse(r) }

func (b *block) Prepare(r *Request, sqe *uring.SQE) {
	switch r.Op {
	case op.Read, op.Write:
		r.prepareMove(sqe, b.fd, b.offset)
	case op.Flush:
		prepareFlush(sqe, b.fd)
	case op.Discard:
		prepareDiscard(sqe, b.fd, uint64(b.offset+r.Offset), uint64(r.Length))
	case op.WriteZeroes:
		// block/fops.c, blkdev_fallocate: a punched hole is zeroes that the
		// device may unmap, and nothing else will do; a zeroed range stays
		// mapped, and is written if the device has no command for it.
		if r.step == stepFirst && (r.NoUnmap || b.noUnmap.Load()) {
			r.next(stepZeroRange)
		}
		mode := uint32(punchHole)
		if r.step == stepZeroRange {
			mode = zeroRange
		}
		r.prepareFallocate(sqe, b.fd, b.offset, mode)
	}
}

func (b *block) Complete(r *Request, res int32) bool {
	switch r.Op {
	case op.Read, op.Write:
		return r.moved(res, b.align)
	case op.WriteZeroes:
		if res == -int32(unix.EOPNOTSUPP) && r.step == stepFirst {
			b.noUnmap.Store(true)
			r.next(stepZeroRange)
			return false
		}
	}
	return r.finished(res)
}

func (b *block) device() (DevNo, bool) { return b.dev, true }

func (b *block) ZeroCopy() error { return b.changing() }
