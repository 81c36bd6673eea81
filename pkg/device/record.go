package device

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/backend"
	"github.com/delayd/delayd/pkg/ublkdev"
)

// records is one owner's folder below the run directory: for each device a
// record that says which ublk device is his, and the file of its counters. The
// folder is locked while its daemon lives.
type records struct {
	dir  string
	lock *os.File
}

// record says what a name is about. It is written before there is anything else
// of a device, so that whatever a daemon leaves when it is killed can be found:
// the ublk device by the nonce, which the driver keeps with the device's
// information and which nobody else has.
type record struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	Nonce   uint64 `json:"nonce"`
	Backing string `json:"backing"`
}

const recordVersion = 1

// half ends the name of a file that is being written and not renamed yet, here
// and in pkg/counters.
const half = ".new"

func openRecords(runDir, owner string) (*records, error) {
	dir := filepath.Join(runDir, owner)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	lock, err := takeLock(filepath.Join(dir, "lock"))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("owner %q has a daemon already (%s is locked): stop it, or give this one another --owner", owner, filepath.Join(dir, "lock"))
	}
	if err != nil {
		return nil, fmt.Errorf("lock the records of owner %q: %w", owner, err)
	}
	// What a daemon was writing when it was killed is nobody's now.
	halves, _ := filepath.Glob(filepath.Join(dir, "*"+half))
	for _, path := range halves {
		if err := os.Remove(path); err != nil {
			return nil, errors.Join(fmt.Errorf("remove what was half written: %w", err), lock.Close())
		}
	}
	return &records{dir: dir, lock: lock}, nil
}

// takeLock locks the file at path, which its last holder may be removing at
// this moment: a lock counts only on the file that path still names.
func takeLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if named, err := os.Stat(path); err == nil && os.SameFile(mine, named) {
			return f, nil
		}
		_ = f.Close()
	}
}

// close unlocks the folder and removes what is empty.
func (r *records) close() error {
	_ = os.Remove(r.lock.Name())
	err := r.lock.Close()
	_ = os.Remove(r.dir) // only if nothing is left in it
	return err
}

func (r *records) path(name string) string     { return filepath.Join(r.dir, name+".json") }
func (r *records) counters(name string) string { return filepath.Join(r.dir, name+".counters") }

// newNonce returns a number that no other device has.
func newNonce() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// write makes a record, whole or not at all. A name that has one is refused.
func (r *records) write(rec record) error {
	rec.Version = recordVersion
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(r.dir, rec.Name+".*"+half) // mode 0600
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", rec.Name, err)
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Link(f.Name(), r.path(rec.Name)) // unlike a rename, not over another
	}
	if errors.Is(err, os.ErrExist) {
		err = fmt.Errorf("device %s has a record already, %s: there is such a device, or it could not be removed", rec.Name, r.path(rec.Name))
	}
	return errors.Join(err, os.Remove(f.Name()))
}

// remove removes a record and the counters that go with it.
func (r *records) remove(name string) error {
	var errs []error
	for _, path := range []string{r.counters(name), r.path(name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// all reads the records that are there. What cannot be read is left alone and
// reported in the error.
func (r *records) all() ([]record, error) {
	paths, err := filepath.Glob(filepath.Join(r.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var recs []record
	var bad []error
	for _, p := range paths {
		var rec record
		data, err := os.ReadFile(p)
		if err == nil {
			err = json.Unmarshal(data, &rec)
		}
		switch {
		case err != nil:
			bad = append(bad, fmt.Errorf("record %s: %w", p, err))
		case rec.Version != recordVersion:
			bad = append(bad, fmt.Errorf("record %s: version %d, want %d", p, rec.Version, recordVersion))
		case rec.Name+".json" != filepath.Base(p) || strings.ContainsRune(rec.Name, '/'):
			bad = append(bad, fmt.Errorf("record %s: it is of %q", p, rec.Name))
		default:
			recs = append(recs, rec)
		}
	}
	return recs, errors.Join(bad...)
}

// removeOrphans removes what a daemon of this owner that is dead has left. The
// folder's lock is held, so whatever it lists has no daemon.
func (h *Host) removeOrphans(ctx context.Context) {
	recs, err := h.records.all()
	if err != nil {
		h.log.Warn("cannot read what an earlier daemon left; remove it by hand when its devices are gone", "err", err)
	}
	if len(recs) == 0 {
		return
	}
	ids, err := h.idsByNonce(ctx)
	if err != nil {
		h.log.Warn("cannot look for the devices that an earlier daemon left", "err", err)
		return
	}
	for _, rec := range recs {
		log := h.log.With("device", rec.Name)
		if id, there := ids[rec.Nonce]; there {
			log = log.With("path", ublkdev.BlockPath(id))
			if err := errors.Join(h.control.Stop(ctx, id), h.remove(ctx, id)); err != nil {
				log.Warn("cannot remove a device that an earlier daemon left", "err", err)
				continue
			}
		}
		if err := errors.Join(
			backend.RemoveLeft(rec.Backing, backend.Options{Name: rec.Name, Owner: h.opts.Owner}),
			h.records.remove(rec.Name),
		); err != nil {
			log.Warn("cannot remove all that an earlier daemon left", "err", err)
			continue
		}
		log.Info("removed a device that an earlier daemon left")
	}
}

// idsByNonce finds the ublk devices that are there by what their servers wrote
// into them.
func (h *Host) idsByNonce(ctx context.Context) (map[uint64]int, error) {
	list, err := ublkdev.List()
	if err != nil {
		return nil, err
	}
	ids := map[uint64]int{}
	for _, id := range list {
		info, err := h.control.Info(ctx, id)
		if errors.Is(err, ublkdev.ErrNotFound) {
			continue // gone this moment
		}
		if err != nil {
			return nil, err
		}
		ids[info.OwnerFlags] = id
	}
	return ids, nil
}
