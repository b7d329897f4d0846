// Command go-pgx is a worker that leads in session scope, over pgx and its pool: for a program that can keep one
// connection to PostgreSQL for itself (directly, or through PgBouncer in session mode). It waits in line in the server,
// is elected at once when the leader before it has gone, and its job's context is cancelled the moment it has lost the
// connection. That is taken out of the pool, so that nobody else runs a statement in the leader's session. A job that
// hangs gives no heartbeat, and loses the leadership to the next worker.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Candidate stands for an election again and again.
type Candidate struct {
	Pool               *pgxpool.Pool
	Election, Identity string
	OnElected          Job               // does the job while ctx lives; to return is to resign
	OnOusted           func(token int64) // the job has stopped
	OnError            func(err error)
	progress           atomic.Bool // since the last heartbeat
}

// Job works in steps, each shorter than the heartbeat, and calls progress after each.
type Job func(ctx context.Context, token int64, progress func())

// A leader that hears nothing stops after three seconds: a second between questions, and two for the answer.
const heartbeat = 5 * time.Second

// Run returns when ctx is cancelled and the candidate does not lead any more.
func (c *Candidate) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.serveTerm(ctx); err != nil && ctx.Err() == nil {
			c.OnError(err)
			time.Sleep(500 * time.Millisecond)
		}
	}
}

// serveTerm waits to be elected and leads for one term. In the end the connection is closed, whatever has happened: so
// neither a term nor a place in line outlives it.
func (c *Candidate) serveTerm(ctx context.Context) error {
	pooled, err := c.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack()
	defer conn.Close(context.Background())
	var token int64
	const campaign = "CALL le_campaign($1, identity => $2, heartbeat => $3)"
	err = conn.QueryRow(ctx, campaign, c.Election, c.Identity, heartbeat).Scan(&token)
	if err != nil {
		return err
	}
	job, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		defer stop()
		c.OnElected(job, token, func() { c.progress.Store(true) })
	}()
	err = c.watch(job, conn)
	stop()
	<-stopped
	if err == nil {
		_, err = c.ask(conn, "SELECT le_resign($1)")
	}
	c.OnOusted(token)
	return err
}

// watch returns an error when leadership is lost, and nil when ctx is cancelled. It always reads from the connection, to
// hear at once when the server closes it, and asks once a second, in case the network has fallen silent. Where the job has
// made progress, the question is a heartbeat.
func (c *Candidate) watch(ctx context.Context, conn *pgx.Conn) error {
	for {
		second, cancel := context.WithTimeout(ctx, time.Second)
		_, err := conn.WaitForNotification(second)
		cancel()
		if ctx.Err() != nil {
			return nil
		} else if err != nil && !pgconn.Timeout(err) {
			return err
		}
		question := "SELECT le_am_leader($1)"
		if c.progress.Swap(false) {
			question = "SELECT le_heartbeat($1)"
		}
		if leads, err := c.ask(conn, question); err != nil {
			return err
		} else if !leads {
			return errors.New("this session does not lead any more")
		}
	}
}

// ask is not held up by a silent network, and asks even when the program has been told to end.
func (c *Candidate) ask(conn *pgx.Conn, question string) (answer bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err = conn.QueryRow(ctx, question, c.Election).Scan(&answer)
	return answer, err
}

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	c := Candidate{Pool: pool, Election: os.Args[1], Identity: os.Args[2]}
	c.OnElected = func(ctx context.Context, token int64, progress func()) {
		c.say("elected", token)
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond) // a step of the job
			progress()
		}
	}
	c.OnOusted = func(token int64) { c.say("ousted", token) }
	c.OnError = func(err error) { c.say("error", err) }
	c.Run(ctx)
}

func (c *Candidate) say(event string, what any) {
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, c.Identity, event, text)
}
