//go:build go1.25

package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An answer is what the simulated server answers to a statement.
type answerer func(ctx context.Context, args []any) ([]any, error)

// A sim is a simulated server and one elector, within a bubble of simulated
// time. It elects each candidate at once, unless the test says otherwise.
type sim struct {
	t       *testing.T
	e       *Elector
	begin   time.Time
	latency time.Duration
	random  float64
	suspend atomic.Int64 // by how much the elector's clock is ahead of the timers

	mu      sync.Mutex
	on      map[string]answerer // by the name of the function that is called
	events  []event
	token   int64
	pid     int32
	samePID bool
	conns   []*simConn
	cancel  context.CancelFunc
	ended   chan struct{}
	err     error // of Run
}

type event struct {
	at   time.Duration
	what string
	args []any
}

// simulate runs a test in simulated time, with no goroutine left at its end.
func simulate(t *testing.T, test func(t *testing.T, s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, &sim{t: t, begin: time.Now(), on: map[string]answerer{}, latency: 10 * time.Millisecond, random: 0.5})
	})
}

func (s *sim) elector(job Job, opt Options) *Elector {
	s.t.Helper()
	report, elected, ousted := opt.OnError, opt.OnElected, opt.OnOusted
	opt.OnError = func(err error) {
		s.log("error", err)
		if report != nil {
			report(err)
		}
	}
	opt.OnElected = func(t *Term) {
		s.log("elected", t.Token())
		if elected != nil {
			elected(t)
		}
	}
	opt.OnOusted = func(t *Term, reason Reason) {
		s.log("ousted", reason)
		if ousted != nil {
			ousted(t, reason)
		}
	}
	opt.Identity = "me"
	e, err := New(s, "billing", func(ctx context.Context, t *Term) error {
		s.log("job", t.Token())
		defer s.log("stopped")
		return job(ctx, t)
	}, &opt)
	if err != nil {
		s.t.Fatal(err)
	}
	e.now = func() time.Duration { return time.Second + time.Since(s.begin) + time.Duration(s.suspend.Load()) }
	e.random = func() float64 { return s.random }
	s.e = e
	return e
}

// start makes an elector and runs it.
func (s *sim) start(job Job, opt Options) {
	s.t.Helper()
	e := s.elector(job, opt)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.ended = cancel, make(chan struct{})
	s.t.Cleanup(func() { cancel(); <-s.ended })
	go func() {
		defer close(s.ended)
		s.err = e.Run(ctx)
		s.log("returned")
	}()
}

// stop stops the elector and waits until Run has returned.
func (s *sim) stop() {
	s.t.Helper()
	s.cancel()
	<-s.ended
	synctest.Wait()
	if s.e.State() != Stopped {
		s.t.Errorf("state %q after Run", s.e.State())
	}
	for _, c := range s.conns {
		if !c.closed {
			s.t.Error("a connection is left open")
		}
	}
}

func (s *sim) log(what string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event{time.Since(s.begin), what, args})
}

// all returns the events with one of these names.
func (s *sim) all(names ...string) (found []event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if slices.Contains(names, e.what) {
			found = append(found, e)
		}
	}
	return found
}

// order returns the names of the events with one of these names.
func (s *sim) order(names ...string) string {
	var found []string
	for _, e := range s.all(names...) {
		found = append(found, e.what)
	}
	return strings.Join(found, " ")
}

func (s *sim) wantOrder(want string, names ...string) {
	s.t.Helper()
	if got := s.order(names...); got != want {
		s.t.Errorf("order of events:\ngot  %s\nwant %s\nall  %v", got, want, s.events)
	}
}

// at returns when the n-th event of that name was, from 1; negative counts from the end.
func (s *sim) at(name string, n int) time.Duration {
	s.t.Helper()
	found := s.all(name)
	if n < 0 {
		n += len(found) + 1
	}
	if n < 1 || n > len(found) {
		s.t.Fatalf("no event %q number %d in %v", name, n, s.events)
	}
	return found[n-1].at
}

func (s *sim) wantAt(name string, n int, want time.Duration) {
	s.t.Helper()
	if got := s.at(name, n); got != want {
		s.t.Errorf("%s number %d at %v, want %v, in %v", name, n, got, want, s.events)
	}
}

func (s *sim) wantErrors(want ...string) {
	s.t.Helper()
	found := s.all("error")
	if len(found) != len(want) {
		s.t.Errorf("errors: %v, want %q", found, want)
		return
	}
	for i, e := range found {
		if !strings.Contains(fmt.Sprint(e.args[0]), want[i]) {
			s.t.Errorf("error %v, want %q", e.args[0], want[i])
		}
	}
}

var functions = []string{"le_campaign", "le_am_leader", "le_heartbeat", "le_lease", "le_renew", "le_resign", "le_once", "date_bin", "pg_backend_pid"}

// answer answers a statement, after the latency, and logs it when it is asked.
func (s *sim) answer(ctx context.Context, pid int32, sql string, args, dest []any) error {
	i := slices.IndexFunc(functions, func(f string) bool { return strings.Contains(sql, f) })
	s.log(functions[i], args...)
	if !sleep(ctx, s.latency) {
		return ctx.Err()
	}
	s.mu.Lock()
	handler := s.on[functions[i]]
	s.mu.Unlock()
	var row []any
	var err error
	switch {
	case handler != nil:
		row, err = handler(ctx, args)
	case functions[i] == "pg_backend_pid":
		row = []any{pid}
	case functions[i] == "le_campaign" || functions[i] == "le_lease":
		s.mu.Lock()
		s.token++
		row = []any{s.token}
		s.mu.Unlock()
		if strings.Contains(sql, "le_seats") {
			row = append(row, "billing/2")
		}
	case functions[i] == "date_bin":
		row = []any{time.Now().Truncate(time.Minute)}
	default:
		row = []any{true}
	}
	if err != nil {
		return err
	}
	if len(row) < len(dest) {
		row = append(row, pid)
	}
	for i, d := range dest {
		assign(reflect.ValueOf(d).Elem(), row[i])
	}
	return nil
}

func assign(to reflect.Value, value any) {
	if value == nil {
		to.SetZero()
		return
	}
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	to.Set(reflect.ValueOf(value).Convert(to.Type()))
}

func (s *sim) QueryRow(ctx context.Context, sql string, args []any, dest ...any) error {
	return s.answer(ctx, -1, sql, args, dest)
}

func (s *sim) Connect(ctx context.Context) (Conn, error) {
	s.log("connect")
	s.mu.Lock()
	handler := s.on["connect"]
	s.mu.Unlock()
	if handler != nil {
		if _, err := handler(ctx, nil); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.samePID {
		s.pid++
	}
	c := &simConn{s: s, pid: s.pid, ended: make(chan struct{})}
	s.conns = append(s.conns, c)
	return c, nil
}

func (s *sim) Transact(ctx context.Context, f func(tx string, q Querier) error) error {
	err := f("tx", s)
	s.log("transaction", err == nil)
	return err
}

type simConn struct {
	s      *sim
	pid    int32
	ended  chan struct{} // the server has closed it
	closed bool
}

func (c *simConn) QueryRow(ctx context.Context, sql string, args []any, dest ...any) error {
	if c.closed {
		c.s.t.Error("a question on a closed connection")
	}
	return c.s.answer(ctx, c.pid, sql, args, dest)
}

func (c *simConn) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.ended:
		return errors.New("connection reset")
	}
}

func (c *simConn) Close() {
	c.s.log("close")
	c.closed = true
}

func (s *sim) endConnection(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.conns[i].ended)
}

// set changes what the server answers to a function; nil is the default.
func (s *sim) set(function string, handler answerer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on[function] = handler
}

func says(row ...any) answerer {
	return func(context.Context, []any) ([]any, error) { return row, nil }
}

func fails(message string) answerer {
	return func(context.Context, []any) ([]any, error) { return nil, errors.New(message) }
}

// hangs does not answer until the question is given up.
func hangs(ctx context.Context, _ []any) ([]any, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// untilCancelled is a job that stops at once.
func untilCancelled(ctx context.Context, _ *Term) error {
	<-ctx.Done()
	return ctx.Err()
}

// stubborn is a job that goes on for d after it was cancelled.
func (s *sim) stubborn(d time.Duration) Job {
	return func(ctx context.Context, _ *Term) error {
		<-ctx.Done()
		s.log("cancelled")
		time.Sleep(d)
		return nil
	}
}
