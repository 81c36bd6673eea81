package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/delayd/delayd/pkg/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers on a new socket with f and returns its path.
func serve(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: f, ReadHeaderTimeout: time.Second}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return path
}

func write(w http.ResponseWriter, kind string, status int, body string) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a client that hung up fails the test itself
}

func TestErrorsOfTheServer(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name    string
		answer  http.HandlerFunc
		problem *api.Problem
		want    string // with SOCKET for the path
	}{
		{
			"a problem",
			func(w http.ResponseWriter, _ *http.Request) {
				write(w, api.ProblemMediaType, 409, `{"type":"x#in-use","title":"T","status":409,"detail":"it is in use: swap","hint":"h"}`)
			},
			&api.Problem{Type: "x#in-use", Title: "T", Status: 409, Detail: "it is in use: swap", Hint: "h"},
			"it is in use: swap",
		},
		{
			"a problem without detail",
			func(w http.ResponseWriter, _ *http.Request) {
				write(w, api.ProblemMediaType+"; charset=utf-8", 500, `{"title":"T"}`)
			},
			&api.Problem{Title: "T"}, "T",
		},
		{
			"another server",
			func(w http.ResponseWriter, _ *http.Request) { write(w, "text/html", 502, "<h1>Bad Gateway") },
			nil, "SOCKET answered 502 Bad Gateway and no reason; is it delayd that listens there?",
		},
		{
			"not JSON",
			func(w http.ResponseWriter, _ *http.Request) { write(w, api.MediaType, 200, "hello") },
			nil, "read the answer of SOCKET: invalid character 'h' looking for beginning of value",
		},
		{
			"a connection that breaks",
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			nil, "delayd hung up on SOCKET before it answered",
		},
	} {
		socket := serve(t, c.answer)
		_, err := New(socket).Device(ctx, "slow")
		want := strings.ReplaceAll(c.want, "SOCKET", socket)
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", c.name, err, want)
		}
		var got *api.Problem
		if errors.As(err, &got); !cmp.Equal(c.problem, got) {
			t.Errorf("%s:\n%s", c.name, cmp.Diff(c.problem, got))
		}
	}
}

func TestUnreachable(t *testing.T) {
	ctx := context.Background()
	missing := filepath.Join(t.TempDir(), "d.sock")
	_, err := New(missing).Devices(ctx)
	if err == nil || err.Error() != "delayd is not running: nobody listens on "+missing {
		t.Errorf("got %v", err)
	}
	if hint := api.HintOf(err); hint != "start it with `delayd --socket "+missing+"`, or name another with --socket or DELAYD_SOCKET" {
		t.Errorf("hint %q", hint)
	}

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: missing})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err = New(missing).Devices(ctx); err == nil || err.Error() != "delayd is not running: nobody listens on "+missing {
		t.Errorf("a dead socket: got %v", err)
	}

	for err, want := range map[error]string{
		os.ErrNotExist:   "start it with `systemctl start delayd`, or in another terminal with `delayd`",
		os.ErrPermission: "be root, or a member of the group delayd if there is one",
	} {
		if got := api.HintOf(&UnreachableError{Socket: api.DefaultSocket, Err: err}); got != want {
			t.Errorf("%v: hint %q, want %q", err, got, want)
		}
	}
}

func TestRequests(t *testing.T) {
	ctx := context.Background()
	var method, uri, kind string
	c := New(serve(t, func(w http.ResponseWriter, r *http.Request) {
		method, uri, kind = r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type")
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		write(w, api.MediaType, 200, `{"name":"slow","devices":[{"name":"slow"}],"version":"v1"}`)
	}))
	for _, step := range []struct {
		call func() error
		want [3]string
	}{
		{func() error { _, err := c.Add(ctx, api.Spec{Name: "slow"}); return err }, [3]string{"POST", "/v1/devices", "application/json"}},
		{func() error { _, err := c.Compensate(ctx, "a/b", "auto"); return err }, [3]string{"POST", "/v1/devices/a%2Fb/compensation", "application/json"}},
		{func() error { return c.Delete(ctx, "slow", false) }, [3]string{"DELETE", "/v1/devices/slow", ""}},
		{func() error { return c.Delete(ctx, "a/b?", true) }, [3]string{"DELETE", "/v1/devices/a%2Fb%3F?force=true", ""}},
		{func() error { _, err := c.Device(ctx, "slow"); return err }, [3]string{"GET", "/v1/devices/slow", ""}},
		{func() error { _, err := c.Devices(ctx); return err }, [3]string{"GET", "/v1/devices", ""}},
		{func() error { _, err := c.Version(ctx); return err }, [3]string{"GET", "/v1/version", ""}},
	} {
		if err := step.call(); err != nil {
			t.Error(err)
		}
		if got := [3]string{method, uri, kind}; got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := New(serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	if _, err := c.Devices(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
