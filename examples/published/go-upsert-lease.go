//go:build published

// Term, renew and retry over an upsert of a lease table, with callbacks, as published in many blogs and libraries, for
// measuring: no recommendation. Run: go run go-upsert-lease.go ELECTION IDENTITY. TERM_LENGTH (3s) is that of a lease;
// it renews and retries every TERM / 3.
//
// Its mistakes: valid_until is reckoned by the client's wall clock, and compared with the server's; a lease is renewed
// by name, so two copies with one name (a host's, a pod's) both lead, and one that was started anew takes up a term that
// it knows nothing of; the job goes on until a renewal has come back to say that it must not, however long that takes;
// no copy is told that a lease was given back; each renewal writes a row version, WAL, and a commit.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	table = `CREATE TABLE IF NOT EXISTS leases (key text PRIMARY KEY, leader_id text NOT NULL, valid_until timestamptz NOT NULL)`
	// updates only if the lease is over, or ours
	upsert = `INSERT INTO leases (key, leader_id, valid_until) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET leader_id = excluded.leader_id, valid_until = excluded.valid_until
WHERE leases.valid_until < now() OR leases.leader_id = excluded.leader_id RETURNING leader_id`
	release = `DELETE FROM leases WHERE key = $1 AND leader_id = $2`
)

type Elector struct {
	Pool                *pgxpool.Pool
	Key, ID             string
	Term, Renew, Retry  time.Duration
	OnElected, OnOusted func()
	OnError             func(error)
}

func (e *Elector) tryAcquire(ctx context.Context) (leads bool, err error) {
	var leader string
	err = e.Pool.QueryRow(ctx, upsert, e.Key, e.ID, time.Now().Add(e.Term)).Scan(&leader)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (e *Elector) Run(ctx context.Context) {
	leads := false
	for ctx.Err() == nil {
		now, err := e.tryAcquire(ctx)
		if err != nil && ctx.Err() == nil {
			e.OnError(err)
		}
		if now && !leads {
			e.OnElected()
		} else if leads && !now && ctx.Err() == nil {
			e.OnOusted()
		}
		if ctx.Err() == nil {
			leads = now
		}
		pause := e.Retry
		if leads {
			pause = e.Renew
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	if leads {
		if _, err := e.Pool.Exec(context.Background(), release, e.Key, e.ID); err != nil {
			e.OnError(err)
		}
		e.OnOusted()
	}
}

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	term := 3 * time.Second
	if d, err := time.ParseDuration(os.Getenv("TERM_LENGTH")); err == nil {
		term = d
	}
	if _, err := pool.Exec(ctx, table); err != nil {
		say("error", err)
	}
	e := Elector{Pool: pool, Key: os.Args[1], ID: os.Args[2], Term: term, Renew: term / 3, Retry: term / 3}
	e.OnElected = func() { say("elected", 0) }
	e.OnOusted = func() { say("ousted", 0) }
	e.OnError = func(err error) { say("error", err) }
	e.Run(ctx)
}

func say(event string, what any) {
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, os.Args[2], event, text)
}
