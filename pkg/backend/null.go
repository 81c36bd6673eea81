package backend

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/delayd/delayd/pkg/op"
	"github.com/delayd/delayd/pkg/uring"
)

// A null: backing keeps nothing: writes, flushes, discards and write-zeroes
// succeed at once, and a read gives zeroes. It measures what everything but the
// backing costs.
type null struct{ base }

func init() {
	register(kind{form: "null:SIZE", prefix: "null:", open: openNull})
}

func openNull(spec string, o Options) (Backend, error) {
	total, err := parseSize(spec, strings.TrimPrefix(spec, "null:"))
	if err != nil {
		return nil, err
	}
	l := memoryLimits()
	offset, err := l.selectPart(spec, total, o)
	if err != nil {
		return nil, err
	}
	if o.ReadOnly {
		l.setReadOnly()
	}
	return &null{base{spec: spec, limits: l, fd: -1, offset: offset, align: 1}}, nil
}

func (n *null) Inline(r *Request) bool {
	if n.refuse(r) {
		return true
	}
	switch r.Op {
	case op.Read:
		clear(unsafe.Slice((*byte)(r.Buf), r.Length))
		return r.finish(int32(r.Length))
	case op.Write:
		return r.finish(int32(r.Length))
	}
	return r.finish(0)
}

// Prepare is never needed, because Inline answers everything.
func (n *null) Prepare(_ *Request, sqe *uring.SQE) { sqe.Opcode = uring.OpNop }

// Complete answers as Inline would have.
func (n *null) Complete(r *Request, _ int32) bool { return n.Inline(r) }

func (n *null) ZeroCopy() error {
	return fmt.Errorf("backing %s: its zeroes are written by the daemon, which cannot see the request's own pages", n.spec)
}
