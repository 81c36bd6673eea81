// Package backend is where a delayed device's bytes live: a block device, a
// regular file, memory or nowhere. [Open] turns what a user wrote into a
// [Backend]; its [Limits] say what a device in front of it should look like,
// and it turns each [Request] into submission queue entries of the io_uring
// that the caller owns:
//
//	if !b.Inline(r) {
//		for done := false; !done; {
//			b.Prepare(r, sqe)         // submit, wait
//			done = b.Complete(r, res) // false: Prepare the rest
//		}
//	}
//	// r.Result
//
// A kind of backing is one file of this package: it registers how it is named
// and how it is opened, and nothing else knows it.
package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// Backend holds bytes. Inline, Prepare and Complete may be called by several
// threads at once, each with requests of its own; they do not allocate, lock or
// wait.
type Backend interface {
	// Spec is what was given to Open.
	Spec() string
	// Limits is what Open found; it does not change.
	Limits() Limits
	// FD is the descriptor that Prepare's entries name, or -1 if the backing
	// never needs the ring. The backend keeps it; it is closed by Close.
	FD() int
	// Inline answers r at once if that needs no ring, and says whether it did.
	// A request that does not fit into the backing (EIO) or writes to a
	// read-only one (EROFS) is answered here too.
	Inline(r *Request) bool
	// Prepare fills sqe, which must be zeroed, with r's first step, or with the
	// next after Complete returned false. The caller sets UserData, and may
	// replace FD by a slot of its registered files with FlagFixedFile.
	Prepare(r *Request, sqe *uring.SQE)
	// Complete takes the result of what Prepare asked for, and says whether r
	// is answered (Result is set) or goes on with another Prepare: the rest of
	// a short read or write, EINTR and EAGAIN, another way to write zeroes.
	Complete(r *Request, res int32) (done bool)
	// ZeroCopy says why reads and writes cannot be done on buffers of the ring's
	// table (Request.Fixed); nil: they can, and Inline then answers none of them
	// but those that it refuses.
	ZeroCopy() error
	// Close gives the backing back. No request may be under way.
	Close() error
}

// Options select a part of a backing and how it is opened.
type Options struct {
	Offset int64 // bytes to skip, a multiple of the logical block; 0: none
	Size   int64 // bytes to use, rounded down to the logical block; 0: to the end

	ReadOnly bool // open for reading only; Limits.ReadOnly is true
	Shared   bool // do without O_EXCL and flock: use what is used by others

	Name  string // of the device; names the file of a mem: backing
	Owner string // of the daemon; the same, may be empty
}

// ErrInUse is wrapped by the error of a backing that somebody else uses.
var ErrInUse = errors.New("in use")

// ErrZoned is wrapped by the error of a zoned block device.
var ErrZoned = errors.New("zoned block devices are not supported")

// kind is one kind of backing. Exactly one of prefix and mode is set.
type kind struct {
	form   string // in errors: "mem:SIZE"
	prefix string // what a spec begins with: "mem:"
	mode   func(fs.FileMode) bool
	open   func(spec string, o Options) (Backend, error)
	// remove undoes what open made and a dead process could not. nil: nothing.
	remove func(spec string, o Options) error
}

var kinds []kind

// register is called by the init function of each kind's file.
func register(k kind) { kinds = append(kinds, k) }

// forms lists what a spec can be: "a block device, a file, mem:SIZE or null:SIZE".
func forms() string {
	var f []string
	for _, k := range kinds {
		f = append(f, k.form)
	}
	last := len(f) - 1
	return strings.Join(f[:last], ", ") + " or " + f[last]
}

// Open opens the backing that spec names: a block device or a regular file by
// path, "mem:SIZE" or "null:SIZE". The error says what was wrong, with what
// value, and what to do; it wraps the kernel's errno, [ErrInUse] or [ErrZoned]
// where there is one. On error nothing stays open or locked.
func Open(spec string, o Options) (Backend, error) {
	if spec == "" {
		return nil, fmt.Errorf("backing is empty: give %s", forms())
	}
	if o.Offset < 0 {
		return nil, fmt.Errorf("backing %s: offset %d is negative", spec, o.Offset)
	}
	if o.Size < 0 {
		return nil, fmt.Errorf("backing %s: size %d is negative", spec, o.Size)
	}
	for _, k := range kinds {
		if k.prefix != "" && strings.HasPrefix(spec, k.prefix) {
			return k.open(spec, o)
		}
	}
	fi, err := os.Stat(spec)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open backing %s: %w: give %s", spec, errnoOf(err), forms())
	case err != nil:
		return nil, fmt.Errorf("open backing %s: %w", spec, errnoOf(err))
	}
	for _, k := range kinds {
		if k.mode != nil && k.mode(fi.Mode()) {
			return k.open(spec, o)
		}
	}
	return nil, fmt.Errorf("open backing %s: it is %s: give %s", spec, modeName(fi.Mode()), forms())
}

// RemoveLeft removes what the backing of a dead daemon's device has left: the
// file of a "mem:" backing, whose bytes end with it. Others leave nothing. A
// file that a live process has locked is refused with [ErrInUse].
func RemoveLeft(spec string, o Options) error {
	for _, k := range kinds {
		if k.remove != nil && k.prefix != "" && strings.HasPrefix(spec, k.prefix) {
			return k.remove(spec, o)
		}
	}
	return nil
}

// errnoOf strips os.PathError's repetition of the call and the path.
func errnoOf(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

func modeName(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a regular file"
	case m.IsDir():
		return "a directory"
	case m&fs.ModeCharDevice != 0:
		return "a character device"
	case m&fs.ModeDevice != 0:
		return "a block device"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "neither a file nor a block device"
}

// openHint says what to do about an errno of open(2), or nothing.
func openHint(err error, o Options) string {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		if o.ReadOnly {
			return ": the daemon may not read it: run it as root, or change the permissions"
		}
		return ": the daemon may not write to it: run it as root, change the permissions, or pass --read-only"
	case errors.Is(err, unix.EROFS):
		return ": pass --read-only"
	case errors.Is(err, unix.ETXTBSY):
		return ": it is a swap file or a running program"
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENOMEDIUM):
		return ": there is no device or no medium behind it"
	}
	return ""
}

// base is what every kind has in common. All of it is written before Open
// returns and only read afterwards.
type base struct {
	spec   string
	limits Limits
	fd     int    // -1: none
	offset int64  // of the selected part in the backing, bytes
	align  uint32 // a short read or write goes on at a multiple of this
}

func (b *base) Spec() string   { return b.spec }
func (b *base) Limits() Limits { return b.limits }
func (b *base) FD() int        { return b.fd }

func (b *base) Close() error {
	if b.fd < 0 {
		return nil
	}
	fd := b.fd
	b.fd = -1
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close backing %s: %w", b.spec, err)
	}
	return nil
}

// changing says why a write of pages that their application may change meanwhile
// must not reach the backing.
func (b *base) changing() error {
	if b.limits.StableWrites && !b.limits.ReadOnly {
		return fmt.Errorf("backing %s: its disk needs the bytes of a write to stay as they are (queue/stable_writes is 1), "+
			"and an application may change its own", b.spec)
	}
	return nil
}

// refuse answers what must not reach the backing: the kernel checks both
// before, so this guards what lies beside the selected part.
func (b *base) refuse(r *Request) bool {
	if r.Op == op.Flush {
		return false
	}
	if r.Offset < 0 || r.Offset > b.limits.Size-int64(r.Length) {
		return r.finish(-int32(unix.EIO))
	}
	if b.limits.ReadOnly && r.Op != op.Read {
		return r.finish(-int32(unix.EROFS))
	}
	return false
}
