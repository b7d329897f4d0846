package leaderelection

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A lease of this length is renewed each 2 s and valid for 4 s: it outlives a pause of the machine.
const ttl = 6 * time.Second

// connect returns a pool of a server, and skips the test if there is none. The changes are
// parameters of the URL, or "database" or "user".
func connect(t *testing.T, variable string, changes ...string) *pgxpool.Pool {
	t.Helper()
	dsn, err := url.Parse(os.Getenv(variable))
	if err != nil || dsn.Host == "" {
		t.Skipf("needs a server: %s is not set", variable)
	}
	query := dsn.Query()
	for i := 0; i < len(changes); i += 2 {
		switch changes[i] {
		case "database":
			dsn.Path = changes[i+1]
		case "user":
			dsn.User = url.User(changes[i+1])
		default:
			query.Set(changes[i], changes[i+1])
		}
	}
	dsn.RawQuery = query.Encode()
	pool, err := pgxpool.New(context.Background(), dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// install creates the extension in a schema, "" for one of the search_path, or
// the SQL edition, if that is tested.
func install(t *testing.T, pool *pgxpool.Pool, schema string) {
	t.Helper()
	file := os.Getenv("LE_SQL_EDITION")
	if schema != "" {
		schema = pgx.Identifier{schema}.Sanitize()
		exec(t, pool, "CREATE SCHEMA "+schema)
	}
	if file == "" && schema == "" {
		exec(t, pool, "CREATE EXTENSION leader_election")
	} else if file == "" {
		exec(t, pool, "CREATE EXTENSION leader_election SCHEMA "+schema)
	} else if script, err := os.ReadFile(file); err != nil {
		t.Fatal(err)
	} else if schema == "" {
		exec(t, pool, string(script))
	} else {
		exec(t, pool, regexp.MustCompile(`\ble\b`).ReplaceAllString(string(script), schema))
	}
}

func fetch[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (answer T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func unique(t *testing.T) string { return fmt.Sprintf("go/%s/%d", t.Name(), time.Now().UnixNano()) }

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 15 s: ", what)
		}
	}
}

// A candidate is an elector that runs in the background.
type candidate struct {
	*Elector
	t       *testing.T
	cancel  context.CancelFunc
	ended   chan error
	working atomic.Bool
	mu      sync.Mutex
	terms   []*Term
	reasons []Reason
	errors  []error
}

func idle(ctx context.Context, _ *Term) error { <-ctx.Done(); return ctx.Err() }

func run(t *testing.T, pool *pgxpool.Pool, election string, job Job, o Options) *candidate {
	t.Helper()
	c := &candidate{t: t, ended: make(chan error, 1)}
	note := func(f func()) { c.mu.Lock(); defer c.mu.Unlock(); f() }
	o.OnElected = func(term *Term) { note(func() { c.terms = append(c.terms, term) }) }
	o.OnOusted = func(_ *Term, why Reason) { note(func() { c.reasons = append(c.reasons, why) }) }
	o.OnError = func(err error) { note(func() { c.errors = append(c.errors, err) }) }
	var err error
	if c.Elector, err = New(pool, election, &o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		c.ended <- c.Run(ctx, func(ctx context.Context, term *Term) error {
			c.working.Store(true)
			defer c.working.Store(false)
			return job(ctx, term)
		})
	}()
	t.Cleanup(cancel)
	return c
}

// end returns what Run returns.
func (c *candidate) end() error {
	c.t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(20 * time.Second):
		c.t.Fatal("Run has not returned")
		return nil
	}
}

// stop stops the candidate, which was never in trouble.
func (c *candidate) stop() {
	c.t.Helper()
	c.cancel()
	if err := c.end(); err != nil || len(c.errors) > 0 || c.Health() != "stopped" {
		c.t.Error(err, c.errors, c.Health())
	}
}

func (c *candidate) elected() *Term {
	c.t.Helper()
	eventually(c.t, "elected", c.working.Load)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terms[len(c.terms)-1]
}

func leader(t *testing.T, pool *pgxpool.Pool, election string) string {
	t.Helper()
	l, err := LeaderOf(context.Background(), pool, election, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l == nil {
		return "none"
	}
	return fmt.Sprint(l.Identity, " ", l.Token)
}

// S10: in each way to lead, also with a pool that is configured for poolers.
func TestS01S02S10Lead(t *testing.T) {
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		for way, o := range map[string]Options{"session": {}, "heartbeat": {Heartbeat: ttl}, "lease": {TTL: ttl}} {
			t.Run(mode+"/"+way, func(t *testing.T) {
				t.Parallel()
				pool, election := connect(t, "DATABASE_URL", "default_query_exec_mode", mode), unique(t)
				o.Identity = "one"
				one := run(t, pool, election, func(ctx context.Context, term *Term) error {
					for ctx.Err() == nil {
						time.Sleep(100 * time.Millisecond)
						term.Heartbeat()
					}
					return nil
				}, o)
				if term := one.elected(); leader(t, pool, election) != fmt.Sprint("one ", term.Token()) || !term.IsLeading() {
					t.Error(leader(t, pool, election))
				}
				o.Identity = "two"
				two := run(t, pool, election, idle, o)
				eventually(t, "confirmed", func() bool { return one.Stats().Confirmations > 3 })
				if one.Stats().Terms != 1 || two.State() != StateWaiting || one.Health() != "leading" {
					t.Error(one.Stats(), two.State(), one.Health())
				}
				one.stop()
				two.elected()
				two.stop()
				if l := leader(t, pool, election); l != "none" || !slices.Equal(one.reasons, []Reason{ReasonResigned}) {
					t.Error(l, one.reasons)
				}
			})
		}
	}
}

func TestS03HangingJob(t *testing.T) {
	for way, o := range map[string]Options{"session": {Heartbeat: ttl}, "lease": {Heartbeat: ttl, TTL: ttl}} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			pool, election := connect(t, "DATABASE_URL"), unique(t)
			var cancelled atomic.Bool
			one := run(t, pool, election, func(ctx context.Context, _ *Term) error {
				<-ctx.Done()
				cancelled.Store(errors.Is(context.Cause(ctx), ErrInDoubt))
				time.Sleep(ttl) // it hangs
				return nil
			}, o)
			one.elected()
			two := run(t, pool, election, idle, o)
			two.elected()
			if !cancelled.Load() {
				t.Error("the first job was not cancelled by then")
			}
		})
	}
}

func TestS04TerminatedAndDeposed(t *testing.T) {
	for _, fault := range []string{"SELECT pg_terminate_backend(pid) FROM le_leader($1)", "SELECT le_depose($1)"} {
		t.Run(fault[7:16], func(t *testing.T) {
			t.Parallel()
			pool, election := connect(t, "DATABASE_URL"), unique(t)
			took := time.Minute
			c := run(t, pool, election, idle, Options{})
			for tries := 0; took > 500*time.Millisecond && tries < 5; tries++ { // a busy machine may be late once
				c.elected()
				begin := time.Now()
				fetch[bool](t, pool, fault, election)
				eventually(t, "the job is cancelled", func() bool { return !c.working.Load() })
				took = time.Since(begin)
			}
			c.elected()
			c.mu.Lock()
			defer c.mu.Unlock()
			if took > 500*time.Millisecond || c.reasons[0] != ReasonLost || !errors.Is(c.errors[0], ErrLost) {
				t.Error(took, c.reasons, c.errors)
			}
		})
	}
}

func TestS05TransactionPooler(t *testing.T) {
	pool := connect(t, "POOLER_URL", "default_query_exec_mode", "exec", "pool_max_conns", "20")
	ctx, cancel := context.WithCancel(context.Background())
	for range 15 { // other clients of the pooler
		go func() {
			for ctx.Err() == nil {
				_, _ = pool.Exec(ctx, "SELECT pg_sleep(0.01)")
			}
		}()
	}
	for tries := 1; !endsByPooler(t, pool); tries++ {
		if tries == 3 {
			t.Fatal("Run has not returned")
		}
	}
	cancel()
	c := run(t, pool, unique(t), idle, Options{TTL: ttl})
	eventually(t, "renewed", func() bool { return c.Stats().Confirmations > 2 })
	c.stop()
}

// endsByPooler says whether two electors notice that they share connections. By chance, one does not: if its bid alone
// used another connection, then that one leads, and the elector waits for it.
func endsByPooler(t *testing.T, pool *pgxpool.Pool) bool {
	t.Helper()
	admin, election := connect(t, "DATABASE_URL"), unique(t)
	for _, c := range []*candidate{run(t, pool, election, idle, Options{}), run(t, pool, election, idle, Options{})} {
		var permanent *PermanentError
		select {
		case err := <-c.ended:
			if !errors.As(err, &permanent) || permanent.Cause != CausePooler || !strings.Contains(err.Error(), "set a TTL") {
				t.Errorf("%v", err)
			}
		case <-time.After(10 * time.Second):
			exec(t, admin, "SELECT pg_terminate_backend(pid) FROM le_leaders WHERE name = '"+election+"'")
			return false
		}
	}
	if l := leader(t, admin, election); l != "none" {
		t.Error(l)
	}
	return true
}

// What shares the connections of a pooler leaves no setting on them.
func TestS05PoolerKeepsItsSettings(t *testing.T) {
	admin, database, ctx := connect(t, "DATABASE_URL"), fmt.Sprintf("go_%d", time.Now().UnixNano()), context.Background()
	exec(t, admin, "CREATE DATABASE "+database)
	defer exec(t, admin, "DROP DATABASE "+database+" WITH (FORCE)")
	exec(t, admin, "ALTER DATABASE "+database+" SET statement_timeout = '77s'")
	pool := connect(t, "POOLER_URL", "database", database, "default_query_exec_mode", "exec")
	install(t, pool, "")
	var done atomic.Bool
	c := run(t, pool, "e", every(t, pool, Interval(time.Second), func(context.Context, pgx.Tx, time.Time) error {
		done.Store(true)
		return nil
	}), Options{TTL: ttl})
	eventually(t, "renewed", func() bool { return c.Stats().Confirmations > 2 && done.Load() })
	leader(t, pool, "e")
	c.stop()
	for range 4 { // all that there are, at the same time
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx)
		var timeout string
		if err := tx.QueryRow(ctx, "SHOW statement_timeout").Scan(&timeout); err != nil || timeout != "77s" {
			t.Error(timeout, err)
		}
	}
}

// With a seat, too, no session is left that leads.
func TestS05SeatIsLeft(t *testing.T) {
	pool, election := connect(t, "DATABASE_URL"), unique(t)
	for _, o := range []Options{{}, {Seats: 2}} {
		c := run(t, pool, election, idle, o)
		c.elected()
		_ = c.opt.conclude(pool, election, &PermanentError{CausePooler, nil})
		eventually(t, "lost", func() bool { return !c.working.Load() || c.Stats().Terms > 1 })
		c.cancel()
		if err := c.end(); err != nil || c.reasons[0] != ReasonLost {
			t.Error(err, c.reasons)
		}
	}
}

func TestS06LeaderAndFollow(t *testing.T) {
	pool, election := connect(t, "DATABASE_URL"), unique(t)
	changes := make(chan string)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer close(changes)
		for l, err := range Follow(ctx, pool, election, nil) {
			switch {
			case err != nil || l == nil:
				changes <- fmt.Sprint(err)
			case l.Value == nil:
				changes <- l.Identity
			default:
				changes <- l.Identity + " " + *l.Value
			}
		}
	}()
	next := func(want string) {
		t.Helper()
		if got := <-changes; got != want {
			t.Fatalf("%q, not %q", got, want)
		}
	}
	next("<nil>")
	for _, o := range []Options{{Identity: "one"}, {Identity: "two", TTL: ttl}} {
		c := run(t, pool, election, idle, o)
		next(o.Identity)
		term := c.elected()
		if err := term.Proclaim(ctx, pool, "here"); err != nil {
			t.Error(err)
		}
		next(o.Identity + " here")
		if err := term.Proclaim(ctx, pool, strings.Repeat("x", 8193)); serverError(err).Code != "22001" {
			t.Error(err)
		}
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return term.Proclaim(ctx, tx, "there") }); err != nil {
			t.Error(err)
		}
		next(o.Identity + " there")
		c.stop()
		next("<nil>")
		if err := term.Proclaim(ctx, pool, "where"); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	}
	cancel()
	next("")
}

func every(t *testing.T, pool *pgxpool.Pool, schedule Schedule, task func(context.Context, pgx.Tx, time.Time) error) Job {
	t.Helper()
	job, err := Every(pool, schedule, task)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func TestS07Every(t *testing.T) {
	pool, election := connect(t, "DATABASE_URL"), unique(t)
	table := pgx.Identifier{election}.Sanitize()
	exec(t, pool, "CREATE TABLE "+table+" (due timestamptz)")
	defer exec(t, pool, "DROP TABLE "+table)
	var tries atomic.Int32
	task := func(ctx context.Context, tx pgx.Tx, due time.Time) error {
		if _, err := tx.Exec(ctx, "INSERT INTO "+table+" VALUES ($1)", due); err != nil {
			return err
		}
		switch tries.Add(1) {
		case 1:
			return errors.New("the first one fails")
		case 2:
			_, err := tx.Exec(ctx, "ROLLBACK")
			return err
		case 3: // and begins another one
			_, err := tx.Exec(ctx, "ROLLBACK AND CHAIN")
			return err
		case 4:
			_, err := tx.Exec(ctx, "COMMIT AND CHAIN")
			return err
		}
		return nil
	}
	one := run(t, pool, election, every(t, pool, Interval(2*time.Second), task), Options{Heartbeat: ttl})
	one.elected()
	two := run(t, pool, election, every(t, pool, Interval(2*time.Second), task), Options{TTL: ttl})
	count := func() int { return fetch[int](t, pool, "SELECT count(*) FROM "+table) }
	eventually(t, "three", func() bool { return count() >= 3 })
	one.cancel()
	if err := one.end(); err != nil || len(one.errors) != 4 {
		t.Error(err, one.errors)
	}
	before := count()
	eventually(t, "two more", func() bool { return count() >= before+2 })
	two.stop()
	wrong := "SELECT count(*) - count(DISTINCT due) + count(*) FILTER (WHERE extract(epoch FROM due)::numeric % 2 <> 0) FROM " + table
	if n := fetch[int](t, pool, wrong); n != 0 {
		t.Errorf("%d are wrong", n)
	}
}

// A tunnel has sockets without deadlines, as those of golang.org/x/crypto/ssh.
type tunnel struct{ net.Conn }

func (tunnel) SetDeadline(time.Time) error { return errors.New("tcpChan: deadline not supported") }

// over returns a pool whose sockets are wrapped.
func over(t *testing.T, wrap func(net.Conn) net.Conn) *pgxpool.Pool {
	config := connect(t, "DATABASE_URL").Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		socket, err := dial(ctx, network, address)
		return wrap(socket), err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestS01Tunnel(t *testing.T) {
	pool, election := over(t, func(socket net.Conn) net.Conn { return tunnel{socket} }), unique(t)
	c := run(t, pool, election, idle, Options{Heartbeat: ttl})
	c.elected()
	eventually(t, "two confirmations more", func() bool { return c.Stats().Confirmations > 2 || len(c.reasons) > 0 })
	c.stop()
	c = run(t, pool, election, idle, Options{})
	c.elected()
	exec(t, pool, "SELECT le_depose($1)", election)
	eventually(t, "it leads again", func() bool { return c.Stats().Terms > 1 && c.working.Load() })
	c.cancel()
	if err := c.end(); err != nil || c.reasons[0] != ReasonLost {
		t.Error(err, c.reasons)
	}
}

// What is not committed is no lease, and a leader does not keep a transaction open.
func TestS01S02OpenTransaction(t *testing.T) {
	config := connect(t, "DATABASE_URL").Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "BEGIN")
		return err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for way, o := range map[string]Options{"session": {}, "lease": {TTL: ttl}} {
		e, err := New(pool, unique(t), &o)
		if err != nil {
			t.Fatal(err)
		}
		if ran, err := e.TryRun(context.Background(), 0, func(context.Context, *Term) error { return nil }); ran || err == nil {
			t.Error(way, ran, err)
		}
	}
}

// A task works in a session with any settings, and its schedule is asked in UTC.
func TestS07Settings(t *testing.T) {
	pool, election := connect(t, "DATABASE_URL", "TimeZone", "Asia/Kathmandu", "DateStyle", "SQL, DMY"), unique(t)
	zones, done := make(chan string, 100), make(chan time.Time, 100)
	schedule := ScheduleFunc(func(last time.Time) time.Time {
		zones <- last.Location().String()
		return last.Truncate(time.Second).Add(time.Second)
	})
	c := run(t, pool, election, every(t, pool, schedule, func(_ context.Context, _ pgx.Tx, due time.Time) error {
		done <- due
		return nil
	}), Options{})
	eventually(t, "one is done", func() bool { return len(done) > 0 })
	c.stop()
	if zone, late := <-zones, time.Since(<-done); zone != "UTC" || late < 0 || late > time.Minute {
		t.Error(zone, late)
	}
}

// A pool that has no connection for the task is reported, and asked again.
func TestS07Starved(t *testing.T) {
	t.Parallel()
	pool := connect(t, "DATABASE_URL", "pool_max_conns", "1")
	conn, err := pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	var done atomic.Bool
	c := run(t, pool, unique(t), every(t, pool, Interval(time.Second), func(context.Context, pgx.Tx, time.Time) error {
		done.Store(true)
		return nil
	}), Options{})
	eventually(t, "an error", func() bool { return c.Stats().Errors > 0 })
	conn.Release()
	eventually(t, "the task is done", done.Load)
	c.cancel()
	if err := c.end(); err != nil || c.Stats().Terms != 1 {
		t.Error(err, c.Stats())
	}
}

// A task may change the settings of its transaction, so that no call of the extension would succeed after it.
func TestS07ChangedSettings(t *testing.T) {
	for _, sql := range []string{"SET LOCAL search_path = pg_catalog", "SET LOCAL ROLE pg_monitor", "SET TRANSACTION READ ONLY"} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			pool, election := connect(t, "DATABASE_URL"), unique(t)
			c := run(t, pool, election, every(t, pool, Interval(time.Second), func(ctx context.Context, tx pgx.Tx, _ time.Time) error {
				_, err := tx.Exec(ctx, sql)
				return err
			}), Options{})
			eventually(t, "it is done or fails", func() bool {
				return c.Stats().Errors > 0 || fetch[bool](t, pool, "SELECT EXISTS (SELECT FROM le_once_done WHERE name = $1)", election)
			})
			c.stop()
		})
	}
}

// What a task says for itself is reported, also when it was told to stop.
func TestS07TaskFailsWhenStopped(t *testing.T) {
	for what, reports := range map[string]int{"fails": 1, "is cancelled": 0} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			pool, election := connect(t, "DATABASE_URL"), unique(t)
			begun := make(chan bool, 1)
			c := run(t, pool, election, every(t, pool, Interval(time.Second), func(ctx context.Context, tx pgx.Tx, _ time.Time) error {
				begun <- true
				_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
				if reports > 0 {
					return errors.New("half of it is done")
				}
				return err
			}), Options{})
			<-begun
			c.cancel()
			if err := c.end(); err != nil || len(c.errors) != reports {
				t.Error(err, c.errors)
			}
		})
	}
}

// It does not matter as what the pool's connections send the types of Go, and whether the hook
// connects once more.
func TestS10Types(t *testing.T) {
	config := connect(t, "DATABASE_URL", "TimeZone", "Asia/Kathmandu").Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		other, err := pgx.ConnectConfig(ctx, conn.Config())
		if err != nil {
			return err
		}
		_ = other.Close(ctx)
		conn.TypeMap().RegisterDefaultPgType(time.Second, "int8")
		conn.TypeMap().RegisterDefaultPgType(time.Time{}, "timestamp")
		return nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for way, o := range map[string]Options{"session": {Heartbeat: ttl}, "lease": {TTL: ttl}} {
		election, due := unique(t), time.Now()
		e, err := New(pool, election, &o)
		if err != nil {
			t.Fatal(err)
		}
		if ran, err := e.TryRun(context.Background(), 0, func(ctx context.Context, term *Term) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := term.Once(ctx, tx, due)
				return err
			})
		}); !ran || err != nil {
			t.Error(way, ran, err)
		} else if off := fetch[float64](t, pool, "SELECT extract(epoch FROM due)::float - $2 FROM le_once_done WHERE name = $1", election, float64(due.UnixMicro())/1e6); off < -1e-3 || off > 1e-3 {
			t.Error(way, off)
		}
	}
}

func TestS08Seats(t *testing.T) {
	for way, o := range map[string]Options{"session": {Seats: 2}, "lease": {Seats: 2, TTL: ttl}} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			pool, election := connect(t, "DATABASE_URL"), unique(t)
			var all []*candidate
			leading := func() (found []*candidate) {
				for _, c := range all {
					if c.working.Load() {
						found = append(found, c)
					}
				}
				return found
			}
			for range 3 {
				all = append(all, run(t, pool, election, idle, o))
			}
			eventually(t, "two lead", func() bool { return len(leading()) == 2 })
			first, second := leading()[0].elected().Election(), leading()[1].elected().Election()
			if min(first, second) != election+"/1" || max(first, second) != election+"/2" {
				t.Error(first, second)
			}
			gone := leading()[0]
			gone.stop()
			eventually(t, "the third one leads", func() bool { return len(leading()) == 2 })
			for _, c := range all {
				if c != gone {
					c.stop()
				}
			}
			if left := fetch[int](t, pool, "SELECT count(*) FROM le_leaders WHERE name LIKE $1", election+"%"); left > 0 {
				t.Errorf("%d lead", left)
			}
		})
	}
}

func TestS09StopWhileWaiting(t *testing.T) {
	pool, election := connect(t, "DATABASE_URL"), unique(t)
	one := run(t, pool, election, idle, Options{})
	one.elected()
	waiting := func() bool {
		return fetch[bool](t, pool, "SELECT EXISTS (SELECT FROM le_candidates WHERE name = $1)", election)
	}
	two := run(t, pool, election, idle, Options{})
	eventually(t, "the second one waits", waiting)
	begin := time.Now()
	two.stop()
	if took := time.Since(begin); took > 4*time.Second { // the deadline of an answer is 5 s
		t.Error(took)
	}
	eventually(t, "no candidate is left", func() bool { return !waiting() })
	one.stop()
}

func TestS11Guard(t *testing.T) {
	pool, election := connect(t, "DATABASE_URL"), unique(t)
	ctx := context.Background()
	c := run(t, pool, election, idle, Options{TTL: ttl})
	term := c.elected()
	for name, call := range map[string]func(Tx) error{
		"guard": func(tx Tx) error { return term.Guard(ctx, tx) },
		"once":  func(tx Tx) error { _, err := term.Once(ctx, tx, time.Now()); return err },
	} {
		in := func(before string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, before); err != nil {
					return err
				}
				return call(tx)
			})
		}
		if err := in("COMMIT"); !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(name, err)
		}
		if name == "once" && fetch[int](t, pool, "SELECT count(*) FROM le_once_done WHERE name = $1", election) > 0 {
			t.Error("the job is recorded without a transaction")
		}
		if err := in(""); err != nil {
			t.Error(name, err)
		}
		defer func() {
			if err := in(""); serverError(err).Code != "LE001" {
				t.Error(name, err)
			}
		}()
	}
	c.stop()
}

// What is no transaction does not compile where one is needed.
func TestS11Types(t *testing.T) {
	for _, v := range []any{new(pgxpool.Pool), new(pgxpool.Conn), new(pgx.Conn), new(sql.DB), new(sql.Conn)} {
		_, isTx := v.(Tx)
		if _, isSQLTx := v.(SQLTx); isTx || isSQLTx {
			t.Errorf("%T", v)
		}
	}
}

func TestS14TryRun(t *testing.T) {
	for way, o := range map[string]Options{"session": {}, "lease": {TTL: ttl}} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			pool, election := connect(t, "DATABASE_URL"), unique(t)
			o.OnError = func(err error) { t.Error(err) }
			failed := errors.New("no")
			try := func(wait time.Duration, result error, want bool) time.Duration {
				t.Helper()
				e, err := New(pool, election, &o)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				ran, err := e.TryRun(context.Background(), wait, func(_ context.Context, term *Term) error {
					if l := leader(t, pool, election); l != fmt.Sprint(e.opt.Identity, " ", term.Token()) {
						t.Error(l)
					}
					return result
				})
				if ran != want || err != result {
					t.Error(ran, err)
				}
				return time.Since(begin)
			}
			other := run(t, pool, election, idle, o)
			other.elected()
			try(0, nil, false)
			if took := try(time.Second, nil, false); took < time.Second || took > 5*time.Second {
				t.Error(took)
			}
			time.AfterFunc(500*time.Millisecond, other.cancel)
			try(10*time.Second, nil, true)
			other.stop()
			try(0, failed, true)
			if l := leader(t, pool, election); l != "none" {
				t.Error(l)
			}
			e, _ := New(pool, election, &Options{TTL: 24 * time.Hour})
			var permanent *PermanentError
			if ran, err := e.TryRun(context.Background(), 0, idle); ran || !errors.As(err, &permanent) {
				t.Error(ran, err)
			}
		})
	}
}

// A lease belongs to a role. If that is replaced, its successor leads when the lease has expired.
func TestRoleIsReplaced(t *testing.T) {
	for name, asOne := range map[string]bool{"apart": false, "as one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin, election := connect(t, "DATABASE_URL"), unique(t)
			app := fmt.Sprintf("go_%d", time.Now().UnixNano())
			roles := []string{app + "_0", app + "_1"}
			exec(t, admin, "CREATE ROLE "+app)
			defer exec(t, admin, "DROP ROLE "+app+", "+strings.Join(roles, ", "))
			for _, role := range roles {
				exec(t, admin, "CREATE ROLE "+role+" LOGIN IN ROLE "+app)
				if asOne {
					exec(t, admin, "ALTER ROLE "+role+" SET role = "+app)
				}
			}
			var replaced atomic.Bool
			config := connect(t, "DATABASE_URL").Config()
			config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
				c.User = roles[map[bool]int{true: 1}[replaced.Load()]]
				return nil
			}
			pool, err := pgxpool.NewWithConfig(context.Background(), config)
			if err != nil {
				t.Fatal(err)
			}
			c := run(t, pool, election, idle, Options{TTL: ttl})
			c.elected()
			replaced.Store(true)
			exec(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", roles[0])
			confirmed, terms := c.Stats().Confirmations, map[bool]int64{false: 2, true: 1}[asOne]
			eventually(t, "leads under the other role", func() bool { return c.Stats().Confirmations > confirmed+1 })
			c.cancel()
			if err := c.end(); err != nil || c.Stats().Terms != terms {
				t.Error(err, c.Stats(), c.errors)
			}
			pool.Close()
		})
	}
}

func TestS12PermanentErrors(t *testing.T) {
	admin := connect(t, "DATABASE_URL")
	database := fmt.Sprintf("go_%d", time.Now().UnixNano())
	exec(t, admin, "CREATE DATABASE "+database)
	exec(t, admin, "CREATE ROLE "+database+" LOGIN")
	defer func() {
		exec(t, admin, "DROP DATABASE "+database+" WITH (FORCE)")
		exec(t, admin, "DROP ROLE "+database)
	}()
	pool := connect(t, "DATABASE_URL", "database", database)
	role := connect(t, "DATABASE_URL", "database", database, "user", database)
	want := func(pool *pgxpool.Pool, cause Cause, words string, o Options) {
		t.Helper()
		var permanent *PermanentError
		err := run(t, pool, "e", idle, o).end()
		if !errors.As(err, &permanent) || permanent.Cause != cause || !strings.Contains(err.Error(), words) {
			t.Errorf("%v", err)
		}
	}
	want(pool, CauseExtension, `not installed in database "`+database+`": run CREATE EXTENSION leader_election`, Options{})
	var permanent *PermanentError
	if _, err := LeaderOf(context.Background(), pool, "e", nil); !errors.As(err, &permanent) || !strings.Contains(err.Error(), "not installed") {
		t.Error(err)
	}
	install(t, pool, "L e")
	for _, o := range []Options{{}, {TTL: ttl}} {
		want(pool, CauseExtension, `in schema "L e": set the option Schema to it`, o)
	}
	for _, err := range Follow(context.Background(), pool, "e", nil) {
		if permanent := new(PermanentError); !errors.As(err, &permanent) || permanent.Cause != CauseExtension {
			t.Error(err)
		}
	}
	exec(t, pool, "GRANT USAGE ON SCHEMA \"L e\" TO PUBLIC; REVOKE ALL ON ALL ROUTINES IN SCHEMA \"L e\" FROM PUBLIC")
	want(role, CausePrivilege, "permission denied", Options{Schema: "L e", TTL: ttl})
	want(pool, CauseArgument, "max_ttl", Options{Schema: "L e", TTL: 24 * time.Hour})
	for _, o := range []Options{{Schema: "L e"}, {Schema: "L e", TTL: ttl}} {
		c := run(t, pool, "le_e", idle, o)
		exec(t, pool, c.elected().GuardSQL())
		exec(t, pool, c.elected().OnceSQL(time.Now()))
		c.stop()
	}
}

func TestS13Timeouts(t *testing.T) {
	admin, role := connect(t, "DATABASE_URL"), fmt.Sprintf("go_%d", time.Now().UnixNano())
	exec(t, admin, "CREATE ROLE "+role+" LOGIN")
	defer exec(t, admin, "DROP ROLE "+role)
	for _, timeout := range []string{"statement_timeout", "lock_timeout", "idle_session_timeout"} {
		exec(t, admin, "ALTER ROLE "+role+" SET "+timeout+" = '1s'")
	}
	pool, election := connect(t, "DATABASE_URL", "user", role), unique(t)
	named := connect(t, "DATABASE_URL", "user", role, "application_name", "mine")
	one := run(t, pool, election, idle, Options{Heartbeat: 20 * time.Second})
	one.elected()
	two := run(t, named, election, idle, Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for l, err := range Follow(ctx, pool, election, nil) {
		if l == nil || err != nil {
			t.Error(l, err)
		}
	}
	names := "SELECT array_agg(DISTINCT application_name ORDER BY application_name) FROM pg_stat_activity WHERE usename = $1"
	if got := fetch[[]string](t, admin, names, role); len(got) != 2 || got[1] != "mine" || !strings.HasPrefix(got[0], "leader_election: go/TestS13") {
		t.Error(got)
	}
	one.stop()
	two.elected()
	two.stop()
}
