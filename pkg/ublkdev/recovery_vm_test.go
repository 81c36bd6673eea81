package ublkdev

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
)

const recoverable = FeatureUserRecovery | FeatureUserRecoveryReissue

// takeOver recovers a quiesced device with a new server.
func takeOver(t *testing.T, c *Control, id int, mem []byte) *server {
	t.Helper()
	waitFor(t, "the recovery to be allowed", func() bool {
		err := c.StartRecovery(t.Context(), id)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatalf("start the recovery: %v", err)
		}
		return err == nil
	})
	info, err := c.Info(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if info.State != Quiesced {
		t.Errorf("without a server: %v, want quiesced", info.State)
	}
	s := serve(t, info, mem)
	if err := c.EndRecovery(t.Context(), id, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if info, err = c.Info(t.Context(), id); err != nil || info.State != Live || info.PID != os.Getpid() {
		t.Errorf("recovered: %+v, %v, want live, pid %d", info, err, os.Getpid())
	}
	return s
}

// The server goes, the device stays, the next server answers what the last one
// left.
func TestVMRecovery(t *testing.T) {
	c := needUblk(t)
	const size = 1 << 20
	mem := memory(t, size)
	info := device(t, c, AddOptions{ID: -1, Queues: 2, Flags: recoverable}, size)
	first := serve(t, info, mem)
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if err := c.StartRecovery(t.Context(), info.ID); !errors.Is(err, unix.EBUSY) {
		t.Errorf("recovery of a live device: %v, want EBUSY", err)
	}
	mustChild(t, "scribble", BlockPath(info.ID), "1", fmt.Sprint(size), "10")
	first.abandon()
	waitFor(t, "the device to be quiesced", func() bool {
		got, err := c.Info(t.Context(), info.ID)
		return err == nil && got.State == Quiesced
	})
	// Asked while nobody serves: waits.
	writer := startChild(t, "scribble", BlockPath(info.ID), "2", fmt.Sprint(size), "10")
	next := takeOver(t, c, info.ID, mem)
	if err := writer.Wait(); err != nil {
		t.Errorf("the application over the change of servers: %v", err)
	}
	model := make([]byte, size)
	for seed := range uint64(2) {
		if err := scribble(seed+1, 10, model, func(int, []byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(model, mem) {
		t.Error("the memory is not what was written through both servers")
	}
	if next.served[op.Write].Load() == 0 {
		t.Error("the second server wrote nothing")
	}
	stop(t, c, next)
}

// A device without the feature dies with its server.
func TestVMNoRecovery(t *testing.T) {
	c := needUblk(t)
	info := device(t, c, AddOptions{ID: -1}, 1<<20)
	s := serve(t, info, memory(t, 1<<20))
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	settle(t, s)
	s.abandon()
	waitFor(t, "the device to die", func() bool {
		got, err := c.Info(t.Context(), info.ID)
		return err == nil && got.State == Dead
	})
	if err := c.StartRecovery(t.Context(), info.ID); !errors.Is(err, unix.EINVAL) {
		t.Errorf("recovery: %v, want EINVAL", err)
	}
}

func TestVMQuiesce(t *testing.T) {
	c := needUblk(t)
	const size = 1 << 20
	info := device(t, c, AddOptions{ID: -1, Flags: recoverable | FeatureQuiesce}, size)
	mem := memory(t, size)
	s := serve(t, info, mem)
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	settle(t, s)
	err := c.Quiesce(t.Context(), info.ID, time.Second)
	have, ferr := c.Features(t.Context())
	if ferr != nil {
		t.Fatal(ferr)
	}
	if !have.Has(FeatureQuiesce) {
		// A kernel without it says so, and the device goes on.
		if !errors.Is(err, ErrNotSupported) || !strings.Contains(fmt.Sprint(err), "Linux 6.16") {
			t.Errorf("quiesce: %v, want ErrNotSupported and the kernel that has it", err)
		}
		mustChild(t, "flush", BlockPath(info.ID))
		stop(t, c, s)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	s.close() // every tag comes back as ResAbort
	if got, want := s.aborted.Load(), int64(info.Depth); got != want {
		t.Errorf("%d tags came back aborted, want all %d", got, want)
	}
	next := takeOver(t, c, info.ID, mem)
	mustChild(t, "scribble", BlockPath(info.ID), "3", fmt.Sprint(size), "5")
	stop(t, c, next)
}

func TestVMTryStop(t *testing.T) {
	c := needUblk(t)
	needFeatures(t, c, FeatureSafeStopDev)
	info := device(t, c, AddOptions{ID: -1}, 1<<20)
	s := serve(t, info, memory(t, 1<<20))
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	settle(t, s)
	holder := holdOpen(t, BlockPath(info.ID))
	if err := c.TryStop(t.Context(), info.ID); !errors.Is(err, unix.EBUSY) {
		t.Errorf("try to stop a device that is open: %v, want EBUSY", err)
	}
	if got, err := c.Info(t.Context(), info.ID); err != nil || got.State != Live {
		t.Errorf("afterwards: %+v, %v, want live", got, err)
	}
	_ = holder.Process.Kill()
	_ = holder.Wait()
	if err := c.TryStop(t.Context(), info.ID); err != nil {
		t.Errorf("try to stop a device that nobody has open: %v", err)
	}
	s.close()
	if err := c.TryStop(t.Context(), info.ID); !errors.Is(err, unix.ENODEV) {
		t.Errorf("try to stop it again: %v, want ENODEV", err)
	}
}

func TestVMUpdateSize(t *testing.T) {
	c := needUblk(t)
	needFeatures(t, c, FeatureUpdateSize)
	info := device(t, c, AddOptions{ID: -1, Flags: FeatureUpdateSize}, 1<<20)
	s := serve(t, info, memory(t, 4<<20))
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	defer stop(t, c, s)
	if err := c.UpdateSize(t.Context(), info.ID, 4<<20/512); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/sys/block/ublkb%d/size", info.ID))
	if err != nil || strings.TrimSpace(string(b)) != "8192" {
		t.Errorf("size %q, %v, want 8192", b, err)
	}
	mustChild(t, "scribble", BlockPath(info.ID), "4", fmt.Sprint(4<<20), "5")
}

// With the feature nothing reads a new device by itself; without it a partition
// scan does. (Where udev runs it reads too; it does not in the test VM.)
func TestVMNoAutoPartScan(t *testing.T) {
	c := needUblk(t)
	needFeatures(t, c, FeatureNoAutoPartScan)
	for _, flags := range []Features{0, FeatureNoAutoPartScan} {
		info := device(t, c, AddOptions{ID: -1, Flags: flags}, 1<<20)
		if info.Flags&FeatureNoAutoPartScan != flags {
			t.Errorf("asked for %v, got %v", flags, info.Flags)
		}
		s := serve(t, info, memory(t, 1<<20))
		if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
			t.Fatal(err)
		}
		settle(t, s)
		reads := s.served[op.Read].Load()
		if flags == 0 && reads == 0 || flags != 0 && reads != 0 {
			t.Errorf("flags %v: %d reads after the start", flags, reads)
		}
		stop(t, c, s)
	}
}

// holdOpen opens a device in a child and returns when that is done.
func holdOpen(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "hold", path)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("child: %q, %v", line, err)
	}
	return cmd
}
