package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/delayd/delayd/pkg/api"
)

// document is docs/api/openapi.yaml and what of it was exercised.
type document struct {
	model     *v3.Document
	validator validator.Validator
	seen      map[string]bool // "GET /v1/devices 200"
}

func readDocument(t *testing.T) *document {
	t.Helper()
	text, err := os.ReadFile("../../docs/api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if ok, errs := v.ValidateDocument(); !ok {
		for _, e := range errs {
			t.Error(e)
		}
		t.Fatal("docs/api/openapi.yaml is not an OpenAPI document")
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	return &document{&model.Model, v, map[string]bool{}}
}

// declared lists all that the document promises.
func (d *document) declared() []string {
	var all []string
	for path, item := range d.model.Paths.PathItems.FromOldest() {
		for method, op := range item.GetOperations().FromOldest() {
			for code := range op.Responses.Codes.FromOldest() {
				all = append(all, strings.ToUpper(method)+" "+path+" "+code)
			}
		}
	}
	slices.Sort(all)
	return all
}

// template returns the document's path that a request's path is of.
func template(path string) string {
	if name, ok := strings.CutPrefix(path, api.PathDevices+"/"); ok {
		_, what, deeper := strings.Cut(name, "/")
		if deeper {
			what = "/" + what
		}
		return api.PathDevices + "/{name}" + what
	}
	return path
}

// call sends a request over the socket and holds the answer to the document.
type caller struct {
	t    *testing.T
	doc  *document
	http *http.Client
}

func (c *caller) call(method, path, contentType, body string, want int) (*http.Response, string) {
	c.t.Helper()
	req, err := http.NewRequest(method, "http://delayd"+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		c.t.Fatal(err)
	}
	what := fmt.Sprintf("%s %s", method, path)
	if resp.StatusCode != want {
		c.t.Errorf("%s: %d, want %d: %s", what, resp.StatusCode, want, text)
	}
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode > 299 && kind != api.ProblemMediaType {
		c.t.Errorf("%s: an error is sent as %q", what, kind)
	}
	c.doc.seen[fmt.Sprintf("%s %s %d", method, template(req.URL.Path), resp.StatusCode)] = true
	resp.Body = io.NopCloser(bytes.NewReader(text))
	if ok, errs := c.doc.validator.ValidateHttpResponse(req, resp); !ok {
		for _, e := range errs {
			c.t.Errorf("%s %d: %v\n%s", what, resp.StatusCode, e, text)
			for _, s := range e.SchemaValidationErrors {
				c.t.Errorf("  %s at %s", s.Reason, s.FieldPath)
			}
		}
	}
	return resp, string(text)
}

// TestServerIsAsDocumented exercises every path, method and status that the
// document promises, validates each answer, and fails if one was left out.
func TestServerIsAsDocumented(t *testing.T) {
	doc := readDocument(t)
	m, starter := newManager(t, Options{})
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	server := Serve(l, Handler(m, log), log)
	defer func() {
		if err := server.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	c := &caller{t, doc, unixClient(socket)}
	const devices, slow, json = api.PathDevices, api.PathDevices + "/slow", api.MediaType
	faultStart := func(err error) { starter.start = func(context.Context, api.Spec) error { return err } }
	faultStop := func(err error) { starter.device("slow").setStop(func(context.Context) error { return err }) }

	c.call("GET", api.PathVersion, "", "", 200)
	c.call("GET", api.PathVersion+"?x=1", "", "", 400)
	if _, body := c.call("GET", devices, "", "", 200); body != "{\"devices\":[]}\n" {
		t.Errorf("no devices are %s", body)
	}
	c.call("GET", devices+"?x=1", "", "", 400)

	c.call("POST", devices, json, `{"name":`, 400)
	c.call("POST", devices, json, `{"name":"slow","backing":"mem:1M","delay":"5"}`, 422)
	c.call("POST", devices, json, `{"name":"`+strings.Repeat("x", api.MaxBody)+`"}`, 413)
	c.call("POST", devices, "text/plain", `{}`, 415)
	faultStart(errors.New("ADD_DEV: out of memory"))
	c.call("POST", devices, json, `{"name":"slow","backing":"mem:1M"}`, 500)
	faultStart(api.NewProblem(api.ProblemTooMany, "ADD_DEV: the kernel's limit is 64"))
	c.call("POST", devices, json, `{"name":"slow","backing":"mem:1M"}`, 503)
	faultStart(context.DeadlineExceeded)
	c.call("POST", devices, json, `{"name":"slow","backing":"mem:1M"}`, 504)
	starter.start = nil
	resp, _ := c.call("POST", devices, json+"; charset=utf-8", `{"name":"slow","backing":"mem:1M","delay":"5ms","depth":1}`, 201)
	if got := resp.Header.Get("Location"); got != slow {
		t.Errorf("Location is %q, want %q", got, slow)
	}
	c.call("POST", devices, json, `{"name":"slow","backing":"mem:1M"}`, 409)
	c.call("GET", devices, "", "", 200)
	c.call("GET", slow, "", "", 200)
	c.call("GET", slow+"?x=1", "", "", 400)
	c.call("GET", devices+"/slwo", "", "", 404)

	compensate := slow + "/" + api.Compensating
	faultMeasure := func(err error) { starter.device("slow").setMeasure(func(context.Context) error { return err }) }
	if _, body := c.call("POST", compensate, json, `{}`, 200); !strings.Contains(body, `"compensate":"auto"`) {
		t.Errorf("not measured: %s", body)
	}
	if _, body := c.call("POST", compensate, json, `{"compensate":"80us"}`, 200); !strings.Contains(body, `"compensate":"80us"`) {
		t.Errorf("not compensated: %s", body)
	}
	c.call("POST", compensate+"?x=1", json, `{}`, 400)
	c.call("POST", compensate, json, `{"compensation":"auto"}`, 400)
	c.call("POST", compensate, json, `{"compensate":"`+strings.Repeat("x", api.MaxBody)+`"}`, 413)
	c.call("POST", compensate, "text/plain", `{}`, 415)
	c.call("POST", compensate, json, `{"compensate":"5"}`, 422)
	c.call("POST", devices+"/slwo/"+api.Compensating, json, `{}`, 404)
	faultMeasure(errors.New("read /dev/ublkb0: input/output error"))
	c.call("POST", compensate, json, `{}`, 500)
	faultMeasure(context.DeadlineExceeded)
	c.call("POST", compensate, json, `{}`, 504)
	faultMeasure(nil)

	c.call("DELETE", devices+"/slwo", "", "", 404)
	c.call("DELETE", slow+"?force=perhaps", "", "", 400)
	starter.device("slow").setUsers(func() ([]string, error) { return []string{"swap"}, nil })
	c.call("DELETE", slow, "", "", 409)
	starter.device("slow").setUsers(nil)
	faultStop(errors.New("DEL_DEV: no"))
	c.call("DELETE", slow, "", "", 500)
	faultStop(context.DeadlineExceeded)
	c.call("DELETE", slow, "", "", 504)
	faultStop(nil)
	c.call("DELETE", slow+"?force=true", "", "", 204)

	// A device that starts for long is busy.
	entered, leave := make(chan struct{}), make(chan struct{})
	starter.start = func(context.Context, api.Spec) error { close(entered); <-leave; return nil }
	added := make(chan struct{})
	go func() {
		defer close(added)
		post(t, socket, `{"name":"slow","backing":"mem:1M"}`)
	}()
	<-entered
	c.call("GET", slow, "", "", 409)
	c.call("POST", compensate, json, `{}`, 409)
	close(leave)
	<-added
	if err := m.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.call("DELETE", slow, "", "", 503)
	c.call("POST", compensate, json, `{}`, 503)

	var seen []string
	for s := range doc.seen {
		seen = append(seen, s)
	}
	slices.Sort(seen)
	if diff := cmp.Diff(doc.declared(), seen); diff != "" {
		t.Errorf("what is documented (-) and what was seen (+) differ:\n%s", diff)
	}
}

// TestTypesAreAsDocumented compares the fields of the wire types with the
// schemas, so that one cannot get a field that the other lacks.
func TestTypesAreAsDocumented(t *testing.T) {
	doc := readDocument(t)
	for name, fields := range map[string][]string{
		"Spec": api.SpecFields(),

		"Compensation": api.Fields[api.Compensation](),

		"Device":     api.Fields[api.Device](),
		"DeviceList": api.Fields[api.DeviceList](),
		"Delays":     api.Fields[api.Delays](),
		"Limits":     api.Fields[api.Limits](),
		"Version":    api.Fields[api.Version](),
		"Problem":    api.Fields[api.Problem](),
	} {
		schema, ok := doc.model.Components.Schemas.Get(name)
		if !ok {
			t.Errorf("the document has no schema %s", name)
			continue
		}
		var documented []string
		for p := range schema.Schema().Properties.KeysFromOldest() {
			documented = append(documented, p)
		}
		slices.Sort(documented)
		slices.Sort(fields)
		if diff := cmp.Diff(documented, fields); diff != "" {
			t.Errorf("%s: documented (-) and in Go (+):\n%s", name, diff)
		}
	}
}
