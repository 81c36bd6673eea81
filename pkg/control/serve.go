package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// headerWait bounds how long a client may take to say what it wants. There is
// no limit on an answer: stopping a device waits for its backing.
const headerWait = 10 * time.Second

// Server serves HTTP on one listener.
type Server struct {
	http  *http.Server
	done  chan error    // gets what Serve returned
	ended chan struct{} // closed when it has, and so has closed the listener
}

// Serve starts to serve h on l.
func Serve(l net.Listener, h http.Handler, log *slog.Logger) *Server {
	s := &Server{
		http: &http.Server{
			Handler:           h,
			ReadHeaderTimeout: headerWait,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		done:  make(chan error, 1),
		ended: make(chan struct{}),
	}
	go func() {
		defer close(s.ended)
		err := s.http.Serve(l)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		s.done <- err
	}()
	return s
}

// Failed yields an error if serving ends without Close.
func (s *Server) Failed() <-chan error { return s.done }

// Close takes no more connections, closes the listener, and waits until the
// requests under way have their answers or ctx ends, which closes them.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	// A server that had not begun yet closes its listener when it does: the
	// process must not end, and leave its socket, before that.
	<-s.ended
	return err
}
