package device

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A settler is a child process that starts and settles one device after the
// other. A process of its own for each device would cost some hundred
// milliseconds on a slow machine, nearly all of what an addition takes.
type settler struct {
	cmd   *exec.Cmd
	in    io.WriteCloser // what it is to do: a JSON array of words each
	out   *json.Decoder  // what came of it: a settled each
	said  bytes.Buffer   // its standard error; read after ended
	ended chan struct{}  // closed when the process is gone
}

// settled is a settler's answer.
type settled struct {
	Said  string `json:"said,omitempty"`
	Error string `json:"error,omitempty"`
}

// settlerIdle is how long a settler without work stays.
const settlerIdle = time.Second

// settlers are those of a host.
type settlers struct {
	mu    sync.Mutex
	idle  []*settler            // have nothing to do
	alive map[*settler]struct{} // have been started and have not ended
}

// settle has a settler do what args say, and returns what it had to say. One
// that does not answer in time is killed, and is not waited for if the kernel
// does not let it die.
func (h *Host) settle(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	for {
		s, used, err := h.settler()
		if err != nil {
			return "", err
		}
		answer, err := s.ask(ctx, args)
		switch {
		case err == nil && answer.Error != "":
			h.settlers.put(s)
			return "", fmt.Errorf("helper %s: %s", strings.Join(args, " "), answer.Error)
		case err == nil:
			h.settlers.put(s)
			return answer.Said, nil
		}
		s.kill(h)
		switch {
		case ctx.Err() != nil:
			return "", fmt.Errorf("helper %s: %w", strings.Join(args, " "), ctx.Err())
		case used:
			continue // it had died in its sleep; another does it
		}
		return "", fmt.Errorf("helper %s: %w: %s", strings.Join(args, " "), err, s.lastWords())
	}
}

// settler returns one that has nothing to do, or a new one.
func (h *Host) settler() (s *settler, used bool, err error) {
	if s := h.settlers.take(); s != nil {
		return s, true, nil
	}
	words := slices.Concat(h.opts.Helper, []string{"serve"})
	s = &settler{cmd: exec.Command(words[0], words[1:]...), ended: make(chan struct{})}
	s.cmd.Stderr = &s.said
	s.cmd.WaitDelay = dieLimit
	s.cmd.SysProcAttr = dieWithUs()
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, false, fmt.Errorf("start a helper: %w", err)
	}
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, false, fmt.Errorf("start a helper: %w", err)
	}
	s.out = json.NewDecoder(out)
	started := make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan<- struct{}) {
		runtime.LockOSThread() // see dieWithUs
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // who asked it learns of its end
		}
		close(ended)
	}(s.cmd, s.ended)
	if err := <-started; err != nil {
		return nil, false, fmt.Errorf("start a helper: %w", err)
	}
	h.settlers.watch(s)
	return s, false, nil
}

// dieWithUs has the kernel kill a child with the daemon: it must not go on with
// a device that the next one removes. The signal is sent when the thread that
// started the child ends, so that goroutine keeps its thread meanwhile.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// ask returns a settler's answer, or an error if there is none.
func (s *settler) ask(ctx context.Context, args []string) (settled, error) {
	type result struct {
		answer settled
		err    error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		if r.err = json.NewEncoder(s.in).Encode(args); r.err == nil {
			r.err = s.out.Decode(&r.answer)
		}
		done <- r
	}()
	select {
	case r := <-done:
		return r.answer, r.err
	case <-ctx.Done():
		return settled{}, ctx.Err()
	}
}

// kill ends a settler that did not answer.
func (s *settler) kill(h *Host) {
	_ = s.cmd.Process.Kill()
	if !s.gone(2 * dieLimit) {
		h.log.Warn("a child process does not end; it will when the kernel lets it", "pid", s.cmd.Process.Pid)
	}
}

// dismiss ends a settler that has nothing to do.
func (s *settler) dismiss() {
	_ = s.in.Close()
	if !s.gone(dieLimit) {
		_ = s.cmd.Process.Kill()
		s.gone(2 * dieLimit)
	}
}

// gone waits for the process's end.
func (s *settler) gone(limit time.Duration) bool {
	select {
	case <-s.ended:
		return true
	case <-time.After(limit):
		return false
	}
}

// lastWords is what a settler that has died said on its standard error.
func (s *settler) lastWords() string {
	select {
	case <-s.ended:
		return strings.TrimSpace(s.said.String())
	default:
		return "it does not end"
	}
}

func (p *settlers) take() *settler {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == 0 {
		return nil
	}
	s := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	return s
}

// put keeps a settler for the next device, if that comes soon.
func (p *settlers) put(s *settler) {
	p.mu.Lock()
	p.idle = append(p.idle, s)
	p.mu.Unlock()
	time.AfterFunc(settlerIdle, func() {
		p.mu.Lock()
		i := slices.Index(p.idle, s)
		if i >= 0 {
			p.idle = slices.Delete(p.idle, i, i+1)
		}
		p.mu.Unlock()
		if i >= 0 {
			s.dismiss()
		}
	})
}

// watch keeps s among the living until it ends.
func (p *settlers) watch(s *settler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive == nil {
		p.alive = map[*settler]struct{}{}
	}
	p.alive[s] = struct{}{}
	go func() {
		<-s.ended
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.alive, s)
	}()
}

// close dismisses all, also those that are being dismissed already, and returns
// when they are gone, but for one that the kernel does not let die.
func (p *settlers) close() {
	p.mu.Lock()
	p.idle = nil
	alive := slices.Collect(maps.Keys(p.alive))
	p.mu.Unlock()
	for _, s := range alive {
		s.dismiss()
	}
}

// serveSettling is the child's side: it does what it is told until nobody can
// tell it any more.
func serveSettling(in io.Reader, out io.Writer) error {
	todo, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var args []string
		switch err := todo.Decode(&args); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("helper serve: %w", err)
		}
		var answer settled
		said, err := settle(args)
		answer.Said = said
		if err != nil {
			answer.Error = err.Error()
		}
		if err := answers.Encode(answer); err != nil {
			return fmt.Errorf("helper serve: %w", err)
		}
	}
}
