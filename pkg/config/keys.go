package config

import (
	"errors"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/delayd/delayd/pkg/api"
)

// single stands for the device at the top level in place of a [[device]]'s
// number.
const single = -1

// place is where something is in a file; both count from 1.
type place struct{ line, column int }

// keys knows where the keys of a file are: go-toml tells it only of values that
// it cannot decode, not of those that are refused afterwards.
type keys struct {
	at    map[keyOf]place
	order []keyOf
}

type keyOf struct {
	device int // single, or the number of the [[device]]
	name   string
}

// findKeys walks a document that was decoded before, so its tables are either
// the top level or [[device]].
func findKeys(text []byte) (keys, error) {
	k := keys{at: map[keyOf]place{}}
	var p unstable.Parser
	p.Reset(text)
	dev := single
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.ArrayTable:
			dev++
			k.add(&p, keyOf{dev, ""}, e)
		case unstable.KeyValue:
			k.add(&p, keyOf{dev, lastPart(e)}, e)
			// device = [{…}, {…}] says the same in one expression; its parts
			// are blamed on the whole.
		}
	}
	return k, p.Error()
}

func lastPart(e *unstable.Node) string {
	name := ""
	for it := e.Key(); it.Next(); {
		name = string(it.Node().Data)
	}
	return name
}

func (k *keys) add(p *unstable.Parser, key keyOf, e *unstable.Node) {
	it := e.Key()
	if !it.Next() {
		return
	}
	start := p.Shape(it.Node().Raw).Start
	k.at[key] = place{start.Line, start.Column}
	k.order = append(k.order, key)
}

func (k keys) of(device int, name string) place { return k.at[keyOf{device, name}] }

// first returns the first key of a device.
func (k keys) first(device int) (string, place, bool) {
	for _, key := range k.order {
		if key.device == device && key.name != "device" {
			return key.name, k.at[key], true
		}
	}
	return "", place{}, false
}

// blame puts the place of the key that err is about in front of it; that of the
// [[device]] if the key is missing.
func (k keys) blame(path string, device int, err error) error {
	var field *api.FieldError
	if !errors.As(err, &field) {
		return &Error{File: path, Err: err}
	}
	at := k.of(device, field.Field)
	if at == (place{}) {
		at = k.of(device, "")
	}
	return &Error{path, at.line, at.column, err}
}
