package leaderelection

import (
	"context"
	"iter"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// followWay waits for changes as a campaign in session scope waits for an election.
var followWay = way{bid: "observe", opens: true, limit: 5 * time.Second, round: 30 * time.Second}

// A Leader is the leader of an election at some time.
type Leader struct {
	Identity string
	Token    int64
	Value    *string // what the leader has proclaimed, or nil
}

func (a answer) leader() *Leader {
	if a.token == nil || a.identity == nil {
		return nil
	}
	return &Leader{*a.identity, *a.token, a.value}
}

func (m *machine) answerObserve(a answer) {
	m.failures = 0
	if leader := a.leader(); m.told == nil || !reflect.DeepEqual(leader, m.told[0]) {
		m.told = []*Leader{leader}
		m.do(action{what: "told", leader: leader})
	}
	m.ask(a.version)
}

func observe(election string, version *int64, r *answer) query {
	return query{`CALL le_observe($1::text, version => $2::bigint, timeout => '30 s')`,
		[]any{election, version}, []any{&r.version, &r.token, &r.identity, &r.value}}
}

// LeaderOf returns the present leader of the election, or nil if there is
// none. Of the options, which may be nil, the schema counts.
//
// It returns a [PermanentError] if the extension is missing, or the role may
// not ask; an error if an argument is wrong; and else that of the pool or the
// server, or [context.DeadlineExceeded] if there is no answer within 5 seconds.
func LeaderOf(ctx context.Context, pool *pgxpool.Pool, election string, options *Options) (*Leader, error) {
	o, err := options.filled(pool, election)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, followWay.limit)
	defer cancel()
	var r answer
	err = observe(election, nil, &r).ask(ctx, o, pool)
	if cause := permanent(serverError(err).Code); cause != "" {
		err = o.conclude(pool, election, &PermanentError{cause, err})
	}
	return r.leader(), err
}

// Follow yields the present leader of the election, or nil if there is none,
// and then each change of the leader or its value, until ctx is cancelled. It
// yields each error, and goes on after a pause, except for a [PermanentError],
// or if an argument is wrong, after which it ends. It keeps a connection of its
// own while it runs, and when the loop ends, it waits until that is closed, for
// a second at most. Of the options, which may be nil, the schema counts.
func Follow(ctx context.Context, pool *pgxpool.Pool, election string, options *Options) iter.Seq2[*Leader, error] {
	return func(yield func(*Leader, error) bool) {
		o, err := options.filled(pool, election)
		if err != nil {
			yield(nil, err)
			return
		}
		items := make(chan action)
		ctx, cancel := context.WithCancel(tame{ctx})
		defer cancel()
		var queue chain // the state machine does not wait for the caller's loop
		put := func(a action) {
			queue.add(func() {
				select {
				case items <- a:
				case <-ctx.Done():
				}
			})
		}
		d := newDriver(pool, newMachine(followWay, election, o, now, rand.Float64), func(a action, r *answer) query {
			if a.what == "open" {
				return open(election, r)
			}
			return observe(election, a.version, r)
		}, put)
		go func() {
			if err := d.drive(ctx, d.m.campaign); err != nil {
				put(action{err: err})
			}
			queue.add(func() { close(items) })
		}()
		for i := range items {
			if ctx.Err() == nil && !yield(i.leader, i.err) {
				cancel()
			}
		}
	}
}
