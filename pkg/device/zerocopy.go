package device

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/delayd/delayd/pkg/ublkdev"
	"github.com/delayd/delayd/pkg/uring"
)

// With zero copy a queue has no buffers. Its ring has a table with a slot for
// each tag; a fetch names the tag's slot, and the driver puts the pages of the
// request there before it delivers it and takes them out again when it is
// committed. What the backing reads and writes are the request's own pages,
// which this process never sees.

// zeroCopyFeatures are both needed: the second has the driver register a
// request's pages by itself, the first lets a queue do it where the driver
// could not.
const zeroCopyFeatures = ublkdev.FeatureSupportZeroCopy | ublkdev.FeatureAutoBufReg

// zeroCopies decides whether the device does without buffers, and refuses one
// that was told to and cannot.
func (d *Device) zeroCopies() (bool, error) {
	if d.spec.ZeroCopy == Off || d.spec.Poll {
		return false, nil
	}
	err := d.host.features.Require(zeroCopyFeatures)
	if err == nil {
		err = d.back.ZeroCopy()
	}
	if err != nil && d.spec.ZeroCopy == On {
		return false, fmt.Errorf("zero copy on: %w: use auto or off", err)
	}
	return err == nil, nil
}

// pages is what a queue has to do about the pages of a request.
type pages uint8

const (
	pagesDriver  pages = iota // nothing: the driver has seen to them, or there are none
	pagesMissing              // put them into the table before the backing's I/O
	pagesLent                 // take them out again before the commit
)

// pagesOf reads it off a request that was fetched.
func pagesOf(flags uint32) pages {
	if flags&ublkdev.FlagNeedRegBuf != 0 {
		return pagesMissing
	}
	return pagesDriver
}

// misplaced is added to the slot that the driver is told. It is 0; tests send
// the driver beyond the table, where it can put nothing.
var misplaced uint16

// place tells the driver where to put a tag's next request, and to deliver it
// all the same if it cannot: there may be no memory for the entry.
func (q *queue) place(tag uint16) uint64 {
	return ublkdev.AutoBuf(tag+misplaced, ublkdev.AutoBufFallback)
}

// lend puts the pages of a request that the backing is to work on into the table.
func (q *queue) lend(tag uint16) {
	sqe := q.ring.Next()
	q.ublk.RegisterBuf(sqe, tag, tag)
	q.movePages(sqe, tag)
}

// takeBack takes them out when the backing has answered. The driver does so by
// itself only with what it has put there by itself, and would keep the request.
func (q *queue) takeBack(tag uint16) {
	sqe := q.ring.Next()
	q.ublk.UnregisterBuf(sqe, tag, tag)
	q.movePages(sqe, tag)
}

// movePages addresses a command to the registered char device.
func (q *queue) movePages(sqe *uring.SQE, tag uint16) {
	sqe.FD = slotChar
	sqe.Flags |= uring.FlagFixedFile
	sqe.UserData = join(kindPages, tag)
}

// pagesMoved goes on with a request whose pages were lent or taken back.
func (q *queue) pagesMoved(tag uint16, res int32) {
	r := &q.requests[tag]
	was := r.pages
	switch {
	case was == pagesMissing && res >= 0:
		r.pages = pagesLent
		q.submit(tag, r)
		return
	case was == pagesMissing:
		// There was no memory, twice. The application is told what a backing
		// without memory would tell it.
		r.io.Result = res
	case res < 0:
		// The driver would wait for these pages for ever.
		q.fault(fmt.Errorf("take back the pages of tag %d: %w", tag, unix.Errno(-res)))
		return
	}
	r.pages = pagesDriver
	q.answered(tag, r)
}
