package leaderelection

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Reason says why a term has ended.
type Reason string

// The reasons why a term ends.
const (
	ReasonResigned    Reason = "resigned"     // the context of Run was cancelled
	ReasonJobReturned Reason = "job returned" // the job returned nil
	ReasonJobFailed   Reason = "job failed"   // the job returned an error, or panicked
	ReasonLost        Reason = "lost"         // the server said so, or the connection ended
	ReasonInDoubt     Reason = "in doubt"     // the last confirmation is too old
)

// A Term is the time from an election to its end. Its methods can be called
// from any goroutine.
type Term struct {
	elector  *Elector
	election string
	token    int64
	now      func() time.Duration

	mu                          *sync.Mutex // that of the state machine; protects the rest
	cancelled                   bool
	beats                       int
	beatAt, beatLength          time.Duration // by a lease, how long the job may go on after a call of Heartbeat
	confirmedUntil, beatenUntil time.Duration
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
	t.beatAt = t.now()
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
	return min(t.confirmedUntil, t.beatenUntil, t.beatAt+t.beatLength)
}

// A Querier is a pool, a connection or a transaction of pgx, or a [Tx].
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// A Tx is a transaction of pgx, or one that [SQL] makes fit. A pool is none.
type Tx interface {
	Querier
	Rollback(ctx context.Context) error
}

// A SQLTx is a transaction of database/sql, or one that is built on it.
type SQLTx interface {
	QueryRowContext(ctx context.Context, sql string, args ...any) *sql.Row
	Rollback() error
}

// SQL makes a transaction of database/sql, with any driver, fit for
// [Term.Guard], [Term.Once] and [Term.Proclaim].
func SQL(tx SQLTx) Tx { return sqlTx{tx} }

type sqlTx struct{ SQLTx }

func (t sqlTx) Rollback(context.Context) error { return t.SQLTx.Rollback() }
func (t sqlTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if len(args) > 0 && args[0] == pgx.QueryExecModeExec {
		args = args[1:]
	}
	return t.QueryRowContext(ctx, sql, args...)
}

// Guard lets a transaction commit only as long as the term runs. If the term is
// over, Guard or the commit returns the server's error, with the code LE001: by
// pgx a [pgconn.PgError]. If the transaction has ended, also by a statement such
// as COMMIT, Guard returns [pgx.ErrTxClosed], or by database/sql [sql.ErrTxDone].
// Test with [errors.As] and [errors.Is].
func (t *Term) Guard(ctx context.Context, tx Tx) error {
	return t.in(ctx, tx, query{`SELECT le_assert_leader($1::text, $2::bigint)`, []any{t.election, t.token}, []any{new(string)}})
}

// Once reports whether the job that is due at a time is to be done in this
// transaction, because it has not been done by any other. It also guards the
// transaction, and returns the errors of [Term.Guard]; besides, the server's with
// the code 22008 if the time is more than an hour ahead, and 40001 if another
// transaction has recorded a job since the snapshot of this one was taken. It
// waits for another open transaction of the term that has recorded a job.
func (t *Term) Once(ctx context.Context, tx Tx, due time.Time) (first bool, err error) {
	err = t.in(ctx, tx, query{`SELECT le_once($1::text, $2::timestamptz, $3::bigint)`, []any{t.election, due.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano), t.token}, []any{&first}})
	return first, err
}

// in runs a statement in a transaction, unless another statement has ended
// that: pgx knows it, and elsewhere, two statements would begin at two times.
func (t *Term) in(ctx context.Context, tx Tx, q query) error {
	if c, ok := tx.(interface{ Conn() *pgx.Conn }); !ok {
		var began string
		if err := (query{`SELECT extract(epoch FROM now())::text`, nil, []any{&began}}).ask(ctx, t.elector.opt, tx); err != nil {
			return err
		}
		q.sql, q.args = fmt.Sprintf("%s WHERE extract(epoch FROM now())::text = $%d::text", q.sql, len(q.args)+1), append(q.args, began)
	} else if c.Conn().PgConn().TxStatus() == 'I' {
		return fmt.Errorf("%w: no transaction is open there", pgx.ErrTxClosed)
	}
	err := q.ask(ctx, t.elector.opt, tx)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: no transaction is open there", sql.ErrTxDone)
	}
	return err
}

// Proclaim publishes a value until the term ends: at once, also in a
// transaction that is rolled back. It returns [ErrLost] if the term is over, and
// the server's error, with the code 22001, if the value exceeds 8192 bytes.
func (t *Term) Proclaim(ctx context.Context, on Querier, value string) error {
	var leads bool
	err := query{`SELECT le_proclaim($1::text, $2::text, $3::bigint)`, []any{t.election, value, t.token}, []any{&leads}}.ask(ctx, t.elector.opt, on)
	if err == nil && !leads {
		err = ErrLost
	}
	return err
}

// GuardSQL returns the statement of Guard, without parameters, for what takes a
// whole statement only.
func (t *Term) GuardSQL() string {
	return fmt.Sprintf("SELECT %s(%s, %d)", t.elector.opt.le("le_assert_leader"), literal(t.election), t.token)
}

// OnceSQL likewise returns the statement of Once.
func (t *Term) OnceSQL(due time.Time) string {
	return fmt.Sprintf("SELECT %s(%s, to_timestamp(%.6f), %d)", t.elector.opt.le("le_once"), literal(t.election), float64(due.UnixMicro())/1e6, t.token)
}

// literal returns a text as SQL in which nothing looks like a parameter.
func literal(s string) string {
	if plain.MatchString(s) {
		return "'" + s + "'"
	}
	return fmt.Sprintf("convert_from(decode('%x', 'hex'), 'UTF8')", s)
}

var plain = regexp.MustCompile(`^[\w ./-]+$`)
