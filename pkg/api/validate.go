package api

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/scheduler"
	"github.com/delayd/delayd/pkg/size"
)

// Bounds and defaults of a [Spec].
const (
	MaxNameLength = 64

	DefaultQueues = 1
	DefaultDepth  = 1024
	// MaxDepth is the kernel's UBLK_MAX_QUEUE_DEPTH (ublk_cmd.h).
	MaxDepth = 4096
	// MaxRealtime is the highest SCHED_FIFO priority that is given: 99 is the
	// kernel's own (migration, watchdogs), which nothing should compete with.
	MaxRealtime = 98
)

// A FieldError says which field of a [Spec] was refused.
type FieldError struct {
	// Field is the JSON and TOML name, such as "read_only".
	Field string
	// Value is what it held, as it was written.
	Value string
	// Err says what is wrong with it, without repeating it.
	Err error
	// Hint is what to do; "" where Err leaves no doubt.
	Hint string
}

// Error returns `FIELD "VALUE": what is wrong`.
func (e *FieldError) Error() string { return e.Field + e.Reason() }

// Reason is Error without the field, for callers that have another word for it:
// ` "VALUE": what is wrong`.
func (e *FieldError) Reason() string {
	switch _, err := strconv.ParseInt(e.Value, 10, 64); {
	case e.Value == "":
		return ": " + e.Err.Error()
	case len(e.Value) > maxShown:
		return fmt.Sprintf(" %q…: %v", e.Value[:maxShown], e.Err)
	case err == nil && slices.Contains(integerFields, strings.TrimPrefix(e.Field, "--")):
		return fmt.Sprintf(" %s: %v", e.Value, e.Err)
	}
	return fmt.Sprintf(" %q: %v", e.Value, e.Err)
}

// maxShown bounds how much of a value goes into a message.
const maxShown = 80

// integerFields are shown without quotes.
var integerFields = []string{"offset", "size", "queues", "depth", "realtime"}

// Unwrap returns e.Err.
func (e *FieldError) Unwrap() error { return e.Err }

// HintText returns the hint, for callers that look for any error with one.
func (e *FieldError) HintText() string { return e.Hint }

// HintOf returns what err, or an error that it wraps, tells its reader to do;
// "" if none of them does.
func HintOf(err error) string {
	var h interface{ HintText() string }
	if errors.As(err, &h) {
		return h.HintText()
	}
	return ""
}

// Validate judges all that can be judged without a kernel or the backing
// itself. cpus bounds Queues; 0 stands for "unknown", for callers on the other
// side of the socket. The error is a *[FieldError].
func (s Spec) Validate(cpus int) error {
	if err := ValidateName(s.Name); err != nil {
		return err
	}
	if err := validateBacking(s.Backing); err != nil {
		return err
	}
	if _, err := s.ParseDelays(); err != nil {
		return err
	}
	if err := validateRange("offset", s.Offset); err != nil {
		return err
	}
	if err := validateRange("size", s.Size); err != nil {
		return err
	}
	if _, err := s.Queues.resolve(cpus); err != nil {
		return err
	}
	if s.Depth < 0 || s.Depth > MaxDepth {
		return refuse("depth", strconv.Itoa(s.Depth),
			"out of range",
			fmt.Sprintf("want 1 to %d, which is the kernel's limit; the default is %d", MaxDepth, DefaultDepth))
	}
	if err := validateHold(s.Hold); err != nil {
		return err
	}
	return s.validateTiming()
}

// validateTiming judges what changes how exact and how fast a device is.
func (s Spec) validateTiming() error {
	if _, err := ParseCompensate(s.Compensate); err != nil {
		return err
	}
	if _, err := s.ParseSpin(); err != nil {
		return err
	}
	if err := validateWord("zero_copy", s.ZeroCopy, []string{Auto, On, Off}, "want auto, on or off"); err != nil {
		return err
	}
	if s.ZeroCopy == On && s.Poll {
		return refuse("zero_copy", s.ZeroCopy, "cannot be had together with poll",
			"drop one of the two; with zero_copy auto a polled device copies")
	}
	if s.Realtime < 0 || s.Realtime > MaxRealtime {
		return refuse("realtime", strconv.Itoa(s.Realtime), "out of range",
			fmt.Sprintf("want a SCHED_FIFO priority of 1 to %d, or 0 for the normal scheduler", MaxRealtime))
	}
	return nil
}

// ParseSpin returns the spin mode. The error is a *[FieldError].
func (s Spec) ParseSpin() (scheduler.SpinMode, error) {
	if s.Spin == "" {
		return scheduler.SpinAuto, nil
	}
	m, err := scheduler.ParseSpin(s.Spin)
	if err != nil {
		return 0, &FieldError{Field: "spin", Value: s.Spin, Err: withoutValue(err, "spin", s.Spin)}
	}
	return m, nil
}

// WithDefaults returns s with the defaults in place of zero values.
func (s Spec) WithDefaults() Spec {
	if s.Queues == 0 {
		s.Queues = DefaultQueues
	}
	if s.Depth == 0 {
		s.Depth = DefaultDepth
	}
	for word, otherwise := range map[*string]string{
		&s.Hold:       HoldSubmit,
		&s.Compensate: Off,
		&s.Spin:       Auto,
		&s.ZeroCopy:   Auto,
	} {
		if *word == "" {
			*word = otherwise
		}
	}
	return s
}

// WithQueues returns s with the number of queues that auto stands for on so many
// CPUs.
func (s Spec) WithQueues(cpus int) Spec {
	if s.Queues == QueuesAuto {
		s.Queues = Queues(max(cpus, 1))
	}
	return s
}

// ValidateName judges a device's name. The error is a *[FieldError].
func ValidateName(name string) error {
	const want = "want 1 to 64 of A-Z a-z 0-9 . _ - and neither a dot nor a dash first"
	switch {
	case name == "":
		return refuse("name", name, "empty", want)
	case len(name) > MaxNameLength:
		return refuse("name", name, fmt.Sprintf("%d characters long", len(name)), want)
	case name[0] == '.' || name[0] == '-':
		return refuse("name", name, fmt.Sprintf("starts with %q", name[:1]), want)
	}
	for _, r := range name {
		if !nameRune(r) {
			return refuse("name", name, fmt.Sprintf("has %q in it", string(r)), want)
		}
	}
	return nil
}

func nameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r == '.' || r == '_' || r == '-'
}

func validateBacking(spec string) error {
	const want = `want a block device or file by its absolute path, "mem:SIZE" or "null:SIZE"`
	switch kind, rest, ok := strings.Cut(spec, ":"); {
	case spec == "":
		return refuse("backing", spec, "missing", want)
	case ok && (kind == "mem" || kind == "null"):
		n, err := size.Parse(rest)
		if err != nil {
			return &FieldError{Field: "backing", Value: spec, Err: err, Hint: "for example " + kind + ":64M"}
		}
		if n == 0 {
			return refuse("backing", spec, "no bytes", "for example "+kind+":64M")
		}
	case strings.ContainsRune(spec, 0):
		return refuse("backing", spec, "has a NUL byte in it", want)
	case !filepath.IsAbs(spec):
		return refuse("backing", spec, "neither an absolute path nor mem: or null:", want)
	}
	return nil
}

// ParseDelays returns the delay of each op: its own, else that of Delay, else
// none; write-zeroes goes by Write. The error is a *[FieldError].
func (s Spec) ParseDelays() (scheduler.Delays, error) {
	var out scheduler.Delays
	all, err := parseDelay("delay", s.Delay, 0)
	if err != nil {
		return out, err
	}
	for _, f := range []struct {
		field, value string
		ops          []op.Op
	}{
		{"read", s.Read, []op.Op{op.Read}},
		{"write", s.Write, []op.Op{op.Write, op.WriteZeroes}},
		{"flush", s.Flush, []op.Op{op.Flush}},
		{"discard", s.Discard, []op.Op{op.Discard}},
	} {
		d, err := parseDelay(f.field, f.value, all)
		if err != nil {
			return out, err
		}
		for _, o := range f.ops {
			out[o] = d
		}
	}
	return out, nil
}

func parseDelay(field, value string, unset time.Duration) (time.Duration, error) {
	if value == "" {
		return unset, nil
	}
	d, err := scheduler.ParseDelay(value)
	if err != nil {
		return 0, &FieldError{Field: field, Value: value, Err: withoutValue(err, "delay", value)}
	}
	return d, nil
}

func validateRange(field string, n int64) error {
	if n < 0 {
		return refuse(field, strconv.FormatInt(n, 10), "negative", "want 0 or more bytes")
	}
	return nil
}

func validateHold(word string) error {
	return validateWord("hold", word, []string{HoldSubmit, HoldComplete},
		`want "submit" (delay + backing latency) or "complete" (the greater of the two)`)
}

// validateWord refuses a word that is neither "" nor one of the words.
func validateWord(field, word string, words []string, hint string) error {
	if word == "" || slices.Contains(words, word) {
		return nil
	}
	if near := Nearest(word, words); near != "" {
		hint = "did you mean " + near + "?"
	}
	return refuse(field, word, "there is no such mode", hint)
}

func refuse(field, value, reason, hint string) *FieldError {
	return &FieldError{Field: field, Value: value, Err: errors.New(reason), Hint: hint}
}

// ParseSize reads a number of bytes as people write it, for the field "offset"
// or "size". The error is a *[FieldError].
func ParseSize(field, text string) (int64, error) {
	n, err := size.Parse(text)
	if err != nil {
		return 0, &FieldError{Field: field, Value: text, Err: withoutValue(err, "size", text)}
	}
	return n, nil
}

// withoutValue drops the `WORD "VALUE": ` that parsers put in front of their
// errors: FieldError says both.
func withoutValue(err error, word, value string) error {
	if rest, ok := strings.CutPrefix(err.Error(), fmt.Sprintf("%s %q: ", word, value)); ok {
		return errors.New(rest)
	}
	return err
}
