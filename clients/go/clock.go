package leaderelection

import (
	"context"
	"time"
)

// start has a reading of the monotonic clock, and lies before the first call
// of now, which must not return 0.
var start = time.Now().Add(-time.Second)

// sleep returns true after d, or false as soon as ctx is done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
