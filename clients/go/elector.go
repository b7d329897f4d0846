package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// ErrPooler is returned by [Elector.Run] in session scope if its connections
// go through a pooler in transaction mode. Lead by a lease there.
var ErrPooler = errors.New("session scope needs a connection of its own, and this one is shared through a pooler; set a TTL to lead by a lease")

// The errors that a job's context is cancelled with, apart from that of the
// context which [Elector.Run] was given. [context.Cause] returns them, and
// Options.OnError gets them; test with [errors.Is].
var (
	// ErrLost: the server said that this elector does not lead any more, or
	// the session's connection ended.
	ErrLost = errors.New("leadership is lost")
	// ErrInDoubt: the server has not confirmed leadership for too long, or
	// the job has not called Heartbeat for too long.
	ErrInDoubt = errors.New("leadership is in doubt")
)

// A Job is what the leader does. It must return soon after its context is
// cancelled, which happens when leadership is lost or in doubt, and when Run
// is to stop. If it returns nil, the elector resigns and campaigns again after
// a short pause. If it returns an error or panics, that is also reported. An
// error that only tells of the cancelled context is ignored.
type Job func(ctx context.Context, term *Term) error

// Options are the optional settings of an [Elector]. The zero value leads in
// session scope.
type Options struct {
	// Identity tells the candidates apart, in views, logs and warnings. It
	// must differ from process to process. By default, it is made of the host
	// name, the process ID and four hexadecimal digits.
	Identity string

	// Seats, if it is not 0, lets as many electors lead at the same time,
	// each in a seat of its own.
	Seats int

	// Heartbeat, if it is not 0, is for how long at most a job in session
	// scope may go without a call of [Term.Heartbeat] before another
	// candidate takes over. It is at least a second. The job is cancelled
	// after two thirds of it.
	Heartbeat time.Duration

	// TTL, if it is not 0, has the elector lead by a lease, which expires if
	// it is not renewed for that long. It is at least a second.
	TTL time.Duration

	// RenewOnHeartbeat has a lease be renewed only if the job has called
	// [Term.Heartbeat] since the last renewal.
	RenewOnHeartbeat bool

	// StopTimeout is how long the job may take to stop before that is
	// reported, 10 seconds by default.
	StopTimeout time.Duration

	// OnElected, if it is not nil, is called before the job starts, in the
	// job's goroutine.
	OnElected func(*Term)

	// OnOusted, if it is not nil, is called after the job has stopped, before
	// leadership is resigned.
	OnOusted func(*Term, Reason)

	// OnError is called with each error, once, and never by two goroutines
	// at the same time. By default, errors are logged by [slog.Error].
	OnError func(error)
}

// A State says what an [Elector] does.
type State string

// The states of an [Elector].
const (
	Stopped  State = "stopped"  // Run has not been called, or has returned
	Waiting  State = "waiting"  // it campaigns
	Leading  State = "leading"  // the job runs
	Stopping State = "stopping" // the job was told to stop, or leadership is being resigned
	Paused   State = "paused"   // it waits before the next campaign
)

// timing has the times that depend on the way to lead.
type timing struct {
	question time.Duration // from one confirmation to the next
	retry    time.Duration // from a failed confirmation to the next
	answer   time.Duration // the deadline of an answer and of a new connection
	bid      time.Duration // from one bid to the next
}

// An Elector campaigns in an election and runs a job while it leads.
type Elector struct {
	db        DB
	election  string
	job       Job
	opt       Options
	timing    timing
	now       func() time.Duration
	random    func() float64 // from 0 to 1
	running   atomic.Bool
	state     atomic.Value
	reporting sync.Mutex
	failures  int   // in a row
	checked   bool  // that there is no pooler in between
	left      *Term // by a lease that could not be resigned
}

// New returns an elector that campaigns in the named election and runs the job
// while it leads. The options may be nil.
func New(db DB, election string, job Job, options *Options) (*Elector, error) {
	var opt Options
	if options != nil {
		opt = *options
	}
	longest := election
	if opt.Seats > 0 {
		longest += "/" + strconv.Itoa(opt.Seats)
	}
	for _, check := range []struct {
		bad  bool
		what string
	}{
		{db == nil, "the database is nil"},
		{job == nil, "the job is nil"},
		{election == "", "the name of the election is empty"},
		{len(longest) > 255, "the name of the election is longer than 255 bytes"},
		{len(opt.Identity) > 255, "Identity is longer than 255 bytes"},
		{opt.Seats < 0 || opt.Seats > 10000, "Seats is not from 1 to 10000"},
		{opt.Heartbeat != 0 && opt.Heartbeat < time.Second, "Heartbeat is shorter than a second"},
		{opt.TTL != 0 && opt.TTL < time.Second, "TTL is shorter than a second"},
		{opt.Heartbeat != 0 && opt.TTL != 0, "Heartbeat is for session scope, and TTL for a lease"},
		{opt.RenewOnHeartbeat && opt.TTL == 0, "RenewOnHeartbeat needs a TTL"},
		{opt.StopTimeout < 0, "StopTimeout is negative"},
	} {
		if check.bad {
			return nil, errors.New("leaderelection: " + check.what)
		}
	}
	e := &Elector{db: db, election: election, job: job, opt: opt, now: now, random: rand.Float64}
	e.state.Store(Stopped)
	if e.opt.Identity == "" {
		e.opt.Identity = newIdentity()
	}
	if e.opt.StopTimeout == 0 {
		e.opt.StopTimeout = 10 * time.Second
	}
	if e.opt.OnError == nil {
		e.opt.OnError = func(err error) {
			slog.Error("leader election", "election", election, "identity", e.opt.Identity, "error", err)
		}
	}
	e.timing = timing{question: time.Second, answer: 5 * time.Second}
	if opt.Heartbeat > 0 {
		e.timing.question = min(time.Second, opt.Heartbeat/3)
		e.timing.answer = min(5*time.Second, opt.Heartbeat/3)
	} else if opt.TTL > 0 {
		third := opt.TTL / 3
		e.timing = timing{question: third, retry: min(opt.TTL/10, time.Second), answer: min(5*time.Second, third), bid: third}
	}
	return e, nil
}

var identities atomic.Uint32

func init() { identities.Store(rand.Uint32()) }

// newIdentity returns an identity that this process has not used before, nor
// most probably another one with the same host name and process ID.
func newIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%.200s:%d:%04x", host, os.Getpid(), identities.Add(1)&0xffff)
}

// Identity returns the identity under which the elector campaigns.
func (e *Elector) Identity() string { return e.opt.Identity }

// State returns what the elector does at this moment. It can be called from
// any goroutine.
func (e *Elector) State() State { return e.state.Load().(State) }

// Run campaigns, and runs the job while it leads, again and again until ctx is
// cancelled. Then it cancels the job, waits until that has stopped, resigns,
// and returns nil.
//
// Errors are reported to Options.OnError and do not end Run, except that it
// returns [ErrPooler] if session scope cannot work.
func (e *Elector) Run(ctx context.Context) error {
	if !e.running.CompareAndSwap(false, true) {
		return errors.New("leaderelection: Run was called while it runs")
	}
	defer e.running.Store(false)
	defer e.state.Store(Stopped)
	e.failures, e.checked = 0, false
	for ctx.Err() == nil {
		e.state.Store(Waiting)
		ok, err := e.serve(ctx)
		if errors.Is(err, ErrPooler) {
			return err
		}
		if err != nil && ctx.Err() == nil { // otherwise it tells of the stop
			e.report(err)
		}
		e.state.Store(Paused)
		if ok {
			sleep(ctx, time.Duration((0.5+e.random()/2)*float64(time.Second)))
		} else {
			sleep(ctx, backoff(e.failures, e.random()))
			e.failures++
		}
	}
	return nil
}

// backoff returns the pause after an error that follows this many others.
func backoff(failures int, random float64) time.Duration {
	pause := min(15*time.Second, 500*time.Millisecond<<min(failures, 5))
	return time.Duration((0.5 + random/2) * float64(pause))
}

// A post is a campaign and its term, in session scope or by a lease.
type post interface {
	// bid returns a term that is confirmed, or nil if another one leads.
	bid(ctx context.Context) (*Term, error)
	// confirm asks whether the term runs. With beat, the job has made progress.
	confirm(ctx context.Context, t *Term, beat bool) error
	wait(ctx context.Context) error
	resign(ctx context.Context, t *Term) error
	close()
}

// serve campaigns once and leads for one term. It returns whether all went
// well, and an error that is not reported yet.
func (e *Elector) serve(ctx context.Context) (ok bool, err error) {
	var p post = &lease{e}
	if e.opt.TTL == 0 {
		if p, err = e.openSession(ctx); err != nil {
			return false, err
		}
	}
	defer p.close()
	term, err := e.campaign(ctx, p)
	if term == nil {
		return false, err
	}
	reason, end := Resigned, error(nil)
	if ctx.Err() == nil {
		reason, end = e.lead(ctx, p, term)
	}
	e.state.Store(Stopping)
	if errors.Is(end, ErrPooler) {
		_ = p.resign(ctx, term) // in whatever session that is
		return false, end
	}
	if !errors.Is(end, ErrLost) {
		if err := p.resign(ctx, term); err != nil {
			e.report(fmt.Errorf("cannot resign from election %q: %w", term.election, err))
			return false, nil
		}
	}
	return reason == Resigned || reason == JobReturned, nil
}

// campaign bids until this elector leads, or ctx is cancelled.
func (e *Elector) campaign(ctx context.Context, p post) (*Term, error) {
	for {
		asked := e.now()
		term, err := p.bid(ctx)
		if term != nil || err != nil {
			return term, err
		}
		sleep(ctx, asked+e.timing.bid-e.now())
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// lead runs the job until it has stopped. It returns why it did, and the error
// by which leadership ended meanwhile, which it has reported unless it is
// [ErrPooler].
func (e *Elector) lead(ctx context.Context, p post, t *Term) (Reason, error) {
	job, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.job = job
	working, worked := context.WithCancel(context.WithoutCancel(ctx)) // until the job has stopped
	var failure, cause error
	var helpers sync.WaitGroup
	begin := func(f func()) {
		helpers.Add(1)
		go func() { defer helpers.Done(); f() }()
	}
	var ending sync.Once
	end := func(err error) { // before the job has stopped
		ending.Do(func() {
			cancel(err)
			t.until.Store(0)
			if !errors.Is(err, ErrPooler) {
				e.report(fmt.Errorf("election %q: %w", t.election, err))
			}
		})
	}
	e.state.Store(Leading)
	begin(func() {
		defer worked()
		failure = e.work(job, t)
		cause = context.Cause(job)
	})
	begin(func() { // Cancel the job in time, whatever the questions wait for.
		for left := t.left(); left > 0; left = t.left() {
			// Timers stand still while the machine is suspended, so look at the clock each second.
			if !sleep(working, min(left, time.Second)) {
				return
			}
		}
		end(ErrInDoubt)
	})
	begin(func() {
		select {
		case <-working.Done():
			return
		case <-job.Done():
		}
		e.state.Store(Stopping)
		if sleep(working, e.opt.StopTimeout) {
			e.report(fmt.Errorf("the job of election %q has not stopped within %v", t.election, e.opt.StopTimeout))
		}
	})

	failed := e.hold(working, p, t)
	if failed != nil {
		end(failed)
	}
	helpers.Wait()
	reason := Lost
	switch {
	case cause == nil && failure == nil:
		reason = JobReturned
	case cause == nil:
		reason = JobFailed
	case errors.Is(cause, ErrInDoubt):
		reason = InDoubt
	case ctx.Err() != nil && cause == context.Cause(ctx):
		reason = Resigned
	}
	if failure != nil && !(cause != nil && (errors.Is(failure, context.Canceled) || errors.Is(failure, cause))) {
		e.report(fmt.Errorf("the job of election %q failed: %w", t.election, failure))
	}
	e.try("OnOusted", func() {
		if e.opt.OnOusted != nil {
			e.opt.OnOusted(t, reason)
		}
	})
	t.until.Store(0)
	return reason, failed
}

// hold confirms leadership until the job has stopped, and then returns nil, or
// until leadership is lost or in doubt, and then returns why.
func (e *Elector) hold(working context.Context, p post, t *Term) error {
	due := t.asked + e.timing.question
	for {
		round, cancel := context.WithTimeout(working, due-e.now())
		err := p.wait(round)
		cancel()
		beat := t.progressed()
		if e.opt.RenewOnHeartbeat && !beat {
			round, cancel := context.WithTimeout(working, t.left())
			select {
			case <-t.progress:
				beat = true
			case <-round.Done():
			}
			cancel()
		}
		switch {
		case working.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrLost, err)
		case t.left() <= 0:
			return ErrInDoubt
		case e.opt.RenewOnHeartbeat && !beat:
			continue
		}
		err = p.confirm(working, t, beat)
		if errors.Is(err, ErrLost) || errors.Is(err, ErrInDoubt) || errors.Is(err, ErrPooler) {
			return err
		}
		due = t.asked + e.timing.question
		if err != nil {
			e.report(fmt.Errorf("cannot confirm leadership of election %q: %w", t.election, err))
			if beat {
				t.Heartbeat()
			}
			due = e.now() + e.timing.retry
		}
	}
}

// work runs the job, unless leadership has ended meanwhile.
func (e *Elector) work(ctx context.Context, t *Term) (err error) {
	e.try("OnElected", func() {
		if e.opt.OnElected != nil {
			e.opt.OnElected(t)
		}
	})
	if t.IsLeading() {
		err = recovered(func() error { return e.job(ctx, t) })
	}
	return err
}

// try calls a callback and reports it if it panics.
func (e *Elector) try(name string, callback func()) {
	if err := recovered(func() error { callback(); return nil }); err != nil {
		e.report(fmt.Errorf("%s failed: %w", name, err))
	}
}

// report calls OnError.
func (e *Elector) report(err error) {
	e.reporting.Lock()
	defer e.reporting.Unlock()
	if failure := recovered(func() error { e.opt.OnError(err); return nil }); failure != nil {
		slog.Error("leader election: OnError failed", "election", e.election, "failure", failure, "error", err)
	}
}

// recovered calls f and returns its error, or its panic as an error.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// ask asks a question that has to be answered in time, also after a stop.
func (e *Elector) ask(ctx context.Context, q Querier, sql string, args []any, dest ...any) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.timing.answer)
	defer cancel()
	return q.QueryRow(ctx, sql, args, dest...)
}

func (e *Elector) newTerm(election string, token int64) *Term {
	return &Term{election: election, token: token, timing: e.timing, now: e.now, progress: make(chan struct{}, 1), report: e.report}
}

// interval returns d as PostgreSQL's text.
func interval(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) + " us" }
