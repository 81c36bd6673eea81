package control

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/api"
)

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

// deadSocket makes what a daemon that was killed leaves behind.
func deadSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("unix", path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("a dead socket says %v", err)
	}
}

func TestListen(t *testing.T) {
	old := unix.Umask(0) // the modes must not depend on it
	defer unix.Umask(old)
	path := filepath.Join(t.TempDir(), "run", "d.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := mode(t, path).Perm(); got != 0o660 {
		t.Errorf("the socket's mode is %v, want 0660", got)
	}
	if got := mode(t, filepath.Dir(path)).Perm(); got != 0o755 {
		t.Errorf("the directory's mode is %v, want 0755", got)
	}

	_, err = Listen(path)
	if err == nil || err.Error() != "listen on "+path+": somebody listens there already" {
		t.Errorf("a second listener got %v", err)
	}
	if hint := api.HintOf(err); !strings.Contains(hint, "name another path with --socket") {
		t.Errorf("hint %q", hint)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the first listener lost its socket: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

func TestListenReplacesADeadSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	deadSocket(t, path)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.Close(), l.Close()); err != nil {
		t.Error(err)
	}
}

func TestListenKeepsWhatIsNotASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Listen(path)
	if err == nil || err.Error() != "listen on "+path+": there is something that is not a socket" {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

// A daemon that listens but takes no connection is alive.
func TestListenRespectsABusyListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	var conns []int
	defer func() {
		for _, c := range conns {
			_ = unix.Close(c)
		}
	}()
	for range 10 { // fill the backlog
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if err := unix.Connect(c, &unix.SockaddrUnix{Name: path}); err != nil {
			break
		}
	}
	_, err = Listen(path)
	if err == nil || !strings.Contains(err.Error(), "somebody listens there already") {
		t.Errorf("got %v", err)
	}
}

// Of many that find a dead socket one gets it, and keeps it.
func TestListenRace(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "d.sock")
		deadSocket(t, path)
		var won atomic.Pointer[net.UnixListener]
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				l, err := Listen(path)
				if err != nil {
					return
				}
				if !won.CompareAndSwap(nil, l) {
					t.Error("two got the socket")
				}
			})
		}
		wg.Wait()
		l := won.Load()
		if l == nil {
			t.Fatal("nobody got the socket")
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(conn.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestServeEndsWithRequestsUnderWay(t *testing.T) {
	m, starter := newManager(t, Options{})
	path := filepath.Join(t.TempDir(), "d.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, Handler(m, m.o.Log), m.o.Log)
	entered, leave := make(chan struct{}), make(chan struct{})
	starter.start = func(context.Context, api.Spec) error { close(entered); <-leave; return nil }
	answered := make(chan int, 1)
	go func() {
		status, _ := post(t, path, `{"name":"slow","backing":"mem:1M"}`)
		answered <- status
	}()
	<-entered
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.http.Shutdown(context.Background()) }()
	<-short.Done()
	select {
	case err := <-done:
		t.Fatalf("it ended with a request under way: %v", err)
	default:
	}
	close(leave)
	if status := <-answered; status != 201 {
		t.Errorf("the request under way got %d", status)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := <-s.Failed(); err != nil {
		t.Error(err)
	}
}
