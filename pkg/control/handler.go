package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/delayd/delayd/pkg/api"
)

// Handler serves the control API from m. Every error is sent as
// application/problem+json, those of a wrong path or method too.
func Handler(m *Manager, log *slog.Logger) http.Handler {
	return &handler{m: m, log: log}
}

type handler struct {
	m   *Manager
	log *slog.Logger
}

// answer is what a method of a path does. A nil body sends none.
type answer func(r *http.Request) (status int, header http.Header, body any, err error)

// ServeHTTP finds the path's answer to the method and writes it down.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, api.MaxBody)
	status, header, body, err := h.dispatch(r)
	kind := api.MediaType
	if err != nil {
		p := *problemOf(err)
		p.Instance = r.URL.EscapedPath()
		status, body, kind = p.Status, p, api.ProblemMediaType
	}
	maps.Copy(w.Header(), header)
	if body == nil {
		w.WriteHeader(status)
		return
	}
	text, err := json.Marshal(body)
	if err != nil {
		// Only a type of ours that JSON cannot express comes here.
		h.log.Error("write an answer", "path", r.URL.Path, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if _, err := w.Write(append(text, '\n')); err != nil {
		h.log.Debug("client went away before the answer", "path", r.URL.Path, "error", err)
	}
}

func (h *handler) dispatch(r *http.Request) (int, http.Header, any, error) {
	methods := h.route(r.URL.EscapedPath())
	if methods == nil {
		p := api.NewProblem(api.ProblemNoPath, fmt.Sprintf("there is no path %q", r.URL.EscapedPath()))
		p.Hint = fmt.Sprintf("the paths are %[1]s, %[1]s/{name}, %[1]s/{name}/%[2]s and %[3]s", api.PathDevices, api.Compensating, api.PathVersion)
		return 0, nil, nil, p
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet // net/http keeps the body back
	}
	do, ok := methods[method]
	if !ok {
		allow := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
		p := api.NewProblem(api.ProblemMethod, fmt.Sprintf("%s has no method %s", r.URL.EscapedPath(), r.Method))
		p.Name, p.Value, p.Hint = "method", r.Method, "it has "+allow
		return 0, http.Header{"Allow": {allow}}, nil, p
	}
	return do(r)
}

// route returns the methods of a path, nil if there is no such path.
func (h *handler) route(path string) map[string]answer {
	switch path {
	case api.PathVersion:
		return map[string]answer{http.MethodGet: h.version}
	case api.PathDevices:
		return map[string]answer{http.MethodGet: h.list, http.MethodPost: h.add}
	}
	rest, ok := strings.CutPrefix(path, api.PathDevices+"/")
	escaped, what, deeper := strings.Cut(rest, "/")
	name, err := url.PathUnescape(escaped)
	switch {
	case !ok || escaped == "" || err != nil:
		return nil
	case deeper && what == api.Compensating:
		return map[string]answer{
			http.MethodPost: func(r *http.Request) (int, http.Header, any, error) { return h.compensate(r, name) },
		}
	case deeper:
		return nil
	}
	return map[string]answer{
		http.MethodGet:    func(r *http.Request) (int, http.Header, any, error) { return h.show(r, name) },
		http.MethodDelete: func(r *http.Request) (int, http.Header, any, error) { return h.delete(r, name) },
	}
}

func (h *handler) version(r *http.Request) (int, http.Header, any, error) {
	if _, err := query(r); err != nil {
		return 0, nil, nil, err
	}
	return http.StatusOK, nil, api.Build(), nil
}

func (h *handler) list(r *http.Request) (int, http.Header, any, error) {
	if _, err := query(r); err != nil {
		return 0, nil, nil, err
	}
	return http.StatusOK, nil, api.DeviceList{Devices: h.m.Devices()}, nil
}

func (h *handler) show(r *http.Request, name string) (int, http.Header, any, error) {
	if _, err := query(r); err != nil {
		return 0, nil, nil, err
	}
	d, err := h.m.Device(name)
	return http.StatusOK, nil, d, err
}

func (h *handler) add(r *http.Request) (int, http.Header, any, error) {
	if _, err := query(r); err != nil {
		return 0, nil, nil, err
	}
	s, err := readBody(r, api.DecodeSpec)
	if err != nil {
		return 0, nil, nil, err
	}
	d, err := h.m.Add(r.Context(), s)
	if err != nil {
		return 0, nil, nil, err
	}
	location := http.Header{"Location": {api.PathDevices + "/" + url.PathEscape(d.Name)}}
	return http.StatusCreated, location, d, nil
}

func (h *handler) compensate(r *http.Request, name string) (int, http.Header, any, error) {
	if _, err := query(r); err != nil {
		return 0, nil, nil, err
	}
	c, err := readBody(r, api.DecodeCompensation)
	if err != nil {
		return 0, nil, nil, err
	}
	d, err := h.m.Compensate(r.Context(), name, c)
	return http.StatusOK, nil, d, err
}

func (h *handler) delete(r *http.Request, name string) (int, http.Header, any, error) {
	q, err := query(r, "force")
	if err != nil {
		return 0, nil, nil, err
	}
	force := false
	if word, ok := q["force"]; ok {
		if force, err = strconv.ParseBool(word); err != nil {
			p := api.NewProblem(api.ProblemMalformed, fmt.Sprintf("force is %q", word))
			p.Name, p.Value, p.Hint = "force", word, "want true or false"
			return 0, nil, nil, p
		}
	}
	return http.StatusNoContent, nil, nil, h.m.Delete(r.Context(), name, force)
}

// query returns the parameters of r, each once, and refuses all but those
// allowed.
func query(r *http.Request, allowed ...string) (map[string]string, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, api.NewProblem(api.ProblemMalformed, fmt.Sprintf("read the query %q: %v", r.URL.RawQuery, err))
	}
	out := map[string]string{}
	for name, v := range values {
		p := api.NewProblem(api.ProblemMalformed, "")
		p.Name, p.Value = name, strings.Join(v, ",")
		switch {
		case !slices.Contains(allowed, name):
			p.Detail = fmt.Sprintf("there is no parameter %q", name)
			p.Hint = "it has none"
			if len(allowed) > 0 {
				p.Hint = "it has " + strings.Join(allowed, ", ")
			}
			return nil, p
		case len(v) > 1:
			p.Detail = fmt.Sprintf("%s is given %d times", name, len(v))
			p.Hint = "give it once"
			return nil, p
		}
		out[name] = v[0]
	}
	return out, nil
}

// readBody reads the body of a request.
func readBody[T any](r *http.Request, decode func([]byte) (T, error)) (body T, err error) {
	kind := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(kind); err != nil || media != api.MediaType {
		p := api.NewProblem(api.ProblemMediaTypeIs, fmt.Sprintf("the body is %q", kind))
		p.Name, p.Value, p.Hint = "Content-Type", kind, "send Content-Type: "+api.MediaType
		return body, p
	}
	text, err := io.ReadAll(r.Body)
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		return body, api.NewProblem(api.ProblemTooLarge, fmt.Sprintf("the body is longer than %d bytes", tooLong.Limit))
	}
	if err != nil {
		return body, api.NewProblem(api.ProblemMalformed, fmt.Sprintf("read the body: %v", err))
	}
	if body, err = decode(text); err != nil {
		p := problemOf(err)
		malformed := api.NewProblem(api.ProblemMalformed, p.Detail)
		malformed.Name, malformed.Value, malformed.Hint = p.Name, p.Value, p.Hint
		return body, malformed
	}
	return body, nil
}
