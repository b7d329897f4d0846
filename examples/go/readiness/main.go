// A program with an endpoint for a Kubernetes readiness probe. A copy that waits for
// leadership is ready, too; one whose leadership is in doubt is not. The probe:
//
//	readinessProbe:
//	  httpGet: { path: /readyz, port: 8080 }
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	leaderelection "github.com/leader-election/leader_election/clients/go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	elector, err := leaderelection.New(pool, "scheduler", &leaderelection.Options{
		Identity: os.Getenv("POD_NAME"), // by the downward API
		TTL:      15 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}

	http.Handle("/readyz", elector)
	server := &http.Server{Addr: os.Getenv("LISTEN")}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Fatal(err)
		}
	}()
	err = elector.Run(ctx, func(ctx context.Context, term *leaderelection.Term) error {
		for ctx.Err() == nil && term.IsLeading() {
			fmt.Println("leading, token", term.Token())
			time.Sleep(time.Second) // the step of the job
		}
		return nil
	})
	_ = server.Shutdown(context.Background()) // after leadership is resigned
	if err != nil {
		log.Fatal(err)
	}
}
