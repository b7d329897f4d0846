package leaderelection

import "time"

// leaseWay leads by a lease. Each statement may use another connection.
func leaseWay(ttl time.Duration) way {
	return way{bid: "bid", interval: ttl / 3, between: min(time.Second, ttl/3), validity: ttl * 2 / 3,
		limit: min(5*time.Second, ttl/3), patience: min(5*time.Second, ttl/5), retry: min(time.Second, ttl/10)}
}

// lease returns a statement by a lease.
func (e *Elector) lease(a action, r *answer) query {
	ttl, who := interval(e.opt.TTL), e.opt.Identity
	switch {
	case a.what == "resign":
		return query{`SELECT le_resign($1::text, $2::bigint)`, []any{a.term.election, a.term.token}, []any{&r.leads}}
	case a.what == "confirm":
		return query{`SELECT le_renew($1::text, $2::bigint)`, []any{a.term.election, a.term.token}, []any{&r.leads}}
	case a.term != nil: // take it again, or the same seat
		r.name = &a.term.election
		return query{leaseSQL, []any{a.term.election, ttl, who, a.term.token}, []any{&r.token}}
	case e.opt.Seats > 0:
		return e.bid(`CALL le_campaign($1::text, timeout => '0', ttl => $2::interval, identity => $3::text)`, e.opt.TTL, r)
	}
	return query{leaseSQL, []any{e.m.election, ttl, who, nil}, []any{&r.token}}
}

const leaseSQL = `SELECT le_lease($1::text, $2::interval, identity => $3::text, token => $4::bigint)`
