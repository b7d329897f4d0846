package leaderelection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// A Schedule returns the due time that follows another one, or the zero time
// if there is none.
type Schedule interface {
	Next(time.Time) time.Time
}

// A ScheduleFunc is a [Schedule].
type ScheduleFunc func(last time.Time) time.Time

// Next calls f.
func (f ScheduleFunc) Next(last time.Time) time.Time { return f(last) }

// An Interval is the [Schedule] of its multiples since 2000-01-01 00:00 UTC.
// [Every] and [Due] refuse one below a second.
type Interval time.Duration

// Next returns the first multiple after a time, or the zero time if the
// interval is not positive.
func (i Interval) Next(last time.Time) time.Time {
	d := time.Duration(i)
	if d <= 0 {
		return time.Time{}
	}
	since := last.Sub(epoch)
	next := since.Truncate(d) // towards zero
	if next <= since {
		next += d
	}
	return epoch.Add(next)
}

// InZone makes a [Schedule] of one of times of the day, which is asked, as if it
// was in UTC, for what the clocks of a zone show. A time that they show twice is
// due the first time, and one that they leave out when they are put forward.
// It returns an error if either is nil, and for an [Interval].
func InZone(zone *time.Location, schedule Schedule) (Schedule, error) {
	if _, ok := schedule.(Interval); ok || zone == nil || schedule == nil {
		return nil, errors.New("leaderelection: a zone and a schedule must not be nil, and an interval has no zone")
	}
	return zoned{zone, schedule}, nil
}

type zoned struct {
	zone     *time.Location
	schedule Schedule
}

func (z zoned) Next(last time.Time) time.Time {
	_, offset := last.In(z.zone).Zone()
	shown := last.UTC().Add(time.Duration(offset) * time.Second)
	next := z.schedule.Next(shown)
	for ; next.After(shown); shown, next = next, z.schedule.Next(next) {
		if due := z.place(next); due.After(last) {
			return due
		}
	}
	if next.IsZero() {
		return next
	}
	return last // which is refused
}

// place returns the first time when the clocks show a time, or a later one.
func (z zoned) place(shown time.Time) time.Time {
	for at := shown.Add(-day).In(z.zone); ; {
		_, offset := at.Zone()
		due := shown.Add(-time.Duration(offset) * time.Second).In(z.zone)
		if due.Before(at) { // the clocks were put forward over it
			due = at
		}
		_, end := at.ZoneBounds()
		if end.IsZero() || due.Before(end) {
			return due
		}
		at = end
	}
}

// dueTime returns the last time that is due after another one, or the zero
// time, and where to go on.
func dueTime(schedule Schedule, last, now time.Time) (due, next time.Time, err error) {
	if i, ok := schedule.(Interval); ok && now.Sub(last) > time.Duration(i) {
		last = now.Add(-time.Duration(i))
	}
	for passed := 0; ; passed++ {
		following := schedule.Next(last)
		switch {
		case following.IsZero() || following.After(now):
			return due, last, nil
		case !following.After(last):
			return due, last, errors.New("a schedule must return a later time")
		case passed == 10000:
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
// The job calls [Term.Heartbeat] each second, but not during the task.
//
// Every returns an error if an argument is nil, or an [Interval] is below a
// second.
func Every(pool *pgxpool.Pool, schedule Schedule, task func(ctx context.Context, tx pgx.Tx, due time.Time) error) (Job, error) {
	if pool == nil || task == nil {
		return Due(nil, nil)
	}
	return Due(schedule, func(ctx context.Context, term *Term, due time.Time) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var first bool
			var begun, ends int64
			err := tx.QueryRow(ctx, term.OnceSQL(due)+", pg_catalog.txid_current()", pgx.QueryExecModeExec).Scan(&first, &begun)
			if err != nil || !first {
				return err
			}
			if err = task(ctx, tx, due); err != nil {
				return err
			}
			// the task can have ended the transaction, and begun another
			err = tx.QueryRow(ctx, "SELECT pg_catalog.txid_current()", pgx.QueryExecModeExec).Scan(&ends)
			if err == nil && ends != begun {
				err = errors.New("the task has ended its transaction")
			}
			return err
		})
	})
}

// Due makes a [Job], as [Every] does, of a task that begins a transaction by
// itself, and does there what is to be done if [Term.Once] returns true. It
// returns the errors of Every.
func Due(schedule Schedule, task func(ctx context.Context, term *Term, due time.Time) error) (Job, error) {
	if i, ok := schedule.(Interval); schedule == nil || task == nil || ok && time.Duration(i) < time.Second {
		return nil, errors.New("leaderelection: a pool, a task and a schedule must not be nil, and an interval must be at least a second")
	}
	return func(ctx context.Context, term *Term) error {
		var last time.Time
		for {
			term.Heartbeat()
			if err := caughtIn(ctx, func() error { return term.tick(ctx, schedule, &last, task) }); err != nil {
				term.elector.post(func() { term.elector.m.report(err) })
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		}
	}, nil
}

// tick does the task if a time is due.
func (t *Term) tick(ctx context.Context, schedule Schedule, last *time.Time, task func(context.Context, *Term, time.Time) error) error {
	var micros int64 // since 1970, as text would be in the session's zone and style
	var done *int64
	q := query{`SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
		(SELECT (extract(epoch FROM due) * 1000000)::bigint FROM le_once_done WHERE name = $1::text)`, []any{t.election}, []any{&micros, &done}}
	asking, cancel := context.WithTimeout(ctx, followWay.limit) // a pool can have none to give
	defer cancel()
	if err := q.ask(asking, t.elector.opt, t.elector.pool); err != nil {
		return fmt.Errorf("cannot ask which task is due: %w", err)
	}
	if last.IsZero() {
		*last = time.UnixMicro(*cmp.Or(done, &micros)).UTC()
	}
	due, next, err := dueTime(schedule, *last, time.UnixMicro(micros))
	if err != nil {
		return fmt.Errorf("no task is due in election %q: %w", t.election, err)
	}
	if !due.IsZero() {
		if err = explained(caught(func() error { return task(ctx, t, due) })); err != nil {
			return fmt.Errorf("the task of %v in election %q failed: %w", due.UTC(), t.election, err)
		}
	}
	*last = next
	return nil
}
