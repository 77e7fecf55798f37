package fencepost

import "time"

// instant is a moment on a clock that nobody sets and that goes on while the process is stopped.
//
// Leases are measured with it, and not with time.Time: on Linux it also goes on while the whole machine sleeps,
// which Go's monotonic reading does not.
type instant time.Duration

func (i instant) add(d time.Duration) instant { return i + instant(d) }

func (i instant) sub(other instant) time.Duration { return time.Duration(i - other) }

func earlier(a, b instant) instant {
	if a < b {
		return a
	}
	return b
}

func later(a, b instant) instant {
	if a > b {
		return a
	}
	return b
}
