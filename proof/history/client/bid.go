package client

import (
	"database/sql"
	"fmt"
	"strings"
	"time"

	"leader_election/proof/event"
)

// term is what the client has won.
type term struct {
	election
	scope string
	token int64
	s     *session      // which leads, unless it is a lease
	span  time.Duration // the ttl or the heartbeat, if it has one
	until int64         // when the client counts it as over; never without a span
	ended bool          // the client knows that it does not lead any more
}

// extended notes that the term runs for its span from when a call was sent.
func (t *term) extended(sent int64) {
	t.until = never
	if t.span > 0 {
		t.until = sent + int64(t.span)
	}
}

func (t *term) runs() bool {
	return !t.ended && event.Now() < t.until
}

// lost notes that the term has ended, and keeps its token for late writes.
func (c *client) lost(t *term) {
	t.ended = true
	if len(c.stale) < 20 {
		c.stale = append(c.stale, t)
	} else {
		c.stale[c.rng.IntN(len(c.stale))] = t
	}
}

// patienceOf returns the limit of a bid that waits.
func (c *client) patienceOf(timeout time.Duration) limit {
	if timeout > 0 && (!c.may(Cancel) || c.chance(0.8)) {
		return limit{after: timeout + patience, waits: true}
	}
	return limit{after: c.between(100, 2000), cancel: c.may(Cancel) && c.chance(0.7), waits: true}
}

// ttl returns that of a lease.  Some leases outlast a failover.
func (c *client) ttl() time.Duration {
	if c.LongTTL {
		return c.between(3500, 5000)
	}
	if c.chance(0.25) {
		return c.between(1500, 4500)
	}
	return c.between(200, 1500)
}

// timeout returns that of a bid that waits; 0 is none.
func (c *client) timeout() time.Duration {
	switch {
	case c.chance(0.35):
		return 0
	case c.chance(0.2):
		return c.between(1, 30)
	}
	return c.between(100, 1500)
}

// bid stands for election in session scope, in one of the ways that there are.
func (c *client) bid(s *session, e election, beat time.Duration) *term {
	r := event.Record{Election: e.String(), Scope: event.Session, Identity: c.identity(), Beat: int64(beat)}
	var won event.Record
	var sent int64
	switch n := c.rng.IntN(3); {
	case n == 0:
		won, sent = c.try(s, e, r)
	case n == 1:
		won, sent = c.wait(s, e, r)
	default:
		won, sent = c.campaign(s, e, r)
	}
	if won.Outcome != event.True {
		c.clear(s, e, won)
		return nil
	}
	t := &term{election: e, scope: event.Session, token: won.Token, s: s, span: beat}
	t.extended(sent)
	return t
}

// try bids without waiting, a few times.
func (c *client) try(s *session, e election, r event.Record) (won event.Record, sent int64) {
	r.Do = event.Try
	for range 1 + c.rng.IntN(6) {
		won, sent = c.call(s, r, func(answer *event.Record) error {
			return s.bool(soon, answer, "SELECT le_try_become_leader($1::text, identity => $2::text, heartbeat => $3::interval), le_token($1::text)",
				e.name, c.identity(), interval(time.Duration(r.Beat)))
		})
		if won.Outcome != event.False || c.over() {
			break
		}
		c.sleep(c.between(2, 40))
	}
	return won, sent
}

// wait bids by SELECT, and waits.
func (c *client) wait(s *session, e election, r event.Record) (event.Record, int64) {
	timeout := c.timeout()
	r.Do, r.Waits, r.Timeout = event.Wait, true, int64(timeout)
	c.settlePrepared(never)
	return c.call(s, r, func(answer *event.Record) error {
		return s.bool(c.patienceOf(timeout), answer, "SELECT le_become_leader($1::text, $2::interval, identity => $3::text, heartbeat => $4::interval), le_token($1::text)",
			e.name, interval(timeout), c.identity(), interval(time.Duration(r.Beat)))
	})
}

// campaign waits without a snapshot.
func (c *client) campaign(s *session, e election, r event.Record) (event.Record, int64) {
	timeout := c.timeout()
	r.Do, r.Waits, r.Timeout = event.Campaign, true, int64(timeout)
	c.settlePrepared(never)
	return c.call(s, r, func(answer *event.Record) error {
		return s.token(c.patienceOf(timeout), answer,
			"CALL le_campaign($1::text, timeout => $2::interval, identity => $3::text, heartbeat => $4::interval)",
			e.name, interval(timeout), c.identity(), interval(time.Duration(r.Beat)))
	})
}

// clear sees to a session that may lead after a bid of which the outcome is not known.
func (c *client) clear(s *session, e election, bid event.Record) {
	if bid.Outcome != event.Unknown || s.closed {
		return
	}
	if c.chance(0.3) {
		s.close(c.chance(0.5))
		return
	}
	t := &term{election: e, scope: event.Session, s: s}
	if c.am(s, t); !s.closed {
		c.resign(s, t)
	}
}

// bool runs a bid that returns whether it was elected, and with which token.
func (s *session) bool(l limit, answer *event.Record, query string, args ...any) error {
	var elected bool
	var token sql.NullInt64
	err := s.row(l, []any{&elected, &token}, query, args...)
	answer.Token, answer.Outcome = token.Int64, truth(elected)
	if err == nil && elected != token.Valid {
		answer.Message = fmt.Sprintf("%s, token %v", answer.Outcome, token)
		answer.Outcome = event.Unknown // a heartbeat was missing in between
	}
	return err
}

// token runs a call that returns a token or NULL.
func (s *session) token(l limit, answer *event.Record, query string, args ...any) error {
	var token sql.NullInt64
	err := s.row(l, []any{&token}, query, args...)
	answer.Token, answer.Outcome = token.Int64, truth(token.Valid)
	return err
}

// bidForLease takes a lease, or waits for it, which occupies the connection.
func (c *client) bidForLease(e election) *term {
	ttl := c.ttl()
	r := event.Record{Election: e.String(), Scope: event.ByLease, Identity: c.identity(), TTL: int64(ttl), Do: event.Lease}
	var won event.Record
	var sent int64
	if c.Through != PoolerTransaction && c.chance(0.4) {
		won, sent = c.campaignForLease(e, r)
	} else {
		won, sent = c.pollLease(e, r)
	}
	if won.Outcome != event.True {
		return nil
	}
	t := &term{election: e, scope: event.ByLease, token: won.Token, span: ttl}
	t.extended(sent)
	if won.Waits { // when it began is not known
		c.renew(t)
	}
	return t
}

func (c *client) campaignForLease(e election, r event.Record) (won event.Record, sent int64) {
	s, timeout := c.mine(), c.timeout()
	if s == nil {
		return won, 0
	}
	r.Waits, r.Timeout = true, int64(timeout)
	c.settlePrepared(never)
	return c.call(s, r, func(answer *event.Record) error {
		return s.token(c.patienceOf(timeout), answer,
			"CALL le_campaign($1::text, timeout => $2::interval, identity => $3::text, ttl => $4::interval)",
			e.name, interval(timeout), c.identity(), interval(time.Duration(r.TTL)))
	})
}

func (c *client) pollLease(e election, r event.Record) (won event.Record, sent int64) {
	for range 1 + c.rng.IntN(6) {
		s := c.either()
		if s == nil {
			return won, 0
		}
		won, sent = c.call(s, r, func(answer *event.Record) error {
			return s.token(soon, answer, "SELECT le_lease($1::text, $2::interval, identity => $3::text)",
				e.name, interval(time.Duration(r.TTL)), c.identity())
		})
		if won.Outcome != event.False || c.over() {
			break
		}
		c.sleep(c.between(5, 100))
	}
	return won, sent
}

// bidForMany waits for any of many elections.  That of a lease occupies the connection as well.
func (c *client) bidForMany(names []string, seats string) *term {
	s, timeout := c.mine(), c.timeout()
	if s == nil || c.Through == PoolerTransaction {
		return nil
	}
	r := event.Record{Do: event.Many, Elections: names, Scope: event.Session, Identity: c.identity(), Waits: true,
		Timeout: int64(timeout)}
	if c.chance(0.4) {
		r.Scope, r.TTL = event.ByLease, int64(c.ttl())
	} else if c.chance(0.3) {
		r.Beat = int64(c.between(100, 800))
	}
	array, list := "$1::text[]", "{"+strings.Join(names, ",")+"}"
	if seats != "" {
		array, list = "le_seats($1::text, 3)", seats
	}
	c.settlePrepared(never)
	won, sent := c.call(s, r, func(answer *event.Record) error {
		var token sql.NullInt64
		var name sql.NullString
		err := s.row(c.patienceOf(timeout), []any{&token, &name}, "CALL le_campaign("+array+`,
			timeout => $2::interval, identity => $3::text, ttl => $4::interval, heartbeat => $5::interval)`,
			list, interval(timeout), c.identity(), interval(time.Duration(r.TTL)), interval(time.Duration(r.Beat)))
		answer.Token, answer.Election, answer.Outcome = token.Int64, name.String, truth(token.Valid)
		return err
	})
	if won.Outcome == event.Unknown {
		s.close(c.chance(0.5)) // which election it may lead is not known
	}
	if won.Outcome != event.True {
		return nil
	}
	t := &term{election: election{name: won.Election}, scope: r.Scope, token: won.Token, s: s,
		span: time.Duration(r.TTL + r.Beat)}
	t.extended(sent)
	if r.Scope == event.ByLease {
		t.s = nil
		c.renew(t)
	} else if t.span > 0 {
		c.beat(t)
	}
	return t
}
