// Command worker is driven by the acceptance test of the client libraries. It
// leads ELECTION as IDENTITY by a WAY that is session, heartbeat or lease,
// and tells on stdout when its job begins and has stopped. DATABASE_URL is the
// connection string.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	leaderelection "github.com/leader-election/leader_election/clients/go"
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
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	options.Identity = identity
	options.OnError = func(err error) { say(identity, "error", err) }
	elector, err := leaderelection.New(pool, election, &options)
	if err != nil {
		log.Fatal(err)
	}
	err = elector.Run(ctx, func(ctx context.Context, term *leaderelection.Term) error {
		say(identity, "elected", term.Token())
		defer say(identity, "ousted", term.Token())
		for ctx.Err() == nil && term.IsLeading() {
			time.Sleep(100 * time.Millisecond) // a step of the job
			if way == "heartbeat" {
				term.Heartbeat()
			}
		}
		return nil
	})
	if err != nil {
		say(identity, "error", err)
		os.Exit(1)
	}
}

var stdout sync.Mutex

func say(identity, event string, what any) {
	stdout.Lock()
	defer stdout.Unlock()
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, identity, event, text)
}
