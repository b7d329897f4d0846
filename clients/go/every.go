package leaderelection

import (
	"context"
	"fmt"
	"time"
)

// Every makes a [Job] of a task that is to be done once for each point in
// time. The points in time are multiples of the interval, counted from
// 2000-01-01 00:00 UTC by the server's clock.
//
// The task runs in a transaction, on a connection of its own, which records
// that it is done. If the task or the commit fails, then neither has happened;
// that is reported, and the task is tried again a second later. What the
// transaction does to the database is done at most once for each point in
// time, by whichever leader. Points in time for which there was no leader are
// left out, except the last one.
//
// The job calls [Term.Heartbeat] each second and after each task. Every panics
// if the interval is shorter than a microsecond.
func Every[Tx any](db Transactor[Tx], every time.Duration, task func(ctx context.Context, tx Tx, due time.Time) error) Job {
	if every < time.Microsecond {
		panic("leaderelection: the interval of Every is too short")
	}
	return func(ctx context.Context, term *Term) error {
		var last time.Time
		for {
			term.Heartbeat()
			due, err := nextDue(ctx, db, every, term.timing.answer)
			if err == nil && !due.Equal(last) {
				if err = once(ctx, db, term, due, task); err == nil {
					last = due
				}
				term.Heartbeat()
			}
			if err != nil && ctx.Err() == nil {
				term.report(err)
			}
			if !sleep(ctx, time.Second) {
				return nil
			}
		}
	}
}

// nextDue asks which point in time was the last one.
func nextDue(ctx context.Context, q Querier, every, answer time.Duration) (due time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	const sql = "SELECT date_bin($1::interval, clock_timestamp(), '2000-01-01 00:00+00')"
	if err = q.QueryRow(ctx, sql, []any{interval(every)}, &due); err != nil {
		err = fmt.Errorf("cannot ask which task is due: %w", err)
	}
	return due, err
}

// once runs the task that is due, unless it is done.
func once[Tx any](ctx context.Context, db Transactor[Tx], term *Term, due time.Time, task func(context.Context, Tx, time.Time) error) error {
	err := db.Transact(ctx, func(tx Tx, q Querier) error {
		const sql = "SELECT le_once($1::text, $2::timestamptz, $3::bigint)"
		var first bool
		if err := q.QueryRow(ctx, sql, []any{term.election, due, term.token}, &first); err != nil || !first {
			return err
		}
		return task(ctx, tx, due)
	})
	if err != nil {
		return fmt.Errorf("the task of %v in election %q failed: %w", due.UTC(), term.election, err)
	}
	return nil
}
