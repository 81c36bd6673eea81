package device

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/ublkdev"
)

// A measurement reads the same block of a device and of its backing in turns,
// one read at a time and without writing anything, as an application would: past
// the page cache. It is what the child process does; its fields are the child's
// arguments, in this order.
type measurement struct {
	id      int           // of the ublk device
	at      int64         // byte of the device
	length  int           // bytes of a read
	warmup  int           // reads of each of the two before those that count
	reads   int           // that count, at most
	budget  time.Duration // after it no more reads begin, once there are enough
	backing string        // path of the backing; "": it has none, and takes no time
	backAt  int64         // byte of the backing
}

// enoughReads is how many must count.
const enoughReads = 5

func (m measurement) args() []string {
	return []string{
		strconv.Itoa(m.id), strconv.FormatInt(m.at, 10), strconv.Itoa(m.length), strconv.Itoa(m.warmup), strconv.Itoa(m.reads),
		m.budget.String(), m.backing, strconv.FormatInt(m.backAt, 10),
	}
}

func parseMeasurement(args []string) (m measurement, err error) {
	if len(args) != len(m.args()) {
		return m, fmt.Errorf("helper measure: %d arguments, want %d", len(args), len(m.args()))
	}
	number := func(s string) int64 {
		n, parseErr := strconv.ParseInt(s, 10, 64)
		if parseErr != nil || n < 0 {
			err = fmt.Errorf("helper measure: %q is not a number", s)
		}
		return n
	}
	m = measurement{
		id: int(number(args[0])), at: number(args[1]), length: int(number(args[2])), warmup: int(number(args[3])),
		reads: int(number(args[4])), backing: args[6], backAt: number(args[7]),
	}
	if m.budget, _ = time.ParseDuration(args[5]); m.budget <= 0 {
		err = fmt.Errorf("helper measure: %q is not a time", args[5])
	}
	return m, err
}

// measured is how long the reads of a measurement took.
type measured struct {
	device, backing sample
	reads           int // of each
}

// sample is the median of some reads, and the quickest.
type sample struct{ median, quickest time.Duration }

const measuredForm = "%d %d %d %d %d"

func (m measured) String() string {
	return fmt.Sprintf(measuredForm, m.device.median, m.device.quickest, m.backing.median, m.backing.quickest, m.reads)
}

func parseMeasured(s string) (m measured, err error) {
	_, err = fmt.Sscanf(s, measuredForm, &m.device.median, &m.device.quickest, &m.backing.median, &m.backing.quickest, &m.reads)
	if err != nil {
		return m, fmt.Errorf("read %q of a child: %w", s, err)
	}
	return m, nil
}

func measureAndPrint(args []string) error {
	m, err := parseMeasurement(args)
	if err != nil {
		return err
	}
	got, err := m.run()
	if err != nil {
		return err
	}
	_, err = fmt.Println(got)
	return err
}

// run is the child's work.
func (m measurement) run() (measured, error) {
	// Reads block the thread behind the back of the Go scheduler, as they do in
	// a program that has none. Nothing else is to happen in this process.
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf, err := unix.Mmap(-1, 0, m.length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return measured{}, fmt.Errorf("allocate a buffer of %d bytes: %w", m.length, err)
	}
	back := reader{fd: -1}
	if m.backing != "" {
		// A backing that hangs is to be noticed before the device has a request
		// of ours that would hang with it.
		if back, err = openReader(m.backing, m.backAt, buf); err != nil {
			return measured{}, err
		}
	}
	dev, err := openReader(ublkdev.BlockPath(m.id), m.at, buf)
	if err != nil {
		return measured{}, err
	}
	var device, backing []time.Duration
	end := time.Now().Add(m.budget)
	for i := -m.warmup; i < m.reads && (i < enoughReads || time.Now().Before(end)); i++ {
		b, d := time.Duration(0), time.Duration(0)
		if m.backing != "" {
			if b, err = back.read(buf); err != nil {
				return measured{}, err
			}
		}
		if d, err = dev.read(buf); err != nil {
			return measured{}, err
		}
		if i >= 0 {
			device, backing = append(device, d), append(backing, b)
		}
	}
	if len(device) == 0 {
		return measured{}, errors.New("no reads were asked for")
	}
	return measured{sampleOf(device), sampleOf(backing), len(device)}, nil
}

func sampleOf(d []time.Duration) sample {
	slices.Sort(d)
	return sample{(d[(len(d)-1)/2] + d[len(d)/2]) / 2, d[0]}
}

// reader is a file and the byte of it that is read.
type reader struct {
	path string
	fd   int
	at   int64
}

// openReader opens a file and reads from it once: directly where its file system
// can, as the daemon does.
func openReader(path string, at int64, buf []byte) (reader, error) {
	for _, direct := range []int{unix.O_DIRECT, 0} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|direct, 0)
		if errors.Is(err, unix.EINVAL) && direct != 0 {
			continue
		}
		if err != nil {
			return reader{}, &os.PathError{Op: "open", Path: path, Err: err}
		}
		r := reader{path, fd, at}
		_, err = r.read(buf)
		if errors.Is(err, unix.EINVAL) && direct != 0 {
			if err := unix.Close(fd); err != nil {
				return reader{}, &os.PathError{Op: "close", Path: path, Err: err}
			}
			continue
		}
		return r, err
	}
	panic("unreachable: the last way to open returns")
}

// read reads the block and returns how long it took.
func (r reader) read(buf []byte) (time.Duration, error) {
	for {
		began := time.Now()
		n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(r.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(r.at), 0, 0)
		took := time.Since(began)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return 0, &os.PathError{Op: "read", Path: r.path, Err: errno}
		case int(n) != len(buf):
			return 0, fmt.Errorf("read %s at byte %d: %d of %d bytes", r.path, r.at, n, len(buf))
		default:
			return took, nil
		}
	}
}
