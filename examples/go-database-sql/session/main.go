// Command session is a worker that leads in session scope, over database/sql: for a program that can keep one connection
// to PostgreSQL for itself. Leadership belongs to the connection that took it, and a *sql.DB gives each statement any
// connection of its pool: so everything goes through one *sql.Conn, which is not given back to the pool in the end.
// (With another driver, such as lib/pq, only the import and the driver's name change.)
package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	election := os.Args[1]
	for ctx.Err() == nil {
		if err := serveTerm(ctx, db, election, os.Args[2]); err != nil && ctx.Err() == nil {
			say("error", err)
			time.Sleep(500 * time.Millisecond)
		}
	}
}

// serveTerm waits to be elected and leads for one term.
func serveTerm(ctx context.Context, db *sql.DB, election, identity string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	// Whatever has happened, neither a term nor a place in line may outlive this: ErrBadConn has the pool close it.
	defer conn.Raw(func(any) error { return driver.ErrBadConn })

	var token int64
	err = conn.QueryRowContext(ctx, "CALL le_campaign($1, identity => $2)", election, identity).Scan(&token)
	if err != nil {
		return err
	}
	job, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() { defer close(stopped); defer stop(); doJob(job, token) }()
	err = watch(job, conn, election, identity)
	stop()
	<-stopped
	if err == nil {
		_, err = ask(conn, "SELECT le_resign($1, identity => $2)", election, identity)
	}
	say("ousted", token)
	return err
}

// watch returns an error when leadership is lost, and nil when ctx is cancelled. As database/sql cannot read from an idle
// connection, it asks, four times a second: it learns that much later that the connection is lost.
func watch(ctx context.Context, conn *sql.Conn, election, identity string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(250 * time.Millisecond):
		}
		if leads, err := ask(conn, "SELECT le_am_leader($1, identity => $2)", election, identity); err != nil {
			return err
		} else if !leads {
			return errors.New("this session does not lead any more")
		}
	}
}

// ask is not held up by a silent network, and asks even when the program has been told to end.
func ask(conn *sql.Conn, question, election, identity string) (answer bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err = conn.QueryRowContext(ctx, question, election, identity).Scan(&answer)
	return answer, err
}

// doJob works while ctx lives. To return is to resign.
func doJob(ctx context.Context, token int64) {
	say("elected", token)
	<-ctx.Done()
}

func say(event string, what any) {
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, os.Args[2], event, text)
}
