package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// A Schedule returns the due time that follows another one, or the zero time
// if there is none. The schedules of github.com/robfig/cron are such.
type Schedule interface {
	Next(time.Time) time.Time
}

// A ScheduleFunc is a [Schedule].
type ScheduleFunc func(last time.Time) time.Time

// Next calls f.
func (f ScheduleFunc) Next(last time.Time) time.Time { return f(last) }

// An Interval is the [Schedule] of its multiples since 2000-01-01 00:00 UTC.
// It is at least a second.
type Interval time.Duration

// Next returns the first multiple after a time.
func (i Interval) Next(last time.Time) time.Time {
	d := time.Duration(i)
	return epoch.Add((last.Sub(epoch)/d + 1) * d)
}

// dueTime returns the last time that is due after another one, or the zero
// time, and where to go on.
func dueTime(schedule Schedule, last, now time.Time) (due, next time.Time, err error) {
	if i, ok := schedule.(Interval); ok {
		if skip := now.Add(-time.Duration(i)); skip.After(last) {
			last = skip
		}
	}
	for passed := 0; ; passed++ {
		following := schedule.Next(last)
		if following.IsZero() || following.After(now) {
			return due, last, nil
		}
		if !following.After(last) {
			return due, last, errors.New("a schedule must return a later time")
		}
		if passed == 10000 {
			return time.Time{}, last, nil
		}
		due, last = following, following
	}
}

// Every makes a [Job] of a task that is to be done once for each due time, by
// the server's clock.
//
// The task runs in a transaction, on a connection of its own, which records
// that it is done. If the task or the commit fails, then neither has happened;
// that is reported, and the task is tried again a second later. What the
// transaction does to the database is done at most once for each due time, by
// whichever leader. Of due times that were missed, the last one only is done.
//
// The job calls [Term.Heartbeat] each second, but not during the task. Every
// panics if an interval is shorter than a second.
func Every(pool *pgxpool.Pool, schedule Schedule, task func(ctx context.Context, tx pgx.Tx, due time.Time) error) Job {
	if i, ok := schedule.(Interval); ok && time.Duration(i) < time.Second {
		panic("leaderelection: the interval of Every is shorter than a second")
	}
	return func(ctx context.Context, term *Term) error {
		var last time.Time
		for {
			term.Heartbeat()
			err := caught(func() error { return tick(ctx, pool, term, schedule, &last, task) })
			if err != nil && ctx.Err() == nil {
				term.elector.post(func() { term.elector.m.report(err) })
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		}
	}
}

// tick does the task if a time is due.
func tick(ctx context.Context, pool *pgxpool.Pool, term *Term, schedule Schedule, last *time.Time, task func(context.Context, pgx.Tx, time.Time) error) error {
	o := term.elector.opt
	var now time.Time
	var done *time.Time
	q := query{`SELECT clock_timestamp(), (SELECT due FROM le_once_done WHERE name = $1::text)`, []any{term.election}, []any{&now, &done}}
	if err := q.ask(ctx, o, pool); err != nil {
		return fmt.Errorf("cannot ask which task is due: %w", err)
	}
	if last.IsZero() {
		*last = now
		if done != nil {
			*last = *done
		}
	}
	due, next, err := dueTime(schedule, *last, now)
	if err != nil {
		return fmt.Errorf("no task is due in election %q: %w", term.election, err)
	}
	if !due.IsZero() {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var first bool
			q := query{`SELECT le_once($1::text, $2::timestamptz, $3::bigint)`, []any{term.election, due, term.token}, []any{&first}}
			if err := q.ask(ctx, o, tx); err != nil || !first {
				return err
			}
			return explained(task(ctx, tx, due))
		})
	}
	if err != nil {
		return fmt.Errorf("the task of %v in election %q failed: %w", due.UTC(), term.election, err)
	}
	*last = next
	return nil
}
