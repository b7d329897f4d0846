// Command go-lease is a worker that leads by a lease, over pgx's pool: for a program whose connections are not its own
// (pgxpool, PgBouncer in transaction mode), or that is to lead on when its connection or the server restarts. A leader
// that dies is succeeded when its lease has run out, one that resigns at once.
//
// PgBouncer in transaction mode knows no named prepared statements, pgx's default (1.21 and newer do, if it is told so by
// max_prepared_statements). So have pgx use none: QueryExecModeExec below, or ?default_query_exec_mode=exec in the URL. A
// candidate occupies a server connection of PgBouncer's while it waits: let default_pool_size exceed their number, or the
// leader cannot renew; or poll by le_lease, as go-database-sql/lease does.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// LeaseManager takes, renews and gives back the lease of one election.
type LeaseManager struct {
	Pool               *pgxpool.Pool
	Election, Identity string
	TTL                time.Duration                          // the longest that nobody leads when a leader has died
	OnElected          func(ctx context.Context, token int64) // does the job, and returns when ctx is cancelled
	OnOusting          func(token int64)                      // the job has stopped; the lease may run a little longer
	OnError            func(err error)
}

// Run returns when ctx is cancelled and the lease is given back.
func (m *LeaseManager) Run(ctx context.Context) {
	const campaign, wait = "CALL le_campaign($1, timeout => $2, identity => $3, ttl => $4, token => $5)", 10 * time.Second
	var token *int64 // of our last lease, the credential by which we get it back if it still runs
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, wait+m.TTL)
		err := m.Pool.QueryRow(asking, campaign, m.Election, wait, m.Identity, m.TTL, token).Scan(&token)
		cancel()
		if err == nil && token != nil {
			m.lead(ctx, *token)
		} else if err != nil && ctx.Err() == nil {
			m.OnError(err)
			time.Sleep(300 * time.Millisecond)
		}
	}
}

// lead renews the lease three times in a ttl. The job runs for two thirds of a ttl from before the last renewal that
// succeeded was asked for, by Go's monotonic clock. It begins with the first one, as the grant may be older than we know.
func (m *LeaseManager) lead(ctx context.Context, token int64) {
	job, stop := context.WithCancel(ctx)
	end := time.AfterFunc(m.TTL, stop)
	var stopped chan struct{}
	for job.Err() == nil {
		asked, pause := time.Now(), m.TTL/3
		renewed, err := m.ask(job, "SELECT le_renew($1, $2)", token)
		if err == nil && renewed {
			leadsUntil := asked.Add(m.TTL * 2 / 3)
			end.Reset(time.Until(leadsUntil))
			if stopped == nil && time.Now().Before(leadsUntil) {
				stopped = make(chan struct{})
				go func() { defer close(stopped); m.OnElected(job, token) }()
			}
		} else if err == nil { // it has run out, or was taken from us
			stop()
		} else if job.Err() == nil {
			m.OnError(err)
			pause = 300 * time.Millisecond
		}
		select {
		case <-job.Done():
		case <-time.After(pause):
		}
	}
	if stopped != nil {
		<-stopped
		defer m.OnOusting(token)
	}
	if ctx.Err() != nil {
		if _, err := m.ask(context.Background(), "SELECT le_resign($1, $2)", token); err != nil {
			m.OnError(err)
		}
	}
}

func (m *LeaseManager) ask(ctx context.Context, question string, token int64) (answer bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.TTL/3)
	defer cancel()
	err = m.Pool.QueryRow(ctx, question, m.Election, token).Scan(&answer)
	return answer, err
}

func main() {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	m := LeaseManager{Pool: pool, Election: os.Args[1], Identity: os.Args[2], TTL: 3 * time.Second}
	m.OnElected = func(ctx context.Context, token int64) { m.say("elected", token); <-ctx.Done() } // the job
	m.OnOusting = func(token int64) { m.say("ousted", token) }
	m.OnError = func(err error) { m.say("error", err) }
	m.Run(ctx)
}

func (m *LeaseManager) say(event string, what any) {
	now, text := time.Now().UnixMilli(), strings.Join(strings.Fields(fmt.Sprint(what)), " ")
	fmt.Printf("%d.%03d %s %s %s\n", now/1000, now%1000, m.Identity, event, text)
}
