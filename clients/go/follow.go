package leaderelection

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"
)

const answer = 5 * time.Second // the deadline where no term is at stake

// A Leader is the leader of an election at some time.
type Leader struct {
	Election string
	Identity string
	Token    int64
	Since    time.Time
	Scope    string  // session, transaction or lease
	Value    *string // what the leader has published, or nil
}

// GetLeader asks which leader the election has. It returns nil if there is
// none.
func GetLeader(ctx context.Context, db DB, election string) (*Leader, error) {
	return getLeader(ctx, db, election)
}

func getLeader(ctx context.Context, q Querier, election string) (*Leader, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	const sql = "SELECT l.identity, l.token, l.since, l.scope, l.value FROM (SELECT) AS one LEFT JOIN le_leader($1::text) AS l ON true"
	var identity, scope, value *string
	var token *int64
	var since *time.Time
	err := q.QueryRow(ctx, sql, []any{election}, &identity, &token, &since, &scope, &value)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for the leader of election %q: %w", election, err)
	}
	if token == nil || identity == nil || since == nil || scope == nil {
		return nil, nil
	}
	return &Leader{election, *identity, *token, *since, *scope, value}, nil
}

// Follow yields the present leader of the election, or nil if there is none,
// and then each change of the leader or its published value, until ctx is
// cancelled. It yields each error, and goes on after a pause. Of changes that
// come at once, it can yield the last one only.
//
// Follow keeps a connection while it runs. Through a pooler in transaction
// mode, call [GetLeader] each second instead.
func Follow(ctx context.Context, db DB, election string) iter.Seq2[*Leader, error] {
	return func(yield func(*Leader, error) bool) {
		f := follower{db: db, election: election, yield: yield}
		for ctx.Err() == nil {
			err := f.follow(ctx)
			if f.broken || ctx.Err() != nil || !yield(nil, err) {
				return
			}
			sleep(ctx, backoff(f.failures, rand.Float64()))
			f.failures++
		}
	}
}

type follower struct {
	db       DB
	election string
	yield    func(*Leader, error) bool
	broken   bool // the caller's loop has ended
	failures int  // in a row
	told     bool // last has been yielded
	last     *Leader
}

// follow yields until something fails or the caller's loop ends.
func (f *follower) follow(ctx context.Context) error {
	connecting, cancel := context.WithTimeout(ctx, answer)
	conn, err := f.db.Connect(connecting)
	cancel()
	if err != nil {
		return fmt.Errorf("cannot connect: %w", err)
	}
	defer conn.Close()
	const round = 30 * time.Second
	const sql = "CALL le_observe($1::text, $2::bigint, timeout => $3::interval)"
	var version *int64 // of the state that the last answer was about
	for {
		var token *int64
		var identity, value *string
		observing, cancel := context.WithTimeout(ctx, round+answer)
		err := conn.QueryRow(observing, sql, []any{f.election, version, interval(round)}, &version, &token, &identity, &value)
		cancel()
		if err != nil {
			return fmt.Errorf("cannot observe election %q: %w", f.election, err)
		}
		f.failures = 0
		var leader *Leader
		if token != nil {
			leader, err = getLeader(ctx, conn, f.election)
			if err != nil {
				return err
			}
			if leader == nil { // gone meanwhile, as the next answer will tell
				continue
			}
		}
		if f.told && same(leader, f.last) {
			continue
		}
		f.told, f.last = true, leader
		if !f.yield(leader, nil) {
			f.broken = true
			return nil
		}
	}
}

// same returns whether nothing that Follow tells of has changed.
func same(a, b *Leader) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Token == b.Token && (a.Value == nil) == (b.Value == nil) && (a.Value == nil || *a.Value == *b.Value)
}
