package leaderelection

import (
	"context"
	"sync/atomic"
	"time"
)

// A Reason says why a term has ended.
type Reason string

// The reasons why a term ends.
const (
	Resigned    Reason = "resigned"     // Run was asked to stop
	JobReturned Reason = "job returned" // the job returned nil
	JobFailed   Reason = "job failed"   // the job returned an error, or panicked
	Lost        Reason = "lost"         // the server said so, or the connection ended
	InDoubt     Reason = "in doubt"     // the last confirmation is too old
)

// A Term is the time from an election to its end. Its methods can be called
// from any goroutine.
type Term struct {
	election string
	token    int64
	timing   timing
	now      func() time.Duration
	until    atomic.Int64  // what now returns when the last confirmation expires; 0 before and after the term
	asked    time.Duration // when the last confirmation was asked for; for the goroutine that asks
	beaten   time.Duration // what now returns when the last heartbeat that was sent expires
	job      context.Context
	progress chan struct{} // has an element if the job has called Heartbeat since the last one was sent
	report   func(error)
}

// Election returns the name of the election that is led. If the elector
// campaigns for seats, it is the name of the seat.
func (t *Term) Election() string { return t.election }

// Token returns the fencing token of the term. It grows from term to term.
func (t *Term) Token() int64 { return t.token }

// Heartbeat tells the elector that the job has made progress. It sends nothing
// by itself, does not wait and never fails.
func (t *Term) Heartbeat() {
	select {
	case t.progress <- struct{}{}:
	default:
	}
}

// IsLeading reports whether the job may go on: its context is not cancelled,
// and the last confirmation of leadership is valid at this moment. It looks at
// the clock and does not ask the server. Call it before each step that
// matters, because a context can be cancelled late.
func (t *Term) IsLeading() bool { return t.job.Err() == nil && t.left() > 0 }

// left returns for how long the last confirmation is still valid.
func (t *Term) left() time.Duration { return time.Duration(t.until.Load()) - t.now() }

// extend records a confirmation. One that comes after the confirmation before
// it has expired does not count.
func (t *Term) extend(asked, until time.Duration) error {
	last := t.until.Load()
	if t.asked != 0 && t.left() <= 0 || !t.until.CompareAndSwap(last, int64(until)) {
		return ErrInDoubt
	}
	t.asked = asked
	return nil
}

// progressed returns whether the job has called Heartbeat since it was last
// called.
func (t *Term) progressed() bool {
	select {
	case <-t.progress:
		return true
	default:
		return false
	}
}
