// Package client speaks to a running delayd over its control socket. It is what
// delayctl is made of, and is meant for test suites:
//
//	c := client.New(api.DefaultSocket)
//	dev, err := c.Add(ctx, api.Spec{Name: "slow", Backing: "mem:64M", Delay: "5ms"})
//	if err != nil { … }
//	defer c.Delete(context.Background(), "slow", true)
//	// use dev.Path, "/dev/ublkb0"
//
// An answer that is an error is an [*api.Problem]. A daemon that cannot be
// reached is an [*UnreachableError].
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/delayd/delayd/pkg/api"
)

// Client speaks to one daemon. It may be used by several goroutines at once.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client for the daemon that listens on the unix socket of that
// path. It connects with the first request.
func New(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{
		socket: socket,
		http:   &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
	}
}

// Add makes a device and returns when it is there and delays.
func (c *Client) Add(ctx context.Context, s api.Spec) (api.Device, error) {
	var d api.Device
	return d, c.do(ctx, http.MethodPost, api.PathDevices, s, &d)
}

// Delete removes a device. One that is in use is refused, unless force is set:
// then what is held is answered with EIO and its users lose it.
func (c *Client) Delete(ctx context.Context, name string, force bool) error {
	path := devicePath(name)
	if force {
		path += "?force=true"
	}
	return c.do(ctx, http.MethodDelete, path, nil, nil)
}

// Compensate changes what is taken off the delays of a device: "off", a duration,
// or "auto", which measures it now and takes up to some seconds. It returns the
// device.
func (c *Client) Compensate(ctx context.Context, name, compensate string) (api.Device, error) {
	var d api.Device
	return d, c.do(ctx, http.MethodPost, devicePath(name)+"/"+api.Compensating, api.Compensation{Compensate: compensate}, &d)
}

// Device returns the device of that name.
func (c *Client) Device(ctx context.Context, name string) (api.Device, error) {
	var d api.Device
	return d, c.do(ctx, http.MethodGet, devicePath(name), nil, &d)
}

// Devices returns all devices, ordered by name.
func (c *Client) Devices(ctx context.Context) ([]api.Device, error) {
	var l api.DeviceList
	return l.Devices, c.do(ctx, http.MethodGet, api.PathDevices, nil, &l)
}

// Version returns which build the daemon is.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	var v api.Version
	return v, c.do(ctx, http.MethodGet, api.PathVersion, nil, &v)
}

func devicePath(name string) string { return api.PathDevices + "/" + url.PathEscape(name) }

// do sends in, if there is one, as JSON and reads the answer into out, if there
// is one. Any answer over 299 becomes an error.
func (c *Client) do(ctx context.Context, method, path string, in, out any) (err error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("write the request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	// The host is not looked at: the transport dials the socket.
	req, err := http.NewRequestWithContext(ctx, method, "http://delayd"+path, body)
	if err != nil {
		return fmt.Errorf("write the request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", api.MediaType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer func() {
		if closeErr := resp.Body.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("read the answer of %s: %w", c.socket, closeErr)
		}
	}()
	if resp.StatusCode > 299 {
		return c.problem(resp)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("read the answer of %s: %w", c.socket, err)
	}
	return nil
}

// problem reads an error's body. Whoever listens there may not be delayd.
func (c *Client) problem(resp *http.Response) error {
	var p api.Problem
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind == api.ProblemMediaType {
		if err := json.NewDecoder(io.LimitReader(resp.Body, api.MaxBody)).Decode(&p); err == nil {
			return &p
		}
	}
	return fmt.Errorf("%s answered %s and no reason; is it delayd that listens there?", c.socket, resp.Status)
}

// UnreachableError says that nobody answers on the socket.
type UnreachableError struct {
	// Socket is the path that was tried.
	Socket string
	// Err is what the kernel or the connection said.
	Err error
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// The URL that net/http puts in front means nothing here.
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &UnreachableError{Socket: c.socket, Err: err}
}

// Error says what is known: no daemon, no permission, or a connection that broke.
func (e *UnreachableError) Error() string {
	switch {
	case errors.Is(e.Err, fs.ErrNotExist), errors.Is(e.Err, syscall.ECONNREFUSED):
		return "delayd is not running: nobody listens on " + e.Socket
	case errors.Is(e.Err, fs.ErrPermission):
		return "no permission to use " + e.Socket
	case errors.Is(e.Err, io.EOF), errors.Is(e.Err, syscall.ECONNRESET):
		return "delayd hung up on " + e.Socket + " before it answered"
	}
	return fmt.Sprintf("speak to delayd on %s: %v", e.Socket, e.Err)
}

// Unwrap returns e.Err.
func (e *UnreachableError) Unwrap() error { return e.Err }

// HintText says what to type.
func (e *UnreachableError) HintText() string {
	switch {
	case errors.Is(e.Err, fs.ErrNotExist), errors.Is(e.Err, syscall.ECONNREFUSED):
		if e.Socket == api.DefaultSocket {
			return "start it with `systemctl start delayd`, or in another terminal with `delayd`"
		}
		return "start it with `delayd --socket " + e.Socket + "`, or name another with --socket or " + api.SocketEnv
	case errors.Is(e.Err, fs.ErrPermission):
		return "be root, or a member of the group delayd if there is one"
	case errors.Is(e.Err, io.EOF), errors.Is(e.Err, syscall.ECONNRESET):
		return "its log says why: `journalctl -u delayd`"
	}
	return ""
}
