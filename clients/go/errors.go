package leaderelection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Cause says which configuration is wrong.
type Cause string

// The causes of a [PermanentError].
const (
	CauseExtension Cause = "extension" // it is not installed, or in another schema
	CausePrivilege Cause = "privilege" // the role may not bid
	CauseArgument  Cause = "argument"  // the server refuses one, such as a TTL above its limit
	CausePooler    Cause = "pooler"    // session scope needs a connection of its own
)

// A PermanentError goes on until something is configured differently.
// [Elector.Run], [Elector.TryRun] and [LeaderOf] return it, and it is the last
// error that [Follow] yields. Find it with [errors.As], by a *PermanentError.
type PermanentError struct {
	Cause Cause
	Err   error // wraps the [pgconn.PgError] of the server, except for CausePooler
}

func (e *PermanentError) Error() string { return fmt.Sprint("leaderelection: ", e.Err) }

// Unwrap returns Err.
func (e *PermanentError) Unwrap() error { return e.Err }

// The kinds of errors that Options.OnError gets, besides those of the server
// ([pgconn.PgError]). Test with [errors.Is].
//
// [context.Cause] of a job's context returns ErrLost or ErrInDoubt, besides a
// stop. [Term.Proclaim] returns ErrLost.
var (
	ErrLost         = errors.New("leaderelection: leadership is lost")
	ErrInDoubt      = errors.New("leaderelection: leadership is in doubt")
	ErrJob          = errors.New("leaderelection: the job failed")
	ErrSlowJob      = errors.New("leaderelection: the job has not stopped")
	ErrCallback     = errors.New("leaderelection: a callback failed")
	ErrTimeout      = errors.New("leaderelection: no answer")
	ErrNoConnection = errors.New("leaderelection: no connection")
)

var errPooler = errors.New("session scope needs a connection of its own, and a pooler shares this one: set a TTL, to lead by a lease")

var causes = map[string]Cause{"42883": CauseExtension, "42P01": CauseExtension, "3F000": CauseExtension, "42501": CausePrivilege, "LE005": CausePooler}

// permanent returns the cause of the permanent error that an SQLSTATE of a bid
// is, or none.
func permanent(code string) Cause {
	if strings.HasPrefix(code, "22") || strings.HasPrefix(code, "42") {
		return cmp.Or(causes[code], CauseArgument)
	}
	return causes[code]
}

// serverError returns the error of the server that an error is, or an empty one.
func serverError(err error) *pgconn.PgError {
	var known caughtError
	if !errors.As(err, &known) {
		errors.As(err, &known.server)
	}
	return cmp.Or(known.server, &pgconn.PgError{}) // an error can be a nil pointer of that type
}

// explained returns an error whose message has the detail and the hint of the
// server.
func explained(err error) error {
	server := serverError(err)
	for _, more := range []string{server.Detail, server.Hint} {
		if more != "" && !strings.Contains(err.Error(), more) {
			err = fmt.Errorf("%w; %s", err, more)
		}
	}
	return err
}

// conclude does on another connection what is left to do about an error that
// has ended a state machine.
func (o *Options) conclude(pool *pgxpool.Pool, election string, err error) error {
	end, ok := err.(*PermanentError) // and not one in an error of the job
	if !ok {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// hooks of the pool can hang
	ask := func(q query) error { return within(ctx, func() error { return q.ask(ctx, o, pool) }) }
	switch end.Cause {
	case CausePooler:
		end.Err = errPooler
		expel := query{`SELECT pg_terminate_backend(pid) FROM le_leaders WHERE identity = $2::text
			AND name = ANY(CASE WHEN $3::int > 0 THEN le_seats($1::text, $3::int) ELSE ARRAY[$1::text] END)`, []any{election, o.Identity, o.Seats}, []any{nil}}
		for tries := 0; tries < 10 && serverError(ask(expel)).Code != ""; tries++ {
			// it can run in the session that it ends, or in one that another elector ends
		}
	case CauseExtension:
		var schema, database *string
		failed := ask(query{`SELECT (SELECT nspname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
			WHERE proname = 'le_version' ORDER BY p.oid LIMIT 1), current_database()`, nil, []any{&schema, &database}})
		if failed == nil && schema == nil {
			end.Err = fmt.Errorf("leader_election is not installed in database %q: run CREATE EXTENSION leader_election, or install the SQL edition (%w)", *database, end.Err)
		} else if failed == nil && *schema != o.Schema {
			end.Err = fmt.Errorf("leader_election is in schema %q: set the option Schema to it, or add it to search_path (%w)", *schema, end.Err)
		}
	}
	return end
}
