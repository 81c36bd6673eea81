// Package control is the daemon's side of the control API: the set of devices
// by name ([Manager]), HTTP and JSON in front of it ([Handler]), and the unix
// socket it is served on ([Listen], [Serve]).
//
// Adding and removing are long: a device starts in tens of milliseconds, and
// one whose backing hangs may take for ever to stop. No lock is held meanwhile.
// A name is reserved first, in one step, so that of two clients that want it one
// is refused and neither waits for the other.
package control
