//go:build !race && (amd64 || arm64)

package counters

// store writes one aligned word in one go. On amd64 atomic.StoreUint64 is an
// XCHG, a locked instruction that waits for the store buffer, once for each of
// the twenty cells that a request touches; a plain store is not torn on these
// architectures either, and nothing here needs the order of two stores. Under
// the race detector, which cannot know that, store is the atomic one.
func store(p *uint64, v uint64) { *p = v }
