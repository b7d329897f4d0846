package client

import (
	"fmt"
	"sync"

	"leader_election/proof/event"
)

// about begins the record of a call about a term.
func about(do string, t *term) event.Record {
	return event.Record{Do: do, Election: t.String(), Scope: t.scope, Token: t.token}
}

// ask runs a call that returns true or false.
func (c *client) ask(s *session, r event.Record, query string, args ...any) (event.Record, int64) {
	return c.call(s, r, func(answer *event.Record) error {
		var is bool
		err := s.row(soon, []any{&is}, query, args...)
		answer.Outcome = truth(is)
		return err
	})
}

// am asks whether the session leads, or the lease runs.
func (c *client) am(s *session, t *term) {
	if s == nil {
		return
	}
	var answer event.Record
	switch {
	case t.scope == event.ByLease:
		answer, _ = c.ask(s, about(event.Am, t), "SELECT le_am_leader($1::text, $2::bigint)", t.name, t.token)
	case c.chance(0.5):
		r := about(event.Am, t)
		r.Identity = c.identity()
		answer, _ = c.ask(s, r, "SELECT le_am_leader($1::text, identity => $2::text)", t.name, r.Identity)
	default:
		answer, _ = c.ask(s, about(event.Am, t), "SELECT le_am_leader($1::text)", t.name)
	}
	t.ended = t.ended || answer.Outcome == event.False
}

// look reads which term le_leader shows.
func (c *client) look(s *session, e election) {
	if s == nil {
		return
	}
	c.call(s, event.Record{Do: event.Look, Election: e.String()}, func(answer *event.Record) error {
		var rows int
		var token *int64
		var identity, scope *string
		err := s.row(soon, []any{&rows, &token, &identity, &scope},
			"SELECT count(*), min(token), min(identity), min(scope) FROM le_leader($1::text)", e.name)
		answer.Outcome = truth(rows > 0)
		answer.Identity, answer.Scope = text(identity), text(scope)
		if token != nil {
			answer.Token = *token
		}
		if rows > 1 {
			answer.Message = fmt.Sprintf("%d rows", rows)
		}
		return err
	})
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// renew renews a lease by one of the two functions, sometimes with another ttl.
func (c *client) renew(t *term) {
	s := c.either()
	if s == nil {
		return
	}
	r, span := about(event.Renew, t), t.span
	if c.chance(0.2) {
		span = c.ttl()
	}
	r.TTL = int64(span)
	var answer event.Record
	var sent int64
	if c.chance(0.6) {
		given := interval(span)
		if span == t.span {
			given = nil
		}
		answer, sent = c.ask(s, r, "SELECT le_renew($1::text, $2::bigint, $3::interval)", t.name, t.token, given)
	} else {
		r.Identity = c.identity()
		answer, sent = c.call(s, r, func(answer *event.Record) error {
			return s.token(soon, answer, "SELECT le_lease($1::text, $2::interval, identity => $3::text, token => $4::bigint)",
				t.name, interval(span), r.Identity, t.token)
		})
	}
	switch {
	case answer.Outcome == event.False:
		t.ended = true
	case answer.Outcome == event.True && answer.Token != t.token: // a new one
		c.lost(&term{election: t.election, scope: t.scope, token: t.token})
		t.token = answer.Token
		fallthrough
	case answer.Outcome == event.True:
		t.span = span
		t.extended(sent)
	case span != t.span: // which ttl it has now is not known
		t.span = min(span, t.span)
	}
}

// beat gives a heartbeat, from the session that leads or from another one.
func (c *client) beat(t *term) {
	s, r := t.s, about(event.Heartbeat, t)
	query, args := "SELECT le_heartbeat($1::text)", []any{t.name}
	if c.chance(0.4) {
		s, query, args = c.other(), "SELECT le_heartbeat($1::text, $2::bigint)", append(args, t.token)
	}
	if s == nil || s.closed {
		return
	}
	r.Beat = int64(t.span)
	answer, sent := c.ask(s, r, query, args...)
	if answer.Outcome == event.True {
		t.extended(sent)
	}
	t.ended = t.ended || answer.Outcome == event.False
}

// again bids while the session leads: the term goes on, with the same token.
func (c *client) again(t *term) {
	if t.s == nil {
		return
	}
	r := event.Record{Do: event.Try, Election: t.String(), Scope: t.scope, Identity: c.identity()}
	query := "SELECT le_try_become_leader($1::text, identity => $2::text), le_token($1::text)"
	if c.chance(0.3) {
		r.Do, r.Waits = event.Wait, true
		c.settlePrepared(never)
		query = "SELECT le_become_leader($1::text, identity => $2::text), le_token($1::text)"
	}
	l := limit{after: patience, waits: r.Waits}
	answer, _ := c.call(t.s, r, func(answer *event.Record) error {
		return t.s.bool(l, answer, query, t.name, r.Identity)
	})
	switch {
	case answer.Outcome == event.False:
		t.ended = true
	case answer.Outcome == event.True && answer.Token != t.token: // a new one, without a heartbeat
		c.lost(&term{election: t.election, scope: t.scope, token: t.token})
		t.token, t.span, t.until = answer.Token, 0, never
	}
}

// resign ends a term.
func (c *client) resign(s *session, t *term) {
	r := about(event.Resign, t)
	var answer event.Record
	switch {
	case t.scope == event.ByLease:
		answer, _ = c.ask(s, r, "SELECT le_resign($1::text, $2::bigint)", t.name, t.token)
	default:
		answer, _ = c.ask(s, r, "SELECT le_resign($1::text)", t.name)
	}
	t.ended = t.ended || answer.Outcome == event.True || answer.Outcome == event.False
}

// resignWhileWriting resigns while another session has a transaction that the term guards: its commit must fail.
func (c *client) resignWhileWriting(s *session, t *term) {
	writer := c.other()
	if writer == nil || writer == s {
		return
	}
	c.write(writer, t, writing{during: func() { c.resign(s, t) }})
}

// discard has the session lose its locks, with which a term in session scope ends.
func (c *client) discard(s *session, t *term) {
	statement := "DISCARD ALL"
	if c.chance(0.4) {
		statement = "SELECT pg_advisory_unlock_all()"
	}
	r := about(event.Discard, t)
	r.Message = statement
	c.call(s, r, func(answer *event.Record) error {
		answer.Outcome = event.True
		return s.exec(statement)
	})
	t.ended = true
}

// discardWhileWriting has the leader lose its locks while another session has a transaction that the term guards, which
// keeps a candidate from being elected.  Meanwhile, a further session writes by the term.
func (c *client) discardWhileWriting(s *session, t *term) {
	writer, mate := c.other(), c.join(1)
	if writer == nil || writer == s || mate.mine() == nil {
		return
	}
	late := *t
	late.s = nil // with the token
	var waiting sync.WaitGroup
	defer waiting.Wait()
	c.write(writer, t, writing{during: func() {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			mate.waitAndYield(t.election, nil)
		}()
		c.sleep(c.between(0, 30)) // until it is in line
		c.discard(s, t)
		var third *session
		defer c.drop(&third)
		for range 3 {
			c.sleep(c.between(0, 10)) // until it has noticed
			c.write(c.openAny(&third), &late, writing{level: "read committed"})
		}
	}})
}

// depose ends the term of any leader, except of this session.
func (c *client) depose(s *session, e election) {
	c.ask(s, event.Record{Do: event.Depose, Election: e.String()}, "SELECT le_depose($1::text, 'by the history')", e.name)
}
