package counters

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Set is the counts of one device: a mapping with the cells of each queue.
type Set struct {
	path   string // written once; "" for anonymous memory
	queues int    // written once

	mu   sync.Mutex
	mem  []byte    // the mapping; nil once closed
	last *Snapshot // what a closed Set still knows
}

// Create maps the counts of a device with queues queues, 1 to MaxQueues, from the
// file path, or from anonymous memory if path is "".
//
// A file that was written with the same number of queues by a program with the
// same cells is continued, but for its gauges: nothing is held or in flight yet.
// Any other file there is replaced. The file has mode 0600 and all its space
// allocated, so that a count can neither fail nor fault. It must not be mapped by
// two Sets at once: the counts of one would undo those of the other.
func Create(path string, queues int) (*Set, error) {
	if queues < 1 || queues > MaxQueues {
		return nil, fmt.Errorf("counters %s: %d queues, which is not 1 to %d", path, queues, MaxQueues)
	}
	if path == "" {
		mem, err := unix.Mmap(-1, 0, mapSize(queues), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
		if err != nil {
			return nil, fmt.Errorf("counters: map %d bytes: %w", mapSize(queues), err)
		}
		return newSet("", mem, queues), nil
	}
	mem, err := resume(path, queues)
	if errors.Is(err, errOther) {
		mem, err = replace(path, queues)
	}
	if err != nil {
		return nil, fmt.Errorf("counters %s: %w", path, err)
	}
	return newSet(path, mem, queues), nil
}

// newSet makes a Set of mem, which is mapSize(queues) bytes, aligned to a cell,
// and either zeroed or of the same layout.
func newSet(path string, mem []byte, queues int) *Set {
	h, want := headerOf(mem), expect(queues)
	if !h.matches(want) {
		want.created = uint64(time.Now().UnixNano())
		*h = want
	}
	s := &Set{path: path, queues: queues, mem: mem}
	for i := range queues {
		s.Queue(i).resetGauges()
	}
	return s
}

func headerOf(mem []byte) *header { return (*header)(unsafe.Pointer(unsafe.SliceData(mem))) }

// Queues returns the number of queues.
func (s *Set) Queues() int { return s.queues }

// Queue returns the cells of the queue i for its thread. They are part of the
// mapping: not to be touched after Close.
func (s *Set) Queue(i int) *Queue {
	if i < 0 || i >= s.queues {
		panic(fmt.Sprintf("counters: queue %d of %d", i, s.queues))
	}
	return (*Queue)(unsafe.Pointer(&s.mem[headerSize+i*queueSize]))
}

// Snapshot returns what was counted so far; after Close, what was at its time. It
// may be called by several threads, and keeps none of the queues waiting.
func (s *Set) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem == nil {
		last := *s.last
		return &last
	}
	return s.read()
}

func (s *Set) read() *Snapshot {
	all := &Snapshot{Since: time.Unix(0, int64(headerOf(s.mem).created))}
	for i := range s.queues {
		s.Queue(i).addTo(all)
	}
	return all
}

// Close unmaps the counts. The queues' threads must have ended. The file stays,
// for the next Create. A second Close does nothing.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem == nil {
		return nil
	}
	s.last = s.read()
	err := unix.Munmap(s.mem)
	s.mem = nil
	if err != nil {
		return fmt.Errorf("counters %s: unmap: %w", s.path, err)
	}
	return nil
}

// Remove deletes the file, if there is one. The mapping stays until Close.
func (s *Set) Remove() error {
	if s.path == "" {
		return nil
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("counters: %w", err)
	}
	return nil
}
