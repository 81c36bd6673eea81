package device

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
)

// Promise 1: never early, for every op, in both modes of holding.
func TestPromise1NeverEarly(t *testing.T) {
	delays := scheduler.Delays{
		op.Read: 2 * time.Millisecond, op.Write: 3 * time.Millisecond, op.Flush: 4 * time.Millisecond,
		op.Discard: 5 * time.Millisecond, op.WriteZeroes: 6 * time.Millisecond,
	}
	for _, hold := range []Hold{HoldSubmit, HoldComplete} {
		t.Run(hold.String(), func(t *testing.T) {
			inEveryMode(t, 64<<20, func(t *testing.T, spec Spec) { neverEarly(t, spec, hold, delays) })
		})
	}
}

func neverEarly(t *testing.T, spec Spec, hold Hold, delays scheduler.Delays) {
	spec.Delays, spec.Hold, spec.Queues = delays, hold, min(2, runtime.NumCPU())
	d := start(t, newHost(t), spec)
	fd, err := unix.Open(d.Info().Path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	for _, o := range op.All() {
		if l := d.Info().Limits; o == op.Flush && !l.VolatileCache || o == op.WriteZeroes && l.WriteZeroesMaxBytes == 0 {
			continue // the block layer does not ask for what the device does not have
		}
		before := d.Counters().Snapshot().Ops[o].Done
		for i := range 15 {
			took := doOne(t, fd, o, int64(i)*1<<20)
			if took < delays[o] {
				t.Errorf("%v %d took %v, asked %v", o, i, took, delays[o])
			}
		}
		// A test of latencies proves nothing if the block layer
		// answered by itself.
		if n := d.Counters().Snapshot().Ops[o].Done - before; n < 15 {
			t.Errorf("%d of 15 requests of %v reached the device", n, o)
		}
	}
}

// doOne makes one request of 64 KiB of the op and returns how long it took.
func doOne(t *testing.T, fd int, o op.Op, offset int64) time.Duration {
	t.Helper()
	const length = 64 << 10
	mem, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	defer unix.Munmap(mem)
	if o == op.Flush {
		// A flush with nothing written since the last may be left out.
		_, err := unix.Pwrite(fd, mem, offset)
		must(t, err)
	}
	began := time.Now()
	switch o {
	case op.Read:
		_, err = unix.Pread(fd, mem, offset)
	case op.Write:
		_, err = unix.Pwrite(fd, mem, offset)
	case op.Flush:
		err = unix.Fsync(fd)
	case op.Discard:
		err = rangeIoctl(fd, unix.BLKDISCARD, offset, length)
	case op.WriteZeroes:
		err = rangeIoctl(fd, unix.BLKZEROOUT, offset, length)
	}
	took := time.Since(began)
	if err != nil {
		t.Fatalf("%v: %v", o, err)
	}
	return took
}

// Promise 1 at depth: a request is timed from before it is submitted to after
// it is answered, so that one that is early shows whatever else goes on.
func TestPromise1NeverEarlyAtDepth(t *testing.T) {
	for _, hold := range []Hold{HoldSubmit, HoldComplete} {
		t.Run(hold.String(), func(t *testing.T) {
			inEveryMode(t, 64<<20, func(t *testing.T, spec Spec) { neverEarlyAtDepth(t, spec, hold) })
			t.Run("memory", func(t *testing.T) { neverEarlyAtDepth(t, Spec{Backing: "mem:64M"}, hold) })
		})
	}
}

func neverEarlyAtDepth(t *testing.T, spec Spec, hold Hold) {
	const depth, rounds, delay = 64, 20, 3 * time.Millisecond
	spec.Delays, spec.Hold, spec.Queues = scheduler.Constant(delay), hold, min(2, runtime.NumCPU())
	d := start(t, newHost(t), spec)
	k := openDisk(t, d.Info().Path, depth)
	defer k.close()
	var sent [depth]time.Time
	left := depth * rounds
	send := func(i int) {
		sent[i] = time.Now()
		k.queue(i, i%2 == 0, int64((left*7919)%(64<<20/block))*block)
		k.submit()
	}
	for i := range depth {
		send(i)
	}
	total := left
	must(t, k.reap(total, 60*time.Second, func(i int, res int32) {
		if took := time.Since(sent[i]); took < delay {
			t.Errorf("took %v, asked %v", took, delay)
		}
		if res != block {
			t.Errorf("answer %d, want %d", res, block)
		}
		if left--; left >= depth {
			send(i)
		}
	}))
}
