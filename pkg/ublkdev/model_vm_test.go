package ublkdev

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slot is what the model knows of one id.
type slot struct {
	id      int
	exists  bool
	params  bool
	stopped bool // once; it is only good for deleting then
	info    Info
	server  *server // while live
}

// expect returns what a command on the slot must wrap, nil for success.
func (s *slot) expect(command string) error {
	switch {
	case command == "add" && s.exists:
		return ErrExists
	case command == "add":
		return nil
	case !s.exists:
		return ErrNotFound
	case command == "params" && s.server != nil:
		return unix.EACCES
	case command == "start" && s.server != nil:
		return ErrExists
	case command == "start" && !s.params:
		return unix.EINVAL
	}
	return nil
}

// Commands in random order on a few ids, against what the driver must say.
func TestVMRandomCommands(t *testing.T) {
	c := needUblk(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const size = 256 << 10
	mem := memory(t, size)
	slots := []*slot{{id: 300}, {id: 301}, {id: 302}}
	ctx := t.Context()
	t.Cleanup(func() {
		for _, s := range slots {
			if s.server != nil {
				_ = c.Stop(context.Background(), s.id)
				s.server.close()
			}
			remove(t, c, s.id)
		}
	})
	commands := []string{"add", "params", "start", "stop", "delete", "info"}
	for range 120 {
		s := slots[rng.IntN(len(slots))]
		command := commands[rng.IntN(len(commands))]
		if s.stopped && (command == "params" || command == "start") {
			continue
		}
		want := s.expect(command)
		var err error
		switch command {
		case "add":
			var info Info
			info, err = c.Add(ctx, AddOptions{ID: s.id, Queues: 1, Depth: uint16(1 + rng.IntN(20)), MaxIOBytes: 4096})
			if err == nil {
				*s = slot{id: s.id, exists: true, info: info}
			}
		case "params":
			err = c.SetParams(ctx, s.id, plainParams(Info{MaxIOBytes: 4096}, size))
			s.params = s.params || err == nil
		case "start":
			var server *server
			if want == nil {
				server = serve(t, s.info, mem)
			}
			err = c.Start(ctx, s.id, os.Getpid())
			if server != nil {
				s.server = server
			}
		case "stop":
			err = c.Stop(ctx, s.id)
			if s.server != nil {
				s.server.close()
				s.server, s.stopped = nil, true
			}
		case "delete":
			if s.server != nil {
				go s.server.close() // delete waits for it
			}
			err = c.Delete(ctx, s.id)
			*s = slot{id: s.id}
		case "info":
			var info Info
			info, err = c.Info(ctx, s.id)
			wantState := Dead
			if s.server != nil {
				wantState = Live
			}
			if err == nil && info.State != wantState {
				t.Errorf("device %d is %v, want %v", s.id, info.State, wantState)
			}
		}
		if !errors.Is(err, want) {
			t.Fatalf("%s of device %d: %v, want %v", command, s.id, err, want)
		}
	}
}
