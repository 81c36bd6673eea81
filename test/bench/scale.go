package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/client"
	"github.com/delayd/delayd/test/fixture"
)

// Figures of many devices, by their names in Facts.
const (
	figureStart    = "start_32_devices_s" // from the first add to the last's return
	figureStartOne = "start_32_devices_accuracy_s"
	figureFile     = "start_32_devices_of_a_file_s" // from the daemon's start until it serves
	figureFileOne  = "start_32_devices_of_a_file_accuracy_s"
	figureResident = "resident_a_device_B"  // of an idle one of depth 4096
	figureEmpty    = "resident_no_device_B" // of a daemon without devices
)

const (
	eight        = 8
	eightTarget  = "delayd, eight devices"          // of one daemon
	apartTarget  = "delayd, eight daemons"          // as with a service for each device
	onOneTarget  = "delayd, eight devices, one CPU" // CPUAffinity= of the one daemon
	eightDelay   = 10 * time.Millisecond
	manyStarted  = 32
	manyResident = 8
)

var eightTargets = []string{eightTarget, apartTarget, onOneTarget}

// manyDevices measures eight devices at once against one, what an idle device
// occupies, and how quickly 32 start.
func (r *run) manyDevices() {
	fmt.Fprintln(os.Stderr, "bench: throughput: many devices")
	for round := 1; round <= r.scope.classic; round++ {
		for _, target := range eightTargets {
			if err := r.eightDevices(round, target); err != nil {
				r.facts.fail("%s: %v", target, err)
			}
		}
	}
	if err := r.resident(); err != nil {
		r.facts.fail("memory of an idle device: %v", err)
	}
	r.startMany(figureStart, figureFile)
}

// eightDevices measures one device, then eight at once, each on a disk of its
// own: of one daemon, or of a daemon each.
func (r *run) eightDevices(round int, target string) (err error) {
	var made fixture.Stack
	defer func() { err = errors.Join(err, made.Close()) }()
	var d *fixture.Daemon
	var pids []int
	var paths []string
	for i := range eight {
		if d == nil || target == apartTarget {
			start := fixture.StartDaemon
			if target == onOneTarget {
				start = startOnLastCPU
			}
			if d, err = start(r.bin, fmt.Sprintf("bench%d", i)); err != nil {
				return err
			}
			made.Push("delayd", d.Close)
			pids = append(pids, d.PID())
		}
		disk, err := fixture.NewNullBlk(fixture.MemoryBacked(2 * spanMiB))
		if err != nil {
			return err
		}
		made.Push(disk.Path, disk.Close)
		name := fmt.Sprintf("bench%d", i)
		path, err := d.Add(name, disk.Path, "--delay", eightDelay.String())
		if err != nil {
			return err
		}
		of := d
		made.Push(name, func() error { return of.Del(name) })
		paths = append(paths, path)
	}
	l := load{op: "read", bytes: 4096, jobs: 1, depth: 1, span: span, runtime: r.scope.longest, single: true, exact: true}
	for _, some := range [][]string{paths[:1], paths} {
		before, err := cpuOf(pids)
		if err != nil {
			return err
		}
		m, _, err := runFio(l, some...)
		if err != nil {
			return err
		}
		after, err := cpuOf(pids)
		if err != nil {
			return err
		}
		each := us(after-before) / float64(m.Requests)
		m.CPU = &each
		if err := r.line(round, target, eightDelay, m); err != nil {
			return err
		}
	}
	return nil
}

// startOnLastCPU starts a daemon that may use the last CPU only, as this thread
// may while it starts it.
func startOnLastCPU(bin, name string, flags ...string) (d *fixture.Daemon, err error) {
	var all, last unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("read the CPU affinity: %w", err)
	}
	last.Set(runtime.NumCPU() - 1)
	if err := unix.SchedSetaffinity(0, &last); err != nil {
		return nil, fmt.Errorf("use one CPU: %w", err)
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &all)) }()
	return fixture.StartDaemon(bin, name, flags...)
}

// resident finds what an idle device of the greatest depth occupies.
func (r *run) resident() (err error) {
	d, err := fixture.StartDaemon(r.bin, "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	empty, err := resident(d.PID())
	if err != nil {
		return err
	}
	for i := range manyResident {
		if _, err := d.Add(fmt.Sprintf("bench%d", i), "null:1G", "--delay", "1ms", "--depth", fmt.Sprint(api.MaxDepth)); err != nil {
			return err
		}
	}
	time.Sleep(time.Second) // idle means idle
	full, err := resident(d.PID())
	if err != nil {
		return err
	}
	r.facts.figure(figureEmpty, float64(empty))
	r.facts.figure(figureResident, float64(full-empty)/manyResident)
	return nil
}

// startMany times the start of many devices: added one after the other through
// the Go client, and by a daemon that has them in its file.
func (r *run) startMany(added, ofFile string) {
	r.timed(added, r.timeAdding)
	r.timed(ofFile, r.timeFile)
}

func (r *run) timed(figure string, start func() (time.Duration, error)) {
	took, err := start()
	if err != nil {
		r.facts.fail("start of %d devices: %v", manyStarted, err)
		return
	}
	r.facts.figure(figure, took.Seconds())
}

func (r *run) timeAdding() (took time.Duration, err error) {
	d, err := fixture.StartDaemon(r.bin, "bench")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := client.New(d.Socket())
	began := time.Now()
	for i := range manyStarted {
		if _, err := c.Add(ctx, api.Spec{Name: fmt.Sprintf("bench%d", i), Backing: "null:1G", Delay: "1ms"}); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

func (r *run) timeFile() (took time.Duration, err error) {
	dir, err := os.MkdirTemp("", "delayd-bench-file-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var text strings.Builder
	for i := range manyStarted {
		fmt.Fprintf(&text, "[[device]]\nname = \"bench%d\"\nbacking = \"null:1G\"\ndelay = \"1ms\"\n", i)
	}
	path := filepath.Join(dir, "many.toml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		return 0, err
	}
	began := time.Now()
	d, err := fixture.StartDaemon(r.bin, "bench", "--config", path)
	took = time.Since(began)
	if err == nil {
		err = d.Close()
	}
	return took, err
}
