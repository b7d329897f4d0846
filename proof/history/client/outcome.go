package client

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"leader_election/proof/event"
)

// rolledBack is an error after which the transaction cannot commit any more.
type rolledBack struct{ error }

func (r rolledBack) Unwrap() error { return r.error }

// judge puts the outcome of a call that ended with an error into its return.
func judge(answer *event.Record, err error) {
	answer.SQLState = state(err)
	answer.Message = strings.TrimSpace(answer.Message + " " + err.Error())
	answer.Outcome = event.Unknown
	if errors.As(err, &rolledBack{}) || certain(answer, err) {
		answer.Outcome = event.Failed
	}
}

// state returns the SQLSTATE of an error of the server; that of another error is empty.
func state(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// certain tells whether nothing of a call that has failed is in effect.
func certain(call *event.Record, err error) bool {
	var refused *pgconn.PgError
	if pgconn.SafeToRetry(err) {
		return true // it was not sent
	}
	if !errors.As(err, &refused) {
		return false
	}
	if refused.Code == "08P01" && strings.HasPrefix(refused.Message, "server login has been failing") {
		return true // PgBouncer has not forwarded it
	}
	if refused.Severity != "ERROR" {
		return false // the session has ended, at what point of the call is not told
	}
	switch call.Do {
	case event.Write, event.Am, event.Look, event.Observe, event.End:
		return true // it is rolled back, or has no effect
	case event.Lease:
		return true // without its commit, the lease has never existed
	}
	// what does not depend on a transaction may have happened before the statement failed
	return refused.Code != "57014" && !strings.HasPrefix(refused.Code, "XX") && !strings.HasPrefix(refused.Code, "58")
}

func truth(is bool) string {
	if is {
		return event.True
	}
	return event.False
}
