package api

import (
	"net/http"
	"strings"
)

// ProblemMediaType is what every error is sent as (RFC 9457).
const ProblemMediaType = "application/problem+json"

// A ProblemType is the last word of a [Problem]'s type; docs/api/problems.md
// has a section for each.
type ProblemType string

// The problems that the API answers with.
const (
	ProblemMalformed   ProblemType = "malformed"          // 400: not JSON, an unknown field, a bad query
	ProblemNoDevice    ProblemType = "no-such-device"     // 404
	ProblemNoPath      ProblemType = "no-such-path"       // 404
	ProblemMethod      ProblemType = "method-not-allowed" // 405
	ProblemNameTaken   ProblemType = "name-taken"         // 409
	ProblemInUse       ProblemType = "in-use"             // 409
	ProblemBusy        ProblemType = "busy"               // 409: being added or removed
	ProblemTooLarge    ProblemType = "too-large"          // 413
	ProblemMediaTypeIs ProblemType = "not-json"           // 415
	ProblemInvalid     ProblemType = "invalid"            // 422: a field's value
	ProblemBacking     ProblemType = "backing-refused"    // 422: the backing cannot be used
	ProblemFailed      ProblemType = "failed"             // 500
	ProblemTooMany     ProblemType = "too-many-devices"   // 503
	ProblemStopping    ProblemType = "stopping"           // 503: the daemon ends
	ProblemTimeout     ProblemType = "timeout"            // 504: the kernel did not answer
)

// problemBase is where the problems are described.
const problemBase = "https://github.com/delayd/delayd/blob/main/docs/api/problems.md#"

var problems = map[ProblemType]struct {
	status int
	title  string
}{
	ProblemMalformed:   {http.StatusBadRequest, "The request could not be read"},
	ProblemNoDevice:    {http.StatusNotFound, "There is no such device"},
	ProblemNoPath:      {http.StatusNotFound, "There is no such path"},
	ProblemMethod:      {http.StatusMethodNotAllowed, "The path does not have this method"},
	ProblemNameTaken:   {http.StatusConflict, "The name is taken"},
	ProblemInUse:       {http.StatusConflict, "The device is in use"},
	ProblemBusy:        {http.StatusConflict, "The device is being added, changed or removed"},
	ProblemTooLarge:    {http.StatusRequestEntityTooLarge, "The request is too large"},
	ProblemMediaTypeIs: {http.StatusUnsupportedMediaType, "The request is not JSON"},
	ProblemInvalid:     {http.StatusUnprocessableEntity, "A value was refused"},
	ProblemBacking:     {http.StatusUnprocessableEntity, "The backing was refused"},
	ProblemFailed:      {http.StatusInternalServerError, "The device could not be made, changed or removed"},
	ProblemTooMany:     {http.StatusServiceUnavailable, "The kernel allows no more devices"},
	ProblemStopping:    {http.StatusServiceUnavailable, "The daemon is ending"},
	ProblemTimeout:     {http.StatusGatewayTimeout, "The kernel did not answer in time"},
}

// ProblemTypes returns every type that [NewProblem] knows.
func ProblemTypes() []ProblemType {
	all := make([]ProblemType, 0, len(problems))
	for t := range problems {
		all = append(all, t)
	}
	return all
}

// Problem is an error as it goes over the wire (RFC 9457), and an error in Go.
type Problem struct {
	// Type is a URI that ends in "#" and the [ProblemType].
	Type string `json:"type"`
	// Title is the same for all problems of a type.
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail says what was tried, on what, and what went wrong.
	Detail string `json:"detail"`
	// Instance is the path that was asked for.
	Instance string `json:"instance,omitempty"`

	// Name is the field, parameter or header that was refused, and Value what
	// it held.
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
	// Hint is what to do about it.
	Hint string `json:"hint,omitempty"`
}

// NewProblem makes a problem of a type, with the status and title that go with
// it. A type it does not know is a programmer's error and becomes
// [ProblemFailed].
func NewProblem(t ProblemType, detail string) *Problem {
	p, ok := problems[t]
	if !ok {
		t, p = ProblemFailed, problems[ProblemFailed]
	}
	return &Problem{Type: problemBase + string(t), Title: p.title, Status: p.status, Detail: detail}
}

// OfType says whether p is of type t, wherever it is described.
func (p *Problem) OfType(t ProblemType) bool {
	_, word, _ := strings.Cut(p.Type, "#")
	return word == string(t)
}

// Error returns the detail, or the title where a server sent none.
func (p *Problem) Error() string {
	if p.Detail != "" {
		return p.Detail
	}
	return p.Title
}

// HintText returns the hint, for callers that look for any error with one.
func (p *Problem) HintText() string { return p.Hint }
