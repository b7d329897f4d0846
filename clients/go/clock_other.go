//go:build !linux

package leaderelection

import "time"

// now returns the monotonic clock's time.
func now() time.Duration { return time.Since(start) }
