package ublkdev

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/op"
)

func release(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(u.Release[:])
}

// What the kernels that this is tested on answered when they were looked at.
func TestVMFeatures(t *testing.T) {
	c := needUblk(t)
	f, err := c.Features(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %#x %v", release(t), uint64(f), f)
	if !f.Has(FeatureUserRecovery | FeatureUserRecoveryReissue | FeatureCmdIoctlEncode | FeatureUserCopy) {
		t.Errorf("features %v lack what every supported kernel has", f)
	}
	switch r := release(t); {
	case strings.HasPrefix(r, "6.12."):
		if f != 0x1fe {
			t.Errorf("features of 6.12: %#x, want 0x1fe", uint64(f))
		}
	case strings.HasPrefix(r, "7.3."):
		// A kernel built without CONFIG_BLK_DEV_INTEGRITY lacks that one.
		if f|FeatureIntegrity != 0x1fffff {
			t.Errorf("features of 7.3: %#x, want 0x1fffff but for INTEGRITY", uint64(f))
		}
	}
}

func TestVMAddAndInfo(t *testing.T) {
	c := needUblk(t)
	const owner = 0xdeadbeefcafe0123
	info := add(t, c, AddOptions{
		ID: -1, Queues: 1, Depth: 100, MaxIOBytes: 256<<10 + 512, OwnerFlags: owner,
		Flags: FeatureUserRecovery | FeatureUserRecoveryReissue,
	})
	if info.Queues != 1 || info.Depth != 100 || info.MaxIOBytes != 256<<10 || info.OwnerFlags != owner {
		t.Errorf("added: %+v, want 1 queue of 100, 262144 bytes, the owner's flags", info)
	}
	if !info.Flags.Has(FeatureUserRecovery|FeatureUserRecoveryReissue|FeatureCmdIoctlEncode) || info.Flags.Has(FeatureUserCopy) {
		t.Errorf("added with %v, want what was asked", info.Flags)
	}
	got, err := c.Info(t.Context(), info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.State != Dead || got.PID != -1 {
		t.Errorf("before start: %v, pid %d, want dead, -1", got.State, got.PID)
	}
	info.PID, info.State = got.PID, got.State
	if diff := cmp.Diff(info, got); diff != "" {
		t.Errorf("info differs from what Add said (-add +info):\n%s", diff)
	}
	// Both forms of the command say the same.
	plain, err := c.devInfo(t.Context(), opGetDevInfo, info.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.devInfo(t.Context(), opGetDevInfo2, info.ID, CharPath(info.ID))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain, second); diff != "" {
		t.Errorf("GET_DEV_INFO and GET_DEV_INFO2 differ:\n%s", diff)
	}
	ids, err := List()
	if err != nil || !slices.Contains(ids, info.ID) {
		t.Errorf("List() = %v, %v, want %d among them", ids, err, info.ID)
	}
	// A given id, and that id again.
	other := add(t, c, AddOptions{ID: info.ID + 5})
	if other.ID != info.ID+5 {
		t.Errorf("asked for id %d, got %d", info.ID+5, other.ID)
	}
	_, err = c.Add(t.Context(), AddOptions{ID: other.ID, Queues: 1, Depth: 1, MaxIOBytes: 4096})
	if !errors.Is(err, ErrExists) {
		t.Errorf("the id again: %v, want ErrExists", err)
	}
}

func TestVMParams(t *testing.T) {
	c := needUblk(t)
	info := add(t, c, AddOptions{ID: -1, MaxIOBytes: 512 << 10})
	want := testParams()
	if err := c.SetParams(t.Context(), info.ID, want); err != nil {
		t.Fatal(err)
	}
	got, err := c.GetParams(t.Context(), info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.Numbers == nil || got.Numbers.CharMajor == 0 || got.Numbers.DiskMajor != 0 {
		t.Errorf("numbers before start: %+v, want those of the character device alone", got.Numbers)
	}
	var st unix.Stat_t
	if err := unix.Stat(CharPath(info.ID), &st); err != nil {
		t.Fatal(err)
	}
	if got.Numbers != nil && (unix.Major(st.Rdev) != got.Numbers.CharMajor || unix.Minor(st.Rdev) != got.Numbers.CharMinor) {
		t.Errorf("numbers %+v, but %s is %d:%d", got.Numbers, CharPath(info.ID), unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	got.Numbers = nil
	// 6.12 knows neither; what it does not know it leaves out.
	if strings.HasPrefix(release(t), "6.12.") {
		want.DMAAlign, want.Segment = nil, nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("set and got (-want +got):\n%s", diff)
	}

	// The rule that depends on Add.
	want.Basic.MaxSectors = 1025
	err = c.SetParams(t.Context(), info.ID, want)
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(fmt.Sprint(err), "1025 sectors") || !strings.Contains(fmt.Sprint(err), "524288 bytes") {
		t.Errorf("requests larger than the device was added with: %v", err)
	}
	// And one that is checked before the kernel is asked.
	want.Basic.MaxSectors, want.Basic.LogicalBlockShift = 1024, 3
	if err := c.SetParams(t.Context(), info.ID, want); err == nil || errors.Is(err, unix.EINVAL) {
		t.Errorf("8-byte blocks: %v, want our own words", err)
	}
}

// The parameters arrive in the block layer as what they are named.
func TestVMParamsInSysfs(t *testing.T) {
	c := needUblk(t)
	info := add(t, c, AddOptions{ID: -1, MaxIOBytes: 512 << 10})
	p := testParams()
	p.Basic.Attrs = VolatileCache | FUA | Rotational
	if err := c.SetParams(t.Context(), info.ID, p); err != nil {
		t.Fatal(err)
	}
	s := serve(t, info, memory(t, int(p.Basic.DevSectors)*512))
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	defer stop(t, c, s)
	want := map[string]string{
		"size": "65536", "ro": "0",
		"queue/logical_block_size": "512", "queue/physical_block_size": "4096",
		"queue/minimum_io_size": "4096", "queue/optimal_io_size": "131072",
		"queue/max_hw_sectors_kb": "512", "queue/chunk_sectors": "2048",
		"queue/discard_granularity": "4096", "queue/discard_max_hw_bytes": "4194304",
		"queue/write_zeroes_max_bytes": "2097152",
		"queue/rotational":             "1", "queue/write_cache": "write back", "queue/fua": "1",
	}
	if got, err := c.GetParams(t.Context(), info.ID); err == nil && got.Segment != nil {
		want["queue/max_segments"], want["queue/max_segment_size"] = "64", "131072"
		want["queue/dma_alignment"] = "511"
	}
	for name, value := range want {
		b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(BlockPath(info.ID)), name))
		if got := strings.TrimSpace(string(b)); err != nil || got != value {
			t.Errorf("%s = %q, %v, want %q", name, got, err, value)
		}
	}
}

func TestVMServe(t *testing.T) {
	c := needUblk(t)
	for _, tt := range []struct {
		name          string
		queues, depth uint16
		maxIO         uint32
		size          int
	}{
		{"one queue", 1, 16, 128 << 10, 2 << 20},
		{"one tag", 1, 1, 4096, 128 << 10},
		{"two queues", 2, 64, 64 << 10, 2 << 20},
		{"the deepest queue", 1, MaxDepth, 4096, 512 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			size := tt.size
			info := device(t, c, AddOptions{ID: -1, Queues: tt.queues, Depth: tt.depth, MaxIOBytes: tt.maxIO}, size)
			if want := min(int(tt.queues), runtime.NumCPU()); info.Queues != want {
				t.Errorf("%d queues, want %d", info.Queues, want)
			}
			mem := memory(t, size)
			s := serve(t, info, mem)
			if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
				t.Fatal(err)
			}
			live, err := c.Info(t.Context(), info.ID)
			if err != nil || live.State != Live || live.PID != os.Getpid() {
				t.Errorf("started: %+v, %v, want live, pid %d", live, err, os.Getpid())
			}
			if p, err := c.GetParams(t.Context(), info.ID); err != nil || p.Numbers == nil || p.Numbers.DiskMajor == 0 {
				t.Errorf("numbers of a started device: %+v, %v", p, err)
			}
			if err := c.SetParams(t.Context(), info.ID, plainParams(info, size)); !errors.Is(err, unix.EACCES) {
				t.Errorf("parameters of a started device: %v, want EACCES", err)
			}
			if err := c.Start(t.Context(), info.ID, os.Getpid()); !errors.Is(err, ErrExists) {
				t.Errorf("started again: %v, want ErrExists", err)
			}
			if _, err := OpenChar(expired(t), info.ID); !errors.Is(err, unix.EBUSY) || !strings.Contains(fmt.Sprint(err), "another server") {
				t.Errorf("second server: %v, want EBUSY", err)
			}

			mustChild(t, "scribble", BlockPath(info.ID), "7", fmt.Sprint(size), "30")
			model := make([]byte, size)
			if err := scribble(7, 30, model, func(int, []byte) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(model, mem) {
				t.Error("the server's memory is not what was written")
			}
			if s.served[op.Read].Load() == 0 || s.served[op.Write].Load() == 0 {
				t.Errorf("served %d reads, %d writes", s.served[op.Read].Load(), s.served[op.Write].Load())
			}

			// An errno that the server answers is what the application gets.
			s.failed.Store(int32(unix.ENOSPC))
			if got := mustChild(t, "read", BlockPath(info.ID)); got != "ENOSPC" {
				t.Errorf("read answered with ENOSPC gave %q", got)
			}
			s.failed.Store(0)

			stop(t, c, s)
			if _, err := os.Stat(BlockPath(info.ID)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s after stop: %v, want it gone", BlockPath(info.ID), err)
			}
			if dead, err := c.Info(t.Context(), info.ID); err != nil || dead.State != Dead {
				t.Errorf("stopped: %+v, %v, want dead", dead, err)
			}
			if err := c.Delete(t.Context(), info.ID); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Info(t.Context(), info.ID); !errors.Is(err, ErrNotFound) {
				t.Errorf("deleted: %v, want ErrNotFound", err)
			}
		})
	}
}

func TestVMFlushAndFUA(t *testing.T) {
	c := needUblk(t)
	const size = 1 << 20
	info := add(t, c, AddOptions{ID: -1})
	p := plainParams(info, size)
	p.Basic.Attrs = VolatileCache | FUA
	if err := c.SetParams(t.Context(), info.ID, p); err != nil {
		t.Fatal(err)
	}
	s := serve(t, info, memory(t, size))
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	defer stop(t, c, s)
	mustChild(t, "fua", BlockPath(info.ID))
	if n := s.fua.Load(); n != 1 {
		t.Errorf("%d requests with FlagFUA, want 1", n)
	}
	before := s.served[op.Flush].Load()
	mustChild(t, "flush", BlockPath(info.ID))
	if n := s.served[op.Flush].Load() - before; n != 1 {
		t.Errorf("fsync sent %d flushes, want 1", n)
	}
}

func TestVMDiscardAndWriteZeroes(t *testing.T) {
	c := needUblk(t)
	const size = 256 << 10
	info := add(t, c, AddOptions{ID: -1})
	p := plainParams(info, size)
	p.Discard = &DiscardParams{Granularity: 4096, MaxSectors: 64, MaxWriteZeroesSectors: 128, MaxSegments: 1}
	if err := c.SetParams(t.Context(), info.ID, p); err != nil {
		t.Fatal(err)
	}
	mem := memory(t, size)
	s := serve(t, info, mem)
	if err := c.Start(t.Context(), info.ID, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	defer stop(t, c, s)
	for _, tt := range []struct {
		job     string
		kind    op.Op
		want    int64 // requests: 64 KiB over the limit of the kind
		noUnmap int64
	}{
		{"discard", op.Discard, 2, 0},
		{"zeroout", op.WriteZeroes, 1, 1},
	} {
		for i := range mem {
			mem[i] = 0xee
		}
		mustChild(t, tt.job, BlockPath(info.ID))
		if n := s.served[tt.kind].Load(); n != tt.want {
			t.Errorf("%s: %d requests, want %d", tt.job, n, tt.want)
		}
		if n := s.noUnmap.Load(); n != tt.noUnmap {
			t.Errorf("%s: %d requests with FlagNoUnmap, want %d", tt.job, n, tt.noUnmap)
		}
		for i, b := range mem {
			if inside := i >= 64<<10 && i < 128<<10; inside != (b == 0) {
				t.Fatalf("%s of 64 KiB at 64 KiB: byte %d is %#x", tt.job, i, b)
			}
		}
	}
}

func TestVMAffinity(t *testing.T) {
	c := needUblk(t)
	info := add(t, c, AddOptions{ID: -1, Queues: uint16(runtime.NumCPU())})
	seen := map[int]int{}
	for queue := range info.Queues {
		cpus, err := c.Affinity(t.Context(), info.ID, queue)
		if err != nil || len(cpus) == 0 {
			t.Fatalf("queue %d: CPUs %v, %v, want one at least", queue, cpus, err)
		}
		if !slices.IsSorted(cpus) {
			t.Errorf("queue %d: CPUs %v are not in order", queue, cpus)
		}
		for _, cpu := range cpus {
			if before, dup := seen[cpu]; dup {
				t.Errorf("CPU %d belongs to queues %d and %d", cpu, before, queue)
			}
			seen[cpu] = queue
		}
	}
	for cpu := range runtime.NumCPU() {
		if _, ok := seen[cpu]; !ok {
			t.Errorf("CPU %d belongs to no queue of %v", cpu, seen)
		}
	}
	if _, err := c.Affinity(t.Context(), info.ID, info.Queues); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a queue that there is not: %v, want EINVAL", err)
	}
}

func TestVMQueueOfWrongDepth(t *testing.T) {
	c := needUblk(t)
	info := device(t, c, AddOptions{ID: -1, Depth: 16}, 1<<20)
	char, err := OpenChar(t.Context(), info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer char.Close()
	for _, tt := range []struct{ id, depth int }{{0, 1000}, {info.Queues, 16}} {
		if q, err := NewQueue(int(char.Fd()), tt.id, tt.depth); !errors.Is(err, unix.EINVAL) {
			_ = q.Close()
			t.Errorf("queue %d of depth %d: %v, want EINVAL", tt.id, tt.depth, err)
		}
	}
}
