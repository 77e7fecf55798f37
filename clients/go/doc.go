// Package fencepost produces and works jobs of a Fencepost service.
//
// A [Client] submits jobs and looks at them. A [Worker] leases jobs, runs the handler of each, heartbeats for all
// of them beside the handlers, and reports how each ended. It behaves as docs/worker-protocol.md asks:
//
//	worker.go      options, Handle, Run: from the first lease call to the shutdown
//	leasing.go     the lease call: one at a time, for as many jobs as there are free slots
//	leases.go      which leases are held, and when one is over
//	heartbeats.go  one call for all held leases, with progress and checkpoints
//	outcomes.go    what a handler may return, and what is reported for it
//	ends.go        outcomes are gathered and sent, one call of each verb at a time
//	shutdown.go    drain, stop, release
//	job.go         what a handler is given
//	fence.go       the fence inside the caller's own SQL transaction
//	client.go      the producer
//	calls.go       one HTTP call, and when it is repeated
//
// The package needs the standard library only.
package fencepost
