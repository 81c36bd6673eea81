// Package device is one delayed block device: it joins a ublk device
// ([github.com/delayd/delayd/pkg/ublkdev]), the place where its bytes live
// ([github.com/delayd/delayd/pkg/backend]) and the deadlines of its requests
// ([github.com/delayd/delayd/pkg/scheduler]) in one loop for each queue.
//
// Follow one request through queue.go: it is fetched (queue.fetched), gets its
// deadline (queue.arrived), is held or dispatched (queue.dispatch), answered by
// the backing (queue.answered) and committed to the kernel (queue.commit).
//
// A queue is one goroutine locked to its thread, with one io_uring that carries
// the ublk commands and the backing's I/O. Nothing on a request's way
// allocates, locks, logs or formats.
package device
