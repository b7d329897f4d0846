// Command worker is driven by the acceptance test of the client libraries. It
// leads ELECTION as IDENTITY by a WAY that is session, heartbeat or lease,
// and tells on stdout when its job begins and has stopped.
//
// DATABASE_URL is the connection string. DRIVER says how to connect: pgxpool,
// which is the default, sql for database/sql by package lepgx, or plain for
// database/sql without it.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	leaderelection "github.com/leader-election/leader_election/clients/go"
	"github.com/leader-election/leader_election/clients/go/lepgx"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: worker session|heartbeat|lease ELECTION IDENTITY")
	}
	way, election, identity := os.Args[1], os.Args[2], os.Args[3]
	options, known := map[string]leaderelection.Options{
		"session":   {},
		"heartbeat": {Heartbeat: 5 * time.Second},
		"lease":     {TTL: 3 * time.Second},
	}[way]
	if !known {
		log.Fatalf("unknown way %q", way)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	options.Identity = identity
	options.OnError = func(err error) { say(identity, "error", err) }
	elector, err := leaderelection.New(db, election, func(ctx context.Context, term *leaderelection.Term) error {
		say(identity, "elected", term.Token())
		defer say(identity, "ousted", term.Token())
		for ctx.Err() == nil && term.IsLeading() {
			time.Sleep(100 * time.Millisecond) // a step of the job
			if way == "heartbeat" {
				term.Heartbeat()
			}
		}
		return nil
	}, &options)
	if err != nil {
		log.Fatal(err)
	}
	if err := elector.Run(ctx); err != nil {
		say(identity, "error", err)
		os.Exit(1)
	}
}

func connect(ctx context.Context) (leaderelection.DB, error) {
	dsn := os.Getenv("DATABASE_URL")
	switch os.Getenv("DRIVER") {
	case "sql":
		db, err := sql.Open("pgx", dsn)
		return lepgx.SQL(db), err
	case "plain":
		db, err := sql.Open("pgx", dsn)
		return leaderelection.SQL(db), err
	default:
		pool, err := pgxpool.New(ctx, dsn)
		return lepgx.Pool(pool), err
	}
}

var stdout sync.Mutex

func say(identity, event string, what any) {
	stdout.Lock()
	defer stdout.Unlock()
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, identity, event, text)
}
