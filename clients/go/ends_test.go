package leaderelection

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A hostile error has no text, and lets nobody look into it.
type hostile struct{}

func (h *hostile) Error() string { panic(h) }
func (h *hostile) Unwrap() error { panic(h) }
func (h *hostile) Is(error) bool { panic(h) }
func (h *hostile) As(any) bool   { panic(h) }

// A silencer is an error that ends the goroutine of whatever asks for its text.
type silencer struct{}

func (silencer) Error() string { runtime.Goexit(); return "" }

// A narrow error expects to be compared with its like only.
type narrow struct{}

func (narrow) Error() string        { return "narrow" }
func (narrow) Is(target error) bool { return target.(narrow) == narrow{} }

// A mute error waits for ever when it is asked for its text.
type mute struct{}

func (mute) Error() string { select {} }

// ends has the ways in which a function of the caller can end, besides returning nil.
var ends = map[string]func() error{
	"error":       func() error { return errors.New("it fails") },
	"canceled":    func() error { return context.Canceled },
	"hostile":     func() error { return &hostile{} },
	"narrow":      func() error { return narrow{} },
	"typed nil":   func() error { return (*hostile)(nil) },
	"nil pointer": func() error { return (*pgconn.PgError)(nil) },
	"silencer":    func() error { return silencer{} },
	"panic":       func() error { panic("it panics") },
	"panic nil":   func() error { panic(nil) },
	"panic error": func() error { panic(errors.New("it panics")) },
	"panic odd":   func() error { panic(&hostile{}) },
	"panic quiet": func() error { panic(silencer{}) },
	"panic mute":  func() error { panic(mute{}) },
	"goexit":      func() error { runtime.Goexit(); return nil },
	"mute":        func() error { return mute{} },
	"permanent":   func() error { return &PermanentError{CauseExtension, &pgconn.PgError{Code: "42P01"}} },
}

// panics tells whether f is one of ends that a function without a result can have.
func panics(f func() error) bool {
	return caught(func() error { _ = f(); return nil }) != nil
}

// A runner runs an elector until it is told to stop, and tells what was reported.
func running(t *testing.T, e *Elector, job Job) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, job) }()
	return func() error {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(3 * time.Second):
			t.Fatal("Run has not returned")
			return nil
		}
	}
}

// However a job ends, that is reported once, it is resigned, and the next term begins.
func TestEndsOfAJob(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var resigned, terms atomic.Int32
			reports := make(chan error, 10)
			e := made(t, Options{OnError: func(err error) { reports <- err }}, func(sql string) bool {
				if len(sql) > 16 && sql[:16] == "SELECT le_resign" {
					resigned.Add(1)
				}
				return false
			})
			stop := running(t, e, func(ctx context.Context, _ *Term) error {
				if terms.Add(1) == 1 {
					return end()
				}
				<-ctx.Done()
				return nil
			})
			eventually(t, "the second term", func() bool { return terms.Load() == 2 })
			if resigned.Load() != 1 || e.Health() != "leading" {
				t.Error(resigned.Load(), e.Health())
			}
			if err := stop(); err != nil || len(reports) != 1 || !errors.Is(<-reports, ErrJob) || resigned.Load() != 2 {
				t.Error(err, len(reports), resigned.Load())
			}
		})
		t.Run("once/"+name, func(t *testing.T) {
			t.Parallel()
			e := made(t, Options{OnError: func(err error) { t.Error(err) }}, none)
			if ran, err := e.TryRun(context.Background(), 0, func(context.Context, *Term) error { return end() }); !ran || err == nil {
				t.Error(ran, err)
			}
		})
	}
}

// However a callback ends, that is reported, and the job runs all the same.
func TestEndsOfCallbacks(t *testing.T) {
	for name, end := range ends {
		if !panics(end) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ran, told atomic.Int32
			e := made(t, Options{
				OnElected: func(*Term) { _ = end() },
				OnOusted:  func(*Term, Reason) { _ = end() },
				OnError: func(err error) {
					if told.Add(1); !errors.Is(err, ErrCallback) {
						t.Error(err)
					}
					_ = end()
				},
				Logger: slog.New(oddLog{slog.Default().Handler(), end}),
			}, none)
			stop := running(t, e, func(context.Context, *Term) error { ran.Add(1); return nil })
			eventually(t, "three terms", func() bool { return ran.Load() == 3 })
			least := map[bool]int32{true: 1, false: 5}[name == "panic mute"] // which takes its time
			if err := stop(); err != nil || told.Load() < least || ran.Load() > 4 {
				t.Error(err, told.Load(), ran.Load())
			}
		})
	}
}

type oddLog struct {
	slog.Handler
	end func() error
}

func (l oddLog) Handle(context.Context, slog.Record) error { return l.end() }
func (l oddLog) WithAttrs([]slog.Attr) slog.Handler        { return l }

// However a connection cannot be opened, that is reported, and tried again, in a campaign and in a
// term. A panic of what a pool calls in a goroutine of its own cannot be caught.
func TestEndsOfConnect(t *testing.T) {
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	all := map[string]func() error{
		"hangs": func() error { <-forever; return errors.New("at last") },
		"nil":   func() error { return nil }, // DialFunc then returns neither a connection nor an error
	}
	for name, end := range ends {
		all[name] = end
	}
	for name, end := range all {
		for _, hook := range []string{"BeforeConnect", "DialFunc", "DialFunc, typed", "lease"} {
			if hook == "lease" && panics(func() error {
				if name != "hangs" {
					return end()
				}
				return nil
			}) {
				continue
			}
			t.Run(hook+"/"+name, func(t *testing.T) {
				t.Parallel()
				config, _ := pgxpool.ParseConfig("postgres://u@127.0.0.1:1/d")
				o := Options{Heartbeat: time.Second}
				switch hook {
				case "lease":
					o.TTL = time.Second
					fallthrough
				case "BeforeConnect":
					config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return end() }
				case "DialFunc":
					config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, end() }
				case "DialFunc, typed":
					config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return (*tls.Conn)(nil), end() }
				}
				pool, err := pgxpool.NewWithConfig(context.Background(), config)
				if err != nil {
					t.Fatal(err)
				}
				var told atomic.Int32
				o.OnError = func(error) { told.Add(1) }
				e, err := New(pool, "billing", &o)
				if err != nil {
					t.Fatal(err)
				}
				stop := running(t, e, func(context.Context, *Term) error { t.Error("it runs"); return nil })
				eventually(t, "two attempts", func() bool { return told.Load() >= 2 })
				if err := stop(); err != nil {
					t.Error(err)
				}
				once, _ := New(pool, "billing", &o)
				if ran, err := once.TryRun(context.Background(), 0, idle); ran || err == nil || err.Error() == "" {
					t.Error(ran, err)
				}
			})
		}
	}
	for name, end := range ends {
		for way, terms := range map[string]int64{"lease": 1, "session": 2} {
			t.Run("term/"+way+"/"+name, func(t *testing.T) {
				t.Parallel()
				var told atomic.Int32
				e := made(t, Options{OnError: func(error) { told.Add(1) }}, none)
				if way == "session" {
					e.m.way, e.query = sessionWay(0), e.session
				}
				answer := e.answer
				e.answer = func(l *link, q query, begun func()) error {
					isConfirm := strings.Contains(q.sql, "le_renew") || strings.Contains(q.sql, "le_am_leader")
					if isConfirm && told.Load() == 0 && e.Stats().Terms > 0 {
						return end()
					}
					return answer(l, q, begun)
				}
				stop := running(t, e, idle)
				eventually(t, "it leads after that", func() bool { return told.Load() > 0 && e.Stats().Confirmations > 2 })
				if err := stop(); err != nil || told.Load() != 1 || e.Stats().Terms != terms {
					t.Error(err, told.Load(), e.Stats())
				}
			})
		}
	}
}

// What pgx calls during a statement can wait for the job, and keeps no candidate from it.
func TestEndsOfAHandler(t *testing.T) {
	for name, hang := range map[string]func(*pgx.ConnConfig){
		"notification": func(c *pgx.ConnConfig) { c.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { select {} } },
		"notice":       func(c *pgx.ConnConfig) { c.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { select {} } },
		"error":        func(c *pgx.ConnConfig) { c.OnPgError = func(*pgconn.PgConn, *pgconn.PgError) bool { select {} } },
		"tracer":       func(c *pgx.ConnConfig) { c.Tracer = bidTracer{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin, election := connect(t, "DATABASE_URL"), unique(t)[20:] // for application_name
			channel := pgx.Identifier{election}.Sanitize()
			config := admin.Config()
			hang(config.ConnConfig)
			config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "LISTEN "+channel+"; DO $$ BEGIN RAISE NOTICE 'hello'; END $$")
				return err
			}
			pool, err := pgxpool.NewWithConfig(context.Background(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			before := run(t, admin, election, idle, Options{})
			before.elected()
			c := run(t, pool, election, idle, Options{})
			waits := func() (pid int) {
				eventually(t, "it waits in the server", func() bool {
					pid = fetch[int](t, admin, `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
						WHERE state = 'active' AND query LIKE 'CALL le_campaign%' AND application_name = 'leader_election: ' || $1::text`, election)
					return pid > 0
				})
				return pid
			}
			pid := waits()
			exec(t, admin, "SELECT pg_terminate_backend($1, 5000)", pid)
			eventually(t, "that is told", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return len(c.errors) == 1 && serverError(c.errors[0]).Code == "57P01"
			})
			waits()
			exec(t, admin, "NOTIFY "+channel)
			before.stop()
			c.elected()
			exec(t, admin, "NOTIFY "+channel)
			confirmed := c.Stats().Confirmations
			eventually(t, "it leads on", func() bool { return c.Stats().Confirmations > confirmed+1 })
			c.cancel()
			if err := c.end(); err != nil || len(c.errors) > 1 {
				t.Error(err, c.errors)
			}
			eventually(t, "nothing leads", func() bool { return leader(t, admin, election) == "none" })
		})
	}
}

type bidTracer struct{}

func (bidTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, bidTracer{}, strings.HasPrefix(d.SQL, "CALL"))
}

func (bidTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(bidTracer{}) == true {
		select {}
	}
}

// A stub of a socket, whose deadlines do nothing, and whose reads cannot be ended.
type stub struct{ net.Conn }

func (stub) SetDeadline(time.Time) error { return nil }

// The time for which a bid waits in the server begins when it is sent.
func TestEndsOfAStub(t *testing.T) {
	pool := over(t, func(socket net.Conn) net.Conn { return stub{socket} })
	c := run(t, pool, unique(t), idle, Options{})
	eventually(t, "an error", func() bool { return c.Stats().Errors > 0 })
	c.cancel()
	// before the bid, or in the term, if the first read had not begun
	if err := c.end(); err != nil || !errors.Is(c.errors[0], ErrNoConnection) && !errors.Is(c.errors[0], ErrInDoubt) {
		t.Error(err, c.errors)
	}
}

type acquireTracer struct{ end func() }

func (a acquireTracer) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	a.end()
	return ctx
}
func (acquireTracer) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}
func (acquireTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (acquireTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A hook of the pool that hangs or panics does not keep a permanent error from being returned.
func TestEndsOfAConclusion(t *testing.T) {
	for name, end := range map[string]func(){"hangs": func() { select {} }, "panics": func() { panic("no") }, "goexit": runtime.Goexit} {
		for _, cause := range []Cause{CauseExtension, CausePooler} {
			t.Run(name+"/"+string(cause), func(t *testing.T) {
				t.Parallel()
				config, _ := pgxpool.ParseConfig("postgres://u@127.0.0.1:1/d")
				config.ConnConfig.Tracer = acquireTracer{end}
				pool, err := pgxpool.NewWithConfig(context.Background(), config)
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan string, 1)
				go func() {
					ended <- caught(func() error {
						return new(Options).conclude(pool, "x", &PermanentError{cause, errors.New("it is missing")})
					}).Error()
				}()
				select {
				case text := <-ended:
					if !strings.HasPrefix(text, "leaderelection: ") {
						t.Error(text)
					}
				case <-time.After(8 * time.Second):
					t.Error("it hangs")
				}
			})
		}
	}
}

// A frail socket must not be closed twice.
type frail struct {
	net.Conn
	closed chan bool
}

func (f frail) Close() error { close(f.closed); return f.Conn.Close() }

// A socket is closed once, also if a statement is given up or the server goes away, and a dial
// function that panics when pgx wants to cancel what is asked then does not end the process.
func TestEndsOfASocket(t *testing.T) {
	for _, falls := range []bool{true, false} {
		server := listen(t)
		server.falls.Store(falls)
		config := server.pool.Config()
		dial, dials, told := config.ConnConfig.DialFunc, atomic.Int32{}, atomic.Int32{}
		config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if falls && dials.Add(1)%3 == 0 {
				panic("no")
			}
			socket, err := dial(ctx, network, address)
			return frail{socket, make(chan bool)}, err
		}
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		e, _ := New(pool, "billing", &Options{Heartbeat: time.Second, OnError: func(error) { told.Add(1) }})
		stop := running(t, e, idle)
		eventually(t, "four attempts", func() bool { return told.Load() == 4 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		eventually(t, "all is closed", func() bool { return server.open.Load() == 0 })
	}
}

// Run does not wait for a handler that hangs when it closes the connection.
func TestCloseOfAHandler(t *testing.T) {
	l := &link{kill: func() {}, conn: new(pgx.Conn), unwatch: func() { select {} }}
	closed := make(chan bool)
	go func() { l.close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(3 * time.Second):
		t.Error("it waits")
	}
}

// However a task or its schedule ends, that is reported, nothing is recorded, and it is tried again.
func TestS07EndsOfATask(t *testing.T) {
	for name, end := range ends {
		for _, what := range []string{"task", "schedule"} {
			t.Run(what+"/"+name, func(t *testing.T) {
				t.Parallel()
				if what == "schedule" && !panics(end) {
					return
				}
				pool, election := connect(t, "DATABASE_URL"), unique(t)
				var asked, begun, done atomic.Int32
				fails := func(place string) error {
					if what == place {
						return end()
					}
					return nil
				}
				schedule := ScheduleFunc(func(last time.Time) time.Time {
					if asked.Add(1) == 1 {
						_ = fails("schedule")
					}
					return Interval(time.Second).Next(last)
				})
				job := every(t, pool, schedule, func(ctx context.Context, tx pgx.Tx, due time.Time) error {
					if begun.Add(1) == 1 {
						if err := fails("task"); err != nil {
							return err
						}
					}
					done.Add(1)
					return nil
				})
				c := run(t, pool, election, job, Options{})
				eventually(t, "two are done", func() bool { return done.Load() == 2 })
				c.cancel()
				if err := c.end(); err != nil || len(c.errors) != 1 || c.Stats().Terms != 1 || c.reasons[0] != ReasonResigned {
					t.Error(err, len(c.errors), c.Stats(), c.reasons)
				}
			})
		}
	}
}

// The loop of a follower may end in any way, and leaves nothing behind.
func TestEndsOfAFollower(t *testing.T) {
	pool, election := connect(t, "DATABASE_URL"), unique(t)
	before := runtime.NumGoroutine()
	for name, end := range ends {
		_ = caught(func() error {
			for range Follow(context.Background(), pool, election, nil) {
				if err := end(); err != nil {
					return err
				}
			}
			return fmt.Errorf("%s did not end the loop", name)
		})
	}
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+3 }) // two of them mute
}
