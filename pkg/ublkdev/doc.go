// Package ublkdev speaks to the kernel's ublk driver (drivers/block/ublk_drv.c),
// which turns a process into a block device.
//
// Three things make a ublk device:
//
//   - [Control] sends commands to /dev/ublk-control: it adds a device, gives it
//     its parameters, starts, stops and deletes it. Every command has a time
//     limit, because some kernels never answer.
//   - /dev/ublkcN, opened by [OpenChar], is the server's side of device N.
//   - [Queue] is one hardware queue of it: it fetches requests into a buffer and
//     commits their results, through an io_uring that its thread owns.
//
// The block device that applications see is /dev/ublkbN ([BlockPath]). A server
// must never open it, read it or wait for it on one of its own threads.
//
// The life of a device, without error handling:
//
//	c, _ := ublkdev.Open()
//	info, _ := c.Add(ctx, ublkdev.AddOptions{ID: -1, Queues: 1, Depth: 64, MaxIOBytes: 1 << 20})
//	_ = c.SetParams(ctx, info.ID, params)
//	char, _ := ublkdev.OpenChar(ctx, info.ID)
//	// one locked thread a queue: NewQueue, Fetch every tag, then answer requests
//	_ = c.Start(ctx, info.ID, os.Getpid()) // from another thread than those
//	...
//	_ = c.Stop(ctx, info.ID)   // the queues' commands come back as ResAbort
//	char.Close()               // and every ring that fetched
//	_ = c.Delete(ctx, info.ID) // waits until the last of them is closed
//
// What the running kernel can do is read from it ([Control.Features]), never
// guessed from its version. The layout of every structure is that of
// include/uapi/linux/ublk_cmd.h.
package ublkdev
