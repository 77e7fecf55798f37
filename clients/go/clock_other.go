//go:build !linux

package fencepost

import "time"

var started = time.Now()

func now() instant { return instant(time.Since(started)) }
