package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/delayd/delayd/test/fixture"
)

const (
	startLimit = 10 * time.Second // until the daemon answers
	stopLimit  = 20 * time.Second // until it has ended after SIGTERM
)

// daemon is a delayd on a private socket.
type daemon struct {
	ctl    string // the delayctl to use
	dir    string // its run-time directory
	socket string

	cmd   *exec.Cmd
	log   syncBuffer // what the daemon printed
	ended chan struct{}
	err   error // how it ended; read after ended
}

// startDaemon starts bin/delayd and returns when it answers.
func startDaemon(bin string) (*daemon, error) {
	dir, err := os.MkdirTemp("", "delayd-demo-")
	if err != nil {
		return nil, err
	}
	d := &daemon{
		ctl:    filepath.Join(bin, "delayctl"),
		dir:    dir,
		socket: filepath.Join(dir, "delayd.sock"),
		ended:  make(chan struct{}),
	}
	d.cmd = exec.Command(filepath.Join(bin, "delayd"), "--owner", fmt.Sprintf("demo-%d", os.Getpid()),
		"--run-dir", d.dir, "--socket", d.socket)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{
		// Ctrl-C is for this program, which ends the daemon in order; and the
		// daemon does not outlive it however it ends.
		Setpgid:   true,
		Pdeathsig: syscall.SIGTERM,
	}
	if err := d.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start delayd: %w", err), os.RemoveAll(dir))
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
	}()
	if err := d.waitReady(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *daemon) waitReady() error {
	for end := time.Now().Add(startLimit); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-d.ended:
			return fmt.Errorf("delayd ended at once: %v\n%s", d.err, d.log.text())
		default:
		}
		if _, err := os.Stat(d.socket); err == nil {
			_, err := d.ctlRun("list")
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("delayd made no socket within %v\n%s", startLimit, d.log.text())
		}
	}
}

// add makes a delayed device and returns its path.
func (d *daemon) add(name, backing string, delay time.Duration) (string, error) {
	out, err := d.ctlRun("add", name, "--backing", backing, "--delay", delay.String())
	if err != nil {
		return "", err
	}
	path := strings.TrimSpace(out)
	if !strings.HasPrefix(path, "/dev/") {
		return "", fmt.Errorf("delayctl add printed %q, which is no device", out)
	}
	return path, nil
}

func (d *daemon) del(name string) error {
	_, err := d.ctlRun("del", name)
	return err
}

// ctlRun runs delayctl; an error has the daemon's log with it.
func (d *daemon) ctlRun(args ...string) (string, error) {
	out, err := fixture.Command(d.ctl, append([]string{"--socket", d.socket}, args...)...)
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, d.log.text())
	}
	return out, nil
}

// Close ends the daemon, which removes its devices, and what it has left.
func (d *daemon) Close() error {
	return errors.Join(d.stop(), os.RemoveAll(d.dir))
}

func (d *daemon) stop() error {
	select {
	case <-d.ended:
		return nil // said by whoever saw it
	default:
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end delayd: %w", err)
	}
	select {
	case <-d.ended:
	case <-time.After(stopLimit):
		_ = d.cmd.Process.Kill()
		return fmt.Errorf("delayd did not end within %v of SIGTERM and was killed\n%s", stopLimit, d.log.text())
	}
	if d.err != nil {
		return fmt.Errorf("delayd: %w\n%s", d.err, d.log.text())
	}
	return nil
}

// syncBuffer takes the daemon's output from the goroutine that copies it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// text is what was printed, for the end of an error.
func (b *syncBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() == 0 {
		return "delayd printed nothing"
	}
	return "delayd printed:\n" + b.buf.String()
}
