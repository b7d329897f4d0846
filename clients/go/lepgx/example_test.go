package lepgx_test

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

func ExamplePool() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	job := func(ctx context.Context, term *leaderelection.Term) error {
		<-ctx.Done() // work until leadership ends
		return nil
	}
	elector, err := leaderelection.New(lepgx.Pool(pool), "billing", job, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := elector.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func ExamplePool_every() {
	var pool *pgxpool.Pool
	leaderelection.Every(lepgx.Pool(pool), time.Minute, func(ctx context.Context, tx pgx.Tx, due time.Time) error {
		_, err := tx.Exec(ctx, "INSERT INTO report SELECT $1, count(*) FROM pg_stat_activity", due)
		return err
	})
}
