package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/delayd/delayd/pkg/api"
)

// problemOf turns any error into what goes over the wire.
func problemOf(err error) *api.Problem {
	var p *api.Problem
	if errors.As(err, &p) {
		return p
	}
	var field *api.FieldError
	if errors.As(err, &field) {
		p = api.NewProblem(api.ProblemInvalid, err.Error())
		p.Name, p.Value, p.Hint = field.Field, field.Value, field.Hint
		return p
	}
	kind := api.ProblemFailed
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		kind = api.ProblemTimeout
	}
	p = api.NewProblem(kind, err.Error())
	p.Hint = api.HintOf(err)
	return p
}

func noDeviceProblem(name string, names []string) *api.Problem {
	p := api.NewProblem(api.ProblemNoDevice, fmt.Sprintf("there is no device %q", name))
	p.Name, p.Value = "name", name
	near := api.Nearest(name, names)
	switch {
	case len(names) == 0:
		p.Hint = "there are no devices; `delayctl add` makes one"
	case near != "":
		p.Hint = "did you mean " + near + "?"
	case len(names) <= 16:
		p.Hint = "the devices are " + strings.Join(names, ", ")
	default:
		p.Hint = fmt.Sprintf("`delayctl list` shows the %d devices", len(names))
	}
	return p
}

func takenProblem(name string, ph phase) *api.Problem {
	what := map[phase]string{
		adding:   "is just being added",
		ready:    "exists",
		removing: "is just being removed",
	}[ph]
	p := api.NewProblem(api.ProblemNameTaken, fmt.Sprintf("a device %q %s", name, what))
	p.Name, p.Value = "name", name
	p.Hint = "choose another name, or remove it with `delayctl del " + name + "`"
	if ph == removing {
		p.Hint = "choose another name, or try again when it is gone"
	}
	return p
}

func busyProblem(name string, ph phase) *api.Problem {
	what := "removed"
	if ph == adding {
		what = "added"
	}
	p := api.NewProblem(api.ProblemBusy, fmt.Sprintf("device %q is just being %s", name, what))
	p.Name, p.Value = "name", name
	p.Hint = "try again in a moment"
	return p
}

func changingProblem(name string) *api.Problem {
	p := api.NewProblem(api.ProblemBusy, fmt.Sprintf("device %q is just being changed", name))
	p.Name, p.Value = "name", name
	p.Hint = "try again in a moment"
	return p
}

func inUseProblem(name string, users []string) *api.Problem {
	p := api.NewProblem(api.ProblemInUse, "it is in use: "+strings.Join(users, ", "))
	p.Name, p.Value = "name", name
	p.Hint = "stop using it, or insist with --force: its users then get I/O errors"
	return p
}

// hintError is an error that tells its reader what to do.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string    { return e.err.Error() }
func (e *hintError) Unwrap() error    { return e.err }
func (e *hintError) HintText() string { return e.hint }

// asRoot adds what to do to an error of permission.
func asRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return &hintError{err, "delayd must run as root"}
	}
	return err
}

func endingProblem() *api.Problem {
	return api.NewProblem(api.ProblemStopping, "delayd is ending")
}
