// Package uring is one io_uring: set-up, submission, completion, waiting with a
// time limit, registered files and buffers.
//
//	runtime.LockOSThread()
//	r, err := uring.New(uring.Config{
//		Entries: 128, SingleIssuer: true, DeferTaskrun: true, TaskrunFlag: true,
//	})
//	if err != nil {
//		return err
//	}
//	defer r.Close()
//	s := r.Next()
//	s.Opcode, s.UserData = uring.OpNop, 42
//	if err := r.Wait(1, time.Second, uring.HoldP); err != nil {
//		return err
//	}
//	var done [16]uring.CQE
//	for _, c := range done[:r.Reap(done[:])] {
//		fmt.Println(c.UserData, c.Res)
//	}
//
// A ring is two queues in memory shared with the kernel. [Ring.Next] hands out
// the entries of the first, [Ring.Submit] and [Ring.Wait] are the one system
// call, [Ring.Reap] empties the second. None of these allocates or locks.
//
// Memory that an operation names by address (SQE.Addr and registered buffers)
// has to be outside the Go heap, from mmap: the kernel uses it after the call
// has returned, when the garbage collector knows nothing of it any more.
//
// Loads and stores that the kernel takes part in go through sync/atomic, which
// in Go is sequentially consistent and so at least the acquire and release that
// io_uring asks for (io_uring/io_uring.c, the comment at its head).
//
// The package needs Linux 5.11. Kernel facts are cited by file and symbol of
// the kernel tree; where none is named it is include/uapi/linux/io_uring.h.
package uring
