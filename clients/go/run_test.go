package leaderelection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestT1WrongOption(t *testing.T) {
	pool := new(pgxpool.Pool)
	for range 20 { // the first one that is wrong is always the same
		if _, err := New(pool, "billing", &Options{TTL: time.Millisecond, Heartbeat: 1, StopTimeout: -1}); err == nil || err.Error() != "leaderelection: TTL must be from one second to one day" {
			t.Error(err)
		}
	}
	if _, err := New(nil, "billing", nil); err == nil {
		t.Error("a pool may be nil")
	}
	if _, err := New(pool, "\xff", nil); err == nil {
		t.Error("a name may be none in UTF-8")
	}
	e, err := New(pool, "billing", nil)
	if err != nil || e.Run(context.Background(), nil) == nil {
		t.Error(err, "a job may be nil")
	}
	task := func(context.Context, pgx.Tx, time.Time) error { return nil }
	for _, schedule := range []Schedule{nil, Interval(time.Second - 1)} {
		if _, err := Every(pool, schedule, task); err == nil {
			t.Error(schedule)
		}
	}
	_, noZone := InZone(nil, at(2, 30))
	_, noSchedule := InZone(time.UTC, nil)
	_, interval := InZone(time.UTC, Interval(day))
	if noZone == nil || noSchedule == nil || interval == nil {
		t.Error(noZone, noSchedule, interval)
	}
	_, noPool := Every(nil, Interval(day), task)
	_, noTask := Every(pool, Interval(day), nil)
	_, noTaskEither := Due(Interval(day), nil)
	for _, none := range []Interval{0, -Interval(time.Second)} {
		if next := none.Next(epoch); !next.IsZero() {
			t.Error(none, next)
		}
	}
	if noPool == nil || noTask == nil || noTaskEither == nil {
		t.Error(noPool, noTask, noTaskEither)
	}
}

// The multiples of an interval are those before 2000, too.
func TestMultiples(t *testing.T) {
	for last, want := range map[time.Duration]time.Duration{-121: -120, -120: -60, -61: -60, -60: 0, -59: 0, -1: 0, 0: 60, 59: 60, 60: 120} {
		if next := Interval(time.Minute).Next(epoch.Add(last * time.Second)); !next.Equal(epoch.Add(want * time.Second)) {
			t.Error(last, next)
		}
	}
}

// at is a schedule of a time of each day, in UTC.
func at(hour, minute int) Schedule {
	since := time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute
	return ScheduleFunc(func(last time.Time) time.Time { return Interval(day).Next(last.Add(-since)).Add(since) })
}

// A time that clocks leave out is due when they are put forward, and one that they show twice, the
// first time.
func TestT6Zones(t *testing.T) {
	for name, c := range map[string]struct {
		schedule Schedule
		last     string
		want     string
	}{
		"back":            {at(2, 30), "2026-10-23T12:00:00Z", "10-24T00:30 10-25T00:30 10-26T01:30"},
		"back, begun":     {at(2, 30), "2026-10-25T01:10:00Z", "10-26T01:30"}, // in the second hour from 2 to 3
		"forward":         {at(2, 30), "2027-03-26T12:00:00Z", "03-27T01:30 03-28T01:00 03-29T00:30"},
		"half an hour":    {at(1, 45), "2026-04-03T00:00:00Z", "04-03T14:45 04-04T14:45 04-05T15:15"},
		"half an hour on": {at(2, 15), "2026-10-02T00:00:00Z", "10-02T15:45 10-03T15:30 10-04T15:15"},
		"midnight":        {at(0, 0), "2018-11-03T00:00:00Z", "11-03T03:00 11-04T03:00 11-05T02:00"},
		"a day":           {at(12, 0), "2011-12-29T00:00:00Z", "12-29T22:00 12-30T10:00 12-30T22:00"},
		"none":            {ScheduleFunc(func(time.Time) time.Time { return time.Time{} }), "2026-10-23T12:00:00Z", "01-01T00:00"},
	} {
		t.Run(name, func(t *testing.T) {
			place := map[string]string{"half an hour": "Australia/Lord_Howe", "half an hour on": "Australia/Lord_Howe", "midnight": "America/Sao_Paulo", "a day": "Pacific/Apia"}[name]
			zone, err := time.LoadLocation(cmp.Or(place, "Europe/Berlin"))
			if err != nil {
				t.Fatal(err)
			}
			schedule, err := InZone(zone, c.schedule)
			if err != nil {
				t.Fatal(err)
			}
			last, _ := time.Parse(time.RFC3339, c.last)
			for _, want := range strings.Fields(c.want) {
				if last = schedule.Next(last); last.UTC().Format("01-02T15:04") != want {
					t.Error(last.UTC(), want)
				}
			}
		})
	}
	back, _ := InZone(time.UTC, ScheduleFunc(func(last time.Time) time.Time { return last.Add(-time.Hour) }))
	if _, _, err := dueTime(back, epoch, epoch.Add(day)); err == nil {
		t.Error("a schedule may go back")
	}
}

// The text of each kind of error names the package, once if one wraps another.
func TestTexts(t *testing.T) {
	told, forever := make(chan error, 1), make(chan struct{})
	defer close(forever)
	e := made(t, Options{Heartbeat: time.Second, OnError: func(err error) { told <- err }}, none)
	e.m.way, e.query = sessionWay(time.Second), e.session
	answer := e.answer
	e.answer = func(l *link, q query, begun func()) error {
		if strings.Contains(q.sql, "le_am_leader") {
			begun()
			<-forever
		}
		return answer(l, q, begun)
	}
	stop := running(t, e, idle)
	if err := <-told; !errors.Is(err, ErrLost) || !errors.Is(err, ErrTimeout) || strings.Count(err.Error(), "leaderelection: ") != 1 {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, err := range []error{ErrLost, ErrInDoubt, ErrJob, ErrSlowJob, ErrCallback, ErrTimeout, ErrNoConnection} {
		if !strings.HasPrefix(err.Error(), "leaderelection: ") {
			t.Error(err)
		}
	}
}

func TestT2Identities(t *testing.T) {
	pool := new(pgxpool.Pool)
	one, _ := (*Options)(nil).filled(pool, "e")
	if two, _ := (&Options{}).filled(pool, "e"); one.Identity == two.Identity {
		t.Error(one.Identity)
	}
}

func TestT3ClockOfTheMachine(t *testing.T) {
	uptime, err := os.ReadFile("/proc/uptime") // which includes suspensions
	if err != nil {
		t.Skip(err)
	}
	if off := now() - seconds(strings.Fields(string(uptime))[0]); off < -time.Second || off > time.Second {
		t.Error(off)
	}
}

// made returns an elector by a lease whose statements are answered at once, except those that fail.
func made(t *testing.T, o Options, fails func(sql string) bool) *Elector {
	t.Helper()
	o.TTL = time.Second
	e, err := New(new(pgxpool.Pool), "billing", &o)
	if err != nil {
		t.Fatal(err)
	}
	e.answer = func(_ *link, q query, begun func()) error {
		begun()
		if fails(q.sql) {
			return errors.New("gone")
		}
		switch to := q.into[0].(type) {
		case **int64:
			*to = new(int64)
		case *bool:
			*to = true
		}
		return nil
	}
	return e
}

func none(string) bool { return false }

type slowLog struct {
	slog.Handler
	until chan struct{}
}

func (l slowLog) Handle(context.Context, slog.Record) error { <-l.until; return nil }
func (l slowLog) WithAttrs([]slog.Attr) slog.Handler        { return l }

// An error callback or a logger that hangs or fails does not keep the job from being cancelled.
func TestT4Callbacks(t *testing.T) {
	silent := make(chan struct{})
	defer close(silent)
	for name, o := range map[string]Options{
		"hangs": {OnError: func(error) { <-silent }},
		"log":   {Logger: slog.New(slowLog{slog.Default().Handler(), silent})},
		"fails": {OnError: func(err error) {
			if errors.Is(err, ErrJob) {
				t.Error(err) // it only tells of its cancellation
			}
			panic("no")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			failing := false
			e := made(t, o, func(sql string) bool {
				failing = failing || strings.Contains(sql, "le_renew")
				return failing
			})
			ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
			begin := time.Now()
			if err := e.Run(ctx, func(job context.Context, term *Term) error {
				<-job.Done()
				if !errors.Is(context.Cause(job), ErrInDoubt) || term.IsLeading() {
					t.Error(context.Cause(job))
				}
				stop()
				return fmt.Errorf("told: %w", context.Cause(job))
			}); err != nil || time.Since(begin) > 4*time.Second {
				t.Error(err, time.Since(begin))
			}
		})
	}
}

func TestT5StopBeforeRun(t *testing.T) {
	server := listen(t)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	e, _ := New(server.pool, "billing", nil)
	if err := e.Run(ctx, idle); err != nil || server.accepted.Load() > 0 {
		t.Error(err, server.accepted.Load())
	}
	for l, err := range Follow(ctx, server.pool, "billing", nil) {
		t.Error(l, err)
	}
	if n := server.accepted.Load(); n > 0 {
		t.Error(n)
	}
}

// A spent context panics when it is asked for a value, and its error is odd.
type spent struct {
	context.Context
	done chan struct{}
	now  atomic.Bool
	err  func() error
}

func (s *spent) Done() <-chan struct{} { return s.done }

func (s *spent) Err() error {
	if s.now.Load() {
		return s.err()
	}
	return nil
}

func (s *spent) Value(key any) any {
	if s.now.Load() {
		panic("spent")
	}
	return s.Context.Value(key)
}

// A stop cancels the job, whatever has become of the context of Run.
func TestSpentContext(t *testing.T) {
	for name, end := range map[string]func() error{"panics": ends["panic"], "goexit": ends["goexit"], "none": func() error { return nil }} {
		t.Run(name, func(t *testing.T) {
			ctx := &spent{Context: context.Background(), done: make(chan struct{}), err: end}
			if err := made(t, Options{}, none).Run(ctx, func(job context.Context, _ *Term) error {
				ctx.now.Store(true)
				close(ctx.done)
				<-job.Done()
				return job.Err()
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A silentServer accepts connections, and says nothing but a greeting from the second one on.
type silentServer struct {
	pool                    *pgxpool.Pool
	dialled, accepted, open atomic.Int32
	falls                   atomic.Bool // it closes a connection when a statement comes
}

const greeting = "R\x00\x00\x00\x08\x00\x00\x00\x00K\x00\x00\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x01Z\x00\x00\x00\x05I"

func listen(t *testing.T) *silentServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	s := &silentServer{}
	go func() {
		for {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			s.open.Add(1)
			go func(greets bool) {
				if greets {
					_, _ = io.WriteString(socket, greeting)
				}
				if s.falls.Load() {
					_, _ = io.CopyN(io.Discard, socket, 200) // the startup, and some of the statement
				} else {
					_, _ = io.Copy(io.Discard, socket)
				}
				socket.Close()
				s.open.Add(-1)
			}(s.accepted.Add(1) > 1)
		}
	}()
	config, err := pgxpool.ParseConfig("postgres://u@" + listener.Addr().String() + "/d?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		s.dialled.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	return s
}

// What is given up is closed, and nothing is left when Run and Follow have returned.
func TestNothingIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	server := listen(t)
	failed := make(chan error, 10)
	e, _ := New(server.pool, "billing", &Options{Heartbeat: time.Second, OnError: func(err error) { failed <- err }})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx, idle) }()
	for _, kind := range []error{ErrNoConnection, ErrTimeout} {
		if err := <-failed; !errors.Is(err, kind) || server.open.Load() > 1 {
			t.Error(err, server.open.Load())
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ctx, stop = context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	for l, err := range Follow(ctx, server.pool, "billing", nil) {
		t.Error(l, err)
	}
	eventually(t, "all is closed", func() bool { return server.open.Load() == 0 && server.accepted.Load() >= 3 })
	if n := server.dialled.Load(); n != 3 { // no request to cancel what is given up
		t.Error(n)
	}
	server.pool.Close()
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+1 }) // the listener's
}

// Run says that the deadline of its context has passed, and nothing else.
func TestDeadline(t *testing.T) {
	soon := func(length time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), length)
		t.Cleanup(cancel)
		return ctx
	}
	for _, length := range []time.Duration{-1, 100 * time.Millisecond} {
		if err := made(t, Options{}, none).Run(soon(length), idle); err != context.DeadlineExceeded {
			t.Error(length, err)
		}
		e := made(t, Options{}, none)
		if ran, err := e.TryRun(soon(length), 0, idle); ran != (length > 0) || err != context.DeadlineExceeded {
			t.Error(length, ran, err)
		}
		if ran, err := e.TryRun(context.Background(), 0, idle); ran || err == nil {
			t.Error(ran, err)
		}
	}
	ctx := soon(100 * time.Millisecond)
	if ran, err := made(t, Options{}, none).TryRun(ctx, 0, func(context.Context, *Term) error { return nil }); !ran || err != nil {
		t.Error(ran, err)
	}
}

// A job that was cut short, or has not run, is not taken for one that is done.
func TestCancelledTry(t *testing.T) {
	for _, early := range []bool{true, false} {
		ctx, cancel := context.WithCancel(context.Background())
		if early {
			cancel()
		}
		ran, err := made(t, Options{}, none).TryRun(ctx, 0, func(ctx context.Context, _ *Term) error {
			cancel()
			<-ctx.Done()
			return fmt.Errorf("step 2: %w", ctx.Err())
		})
		if ran == early || err != context.Canceled {
			t.Error(early, ran, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran, err := made(t, Options{}, none).TryRun(ctx, 0, func(context.Context, *Term) error { cancel(); return nil })
	if !ran || err != nil {
		t.Error("a job that has ended: ", ran, err)
	}
}

// A callback that stops the elector keeps the job from starting.
func TestStopInElected(t *testing.T) {
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		e := made(t, Options{OnElected: func(*Term) { cancel() }}, none)
		ran, err := e.TryRun(ctx, 0, func(context.Context, *Term) error { return nil })
		if ran || !errors.Is(err, context.Canceled) {
			t.Fatal("ran: ", ran, ", error: ", err)
		}
	}
}

func TestHealthHandler(t *testing.T) {
	e, err := New(new(pgxpool.Pool), "billing", nil)
	if err != nil {
		t.Fatal(err)
	}
	for phase, status := range map[phase]int{stopped: 503, campaigning: 200} {
		e.m.phase = phase
		answer := httptest.NewRecorder()
		if e.ServeHTTP(answer, nil); answer.Code != status || answer.Body.String() != string(e.Health())+"\n" {
			t.Error(answer)
		}
	}
}
