package device

import (
	"context"
	"testing"
	"time"
)

// Whoever gives an order gets an end of it also when a queue's loop ends before
// the order is posted, or after that and before it is read.
func TestTellAQueueWhoseLoopEnds(t *testing.T) {
	mail, err := newMailbox()
	must(t, err)
	defer func() { must(t, mail.close()) }()
	told := func(over chan struct{}) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		d := &Device{queues: []*queue{{mail: mail, over: over}}}
		if n, err := d.tell(ctx, release); n != 0 || err != nil {
			t.Fatalf("%d requests touched, %v", n, err)
		}
	}
	for range 2 * cap(mail.letters) { // more than fit, since nobody reads them
		over := make(chan struct{})
		close(over)
		told(over)
	}
	for len(mail.letters) > 0 {
		<-mail.letters
	}
	over := make(chan struct{})
	go func() {
		for len(mail.letters) == 0 {
			time.Sleep(time.Millisecond)
		}
		close(over)
	}()
	told(over)
}
