package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delayd/delayd/pkg/api"
	"github.com/delayd/delayd/pkg/client"
	"github.com/delayd/delayd/test/fixture"
)

// shortOr is the one number where the tests are to be short, else the other.
func shortOr(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
}

// Devices that come and go leave no descriptor, thread, mapping or device.
func TestCyclesLeakNothing(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	c := client.New(d.socket)
	disk := fixture.For(t).NullBlk(fixture.MemoryBacked(8))
	writeTable(t, disk.Path, mbr, span{2048, 8192})
	specs := []api.Spec{
		{Name: "memory", Backing: "mem:4M", Delay: "1ms"},
		{Name: "disk", Backing: disk.Path, Delay: "200us", Depth: 4096},
		{Name: "file", Backing: emptyFile(t, 4<<20), Delay: "60s", Hold: "complete"},
		{Name: "nothing", Backing: "null:1G", Depth: 1},
	}
	cycle := func(i int) {
		dev, err := c.Add(t.Context(), specs[i%len(specs)])
		must(t, err)
		if i%16 < 2 { // memory and the disk, both used now and then
			readBlock(t, dev.Path)
		}
		must(t, c.Delete(t.Context(), dev.Name, false))
	}
	for i := range len(specs) {
		cycle(i)
	}
	before := look(t, d)
	n := shortOr(30, 200)
	began := time.Now()
	for i := range n {
		cycle(i)
	}
	t.Logf("%d cycles in %v", n, time.Since(began))
	grown(t, before, sameTraces(t, d, before), n, 1)
}

// together runs 16 clients at once, each of which makes and removes a device of
// its own, and uses it in between.
func together(t *testing.T, d *daemon, flags ...string) {
	t.Helper()
	const clients = 16
	var all sync.WaitGroup
	var mu sync.Mutex
	paths := map[string]string{}
	for i := range clients {
		all.Go(func() {
			name := fmt.Sprintf("c%d", i)
			out, errOut, code := d.ctl(add(name, append([]string{"--backing", "mem:2M", "--delay", "1ms"}, flags...)...)...)
			if code != 0 {
				t.Errorf("client %d: add: exit code %d, %s", i, code, errOut)
				return
			}
			path := strings.TrimSpace(out)
			mu.Lock()
			if other, ok := paths[path]; ok {
				t.Errorf("%s was given to %s and to %s", path, other, name)
			}
			paths[path] = name
			mu.Unlock()
			readBlock(t, path)
		})
	}
	all.Wait()
	for i := range clients {
		all.Go(func() {
			name := fmt.Sprintf("c%d", i)
			if out, errOut, code := d.ctl("del", name); code != 0 || out != "" {
				t.Errorf("client %d: del: exit code %d, %s%s", i, code, out, errOut)
			}
		})
	}
	all.Wait()
}

func TestSixteenClientsAtOnce(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	d.warm()
	together(t, d)
	before := look(t, d)
	rounds := shortOr(3, 5)
	for range rounds {
		together(t, d)
	}
	after := sameTraces(t, d, before)
	grown(t, before, after, rounds*16, 16)
}

// Of several who ask for one name at once one gets it, and the rest are told.
func TestOneNameAtOnce(t *testing.T) {
	needUblk(t)
	d := startDaemon(t)
	var all sync.WaitGroup
	answers := make(chan string, 8)
	for range cap(answers) {
		all.Go(func() {
			_, errOut, code := d.ctl(add("a", "--backing", "mem:1M")...)
			answers <- fmt.Sprint(code, " ", errOut)
		})
	}
	all.Wait()
	close(answers)
	got := 0
	for a := range answers {
		switch {
		case strings.HasPrefix(a, "0 "):
			got++
		case strings.HasPrefix(a, "1 ") && strings.Contains(a, `"a"`) &&
			(strings.Contains(a, "exists") || strings.Contains(a, "is just being added")):
		default:
			t.Errorf("a client was told %s", a)
		}
	}
	if got != 1 {
		t.Errorf("%d clients got the name", got)
	}
	d.del("a")
}
