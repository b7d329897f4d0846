// Command lease is a worker that leads by a lease, over a bare *sql.DB: any connection of the pool will do, and so will
// PgBouncer in transaction mode. It asks three times in a ttl, by one statement that takes the lease, renews it, and takes
// it again, and so occupies no connection in between: however many candidates there are, PgBouncer needs a few only. The
// next one leads at most ttl / 3 after the leader has resigned, and ttl * 4 / 3 after it has died.
//
// PgBouncer in transaction mode knows no named prepared statements, pgx's default (1.21 and newer do, if it is told so by
// max_prepared_statements). So have pgx use none: QueryExecModeExec below, or ?default_query_exec_mode=exec in the URL.
// (lib/pq uses none, but wants ignore_startup_parameters = extra_float_digits in pgbouncer.ini.)
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	ttl   = 3 * time.Second
	lease = "SELECT le_lease($1, $2, $3, $4)" // the ttl as text: lib/pq would send a Duration as a number
)

func main() {
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*config)
	defer db.Close()
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	stand(ctx, db, os.Args[1], os.Args[2])
}

// stand returns when ctx is cancelled and the lease is given back. The job may run for two thirds of a ttl from before we
// last asked and were told that we lead, by the monotonic clock in Go's time.Time.
func stand(ctx context.Context, db *sql.DB, election, identity string) {
	var token *int64  // of our last lease: the credential by which it is renewed; nil: we have none
	var current *term // nil: the job does not run
	for ctx.Err() == nil {
		work := ctx
		if current != nil {
			work = current.ctx // so that we stop asking when it is over
		}
		asking, cancel := context.WithTimeout(work, ttl/3)
		asked, pause := time.Now(), ttl/3
		leadsUntil := asked.Add(ttl * 2 / 3)
		var answer *int64
		err := db.QueryRowContext(asking, lease, election, ttl.String(), identity, token).Scan(&answer)
		cancel()
		if err == nil {
			if current != nil && answer != nil && *answer == *token {
				current.end.Reset(time.Until(leadsUntil))
			} else if current != nil { // somebody else leads, or we do, but in another term
				current.stop()
				say("ousted", *token)
				current = nil
			}
			token = answer
			if current == nil && token != nil && time.Now().Before(leadsUntil) {
				current = begin(ctx, *token, leadsUntil)
			}
		} else if pause = 300 * time.Millisecond; work.Err() == nil {
			say("error", err) // we keep the token, and ask again soon
		}
		select {
		case <-work.Done():
		case <-time.After(pause):
		}
		if current != nil && current.ctx.Err() != nil && ctx.Err() == nil {
			current.stop()
			say("ousted", *token)
			current = nil
		}
	}
	if current != nil {
		current.stop()
		defer say("ousted", *token)
	}
	if token != nil {
		resigning, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := db.ExecContext(resigning, "SELECT le_resign($1, $2)", election, *token); err != nil {
			say("error", err)
		}
	}
}

type term struct {
	ctx  context.Context
	end  *time.Timer // cancels ctx
	stop func()      // returns when the job has stopped
}

func begin(ctx context.Context, token int64, leadsUntil time.Time) *term {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() { defer close(stopped); doJob(ctx, token) }()
	return &term{ctx, time.AfterFunc(time.Until(leadsUntil), cancel), func() { cancel(); <-stopped }}
}

// doJob works while ctx lives.
func doJob(ctx context.Context, token int64) {
	say("elected", token)
	<-ctx.Done()
}

func say(event string, what any) {
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, os.Args[2], event, text)
}
