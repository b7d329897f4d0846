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
	"github.com/leader-election/leader_election/clients/go/lepgx"
)

var pool *pgxpool.Pool

func job(ctx context.Context, term *leaderelection.Term) error {
	for ctx.Err() == nil && term.IsLeading() {
		if err := step(ctx, term.Token()); err != nil {
			return err
		}
		time.Sleep(time.Second)
	}
	return nil
}

func step(ctx context.Context, token int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT le_assert_leader('scheduler', $1)", token)
		if err == nil {
			_, err = tx.Exec(ctx, "INSERT INTO work_done (token) VALUES ($1)", token)
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
	elector, err := leaderelection.New(lepgx.Pool(pool), "scheduler", job, nil)
	if err != nil {
		log.Fatal(err)
	}
	_ = elector.Run(ctx) // until it is told to stop
}
