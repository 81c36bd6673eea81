package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// MaxBody is the longest request body that the server reads, in bytes.
const MaxBody = 64 << 10

// DecodeSpec reads one Spec from JSON. It refuses fields that Spec does not
// have, values of another type, and anything after the closing brace. The
// error is a [FieldError] where one field is to blame, else it says where the
// text stops being JSON.
func DecodeSpec(data []byte) (Spec, error) {
	return decode[Spec](data, `{"name":"slow","backing":"mem:64M","delay":"5ms"}`)
}

// DecodeCompensation is DecodeSpec for a Compensation.
func DecodeCompensation(data []byte) (Compensation, error) {
	return decode[Compensation](data, `{"compensate":"auto"}`)
}

func decode[T any](data []byte, example string) (T, error) {
	var v T
	if len(bytes.TrimSpace(data)) == 0 {
		return v, errors.New("the body is empty; want a JSON object such as " + example)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, decodeError(err, Fields[T]())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return v, fmt.Errorf("more text after the JSON object, at byte %d", d.InputOffset())
	}
	return v, nil
}

func decodeError(err error, fields []string) error {
	var syntax *json.SyntaxError
	var mistyped *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON at byte %d: %w", syntax.Offset, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON ends in the middle")
	case errors.As(err, &mistyped) && mistyped.Field != "":
		return &FieldError{
			Field: mistyped.Field,
			Err:   fmt.Errorf("%s where %s is wanted", article(mistyped.Value), article(jsonType(mistyped.Type))),
			Hint:  typeHint(mistyped.Type),
		}
	case errors.As(err, &mistyped):
		return fmt.Errorf("%s where a JSON object is wanted", article(mistyped.Value))
	}
	// encoding/json has no type for this one.
	if quoted, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if name, unquoteErr := strconv.Unquote(quoted); unquoteErr == nil {
			return &FieldError{Field: name, Err: errors.New("unknown field"), Hint: fieldHint(name, fields)}
		}
	}
	return err
}

func article(noun string) string {
	if noun == "" {
		return "something else"
	}
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	}
	return "JSON object"
}

func typeHint(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return `write it in quotes, for example "5ms"`
	case reflect.Int, reflect.Int64:
		return "write a whole number without quotes; sizes are bytes"
	case reflect.Bool:
		return "write true or false without quotes"
	}
	return ""
}

// fieldHint names the field that was probably meant, or all there are.
func fieldHint(name string, names []string) string {
	if near := Nearest(strings.ToLower(strings.ReplaceAll(name, "-", "_")), names); near != "" {
		return "did you mean " + near + "?"
	}
	return "the fields are " + strings.Join(names, ", ")
}

// SpecFields returns the JSON names of a Spec's fields, in order.
func SpecFields() []string { return Fields[Spec]() }

// Fields returns the JSON names of the fields of T, a struct, in order.
func Fields[T any]() []string {
	t := reflect.TypeFor[T]()
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
	}
	return names
}
