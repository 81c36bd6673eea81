package api

import (
	"errors"
	"time"

	"github.com/delayd/delayd/pkg/scheduler"
)

// Compensate says what is taken off every delay: a time of 0 or more, or
// [CompensateAuto].
type Compensate time.Duration

const (
	// CompensateOff takes nothing off.
	CompensateOff Compensate = 0
	// CompensateAuto takes off what was measured before the device was announced.
	CompensateAuto Compensate = -1
	// MaxCompensate is the longest that can be given, included: more than any
	// path of a request costs.
	MaxCompensate = Compensate(100 * time.Millisecond)
)

// ParseCompensate reads "off", "auto" or a duration; "" is "off". The error is a
// *[FieldError].
func ParseCompensate(text string) (Compensate, error) {
	const hint = "want off, auto, or a duration up to 100ms, such as 80us"
	switch text {
	case "", "off":
		return CompensateOff, nil
	case "auto":
		return CompensateAuto, nil
	}
	d, err := scheduler.ParseDelay(text)
	if err != nil {
		return 0, &FieldError{Field: "compensate", Value: text, Err: withoutValue(err, "delay", text), Hint: hint}
	}
	if d > time.Duration(MaxCompensate) {
		return 0, &FieldError{Field: "compensate", Value: text, Err: errors.New("too long"), Hint: hint}
	}
	return Compensate(d), nil
}

// String returns what [ParseCompensate] reads.
func (c Compensate) String() string {
	switch c {
	case CompensateOff:
		return "off"
	case CompensateAuto:
		return "auto"
	}
	return time.Duration(c).String()
}
