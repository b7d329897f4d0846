package leaderelection_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	leaderelection "github.com/leader-election/leader_election/clients/go"
)

// A job runs until it is told to stop.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	elector, err := leaderelection.New(pool, "billing", &leaderelection.Options{TTL: 15 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	err = elector.Run(ctx, func(ctx context.Context, term *leaderelection.Term) error {
		for ctx.Err() == nil && term.IsLeading() {
			// a step of the job
			time.Sleep(time.Second)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A time of the day is due by the clocks of a zone.
func ExampleInZone() {
	zone, err := time.LoadLocation("Europe/Zurich")
	if err != nil {
		log.Fatal(err)
	}
	night, err := leaderelection.InZone(zone, leaderelection.ScheduleFunc(func(last time.Time) time.Time {
		next := time.Date(last.Year(), last.Month(), last.Day(), 2, 30, 0, 0, time.UTC)
		if !next.After(last) {
			next = next.AddDate(0, 0, 1)
		}
		return next
	}))
	if err != nil {
		log.Fatal(err)
	}
	due := time.Date(2027, 3, 26, 12, 0, 0, 0, time.UTC)
	for range 3 {
		due = night.Next(due)
		fmt.Println(due.In(zone))
	}
	// Output:
	// 2027-03-27 02:30:00 +0100 CET
	// 2027-03-28 03:00:00 +0200 CEST
	// 2027-03-29 02:30:00 +0200 CEST
}
