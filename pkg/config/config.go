// Package config reads the devices of a TOML file.
//
// One device, named for the file unless it has a name of its own; this is what
// /etc/delayd/NAME.toml holds for the service delayd@NAME:
//
//	backing = "/dev/sdb"
//	delay   = "5ms"
//	flush   = "20ms"
//	size    = "10GiB"
//
// Or several:
//
//	[[device]]
//	name    = "slow"
//	backing = "mem:64M"
//	delay   = "5ms"
//
//	[[device]]
//	name    = "slower"
//	backing = "mem:64M"
//	delay   = "50ms"
//
// The words are those of the flags of "delayctl add", with _ for -: name,
// backing, delay, read, write, flush, discard, offset, size, queues, depth,
// read_only, shared, hold, compensate, spin, zero_copy, poll, pin and realtime. Delays are strings, sizes strings or whole numbers
// of bytes. A relative backing is relative to the folder of the file. What is
// not known is refused; every error has the file, line and column.
package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	toml "github.com/pelletier/go-toml/v2"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/size"
)

// maxFile bounds what Load reads, in bytes.
const maxFile = 1 << 20

// An Error says where in a file what is wrong.
type Error struct {
	File string
	// Line and Column count from 1; 0 if the error has no place.
	Line, Column int
	Err          error
}

// Error returns "FILE:LINE:COLUMN: what is wrong".
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Load reads and validates the devices of a file, in its order. Errors of its
// content are [*Error].
func Load(path string) ([]api.Spec, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the device file: %w", err)
	}
	if info.Size() > maxFile {
		return nil, &Error{File: path, Err: fmt.Errorf("%d bytes is too long for a device file", info.Size())}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the device file: %w", err)
	}
	return Parse(path, text)
}

// Name is what a file calls its device: its base name without ".toml".
func Name(path string) string {
	return strings.TrimSuffix(filepath.Base(path), ".toml")
}

// file is what a TOML file may hold.
type file struct {
	device
	Devices []device `toml:"device"`
}

// device has pointers where a zero value differs from none.
type device struct {
	Name     string `toml:"name,omitempty"`
	Backing  string `toml:"backing,omitempty"`
	Delay    string `toml:"delay,omitempty"`
	Read     string `toml:"read,omitempty"`
	Write    string `toml:"write,omitempty"`
	Flush    string `toml:"flush,omitempty"`
	Discard  string `toml:"discard,omitempty"`
	Offset   any    `toml:"offset,omitempty"` // string or int64
	Size     any    `toml:"size,omitempty"`   // string or int64
	Queues   any    `toml:"queues,omitempty"` // "auto" or int64
	Depth    int    `toml:"depth,omitempty"`
	ReadOnly bool   `toml:"read_only,omitempty"`
	Shared   bool   `toml:"shared,omitempty"`
	Hold     string `toml:"hold,omitempty"`

	Compensate string `toml:"compensate,omitempty"`
	Spin       string `toml:"spin,omitempty"`
	ZeroCopy   string `toml:"zero_copy,omitempty"`
	Poll       bool   `toml:"poll,omitempty"`
	Pin        bool   `toml:"pin,omitempty"`
	Realtime   int    `toml:"realtime,omitempty"`
}

// Parse is Load for text that was read from a file of that path.
func Parse(path string, text []byte) ([]api.Spec, error) {
	var f file
	d := toml.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, decodeError(path, err)
	}
	places, err := findKeys(text)
	if err != nil {
		return nil, decodeError(path, err)
	}
	if len(f.Devices) == 0 {
		if f.Name == "" && places.of(single, "name") == (place{}) {
			f.Name = Name(path)
		}
		s, err := f.spec(path)
		if err != nil {
			return nil, places.blame(path, single, err)
		}
		return []api.Spec{s}, nil
	}
	if key, at, ok := places.first(single); ok {
		return nil, &Error{path, at.line, at.column, &api.FieldError{
			Field: key, Err: errors.New("at the top level of a file that has [[device]]"),
			Hint: "move it below a [[device]], or write one device without [[device]]",
		}}
	}
	return f.specs(path, places)
}

// specs judges the devices of a file that has several.
func (f file) specs(path string, places keys) ([]api.Spec, error) {
	specs := make([]api.Spec, 0, len(f.Devices))
	seen := map[string]int{}
	for i, dev := range f.Devices {
		s, err := dev.spec(path)
		if err != nil {
			return nil, places.blame(path, i, err)
		}
		if other, ok := seen[s.Name]; ok {
			return nil, places.blame(path, i, &api.FieldError{
				Field: "name", Value: s.Name, Err: fmt.Errorf("taken by [[device]] number %d", other+1),
				Hint: "give each device a name of its own",
			})
		}
		seen[s.Name] = i
		specs = append(specs, s)
	}
	return specs, nil
}

// spec translates and validates.
func (d device) spec(path string) (api.Spec, error) {
	s := api.Spec{
		Name: d.Name, Backing: absolute(path, d.Backing),
		Delay: d.Delay, Read: d.Read, Write: d.Write, Flush: d.Flush, Discard: d.Discard,
		Depth:    d.Depth,
		ReadOnly: d.ReadOnly, Shared: d.Shared, Hold: d.Hold,
		Compensate: d.Compensate, Spin: d.Spin, ZeroCopy: d.ZeroCopy,
		Poll: d.Poll, Pin: d.Pin, Realtime: d.Realtime,
	}
	var err error
	if s.Queues, err = queuesOf(d.Queues); err != nil {
		return s, err
	}
	if s.Offset, err = bytesOf("offset", d.Offset); err != nil {
		return s, err
	}
	if s.Size, err = bytesOf("size", d.Size); err != nil {
		return s, err
	}
	return s, s.Validate(runtime.NumCPU())
}

// absolute makes a relative path one from the file's folder.
func absolute(file, backing string) string {
	if backing == "" || strings.HasPrefix(backing, "mem:") || strings.HasPrefix(backing, "null:") || filepath.IsAbs(backing) {
		return backing
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return backing // Validate refuses it
	}
	return filepath.Join(dir, backing)
}

// bytesOf reads a size that is a string or an integer.
func bytesOf(field string, v any) (int64, error) {
	switch v := v.(type) {
	case nil:
		return 0, nil
	case int64:
		return v, nil
	case string:
		return api.ParseSize(field, v)
	}
	return 0, &api.FieldError{
		Field: field, Value: fmt.Sprint(v), Err: errors.New("neither a string nor a whole number"),
		Hint: `write "64MiB", or the bytes as a number`,
	}
}

// queuesOf reads "auto" or an integer.
func queuesOf(v any) (api.Queues, error) {
	if v == nil {
		return 0, nil
	}
	return api.ParseQueues(fmt.Sprint(v))
}

// decodeError puts the place in front of what go-toml says.
func decodeError(path string, err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		first := unknown.Errors[0]
		line, column := first.Position()
		key := strings.Join(first.Key(), ".")
		return &Error{path, line, column, &api.FieldError{
			Field: key, Err: errors.New("unknown key"), Hint: keyHint(first.Key()),
		}}
	}
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, column := at.Position()
		return &Error{path, line, column, errors.New(strings.TrimPrefix(at.Error(), "toml: "))}
	}
	return &Error{File: path, Err: err}
}

// keyHint names the key that was probably meant, or all there are.
func keyHint(key toml.Key) string {
	names := api.SpecFields()
	typed := strings.ReplaceAll(strings.ToLower(key[len(key)-1]), "-", "_")
	if near := api.Nearest(typed, append(names, "device")); near != "" {
		return "did you mean " + near + "?"
	}
	return "the keys are " + strings.Join(names, ", ")
}

// Format writes a spec as a device file that Load reads back: sizes with units,
// what is at its default left out.
func Format(s api.Spec) (string, error) {
	d := device{
		Name: s.Name, Backing: s.Backing,
		Delay: s.Delay, Read: s.Read, Write: s.Write, Flush: s.Flush, Discard: s.Discard,
		Depth:    s.Depth,
		ReadOnly: s.ReadOnly, Shared: s.Shared, Hold: s.Hold,
		Compensate: s.Compensate, Spin: s.Spin, ZeroCopy: s.ZeroCopy,
		Poll: s.Poll, Pin: s.Pin, Realtime: s.Realtime,
	}
	switch {
	case s.Queues == api.QueuesAuto:
		d.Queues = api.Auto
	case s.Queues != 0:
		d.Queues = int64(s.Queues)
	}
	if s.Offset != 0 {
		d.Offset = size.Format(s.Offset)
	}
	if s.Size != 0 {
		d.Size = size.Format(s.Size)
	}
	text, err := toml.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("write device %s as TOML: %w", s.Name, err)
	}
	return string(text), nil
}
