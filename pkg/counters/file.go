package counters

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errOther says that there is no file to be continued.
var errOther = errors.New("no file, or one of another layout")

// resume maps the file path if it has the layout of this program and queues
// queues.
func resume(path string, queues int) ([]byte, error) {
	fd, err := open(path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errOther
	}
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("not a regular file; remove it, or choose another directory")
	}
	if st.Size != int64(mapSize(queues)) {
		return nil, errOther
	}
	// The header is read before the file is mapped: a file that is not one of
	// counters is replaced, not written to.
	var h header
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&h)), unsafe.Sizeof(h))
	if n, err := unix.Pread(fd, raw, 0); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	} else if n != len(raw) || !h.matches(expect(queues)) {
		return nil, errOther
	}
	return mapFile(fd, queues)
}

// replace makes a new file with the header of this layout, and puts it in the
// place of what is at path. Neither a daemon that dies in between, nor one that
// still has the old file mapped, is hurt.
//
// The file is written, and not only made long: a full file system is then an error
// here, and not a SIGBUS in the middle of a count.
func replace(path string, queues int) (mem []byte, err error) {
	fresh := path + ".new"
	if err := unix.Unlink(fresh); err != nil && err != unix.ENOENT {
		return nil, fmt.Errorf("remove the left-over %s: %w", fresh, err)
	}
	fd, err := open(fresh, unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", fresh, err)
	}
	f := os.NewFile(uintptr(fd), fresh)
	defer f.Close()
	defer func() {
		if err != nil {
			_ = unix.Unlink(fresh) // the first error is the one to tell
		}
	}()
	first := make([]byte, headerSize)
	*headerOf(first) = expect(queues)
	headerOf(first).created = uint64(time.Now().UnixNano())
	if _, err := f.Write(first); err != nil {
		return nil, err
	}
	zeros := make([]byte, queueSize)
	for range queues {
		if _, err := f.Write(zeros); err != nil {
			return nil, err
		}
	}
	mem, err = mapFile(fd, queues)
	if err != nil {
		return nil, err
	}
	if err := unix.Rename(fresh, path); err != nil {
		_ = unix.Munmap(mem) // the first error is the one to tell
		return nil, fmt.Errorf("rename %s to it: %w", fresh, err)
	}
	return mem, nil
}

// open opens path for reading and writing. A symbolic link is refused: it may
// lead anywhere.
func open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|flags, 0o600)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR:
			continue
		case unix.ELOOP:
			return -1, fmt.Errorf("is a symbolic link; remove it: %w", err)
		}
		return -1, err
	}
}

// mapFile maps the file fd, all its pages at once.
func mapFile(fd, queues int) ([]byte, error) {
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, fmt.Errorf("set the mode to 0600: %w", err)
	}
	size := mapSize(queues)
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return mem, nil
}
