package leaderelection_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	leaderelection "github.com/leader-election/leader_election/clients/go"
)

// An example without an Output comment is compiled, but not run; the server
// tests of package lepgx run these calls.

func Example() {
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL")) // import a driver, such as lib/pq
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	elector, err := leaderelection.New(leaderelection.SQL(db), "billing", work, &leaderelection.Options{TTL: 15 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	if err := elector.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func work(ctx context.Context, term *leaderelection.Term) error {
	for ctx.Err() == nil && term.IsLeading() {
		fmt.Println("a step of the job, with token", term.Token())
		term.Heartbeat()
	}
	return nil
}

func ExampleNew_arguments() {
	_, err := leaderelection.New(leaderelection.SQL(&sql.DB{}), "billing", work, &leaderelection.Options{TTL: time.Millisecond})
	fmt.Println(err)
	// Output: leaderelection: TTL is shorter than a second
}

func ExampleOptions() {
	options := leaderelection.Options{
		Identity:  "worker-1",
		Heartbeat: 15 * time.Second, // a job that hangs is replaced
		OnElected: func(term *leaderelection.Term) {
			log.Printf("leads %s with token %d", term.Election(), term.Token())
		},
		OnOusted: func(term *leaderelection.Term, reason leaderelection.Reason) {
			log.Printf("does not lead %s any more: %s", term.Election(), reason)
		},
		OnError: func(err error) { log.Print(err) },
	}
	elector, err := leaderelection.New(leaderelection.SQL(&sql.DB{}), "billing", work, &options)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(elector.Identity(), elector.State())
	// Output: worker-1 stopped
}

func ExampleEvery() {
	var db *sql.DB
	job := leaderelection.Every(leaderelection.SQL(db), time.Minute, func(ctx context.Context, tx *sql.Tx, due time.Time) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO report SELECT $1, count(*) FROM pg_stat_activity", due)
		return err
	})
	elector, err := leaderelection.New(leaderelection.SQL(db), "report", job, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(elector.State())
	// Output: stopped
}

func ExampleFollow() {
	var db *sql.DB
	for leader, err := range leaderelection.Follow(context.Background(), leaderelection.SQL(db), "billing") {
		switch {
		case err != nil:
			log.Print(err)
		case leader == nil:
			log.Print("there is no leader")
		default:
			log.Printf("%s leads with token %d", leader.Identity, leader.Token)
		}
	}
}

func ExampleGetLeader() {
	var db *sql.DB
	leader, err := leaderelection.GetLeader(context.Background(), leaderelection.SQL(db), "billing")
	if err == nil && leader != nil {
		fmt.Println(leader.Identity, "leads since", leader.Since)
	}
}
