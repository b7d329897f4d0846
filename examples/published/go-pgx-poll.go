//go:build published

// The loop over pg_try_advisory_lock() as published for Go and pgx (ramitmittal.com/blog/leader-election-advisory-locks
// and others), for measuring: no recommendation. Run: go run go-pgx-poll.go ELECTION IDENTITY. ELECTION is the lock's
// number; 10, as published, if it is not a number. INTERVAL (1m, as published) is how often it tries and checks.
//
// Its mistakes: a copy that does not lead finds out up to a minute late that the leader has gone; a leader finds out up
// to a minute late that it has lost its connection, and works on beside the next one; and its check,
// count(*) FROM pg_locks WHERE objid = 10, takes any lock with that number (in the upper or lower half of the key, of
// any kind) for its own, and reads all locks of the server. The leader cannot be told from the other copies.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	lockID   = 10
	interval = time.Minute
)

func leaderTasks(ctx context.Context) { <-ctx.Done() }

func runElectionLoop(ctx context.Context, pool *pgxpool.Pool) {
	for ctx.Err() == nil {
		leaderStatus := make(chan bool)
		go runElection(ctx, pool, leaderStatus)
		// the first message tells whether this instance is the leader
		if <-leaderStatus {
			say("elected", 0)
			tasks, cancel := context.WithCancel(context.Background())
			go leaderTasks(tasks)
			<-leaderStatus // the second one: it is not any more
			cancel()
			say("ousted", 0)
		}
		wait(ctx)
	}
}

func runElection(ctx context.Context, pool *pgxpool.Pool, leaderStatus chan<- bool) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		say("error", err)
		leaderStatus <- false
		return
	}
	defer conn.Release()
	var elected bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", lockID).Scan(&elected); err != nil {
		say("error", err)
	}
	leaderStatus <- elected
	if !elected {
		return
	}
	for elected && ctx.Err() == nil {
		wait(ctx)
		var count int
		err := conn.QueryRow(context.Background(), "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND objid = $1", lockID).Scan(&count)
		if err != nil {
			say("error", err)
		}
		elected = err == nil && count > 0
	}
	if elected { // SIGTERM
		conn.Exec(context.Background(), "SELECT pg_advisory_unlock($1)", lockID)
	}
	leaderStatus <- false
}

func wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(interval):
	}
}

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	if id, err := strconv.Atoi(os.Args[1]); err == nil {
		lockID = id
	}
	if d, err := time.ParseDuration(os.Getenv("INTERVAL")); err == nil {
		interval = d
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	runElectionLoop(ctx, pool)
}

func say(event string, what any) {
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, os.Args[2], event, text)
}
