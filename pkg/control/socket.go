package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Group is the group whose members may use the control socket, if there is one
// of that name.
const Group = "delayd"

// socketMode lets root and the group connect.
const socketMode = 0o660

// liveWait is how long a listener is given to take a connection before it is
// said to be alive but not well.
const liveWait = time.Second

// Listen makes the control socket and its directory (mode 0755). A socket that
// a dead daemon left is replaced; one that somebody listens on, and anything
// that is not a socket, is refused. Closing the listener removes the socket.
//
// The directory is locked meanwhile, so that of two daemons that find the same
// dead socket one removes it and makes its own, and the other finds that one
// alive.
func Listen(path string) (*net.UnixListener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, asRoot(fmt.Errorf("make the directory of the socket: %w", err))
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, asRoot(fmt.Errorf("open the directory of the socket: %w", err))
	}
	defer func() { _ = lock.Close() }() // read-only: there is nothing to lose
	if err := flock(lock); err != nil {
		return nil, fmt.Errorf("lock the directory of the socket %s: %w", dir, err)
	}
	if err := removeDead(path); err != nil {
		return nil, err
	}
	l, err := listen(path)
	if err != nil {
		return nil, asRoot(fmt.Errorf("listen on %s: %w", path, err))
	}
	if err := openToGroup(path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// removeDead removes a socket that nobody listens on.
func removeDead(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return asRoot(fmt.Errorf("look for a socket at %s: %w", path, err))
	}
	if info.Mode().Type() != fs.ModeSocket {
		return &hintError{
			fmt.Errorf("listen on %s: there is something that is not a socket", path),
			"remove it, or name another path with --socket",
		}
	}
	conn, err := net.DialTimeout("unix", path, liveWait)
	switch {
	case err == nil:
		_ = conn.Close() // nothing was sent
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the socket of a delayd that has ended: %w", err)
		}
		return nil
	case errors.Is(err, fs.ErrPermission):
		return asRoot(fmt.Errorf("look who listens on %s: %w", path, err))
	}
	// A full backlog or a connection that is not taken means somebody is there.
	return &hintError{
		fmt.Errorf("listen on %s: somebody listens there already", path),
		"use the delayd that is running, stop it, or name another path with --socket",
	}
}

func listen(path string) (*net.UnixListener, error) {
	config := net.ListenConfig{
		// The kernel gives the file the mode that the socket has when it is
		// bound (unix_bind_bsd in net/unix/af_unix.c), so there is no moment
		// in which all may connect.
		Control: func(_, _ string, c syscall.RawConn) error {
			var chmodErr error
			if err := c.Control(func(fd uintptr) { chmodErr = unix.Fchmod(int(fd), 0o600) }); err != nil {
				return err
			}
			return chmodErr
		},
	}
	l, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// openToGroup lets the members of Group connect, if there is such a group.
func openToGroup(path string) error {
	if g, err := user.LookupGroup(Group); err == nil {
		gid, err := strconv.Atoi(g.Gid)
		if err != nil {
			return fmt.Errorf("group %s has id %q: %w", Group, g.Gid, err)
		}
		if err := os.Chown(path, -1, gid); err != nil {
			return fmt.Errorf("give %s to group %s: %w", path, Group, err)
		}
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return fmt.Errorf("set the mode of %s: %w", path, err)
	}
	return nil
}
