package scheduler

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/delayd/delayd/pkg/op"
)

// MaxDelay is the longest delay, included.
const MaxDelay = 24 * time.Hour

// Delays is how long a request of each kind is held: a constant for each, 0 to
// MaxDelay. The zero value delays nothing.
type Delays [op.Count]time.Duration

// Constant returns the delay d for every kind of request.
func Constant(d time.Duration) Delays {
	var all Delays
	for i := range all {
		all[i] = d
	}
	return all
}

// For returns the delay of o in nanoseconds. It is the hot path's only question.
func (d *Delays) For(o op.Op) int64 { return int64(d[o]) }

// String returns the delay if all kinds have the same ("5ms"), else each by name
// ("read=0s write=5ms …").
func (d Delays) String() string {
	if d == Constant(d[0]) {
		return d[0].String()
	}
	words := make([]string, 0, len(d))
	for _, o := range op.All() {
		words = append(words, o.String()+"="+d[o].String())
	}
	return strings.Join(words, " ")
}

// Validate says which delay is outside 0 to MaxDelay, if one is.
func (d Delays) Validate() error {
	for _, o := range op.All() {
		switch v := d[o]; {
		case v < 0:
			return fmt.Errorf("%s delay %v: negative; %s", o, v, rangeHint)
		case v > MaxDelay:
			return fmt.Errorf("%s delay %v: too long; %s", o, v, rangeHint)
		}
	}
	return nil
}

const (
	rangeHint  = "a delay is 0 to 24h"
	syntaxHint = "type a number and a unit (ns, us, ms, s, m, h), such as 50us, 1.5ms or 2s"
)

// maxDelayText bounds the text that ParseDelay looks at.
const maxDelayText = 64

// ParseDelay returns the delay that s means, in the syntax of
// [time.ParseDuration]: "50us", "1.5ms", "2s", "1h30m", and "0". It is between 0
// and MaxDelay, and a whole number of nanoseconds: nothing is rounded.
//
// Every error names s, what is wrong with it, and what would be right.
func ParseDelay(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err == nil && d > MaxDelay {
		err = errTooLong
	}
	switch {
	case err == nil:
		return d, nil
	case errors.Is(err, errTooLong):
		err = fmt.Errorf("too long; %s", rangeHint)
	case errors.Is(err, errNegative):
		err = fmt.Errorf("negative; %s", rangeHint)
	}
	if len(s) > maxDelayText {
		return 0, fmt.Errorf("delay %q…: %w", s[:maxDelayText], err)
	}
	return 0, fmt.Errorf("delay %q: %w", s, err)
}

var (
	errTooLong  = errors.New("too long")
	errNegative = errors.New("negative")
)

// unitNS has the units of time.ParseDuration, in nanoseconds.
var unitNS = map[string]int64{
	"ns": 1,
	"us": int64(time.Microsecond),
	"µs": int64(time.Microsecond), // U+00B5, the micro sign
	"μs": int64(time.Microsecond), // U+03BC, the Greek letter mu
	"ms": int64(time.Millisecond),
	"s":  int64(time.Second),
	"m":  int64(time.Minute),
	"h":  int64(time.Hour),
}

// misread is what is wrong with a text, and what may have been meant.
type misread struct {
	wrong   string
	guesses []string
}

func (m misread) Error() string { return m.wrong }

// parseDuration reads what time.ParseDuration reads, but exactly: that one drops
// fractions of a nanosecond, goes through a float64 on the way, and has one
// message for all that can be wrong. errNegative and errTooLong (for what no
// Duration can hold) are for the caller to put in words.
func parseDuration(s string) (time.Duration, error) {
	d, err := readDuration(s)
	var m misread
	if !errors.As(err, &m) {
		return d, err
	}
	var good []string
	for _, g := range m.guesses {
		if d, err := readDuration(g); err == nil && d <= MaxDelay {
			good = append(good, g)
		}
	}
	if len(good) == 0 {
		return 0, fmt.Errorf("%s; %s", m.wrong, syntaxHint)
	}
	return 0, fmt.Errorf("%s; did you mean %s?", m.wrong, strings.Join(good, " or "))
}

// readDuration is parseDuration with a misread for what somebody may have meant.
func readDuration(s string) (time.Duration, error) {
	if s == "" {
		return 0, misread{wrong: "empty"}
	}
	if len(s) > maxDelayText {
		return 0, misread{wrong: fmt.Sprintf("%d characters long", len(s))}
	}
	if strings.ContainsAny(s, " \t\r\n") {
		return 0, misread{"contains a space", []string{strings.Join(strings.Fields(s), "")}}
	}
	rest, negative := strings.CutPrefix(s, "-")
	if !negative {
		rest = strings.TrimPrefix(rest, "+")
	}
	if rest == "" {
		return 0, misread{wrong: "no number"}
	}

	sum := new(big.Rat)
	for part := rest; part != ""; {
		number := part[:span(part, true)]
		part = part[len(number):]
		unit := part[:span(part, false)]
		part = part[len(unit):]

		if strings.Trim(number, ".") == "" || strings.Count(number, ".") > 1 {
			return 0, misread{wrong: "not a duration"}
		}
		value, ok := new(big.Rat).SetString(number)
		if !ok {
			return 0, misread{wrong: "not a duration"}
		}
		scale, known := unitNS[unit]
		switch {
		case known:
		case unit != "":
			return 0, misread{fmt.Sprintf("unknown unit %q", unit), []string{strings.ToLower(s)}}
		case value.Sign() == 0 && number == rest:
			return 0, nil // zero needs no unit
		case negative:
			return 0, errNegative
		default:
			return 0, misread{"unit missing", []string{s + "ms", s + "us"}}
		}
		sum.Add(sum, value.Mul(value, new(big.Rat).SetInt64(scale)))
	}
	switch {
	case negative && sum.Sign() != 0:
		return 0, errNegative
	case !sum.IsInt() && sum.Cmp(big.NewRat(1, 1)) < 0:
		return 0, errors.New("shorter than a nanosecond, the smallest step; type 0 or at least 1ns")
	case !sum.IsInt():
		return 0, errors.New("not a whole number of nanoseconds, the smallest step")
	case !sum.Num().IsInt64():
		return 0, errTooLong
	}
	return time.Duration(sum.Num().Int64()), nil
}

// span returns the length of the leading run of digits and dots of s, or of all
// else.
func span(s string, number bool) int {
	for i, c := range s {
		if (c >= '0' && c <= '9' || c == '.') != number {
			return i
		}
	}
	return len(s)
}
