//go:build race || !(amd64 || arm64)

package counters

import "sync/atomic"

// store writes one aligned word in one go.
func store(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
