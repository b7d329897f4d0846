package leaderelection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// start has a reading of the monotonic clock, and lies before the first call
// of now, which must not return 0.
var start = time.Now().Add(-time.Second)

// A driver drives a state machine. It takes one thing that has happened after
// the other out of a queue. All else goes on beside it, so that nothing that
// hangs keeps a job from being cancelled.
type driver struct {
	m       *machine
	pool    *pgxpool.Pool
	query   func(a action, r *answer) query
	answer  func(l *link, q query, begun func()) error
	do      func(a action)
	link    *link
	closing sync.WaitGroup
	events  chan func()
	ended   chan struct{}
}

func newDriver(pool *pgxpool.Pool, m *machine, query func(action, *answer) query, do func(action)) *driver {
	return &driver{m: m, pool: pool, query: query, do: do, answer: (*link).ask, events: make(chan func()), ended: make(chan struct{})}
}

// post has something happen to the state machine, unless that has ended.
func (d *driver) post(event func()) {
	select {
	case d.events <- event:
	case <-d.ended:
	}
}

// drive lets the state machine begin, and returns when it has ended, as it
// does when ctx is done.
func (d *driver) drive(ctx context.Context, begin func()) error {
	defer context.AfterFunc(ctx, func() { d.post(d.m.onStop) })()
	defer d.closing.Wait()
	defer close(d.ended)
	if d.m.stopping = ctx.Err() != nil; d.m.stopping {
		return nil
	}
	for event := begin; ; {
		for _, a := range d.m.step(now(), event) {
			switch {
			case a.serial > 0:
				d.ask(a)
			case a.what == "close":
				d.hangUp()
			case a.what == "end":
				return d.m.opt.conclude(d.pool, d.m.election, a.err)
			default:
				d.do(a)
			}
		}
		// Timers stand still while the machine is suspended, so look at the clock each second.
		select {
		case event = <-d.events:
		case <-time.After(min(d.m.wakeup()-now(), time.Second)):
			event = func() {}
		}
	}
}

func (d *driver) ask(a action) {
	if d.link == nil {
		d.link = &link{driver: d}
		d.link.life, d.link.kill = context.WithCancel(context.Background())
	}
	var r answer
	l, q := d.link, d.query(a, &r)
	go func() {
		err := caught(func() error {
			return d.answer(l, q, func() { d.post(func() { d.m.onBegun(a.serial) }) })
		})
		d.post(func() { d.m.onAnswer(a.serial, r, err) })
	}()
}

func (d *driver) hangUp() {
	if l := d.link; l != nil {
		d.link = nil
		d.closing.Add(1)
		go func() { defer d.closing.Done(); l.close() }()
	}
}

// A State says what an [Elector] does.
type State string

// The states of an [Elector].
const (
	StateStopped  State = "stopped"  // Run has not been called, or has returned
	StateWaiting  State = "waiting"  // it campaigns
	StateLeading  State = "leading"  // the job runs
	StateStopping State = "stopping" // the job was told to stop, or leadership is being resigned
	StatePaused   State = "paused"   // it waits before the next campaign
)

// A Health says whether an [Elector] does what it should, as it does while it
// waits or leads.
type Health string

// The healths of an [Elector].
const (
	HealthStopped Health = "stopped"  // Run has not been called, or has returned
	HealthWaiting Health = "waiting"  // it campaigns
	HealthLeading Health = "leading"  // the term is confirmed
	HealthInDoubt Health = "in doubt" // the last attempt or job failed, or the term is not confirmed
)

// A Job is what the leader does. It must return soon after its context is
// cancelled, which happens when leadership is lost or in doubt, and when Run
// is to stop. If it returns nil, the elector resigns and campaigns again after
// a short pause. If it returns an error or panics, that is also reported. An
// error that only tells of the cancelled context is ignored.
type Job func(ctx context.Context, term *Term) error

// Stats say how an [Elector] does.
type Stats struct {
	State         State
	Health        Health
	Terms         int64 // in which OnElected was called
	Confirmations int64
	Errors        int64 // that were reported
}

// An Elector campaigns in an election and runs a job while it leads. Its
// methods can be called from any goroutine.
type Elector struct {
	*driver
	opt     *Options
	called  atomic.Bool
	ctx     context.Context
	job     Job
	cancel  context.CancelCauseFunc // of the job
	result  error                   // of the job
	reports chain
}

// New returns an elector that campaigns in the named election, or an error if
// an argument or an option is wrong. It does not connect. The options may be nil.
//
// In session scope, the elector opens a connection for each campaign, beside
// the pool and with its configuration. By a lease, each statement takes a
// connection out of the pool for the moment.
func New(pool *pgxpool.Pool, election string, options *Options) (*Elector, error) {
	o, err := options.filled(pool, election)
	if err != nil {
		return nil, err
	}
	e := &Elector{opt: o, cancel: func(error) {}}
	w, query := sessionWay(o.Heartbeat), e.session
	if o.TTL > 0 {
		w, query = leaseWay(o.TTL), e.lease
	}
	e.driver = newDriver(pool, newMachine(w, election, o, now, rand.Float64), query, e.act)
	return e, nil
}

// Run campaigns, and runs the job while it leads, again and again until ctx is
// cancelled. Then it cancels the job, waits until that has stopped, resigns,
// and returns nil, or [context.DeadlineExceeded] if the deadline of ctx has
// passed. It can be called once.
//
// Errors are reported to Options.OnError and do not end Run, except for a
// [PermanentError], which it returns. It returns an error at once if job is nil,
// or if Run or TryRun was called before.
func (e *Elector) Run(ctx context.Context, job Job) error {
	_, err := e.run(ctx, job, false, e.m.campaign)
	return err
}

// TryRun runs the job once, if this elector is elected within a time, or now
// if that is 0, and reports whether the job ran. It can be called once,
// instead of Run. If ctx is cancelled, that stops the campaign, or the job.
//
// If another one leads, TryRun returns false and no error. It returns the error
// of the job; [ErrLost] or [ErrInDoubt], if leadership was lost before the job
// had ended; that of the last attempt, if that has failed; a [PermanentError];
// or that of ctx, if it has ended the campaign, or the job, which has returned
// an error then. Other errors are reported to Options.OnError. It returns an
// error at once if job is nil, or if Run or TryRun was called before.
func (e *Elector) TryRun(ctx context.Context, wait time.Duration, job Job) (ran bool, err error) {
	ran, err = e.run(ctx, job, true, func() { e.m.onTry(wait) })
	if own, ok := err.(caughtError); ok { // the job's
		err = own.error
	}
	return ran, err
}

func (e *Elector) run(ctx context.Context, job Job, once bool, begin func()) (ran bool, err error) {
	if job == nil || e.called.Swap(true) {
		return false, errors.New("leaderelection: the job is nil, or Run or TryRun was called before")
	}
	ctx, release := context.WithCancel(tame{ctx}) // whose methods are none of the caller's
	defer release()
	e.ctx, e.job = ctx, job
	err = e.drive(ctx, begin)
	e.reports.add(func() {})
	select {
	case <-e.reports.last:
	case <-time.After(time.Second): // OnError hangs
	}
	late := !once && errors.Is(ctx.Err(), context.DeadlineExceeded)
	if err == nil && e.m.stopping && (late || once && (!e.m.ran || e.result != nil)) {
		err = ctx.Err()
	}
	return e.m.ran, err
}

// A tame context is a caller's, as package context asks it when it is done: in
// a goroutine, where a panic, or no error, would end the process.
type tame struct{ context.Context }

func (t tame) Err() (err error) {
	_ = caught(func() error { err = t.Context.Err(); return nil })
	return cmp.Or(err, context.Canceled)
}

func (t tame) Value(key any) (v any) {
	defer func() { _ = recover() }()
	return t.Context.Value(key)
}

func (e *Elector) act(a action) {
	switch a.what {
	case "elected":
		a.term.elector = e
		e.reports.add(func() { e.opt.Logger.Info("elected", "term", a.term.election, "token", a.term.token) })
		e.beside(context.Background(), func() error { e.opt.OnElected(a.term); return nil })
	case "job":
		// the state machine hears of a stop before the job does
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(e.ctx))
		e.cancel = cancel
		e.beside(ctx, func() error { e.result = e.job(ctx, a.term); return e.result })
	case "cancel":
		e.cancel(cmp.Or(a.err, context.Cause(e.ctx)))
	case "ousted":
		e.cancel(nil)
		e.reports.add(func() {
			e.opt.Logger.Info("ousted", "term", a.term.election, "token", a.term.token, "reason", a.reason)
		})
		e.beside(context.Background(), func() error { e.opt.OnOusted(a.term, a.reason); return nil })
	case "error":
		e.reports.add(func() {
			if failure := caught(func() error { e.opt.OnError(a.err); return nil }); failure != nil {
				e.opt.Logger.Error("OnError failed", "failure", failure, "error", a.err)
			}
		})
	}
}

// beside calls a callback or the job in the background.
func (e *Elector) beside(ctx context.Context, f func() error) {
	go func() {
		err := caughtIn(ctx, f)
		if e.ctx.Err() != nil { // f itself may have cancelled it
			e.post(e.m.onStop)
		}
		e.post(func() { e.m.onReturned(err) })
	}()
}

// caught calls a function that is, or calls, one of the user's. It returns its
// error as a [caughtError], and as an error its panic, or the end of its
// goroutine, as by t.FailNow of a test. An error that hangs when it is asked
// what it is becomes another one after a second.
func caught(f func() error) error { return caughtIn(context.Background(), f) }

// caughtIn does likewise, but ignores an error that only tells of the cancelled
// context.
func caughtIn(ctx context.Context, f func() error) error {
	result := make(chan error, 3)
	limit := func() { time.AfterFunc(time.Second, func() { result <- errors.New("its error hangs") }) }
	go func() {
		err := errors.New("it has ended its goroutine")
		defer func() { result <- err }()
		defer func() {
			if p := recover(); p != nil {
				limit()
				err = fmt.Errorf("panic: %s\n%s", message(p), debug.Stack())
			}
		}()
		if failure := f(); failure == nil {
			err = nil
		} else if limit(); ctx.Err() != nil && (errors.Is(failure, context.Canceled) || errors.Is(failure, context.Cause(ctx))) {
			err = nil
		} else {
			err = caughtError{failure, message(failure), serverError(failure)}
		}
	}()
	return <-result
}

// A caughtError is an error of the user's, with what is to be known of it, so
// that its methods, which can do anything, are not called elsewhere.
type caughtError struct {
	error
	text   string
	server *pgconn.PgError
}

func (e caughtError) Error() string { return e.text }
func (e caughtError) Unwrap() error { return e.error }

// within likewise calls a function, but does not wait for one that hangs.
func within(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	go func() { result <- caught(f) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// message returns the text of an error or a panic, or its type if it has none.
func message(v any) (s string) {
	s = fmt.Sprintf("%T", v)
	defer func() { _ = recover() }()
	return fmt.Sprint(v)
}

// A chain calls one function after the other in the background.
type chain struct{ last chan struct{} } // closed when the last one has returned

func (c *chain) add(f func()) {
	before, done := c.last, make(chan struct{})
	c.last = done
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		_ = caught(func() error { f(); return nil })
	}()
}

// Stats returns what the elector does at this moment, and its counters.
func (e *Elector) Stats() Stats {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	return Stats{e.m.state(), e.m.health(), e.m.terms, e.m.confirmations, e.m.errors}
}

// State returns what the elector does at this moment.
func (e *Elector) State() State { return e.Stats().State }

// Health returns how the elector is at this moment.
func (e *Elector) Health() Health { return e.Stats().Health }

// ServeHTTP answers with Health, and with the status 503 unless that is
// waiting or leading.
func (e *Elector) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	health := e.Health()
	if health != HealthWaiting && health != HealthLeading {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = fmt.Fprintln(w, health)
}
