package scheduler

import (
	"fmt"
	"strings"
	"time"
)

// SpinMode says how long before a deadline a queue stops sleeping and looks at the
// clock instead: a positive one is that length, up to MaxSpin; SpinAuto leaves it
// to what was learned of the machine; SpinOff never spins.
type SpinMode time.Duration

// The modes that are not a fixed length.
const (
	SpinAuto SpinMode = 0
	SpinOff  SpinMode = -1
)

// MaxSpin is the longest fixed spin, included.
const MaxSpin = time.Second

// ParseSpin reads "auto", "off", or a duration of 1ns to MaxSpin. "0" is off.
func ParseSpin(s string) (SpinMode, error) {
	switch strings.ToLower(s) {
	case "auto":
		return SpinAuto, nil
	case "off":
		return SpinOff, nil
	}
	d, err := parseDuration(s)
	switch {
	case err == nil && d == 0:
		return SpinOff, nil
	case err == nil && d <= MaxSpin:
		return SpinMode(d), nil
	case err == nil:
		err = errTooLong
	}
	return 0, fmt.Errorf(`spin %q: %w; type auto, off, or a duration up to %v, such as 50us`, s, err, MaxSpin)
}

// String returns what ParseSpin reads.
func (m SpinMode) String() string {
	switch {
	case m == SpinAuto:
		return "auto"
	case m < 0:
		return "off"
	}
	return time.Duration(m).String()
}

// MarshalText makes JSON and TOML say what the flag says.
func (m SpinMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what the flag reads.
func (m *SpinMode) UnmarshalText(text []byte) error {
	v, err := ParseSpin(string(text))
	if err == nil {
		*m = v
	}
	return err
}
