package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/delayd/delayd/test/fixture"
)

const (
	kublkID     = 40 // out of the way of delayd's, which begin at 0
	nbdDevice   = "nbd0"
	serverLimit = 10 * time.Second // until a server serves, and until it has ended
)

// server is a peer's process.
type server struct {
	cmd   *exec.Cmd
	said  strings.Builder
	ended chan struct{}
}

func startServer(name string, args ...string) (*server, error) {
	s := &server{cmd: exec.Command(name, args...), ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// when waits until ready, which is asked again and again.
func (s *server) when(ready func() bool) error {
	for end := time.Now().Add(serverLimit); !ready(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-s.ended:
			return fmt.Errorf("%s ended at once: %s", s.cmd.Path, strings.TrimSpace(s.said.String()))
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not serve after %v", s.cmd.Path, serverLimit)
		}
	}
	return nil
}

// stop waits for the end of a server that was told to go, and kills it if it stays.
func (s *server) stop() error {
	select {
	case <-s.ended:
		return nil
	case <-time.After(serverLimit):
		_ = s.cmd.Process.Kill()
		return fmt.Errorf("%s did not end within %v and was killed", s.cmd.Path, serverLimit)
	}
}

// openKublk starts the kernel tree's ublk server, target loop, over the disk.
func (b *bench) openKublk(queues int, zeroCopy bool, flags ...string) (*served, error) {
	id := strconv.Itoa(kublkID)
	args := append([]string{"add", "-t", "loop", "-n", id, "-q", strconv.Itoa(queues), "-d", "128", "--foreground"}, flags...)
	if zeroCopy && b.kublkHas("AUTO_BUF_REG") {
		args = append(args, "--auto_zc")
	}
	s, err := startServer(b.kublk, append(args, b.disk.Path)...)
	if err != nil {
		return nil, err
	}
	name := "ublkb" + id
	err = s.when(func() bool { _, err := os.Stat("/sys/block/" + name); return err == nil })
	path := ""
	if err == nil {
		path, err = fixture.WaitDisk(name, 0)
	}
	closed := func() error {
		_, err := fixture.Command(b.kublk, "del", "-n", id)
		return errors.Join(err, s.stop())
	}
	if err != nil {
		return nil, errors.Join(err, closed())
	}
	// What delayd sets: without it a device with one queue gets a scheduler.
	if err := noScheduler(name); err != nil {
		return nil, errors.Join(err, closed())
	}
	return &served{path: path, pids: []int{s.cmd.Process.Pid}, close: closed}, nil
}

// noScheduler takes a disk's I/O scheduler away. A disk that has just appeared
// answers ENOENT until its queue is there, and EBUSY while it is changed
// (block/elevator.c, elv_iosched_store).
func noScheduler(disk string) error {
	path := "/sys/block/" + disk + "/queue/scheduler"
	for end := time.Now().Add(serverLimit); ; time.Sleep(time.Millisecond) {
		err := os.WriteFile(path, []byte("none"), 0)
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// kublkHas reports whether both the server and the kernel have a feature.
func (b *bench) kublkHas(feature string) bool {
	out, err := fixture.Command(b.kublk, "features")
	return err == nil && strings.Contains(out, feature)
}

// openNBDKit starts nbdkit with its delay filter over the disk, and the kernel's
// nbd driver on it. nbdkit's file plugin goes through the page cache.
func (b *bench) openNBDKit(delay time.Duration, _ int) (*served, error) {
	dir, err := os.MkdirTemp("", "delayd-bench-nbd-")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "socket")
	ms := fmt.Sprintf("%dms", delay.Milliseconds())
	// Each thread holds one request; the nbd driver has 128 at most.
	s, err := startServer("nbdkit", "--foreground", "--exit-with-parent", "--threads", "128", "--unix", socket,
		"--filter=delay", "file", b.disk.Path, "rdelay="+ms, "wdelay="+ms)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	closed := func() error {
		_, err := fixture.Command("nbd-client", "-d", "/dev/"+nbdDevice)
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		return errors.Join(err, s.stop(), flushCache(b.disk.Path), os.RemoveAll(dir))
	}
	err = s.when(func() bool { _, err := os.Stat(socket); return err == nil })
	if err == nil {
		_, err = fixture.Command("nbd-client", "-unix", socket, "/dev/"+nbdDevice, "-block-size", "4096")
	}
	if err == nil {
		err = s.when(func() bool { size, err := fixture.Size("/dev/" + nbdDevice); return err == nil && size > 0 })
	}
	if err == nil {
		err = noScheduler(nbdDevice)
	}
	if err != nil {
		return nil, errors.Join(err, closed())
	}
	return &served{path: "/dev/" + nbdDevice, pids: []int{s.cmd.Process.Pid}, close: closed}, nil
}

func haveNBD() error {
	if _, err := os.Stat("/sys/block/" + nbdDevice); err == nil {
		return nil
	}
	_, err := fixture.Command("modprobe", "nbd")
	if err == nil {
		_, err = fixture.WaitDisk(nbdDevice, 0)
	}
	if err != nil {
		return fmt.Errorf("no nbd driver: %w", err)
	}
	return nil
}

func haveProgram(name string) error {
	path := os.Getenv("PATH")
	if dirs := filepath.SplitList(path); !slices.Contains(dirs, "/usr/sbin") {
		if err := os.Setenv("PATH", path+":/usr/sbin:/sbin"); err != nil {
			return err
		}
	}
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Errorf("there is no %s: tools/setup bench installs it", name)
	}
	return nil
}
