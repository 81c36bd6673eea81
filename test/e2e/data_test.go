package e2e

import "testing"

func TestDaemonSmoke(t *testing.T) {
	d := startDaemon(t)
	p := d.add("a", "--backing", "mem:16M", "--delay", "1ms")
	t.Log(p, d.show("a"))
	d.del("a")
	d.add("a", "--backing", "mem:16M", "--delay", "1ms")
}
