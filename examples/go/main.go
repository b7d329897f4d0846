// A program of which one copy works at a time: DATABASE_URL=postgres://... go run .
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	leaderelection "github.com/leader-election/leader_election/clients/go"
)

func job(ctx context.Context, term *leaderelection.Term) error {
	for ctx.Err() == nil {
		fmt.Println("leading, token", term.Token())
		time.Sleep(time.Second) // the step of the job
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
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
