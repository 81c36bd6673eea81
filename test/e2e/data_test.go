package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/test/fixture"
)

// dataCase is one way to have a device. The whole matrix is tested, or, if time
// is short, cases that have every backing, delay and number of queues.
type dataCase struct {
	backing string
	delay   time.Duration
	queues  int
	engine  string
	copying bool // also where the kernel and the backing can do without
}

// copyFlags are what a device is added with to have its data copied, or not.
func copyFlags(copying bool) []string {
	if copying {
		return []string{"--zero-copy", "off"}
	}
	return nil
}

func dataCases(short bool) (cases []dataCase) {
	const us, ms = time.Microsecond, time.Millisecond
	if short {
		return []dataCase{
			{"block", 0, 1, "io_uring", false},
			{"block", 3 * ms, 2, "libaio", false},
			{"block", 200 * us, 1, "io_uring", true},
			{"file", 200 * us, 2, "io_uring", false},
			{"file", 0, 1, "libaio", true},
			{"mem", 3 * ms, 1, "io_uring", false},
			{"mem", 200 * us, 2, "libaio", false},
			{"polled", 200 * us, 1, "io_uring", false},
		}
	}
	for _, backing := range []string{"block", "file", "mem", "polled"} {
		for i, delay := range []time.Duration{0, 200 * us, 3 * ms} {
			for queues := 1; queues <= 2; queues++ {
				// Each engine meets each backing, delay and number of queues.
				engine := [2]string{"io_uring", "libaio"}[(i+queues)%2]
				if backing == "polled" && i != queues {
					continue
				}
				cases = append(cases, dataCase{backing, delay, queues, engine, false})
				if backing != "mem" && backing != "polled" && i == queues {
					cases = append(cases, dataCase{backing, delay, queues, engine, true})
				}
			}
		}
	}
	return cases
}

// What fio writes and checks through the device is what the backing holds, byte
// for byte, and fio itself finds it there.
func TestDataWithFio(t *testing.T) {
	size := int64(16 * mib)
	if testing.Short() {
		size = 8 * mib
	}
	d := startDaemon(t)
	for i, c := range dataCases(testing.Short()) {
		t.Run(fmt.Sprintf("%s/%v/%d-queues/%s", c.backing, c.delay, c.queues, wayOf(c.copying)), func(t *testing.T) {
			if c.queues > runtime.NumCPU() {
				t.Skipf("a device has no more queues than there are CPUs: %d", runtime.NumCPU())
			}
			d := d.with(t)
			b := newBacking(t, c.backing, size)
			name := shortName(t)
			path := d.add(name, append(append(copyFlags(c.copying), b.flags...),
				"--backing", b.spec, "--delay", c.delay.String(), "--queues", strconv.Itoa(c.queues))...)
			checkWay(t, d, name, b, c.copying)
			if got, err := fixture.Size(path); got != size {
				t.Fatalf("the device has %d bytes (%v), its backing %d", got, err, size)
			}
			f := fioJob{path: path, size: size, engine: c.engine, seed: i + 1, queues: c.queues, block: blockSize(t, path)}

			// Mixed reads and writes, read back while others are under way, and
			// all once more at the end.
			mixed := f.run(t, "--rw=randrw", "--rwmixwrite=60", "--verify_backlog=64")
			if mixed.Read.Bytes < size/2 || mixed.Write.Bytes < size/4 {
				t.Errorf("fio read %d and wrote %d bytes of %d, too few to prove anything", mixed.Read.Bytes, mixed.Write.Bytes, size)
			}
			// Every block once, to be looked for behind the device.
			f.seed += 1000
			if w := f.run(t, "--rw=randwrite", "--do_verify=0"); w.Write.Bytes != size {
				t.Errorf("fio wrote %d bytes, want all %d", w.Write.Bytes, size)
			}
			through := imageOf(t, path)
			if b.kind != "mem" {
				d.del(name)
			}
			f.path = b.path(d, name)
			same(t, "backing", through, imageOf(t, f.path))
			if c.queues == 1 || testing.Short() { // of two queues the bytes are proof enough, and time is dear
				f.checkOnly(t)
			}
			if b.kind == "mem" {
				d.del(name)
			}
		})
	}
}

// A request that comes after a pause, and after its queue has let a lot through,
// has its own bytes: a queue that falls idle gives its buffers' pages back, and
// must not do so while an answer is still to be copied out of them.
func TestDataAfterAPause(t *testing.T) {
	const size = 8 * mib
	rounds := uint64(3)
	if testing.Short() {
		rounds = 1
	}
	d := startDaemon(t)
	for _, c := range []struct {
		kind, hold string
		copying    bool
	}{
		{"mem", "submit", false}, {"mem", "complete", false}, {"block", "submit", false}, {"block", "submit", true},
		{"block", "complete", true}, {"file", "complete", false}, {"file", "complete", true},
	} {
		t.Run(c.kind+"/"+c.hold+"/"+wayOf(c.copying), func(t *testing.T) {
			d := d.with(t)
			b := newBacking(t, c.kind, size)
			name := shortName(t)
			// Longer than a queue takes to call itself quiet.
			path := d.add(name, append(copyFlags(c.copying), "--backing", b.spec, "--delay", "15ms", "--hold", c.hold)...)
			k := openDisk(t, path, unix.O_RDWR)
			want, got := alignedMemory(t, mib), alignedMemory(t, mib)
			for round := range rounds {
				for at := int64(0); at < size; at += mib {
					stamp(want, at, round)
					must(t, k.write(want, at, 0))
				}
				for at := int64(0); at < size; at += mib {
					stamp(want, at, round)
					must(t, k.read(got, at))
					if diff := difference(want, got); diff != "" {
						t.Fatalf("round %d: read of 1 MiB at %d: %s", round, at, diff)
					}
				}
			}
			k.close()
			through := make([]byte, size)
			for at := 0; at < size; at += mib {
				stamp(through[at:at+mib], int64(at), rounds-1)
			}
			if b.kind == "mem" {
				same(t, "backing", through, imageOf(t, b.path(d, name)))
			}
			d.del(name)
			if b.kind != "mem" {
				same(t, "backing", through, imageOf(t, b.spec))
			}
		})
	}
}

// blockSize is the device's logical block size.
func blockSize(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	n, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	must(t, err)
	return n
}

// fioJob is fio on one device: several jobs, each on a region of its own, so
// that what one expects no other overwrites.
type fioJob struct {
	path   string
	size   int64
	engine string
	seed   int
	queues int
	block  int // the smallest
}

const (
	fioJobs  = 2
	fioDepth = 32
	fioLimit = 3 * time.Minute
)

// fioResult is what fio counts of one kind of request.
type fioResult struct {
	Read, Write struct {
		Bytes int64 `json:"io_bytes"`
	}
}

func (f fioJob) args(more ...string) []string {
	region := f.size / fioJobs
	args := []string{
		"--name=data", "--direct=1", "--thread", "--group_reporting",
		"--filename=" + strings.ReplaceAll(f.path, ":", `\:`), // else it is a list
		"--ioengine=" + f.engine, fmt.Sprintf("--iodepth=%d", fioDepth), fmt.Sprintf("--numjobs=%d", fioJobs),
		fmt.Sprintf("--size=%d", region), fmt.Sprintf("--offset_increment=%d", region),
		"--bssplit=" + f.sizes(),
		"--verify=crc32c", "--verify_fatal=1", fmt.Sprintf("--randseed=%d", f.seed),
		"--output-format=json",
	}
	if f.queues > 1 {
		// A queue is chosen by the CPU that submits.
		args = append(args, fmt.Sprintf("--cpus_allowed=0-%d", f.queues-1), "--cpus_allowed_policy=split")
	}
	return append(args, more...)
}

// sizes are from one block to 1 MiB, with more of the small, so that both the
// number of requests and their bytes are many.
func (f fioJob) sizes() string {
	if f.block == 512 {
		return "512/15:1k/10:3584/10:4k/20:12800/10:32k/10:66048/8:128k/7:300k/5:1m/5"
	}
	return fmt.Sprintf("%d/35:%d/20:%d/15:%d/15:1m/15", f.block, 3*f.block, 8*f.block, 17*f.block)
}

// run is fio, which has to find nothing wrong.
func (f fioJob) run(t testing.TB, more ...string) fioResult {
	t.Helper()
	out, err := f.start(t, more...)
	if err != nil {
		t.Fatalf("fio on %s: %v\n%s", f.path, err, notes(out))
	}
	var report struct {
		Jobs []struct {
			Error int `json:"error"`
			fioResult
		} `json:"jobs"`
	}
	must(t, json.Unmarshal(jsonPart(out), &report))
	if len(report.Jobs) != 1 || report.Jobs[0].Error != 0 {
		t.Fatalf("fio on %s: %d groups of jobs, want one without an error\n%s", f.path, len(report.Jobs), notes(out))
	}
	return report.Jobs[0].fioResult
}

// checkOnly has fio look for what a randwrite with the same seed has written.
func (f fioJob) checkOnly(t testing.TB) {
	t.Helper()
	if r := f.run(t, "--rw=randwrite", "--verify_only"); r.Read.Bytes != f.size {
		t.Errorf("fio looked at %d bytes of %s, want all %d", r.Read.Bytes, f.path, f.size)
	}
}

func (f fioJob) start(t testing.TB, more ...string) ([]byte, error) {
	t.Helper()
	bin, err := exec.LookPath("fio")
	if err != nil {
		t.Fatalf("%v: install it (tools/setup test does)", err)
	}
	cmd := exec.Command(bin, f.args(more...)...)
	cmd.Dir = t.TempDir() // for the state that it saves of its verification
	var out fixture.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(fioLimit, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	if !late.Stop() {
		err = fmt.Errorf("not done within %v: %w", fioLimit, err)
	}
	// fio leaves a dump of a block that was not as expected.
	if dumps, _ := filepath.Glob(filepath.Join(cmd.Dir, "*.received")); err != nil {
		for _, d := range dumps {
			text, _ := os.ReadFile(d)
			t.Logf("%s begins with % x", d, text[:min(64, len(text))])
		}
	}
	return []byte(out.String()), err
}

// jsonPart leaves out the notes that fio writes before its report.
func jsonPart(out []byte) []byte {
	return out[max(0, bytes.IndexByte(out, '{')):]
}

// notes are what fio writes before its report.
func notes(out []byte) []byte {
	text, _, _ := bytes.Cut(out, []byte("{"))
	return text[:min(len(text), 4096)]
}
