// A worker whose writes are fenced: DATABASE_URL=postgres://... go run .
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	leaderelection "github.com/leader-election/leader_election/clients/go"
)

var pool *pgxpool.Pool

func job(ctx context.Context, term *leaderelection.Term) error {
	for ctx.Err() == nil && term.IsLeading() {
		if err := step(ctx, term); err != nil {
			return err
		}
		time.Sleep(time.Second)
	}
	return nil
}

func step(ctx context.Context, term *leaderelection.Term) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := term.Guard(ctx, tx)
		if err == nil {
			_, err = tx.Exec(ctx, "INSERT INTO work_done (token) VALUES ($1)", term.Token())
		}
		return err
	})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	if pool, err = pgxpool.New(ctx, os.Getenv("DATABASE_URL")); err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	elector, err := leaderelection.New(pool, "scheduler", nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := elector.Run(ctx, job); err != nil { // nil when it is told to stop
		log.Fatal(err)
	}
}
