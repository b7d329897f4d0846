//go:build published

// A session's advisory lock through database/sql's pool, as published again and again, for measuring: no recommendation.
// Run: go run go-database-sql-pool.go ELECTION IDENTITY. ELECTION is hashed to the lock's number.
//
// Its mistake: a *sql.DB gives each statement any connection of its pool, so the lock belongs to whichever connection took
// it, and that goes back to the pool. Where it lives on, pg_advisory_unlock() on another one returns false (and a WARNING
// that is not seen): the program thinks that it has resigned, and no other copy is elected. Where the pool closes it (by
// default it keeps two idle connections), the lock is gone while the job goes on, and another copy leads as well.
// The loop works for 5 s and lets others have a turn for 5 s, while other goroutines use the pool.

package main

import (
	"context"
	"database/sql"
	"fmt"
	"hash/crc32"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

const turn = 5 * time.Second

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer db.Close()
	for i := 0; i < 3; i++ {
		go serveRequests(ctx, db)
	}
	key := int64(crc32.ChecksumIEEE([]byte(os.Args[1])))
	for ctx.Err() == nil {
		if tryLock(db, key) {
			say("elected", 0)
			wait(ctx, turn) // the job
			unlock(db, key)
			say("ousted", 0)
			wait(ctx, turn)
		} else {
			wait(ctx, time.Second)
		}
	}
}

func tryLock(db *sql.DB, key int64) (locked bool) {
	if err := db.QueryRow("SELECT pg_try_advisory_lock($1)", key).Scan(&locked); err != nil {
		say("error", err)
	}
	return locked
}

func unlock(db *sql.DB, key int64) {
	var unlocked bool
	if err := db.QueryRow("SELECT pg_advisory_unlock($1)", key).Scan(&unlocked); err != nil {
		say("error", err)
	} else if !unlocked { // what is published ignores this
		say("error", "pg_advisory_unlock returned false: it went to another connection; the lock stands")
	}
}

// serveRequests is the rest of the program, which uses the same pool.
func serveRequests(ctx context.Context, db *sql.DB) {
	for ctx.Err() == nil {
		db.ExecContext(ctx, "SELECT pg_sleep(random() * 0.2)")
		wait(ctx, 50*time.Millisecond)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func say(event string, what any) {
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, os.Args[2], event, text)
}
