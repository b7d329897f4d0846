package leaderelection

import (
	"context"
	"fmt"
)

// A lease is a post that needs no connection of its own.
type lease struct{ *Elector }

// bid is not cancelled by a stop, as a lease could be granted nonetheless.
func (l *lease) bid(ctx context.Context) (*Term, error) {
	sql, seat, last := "SELECT le_lease($1::text, $2::interval, identity => $3::text, token => $4::bigint)", l.election, any(nil)
	args := []any{seat, interval(l.opt.TTL), l.opt.Identity}
	var token *int64
	name := &seat
	dest := []any{&token}
	switch {
	case l.left != nil: // take it again
		seat, last = l.left.election, l.left.token
		args[0], args = seat, append(args, last)
	case l.opt.Seats > 0:
		sql = "CALL le_campaign(le_seats($1::text, $4::integer), timeout => '0', ttl => $2::interval, identity => $3::text)"
		args, dest = append(args, l.opt.Seats), append(dest, &name)
	default:
		args = append(args, nil)
	}
	asked := l.now()
	if err := l.ask(ctx, l.db, sql, args, dest...); err != nil {
		return nil, fmt.Errorf("cannot bid for the lease of election %q: %w", l.election, err)
	}
	l.failures, l.left = 0, nil
	if token == nil {
		return nil, nil
	}
	t := l.newTerm(*name, *token)
	return t, t.extend(asked, asked+l.opt.TTL*2/3)
}

func (l *lease) confirm(ctx context.Context, t *Term, _ bool) error {
	var runs bool
	asked := l.now()
	err := l.ask(ctx, l.db, "SELECT le_renew($1::text, $2::bigint)", []any{t.election, t.token}, &runs)
	if err != nil {
		return err
	}
	if !runs {
		return ErrLost
	}
	return t.extend(asked, asked+l.opt.TTL*2/3)
}

func (l *lease) wait(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (l *lease) resign(ctx context.Context, t *Term) error {
	var resigned bool
	err := l.ask(ctx, l.db, "SELECT le_resign($1::text, $2::bigint)", []any{t.election, t.token}, &resigned)
	if err != nil {
		l.left = t
	}
	return err
}

func (l *lease) close() {}
