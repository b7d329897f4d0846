package lepgx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	leaderelection "github.com/leader-election/leader_election/clients/go"
	"github.com/leader-election/leader_election/clients/go/lepgx"
)

const second = time.Second

// ttl is that of a lease whose validity is 4 s, and which is renewed each 2 s: it outlives a pause
// of the machine of 2 s. A heartbeat likewise.
const ttl = 6 * second

// server returns the URL in an environment variable, or skips the test.
func server(t *testing.T, variable string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server, and -short is set")
	}
	dsn := os.Getenv(variable)
	if dsn == "" {
		t.Skipf("needs a server: %s is not set", variable)
	}
	return dsn
}

func newPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newSQL(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// ways returns the ways to connect.
func ways(t *testing.T, dsn string) map[string]leaderelection.DB {
	plain, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	query := plain.Query() // leaderelection.SQL knows no driver, so this one must be told to prepare nothing
	query.Set("default_query_exec_mode", "exec")
	plain.RawQuery = query.Encode()
	return map[string]leaderelection.DB{
		"pgxpool":             lepgx.Pool(newPool(t, dsn)),
		"database/sql by pgx": lepgx.SQL(newSQL(t, dsn)),
		"database/sql, plain": leaderelection.SQL(newSQL(t, plain.String())),
	}
}

var elections atomic.Int64

// name returns the name of an election that no other test or run has.
func name(t *testing.T) string {
	return fmt.Sprintf("go/%s/%d/%d", t.Name(), time.Now().UnixNano(), elections.Add(1))
}

// A candidate is an elector that runs in the background.
type candidate struct {
	*leaderelection.Elector
	t       *testing.T
	cancel  context.CancelFunc
	ended   chan struct{}
	err     error
	mu      sync.Mutex
	terms   []*leaderelection.Term
	reasons []leaderelection.Reason
	errors  []error
	working atomic.Bool
}

// run runs an elector. Its job works until it is cancelled, unless one is given.
func run(t *testing.T, db leaderelection.DB, election string, job leaderelection.Job, opt leaderelection.Options) *candidate {
	t.Helper()
	c := &candidate{t: t, ended: make(chan struct{})}
	if job == nil {
		job = func(ctx context.Context, _ *leaderelection.Term) error {
			c.working.Store(true)
			defer c.working.Store(false)
			<-ctx.Done()
			return nil
		}
	}
	opt.OnElected = func(term *leaderelection.Term) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.terms = append(c.terms, term)
	}
	opt.OnOusted = func(_ *leaderelection.Term, reason leaderelection.Reason) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reasons = append(c.reasons, reason)
	}
	opt.OnError = func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.errors = append(c.errors, err)
	}
	var err error
	if c.Elector, err = leaderelection.New(db, election, job, &opt); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.ended)
		c.err = c.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-c.ended })
	return c
}

func (c *candidate) stop() {
	c.t.Helper()
	c.cancel()
	select {
	case <-c.ended:
	case <-time.After(20 * second):
		c.t.Fatal("Run has not returned")
	}
	if c.err != nil {
		c.t.Errorf("Run returned %v", c.err)
	}
}

func (c *candidate) count() (terms, ended, failures int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.terms), len(c.reasons), len(c.errors)
}

// term returns the first term.
func (c *candidate) term() *leaderelection.Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terms[0]
}

func (c *candidate) wantNoErrors() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range c.errors {
		c.t.Errorf("reported: %v", err)
	}
}

func (c *candidate) elected() bool { terms, ended, _ := c.count(); return terms > ended }

// eventually waits until a condition holds.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func leader(t *testing.T, db leaderelection.DB, election string) *leaderelection.Leader {
	t.Helper()
	l, err := leaderelection.GetLeader(context.Background(), db, election)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func ask[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (answer T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// goroutines returns the stacks of the goroutines that run this project's code, or any if of is empty.
func goroutines(of string) (found []string) {
	buffer := make([]byte, 1<<20)
	for _, stack := range strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if strings.Contains(stack, of) && !strings.Contains(stack, "_test.go") && !strings.Contains(stack, "testing.") {
			found = append(found, stack)
		}
	}
	return found
}

func TestS01Session(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	admin := newPool(t, dsn)
	for way, db := range ways(t, dsn) {
		t.Run(way, func(t *testing.T) {
			election := name(t)
			one := run(t, db, election, nil, leaderelection.Options{Identity: "one"})
			eventually(t, 5*second, "elected", one.elected)
			if id := ask[string](t, admin, "SELECT identity FROM le_leaders WHERE name = $1 AND scope = 'session'", election); id != "one" {
				t.Errorf("led by %q", id)
			}
			two := run(t, db, election, nil, leaderelection.Options{Identity: "two"})
			time.Sleep(2 * second)
			if !one.working.Load() || two.elected() {
				t.Error("the second one leads")
			}
			one.stop()
			eventually(t, 10*second, "the second one is elected", two.elected)
			two.stop()
			if l := leader(t, db, election); l != nil {
				t.Errorf("led by %v", l)
			}
			one.wantNoErrors()
			two.wantNoErrors()
		})
	}
}

func TestS02Lease(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	admin := newPool(t, dsn)
	for way, db := range ways(t, dsn) {
		t.Run(way, func(t *testing.T) {
			election := name(t)
			c := run(t, db, election, nil, leaderelection.Options{Identity: "one", TTL: ttl})
			eventually(t, 5*second, "elected", c.elected)
			eventually(t, 20*second, "renewed", func() bool {
				return ask[int64](t, admin, "SELECT renewals FROM le_leader($1)", election) >= 3
			})
			if terms, _, _ := c.count(); terms != 1 {
				t.Errorf("%d terms", terms)
			}
			c.stop()
			if l := leader(t, db, election); l != nil {
				t.Errorf("led by %v", l)
			}
			c.wantNoErrors()
		})
	}
}

func TestS03HangingJobIsReplaced(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	db := lepgx.Pool(newPool(t, dsn))
	election := name(t)
	var cancelled atomic.Bool
	one := run(t, db, election, func(ctx context.Context, term *leaderelection.Term) error {
		for range 10 {
			time.Sleep(200 * time.Millisecond)
			term.Heartbeat()
		}
		<-ctx.Done()
		cancelled.Store(true)
		time.Sleep(4 * second) // it hangs
		return nil
	}, leaderelection.Options{Identity: "one", Heartbeat: ttl})
	eventually(t, 5*second, "elected", one.elected)
	two := run(t, db, election, func(ctx context.Context, _ *leaderelection.Term) error {
		if !cancelled.Load() {
			t.Error("the first job was not cancelled by then")
		}
		<-ctx.Done()
		return nil
	}, leaderelection.Options{Identity: "two", Heartbeat: ttl})
	time.Sleep(2 * second)
	if terms, _, _ := two.count(); terms > 0 {
		t.Error("elected while the first one gave heartbeats")
	}
	eventually(t, 15*second, "the second one is elected", func() bool { terms, _, _ := two.count(); return terms > 0 })
	two.stop()
	one.stop()
}

func TestS04TerminatedAndDeposed(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	admin := newPool(t, dsn)
	for way, db := range ways(t, dsn) {
		within := 500 * time.Millisecond
		if way == "database/sql, plain" {
			within = 4 * second // it asks once a second, and is in doubt after 6 s
		}
		for _, fault := range []string{
			"SELECT pg_terminate_backend(pid) FROM le_leader($1)",
			"SELECT le_depose($1)",
		} {
			t.Run(way+"/"+strings.Fields(fault)[1][:9], func(t *testing.T) {
				election := name(t)
				c := run(t, db, election, nil, leaderelection.Options{})
				took := within
				for terms := 1; terms <= 5 && took >= within; terms++ { // a busy machine may be late, but not each time
					eventually(t, 15*second, "elected", c.working.Load)
					time.Sleep(100 * time.Millisecond)
					start := time.Now()
					ask[bool](t, admin, fault, election)
					eventually(t, 15*second, "the job is cancelled", func() bool { _, ended, _ := c.count(); return ended == terms })
					took = time.Since(start)
				}
				if took >= within {
					t.Errorf("the job is cancelled after %v", took)
				}
				eventually(t, 15*second, "elected again", c.elected)
				c.stop()
				lost := c.reasons[:len(c.reasons)-1]
				for i, reason := range lost {
					if reason != leaderelection.Lost || len(c.errors) != len(lost) || !errors.Is(c.errors[i], leaderelection.ErrLost) {
						t.Error(c.reasons, c.errors)
					}
				}
			})
		}
	}
	t.Run("lease", func(t *testing.T) {
		election := name(t)
		c := run(t, lepgx.Pool(admin), election, nil, leaderelection.Options{TTL: ttl})
		eventually(t, 5*second, "elected", c.working.Load)
		ask[bool](t, admin, "SELECT le_depose($1)", election)
		eventually(t, 15*second, "the job is cancelled", func() bool { _, ended, _ := c.count(); return ended > 0 })
		c.stop()
		if c.reasons[0] != leaderelection.Lost { // by the answer to the next renewal
			t.Error(c.reasons)
		}
	})
}

func TestS05TransactionPooler(t *testing.T) {
	direct, pooler := server(t, "DATABASE_URL"), server(t, "POOLER_URL")
	admin := lepgx.Pool(newPool(t, direct))
	for way, db := range ways(t, pooler) {
		t.Run(way, func(t *testing.T) {
			election := name(t)
			c := run(t, db, election, nil, leaderelection.Options{})
			select {
			case <-c.ended:
			case <-time.After(10 * second):
				t.Fatal("Run has not ended")
			}
			if !errors.Is(c.err, leaderelection.ErrPooler) {
				t.Errorf("Run returned %v", c.err)
			}
			if terms, _, failures := c.count(); terms+failures > 0 {
				t.Errorf("%d terms, errors %v", terms, c.errors)
			}
			if l := leader(t, admin, election); l != nil {
				t.Errorf("led by %v", l)
			}

			one := run(t, db, election, nil, leaderelection.Options{Identity: "one", TTL: ttl})
			eventually(t, 5*second, "elected", one.elected)
			two := run(t, db, election, nil, leaderelection.Options{Identity: "two", TTL: ttl})
			time.Sleep(5 * second) // two renewals
			if terms, ended, _ := one.count(); terms != 1 || ended != 0 {
				t.Errorf("%d terms, %v", terms, one.reasons)
			}
			one.stop()
			eventually(t, 10*second, "the second one is elected", two.elected)
			two.stop()
			one.wantNoErrors()
			two.wantNoErrors()
			if l := leader(t, admin, election); l != nil {
				t.Errorf("led by %v", l)
			}
		})
	}
}

func TestS06LeaderAndFollow(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	admin := newPool(t, dsn)
	for way, db := range ways(t, dsn) {
		t.Run(way, func(t *testing.T) {
			election := name(t)
			if l := leader(t, db, election); l != nil {
				t.Errorf("led by %v", l)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			changes := make(chan string, 10)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for l, err := range leaderelection.Follow(ctx, db, election) {
					switch {
					case err != nil:
						changes <- "error"
					case l == nil:
						changes <- "none"
					case l.Value == nil:
						changes <- l.Identity
					default:
						changes <- l.Identity + " " + *l.Value
					}
				}
			}()
			next := func(want string) {
				t.Helper()
				select {
				case got := <-changes:
					if got != want {
						t.Fatalf("got %q, want %q", got, want)
					}
				case <-time.After(15 * second): // a round of le_observe lasts 30 s
					t.Fatalf("no change, want %q", want)
				}
			}
			next("none")
			one := run(t, db, election, nil, leaderelection.Options{Identity: "one", TTL: ttl})
			next("one")
			eventually(t, 10*second, "elected", one.elected)
			ask[bool](t, admin, "SELECT le_proclaim($1, 'here', $2)", election, one.term().Token())
			next("one here")
			l := leader(t, db, election)
			if l == nil || l.Election != election || l.Identity != "one" || l.Token != one.term().Token() ||
				l.Scope != "lease" || time.Since(l.Since) > time.Minute || l.Value == nil || *l.Value != "here" {
				t.Errorf("leader: %+v", l)
			}
			one.stop()
			next("none")
			two := run(t, db, election, nil, leaderelection.Options{Identity: "two"})
			next("two")
			observers := "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity" +
				" WHERE query LIKE 'CALL le_observe%' AND wait_event_type = 'Extension' AND datname = current_database()"
			var pids []int32
			time.Sleep(200 * time.Millisecond)
			eventually(t, 8*second, "one observes", func() bool { pids = ask[[]int32](t, admin, observers); return len(pids) == 1 })
			ask[bool](t, admin, "SELECT pg_terminate_backend($1)", pids[0])
			next("error")
			two.stop()
			next("none")
			time.Sleep(200 * time.Millisecond) // a request to cancel that comes before its statement cancels nothing
			cancel()
			select {
			case <-ended:
			case <-time.After(15 * second):
				t.Error("Follow has not ended")
			}
		})
	}
}

func TestS07Every(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	admin := newPool(t, dsn)
	ctx := context.Background()
	table := pgx.Identifier{fmt.Sprintf("go_every_%d", time.Now().UnixNano())}.Sanitize()
	if _, err := admin.Exec(ctx, "CREATE TABLE "+table+" (due timestamptz, way text)"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = admin.Exec(ctx, "DROP TABLE "+table) })
	insert := "INSERT INTO " + table + " VALUES ($1, $2)"
	sqlDB, plain := lepgx.SQL(newSQL(t, dsn)), leaderelection.SQL(newSQL(t, dsn))
	sqlJob := func(way string) func(context.Context, *sql.Tx, time.Time) error {
		return func(ctx context.Context, tx *sql.Tx, due time.Time) error {
			_, err := tx.ExecContext(ctx, insert, due, way)
			return err
		}
	}
	var failed atomic.Bool
	jobs := map[string]leaderelection.Job{
		"pool": leaderelection.Every(lepgx.Pool(admin), 2*second, func(ctx context.Context, tx pgx.Tx, due time.Time) error {
			if _, err := tx.Exec(ctx, insert, due, "pool"); err != nil {
				return err
			}
			if failed.CompareAndSwap(false, true) {
				return errors.New("the first one fails")
			}
			return nil
		}),
		"sql":   leaderelection.Every(sqlDB, 2*second, sqlJob("sql")),
		"plain": leaderelection.Every(plain, 2*second, sqlJob("plain")),
	}
	election := name(t)
	for _, way := range []string{"pool", "sql", "plain"} {
		c := run(t, lepgx.Pool(admin), election, jobs[way], leaderelection.Options{Identity: way, Heartbeat: 6 * second})
		rival := run(t, lepgx.Pool(admin), election, jobs[way], leaderelection.Options{Identity: way + " rival", TTL: 3 * second})
		time.Sleep(5 * second)
		c.stop()
		time.Sleep(4 * second)
		rival.stop()
	}
	if twice := ask[int](t, admin, "SELECT count(*) - count(DISTINCT due) FROM "+table); twice != 0 {
		t.Errorf("%d tasks were done twice", twice)
	}
	if n := ask[int](t, admin, "SELECT count(DISTINCT way) FROM "+table); n != 3 {
		t.Errorf("%d ways have worked", n)
	}
	if n := ask[int](t, admin, "SELECT count(*) FROM "+table); n < 9 || n > 16 {
		t.Errorf("%d tasks were done", n)
	}
	if odd := ask[int](t, admin, "SELECT count(*) FROM "+table+" WHERE extract(epoch FROM due)::numeric % 2 <> 0"); odd != 0 {
		t.Errorf("%d tasks at odd times", odd)
	}
}

func TestS08Seats(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	for way, db := range ways(t, dsn) {
		for scope, opt := range map[string]leaderelection.Options{"session": {Seats: 2}, "lease": {Seats: 2, TTL: ttl}} {
			t.Run(way+"/"+scope, func(t *testing.T) {
				election := name(t)
				var all []*candidate
				seats := func() map[string]*candidate {
					leading := map[string]*candidate{}
					for _, c := range all {
						c.mu.Lock()
						if len(c.terms) > len(c.reasons) {
							leading[c.terms[len(c.terms)-1].Election()] = c
						}
						c.mu.Unlock()
					}
					return leading
				}
				for range 3 {
					all = append(all, run(t, db, election, nil, opt))
				}
				eventually(t, 10*second, "two lead", func() bool { return len(seats()) == 2 })
				time.Sleep(2 * second)
				if s := seats(); len(s) != 2 || s[election+"/1"] == nil || s[election+"/2"] == nil {
					t.Errorf("seats: %v", s)
				}
				seats()[election+"/2"].stop()
				eventually(t, 15*second, "the third one leads", func() bool { return len(seats()) == 2 })
				for _, c := range all {
					c.stop()
					c.wantNoErrors()
				}
			})
		}
	}
}

func TestS09StopWhileWaiting(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	admin := newPool(t, dsn)
	for way, db := range ways(t, dsn) {
		t.Run(way, func(t *testing.T) {
			election := name(t)
			one := run(t, db, election, nil, leaderelection.Options{})
			eventually(t, 5*second, "elected", one.elected)
			waiting := func() bool {
				return ask[int](t, admin, "SELECT count(*) FROM le_candidates WHERE name = $1", election) > 0
			}
			before := len(goroutines(""))
			two := run(t, db, election, nil, leaderelection.Options{})
			eventually(t, 5*second, "the second one waits", waiting)
			start := time.Now()
			two.stop()
			if took := time.Since(start); took > 4*second { // the deadline of an answer is 5 s
				t.Errorf("the stop took %v", took)
			}
			eventually(t, 10*second, "no candidate is left", func() bool { return !waiting() })
			eventually(t, 10*second, "no goroutine is left", func() bool { return len(goroutines("")) <= before })
			two.wantNoErrors()
			one.stop()
		})
	}
}

func TestS10EachWay(t *testing.T) {
	dsn := server(t, "DATABASE_URL")
	for way, db := range ways(t, dsn) {
		for scope, opt := range map[string]leaderelection.Options{
			"session":   {},
			"heartbeat": {Heartbeat: ttl},
			"lease":     {TTL: ttl},
			"renewed":   {TTL: ttl, RenewOnHeartbeat: true},
		} {
			t.Run(way+"/"+scope, func(t *testing.T) {
				election := name(t)
				job := func(ctx context.Context, term *leaderelection.Term) error {
					for ctx.Err() == nil {
						time.Sleep(100 * time.Millisecond)
						term.Heartbeat()
					}
					return nil
				}
				opt.Identity = "one"
				c := run(t, db, election, job, opt)
				eventually(t, 5*second, "elected", c.elected)
				time.Sleep(5 * second)
				l := leader(t, db, election)
				if l == nil || l.Identity != "one" || l.Token != c.term().Token() || !c.term().IsLeading() {
					t.Errorf("led by %v", l)
				}
				c.stop()
				if terms, _, _ := c.count(); terms != 1 {
					t.Errorf("%d terms", terms)
				}
				if l := leader(t, db, election); l != nil || c.term().IsLeading() {
					t.Errorf("led by %v after the stop", l)
				}
				c.wantNoErrors()
			})
		}
	}
}

// A proxy forwards connections until it is stalled: then it accepts them, and forwards nothing.
type proxy struct {
	net.Listener
	stalled atomic.Bool
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: listener}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = listener.Close() })
	forward := func(from, to net.Conn) {
		buffer := make([]byte, 8192)
		for {
			n, err := from.Read(buffer)
			for p.stalled.Load() && ctx.Err() == nil {
				time.Sleep(20 * time.Millisecond)
			}
			if n > 0 {
				_, _ = to.Write(buffer[:n])
			}
			if err != nil || ctx.Err() != nil {
				_ = to.Close()
				return
			}
		}
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				far, err := net.Dial("tcp", target)
				if err != nil {
					_ = near.Close()
					return
				}
				context.AfterFunc(ctx, func() { _ = near.Close(); _ = far.Close() })
				go forward(near, far)
				forward(far, near)
			}()
		}
	}()
	return p
}

func TestStalledProxy(t *testing.T) {
	dsn, err := url.Parse(server(t, "DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, dsn.Host)
	dsn.Host = p.Addr().String()
	query := dsn.Query()
	query.Set("sslmode", "disable")
	dsn.RawQuery = query.Encode()
	all := map[string]*candidate{}
	for way, db := range ways(t, dsn.String()) {
		all[way+", session"] = run(t, db, name(t), nil, leaderelection.Options{})
		all[way+", lease"] = run(t, db, name(t), nil, leaderelection.Options{TTL: ttl})
	}
	for _, c := range all {
		eventually(t, 10*second, "elected", c.working.Load)
	}
	time.Sleep(1500 * time.Millisecond)
	p.stalled.Store(true)
	start := time.Now()
	for _, validity := range []time.Duration{ttl * 2 / 3, 6 * second} { // of a lease, which ends after its ttl; of a session
		for way, c := range all {
			if strings.HasSuffix(way, "lease") != (validity < 6*second) {
				continue
			}
			for c.working.Load() && time.Since(start) < validity+ttl/3 {
				time.Sleep(10 * time.Millisecond)
			}
			if c.working.Load() {
				t.Errorf("%s: the job goes on after %v", way, time.Since(start))
			}
		}
	}
	time.Sleep(4 * second) // some of them are connecting now
	start = time.Now()
	for _, c := range all {
		c.cancel()
	}
	for way, c := range all {
		<-c.ended
		if took := time.Since(start); took > 9*second { // 5 s to connect
			t.Errorf("%s: the stop took %v", way, took)
		}
	}
	eventually(t, 10*second, "no goroutine is left", func() bool { return len(goroutines("clients/go")) == 0 })
	p.stalled.Store(false)
}
