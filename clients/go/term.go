package leaderelection

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Reason says why a term has ended.
type Reason string

// The reasons why a term ends.
const (
	Resigned    Reason = "resigned"     // the context of Run was cancelled
	JobReturned Reason = "job returned" // the job returned nil
	JobFailed   Reason = "job failed"   // the job returned an error, or panicked
	Lost        Reason = "lost"         // the server said so, or the connection ended
	InDoubt     Reason = "in doubt"     // the last confirmation is too old
)

// A Term is the time from an election to its end. Its methods can be called
// from any goroutine.
type Term struct {
	elector  *Elector
	election string
	token    int64
	now      func() time.Duration

	mu             *sync.Mutex // that of the state machine; protects the rest
	cancelled      bool
	beats          int
	beatLength     time.Duration // how long the job may go on after a call of Heartbeat, by a lease
	confirmedUntil time.Duration
	beatenUntil    time.Duration
	progressUntil  time.Duration
}

// Election returns the name of the election that is led. If the elector
// campaigns for seats, it is the name of the seat.
func (t *Term) Election() string { return t.election }

// Token returns the fencing token of the term. It grows from term to term.
func (t *Term) Token() int64 { return t.token }

// Heartbeat tells that the job has made progress. It sends nothing by itself,
// does not wait and never fails.
func (t *Term) Heartbeat() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beats++
	t.progress(t.beatLength, t.now())
}

func (t *Term) progress(length, at time.Duration) {
	if length > 0 {
		t.beatLength, t.progressUntil = length, at+length
	}
}

// IsLeading reports whether the job may go on: it was not told to stop, and
// the last confirmation is valid at this moment. It looks at the clock and
// sends nothing. Call it before each step that matters, because a context can
// be cancelled late.
func (t *Term) IsLeading() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.cancelled && t.now() < t.validUntil()
}

// validUntil returns when leadership is in doubt.
func (t *Term) validUntil() time.Duration {
	return min(t.confirmedUntil, t.beatenUntil, t.progressUntil)
}

// Guard lets a transaction commit only as long as the term runs.
func (t *Term) Guard(ctx context.Context, tx pgx.Tx) error {
	return query{`SELECT le_assert_leader($1::text, $2::bigint)`, []any{t.election, t.token}, []any{nil}}.ask(ctx, t.elector.opt, tx)
}

// Proclaim publishes a value until the term ends. It returns [ErrNotLeading]
// if the term is over.
func (t *Term) Proclaim(ctx context.Context, value string) error {
	reply := make(chan error, 1)
	t.elector.post(func() { t.elector.m.onProclaim(action{what: "proclaim", term: t, value: value, reply: reply}) })
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-t.elector.ended:
		return ErrNotLeading
	}
}
