package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Queues is a number of queues, or [QueuesAuto].
type Queues int

// QueuesAuto leaves the number of queues to the daemon: one for each of its
// CPUs. It is written "auto".
const QueuesAuto Queues = -1

const queuesHint = "want auto, or 1 to the number of CPUs"

// ParseQueues reads "auto" or a number. The error is a *[FieldError].
func ParseQueues(text string) (Queues, error) {
	if text == QueuesAuto.String() {
		return QueuesAuto, nil
	}
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return 0, &FieldError{Field: "queues", Value: text, Err: errors.New("neither auto nor a whole number"), Hint: queuesHint}
	case n < 0:
		return 0, &FieldError{Field: "queues", Value: text, Err: errors.New("negative"), Hint: queuesHint}
	}
	return Queues(n), nil
}

// String returns what [ParseQueues] reads.
func (q Queues) String() string {
	if q == QueuesAuto {
		return "auto"
	}
	return strconv.Itoa(int(q))
}

// MarshalJSON writes a number, or "auto".
func (q Queues) MarshalJSON() ([]byte, error) {
	if q == QueuesAuto {
		return []byte(`"auto"`), nil
	}
	return []byte(q.String()), nil
}

// UnmarshalJSON reads a number, or "auto".
func (q *Queues) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	var err error
	switch v := v.(type) {
	case string:
		*q, err = ParseQueues(v)
	case float64:
		*q, err = ParseQueues(string(text))
	default:
		err = &FieldError{Field: "queues", Value: string(text), Err: errors.New("neither a number nor a string"), Hint: queuesHint}
	}
	return err
}

// resolve returns the number of queues on so many CPUs.
func (q Queues) resolve(cpus int) (int, error) {
	switch {
	case q == QueuesAuto:
		return max(cpus, 1), nil
	case q < 0:
		return 0, refuse("queues", q.String(), "negative", queuesHint+fmt.Sprintf("; the default is %d", DefaultQueues))
	case cpus > 0 && int(q) > cpus:
		return 0, refuse("queues", q.String(), fmt.Sprintf("more than the daemon has CPUs (%d)", cpus),
			fmt.Sprintf("want auto, or 1 to %d; the default is %d", cpus, DefaultQueues))
	}
	return int(q), nil
}
