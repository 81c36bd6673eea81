package ublkdev

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// server is the smallest whole ublk server: one thread and one ring a queue,
// and memory for the data. It holds requests back while gate is locked.
type server struct {
	t    *testing.T
	info Info
	mem  []byte
	char *os.File

	gate    sync.RWMutex // held for writing: requests wait
	leave   atomic.Bool  // queue threads end, with their tags fetched
	failed  atomic.Int32 // errno that every request is answered with, or 0
	fetched sync.WaitGroup
	done    sync.WaitGroup

	served  [op.Count]atomic.Int64
	fua     atomic.Int64
	noUnmap atomic.Int64
	aborted atomic.Int64 // tags that came back as ResAbort
}

// serve opens the device and starts a thread for each queue. It returns when
// every tag was fetched.
func serve(t *testing.T, info Info, mem []byte) *server {
	t.Helper()
	char, err := OpenChar(t.Context(), info.ID)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, info: info, mem: mem, char: char}
	for id := range info.Queues {
		s.fetched.Add(1)
		s.done.Add(1)
		go func() {
			defer s.done.Done()
			if err := s.queue(id); err != nil {
				t.Errorf("queue %d: %v", id, err)
			}
		}()
	}
	s.fetched.Wait()
	return s
}

// close waits for the queue threads and lets the device go.
func (s *server) close() {
	s.done.Wait()
	_ = s.char.Close()
}

// abandon ends the server as if it had crashed.
func (s *server) abandon() {
	s.leave.Store(true)
	s.close()
}

func (s *server) queue(id int) error {
	runtime.LockOSThread() // and let the thread end with the queue
	arrived := sync.OnceFunc(s.fetched.Done)
	defer arrived()

	depth := s.info.Depth
	ring, err := uring.New(uring.Config{Entries: uint32(depth), SingleIssuer: true, DeferTaskrun: true})
	if err != nil {
		return err
	}
	defer ring.Close()
	q, err := NewQueue(int(s.char.Fd()), id, depth)
	if err != nil {
		return err
	}
	defer q.Close()
	size := int(s.info.MaxIOBytes)
	bufs, err := unix.Mmap(-1, 0, depth*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(bufs)
	buf := func(tag uint16) []byte { return bufs[int(tag)*size : (int(tag)+1)*size] }
	addr := func(tag uint16) uintptr { return uintptr(unsafe.Pointer(&bufs[int(tag)*size])) }

	for tag := range uint16(depth) {
		sqe := ring.Next()
		q.Fetch(sqe, tag, addr(tag))
		sqe.UserData = uint64(tag)
	}
	if err := ring.Submit(); err != nil {
		return err
	}
	if n := ring.Pending(); n != 0 {
		return fmt.Errorf("%d of %d fetches not taken", n, depth)
	}
	arrived()

	cqes := make([]uring.CQE, 64)
	for open := depth; open > 0; {
		if s.leave.Load() {
			return nil
		}
		if err := ring.Wait(1, 20*time.Millisecond, uring.ReleaseP); err != nil {
			return err
		}
		n := ring.Reap(cqes)
		for _, cqe := range cqes[:n] {
			tag := uint16(cqe.UserData)
			switch cqe.Res {
			case ResOK:
				s.gate.RLock()
				res := s.answer(q.Desc(tag), buf(tag))
				s.gate.RUnlock()
				sqe := ring.Next()
				q.CommitAndFetch(sqe, tag, res, addr(tag))
				sqe.UserData = uint64(tag)
			case ResAbort:
				s.aborted.Add(1)
				open--
			default:
				return fmt.Errorf("tag %d: %w", tag, unix.Errno(-cqe.Res))
			}
		}
	}
	return nil
}

// answer does one request and returns its result.
func (s *server) answer(d IODesc, buf []byte) int32 {
	kind, ok := op.FromUblk(d.Op)
	if !ok {
		return -int32(unix.EOPNOTSUPP)
	}
	s.served[kind].Add(1)
	if d.Flags&FlagFUA != 0 {
		s.fua.Add(1)
	}
	if d.Flags&FlagNoUnmap != 0 {
		s.noUnmap.Add(1)
	}
	if errno := s.failed.Load(); errno != 0 {
		return -errno
	}
	start, length := int64(d.StartSector)*512, int64(d.Sectors)*512
	if kind != op.Flush && start+length > int64(len(s.mem)) {
		return -int32(unix.EIO)
	}
	switch kind {
	case op.Read:
		copy(buf[:length], s.mem[start:])
	case op.Write:
		copy(s.mem[start:], buf[:length])
	case op.Discard, op.WriteZeroes:
		clear(s.mem[start : start+length])
	case op.Flush:
		length = 0
	}
	return int32(length)
}

// memory maps size bytes for a server.
func memory(t *testing.T, size int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// needUblk opens the driver. The test is skipped where there is none, unless
// DELAYD_REQUIRE_UBLK=1 says that there must be one.
func needUblk(t *testing.T) *Control {
	t.Helper()
	if _, err := os.Stat(controlPath); err != nil && os.Getenv("DELAYD_REQUIRE_UBLK") != "1" {
		t.Skip("no /dev/ublk-control: run in the VM (test/vm/run)")
	}
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	before, err := List()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		after, err := List()
		if err != nil || !slices.Equal(before, after) {
			t.Errorf("devices left behind: %v before, %v after (%v)", before, after, err)
		}
		if n := c.Unanswered(); n != 0 {
			t.Errorf("%d commands unanswered at the end", n)
		}
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func needFeatures(t *testing.T, c *Control, want Features) {
	t.Helper()
	have, err := c.Features(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := have.Require(want); err != nil {
		t.Skip(err)
	}
}

// device adds a device with parameters for size bytes of memory, and deletes it
// when the test ends.
func device(t *testing.T, c *Control, o AddOptions, size int) Info {
	t.Helper()
	info := add(t, c, o)
	p := plainParams(info, size)
	if err := c.SetParams(t.Context(), info.ID, p); err != nil {
		t.Fatal(err)
	}
	return info
}

func plainParams(info Info, size int) *Params {
	return &Params{Basic: BasicParams{
		LogicalBlockShift: 9, PhysicalBlockShift: 12, IOMinShift: 12, IOOptShift: 12,
		MaxSectors: info.MaxIOBytes / 512, DevSectors: uint64(size / 512),
	}}
}

func add(t *testing.T, c *Control, o AddOptions) Info {
	t.Helper()
	if o.MaxIOBytes == 0 {
		o.MaxIOBytes = 128 << 10
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	if o.Depth == 0 {
		o.Depth = 16
	}
	info, err := c.Add(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, c, info.ID) })
	return info
}

// remove deletes a device that may be gone already.
func remove(t *testing.T, c *Control, id int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := c.Info(ctx, id); err != nil {
		return
	}
	if err := c.Delete(ctx, id); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

// stop stops a served device and lets it go.
func stop(t *testing.T, c *Control, s *server) {
	t.Helper()
	if err := c.Stop(t.Context(), s.info.ID); err != nil {
		t.Fatal(err)
	}
	s.close()
	if got, want := s.aborted.Load(), int64(s.info.Queues*s.info.Depth); got != want {
		t.Errorf("%d tags came back aborted, want all %d", got, want)
	}
}
