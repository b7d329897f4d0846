package client

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"leader_election/proof/event"
)

func (c *client) leadInSession() {
	if s := c.mine(); s != nil {
		c.serve(c.bid(s, c.job(), 0))
	}
}

func (c *client) leadWithHeartbeat() {
	if s := c.mine(); s != nil {
		t := c.bid(s, c.job(), c.between(100, 800))
		if t != nil && !t.runs() { // it has waited
			c.beat(t)
		}
		c.serve(t)
	}
}

func (c *client) leadByLease() {
	c.serve(c.bidForLease(c.job()))
}

func (c *client) leadOneOfMany() {
	var names []string
	for k := range c.Elections {
		names = append(names, fmt.Sprintf("job-%d.%d", 1+k, c.epoch()))
	}
	c.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if len(names) > 1 {
		names = names[:2+c.rng.IntN(len(names)-1)]
	}
	c.serve(c.bidForMany(names, ""))
}

func (c *client) takeSeat() {
	pool := fmt.Sprintf("pool-%d.%d", 1+c.rng.IntN(c.Elections), c.epoch())
	c.serve(c.bidForMany([]string{pool + "/1", pool + "/2", pool + "/3"}, pool))
}

// follow observes an election for a while.
func (c *client) follow() {
	e, end := c.job(), event.Now()+int64(c.between(300, 1500))
	after := int64(0)
	for event.Now() < end && !c.over() {
		s := c.other()
		if s == nil {
			return
		}
		after = c.observe(s, e, after)
	}
}

func (c *client) lookAround() {
	for range 1 + c.rng.IntN(5) {
		s, e := c.either(), c.job()
		if s == nil {
			return
		}
		c.look(s, e)
		c.sleep(c.between(0, 20))
	}
}

func (c *client) deposeAny() {
	if s := c.either(); s != nil {
		c.depose(s, c.job())
	}
}

// finalPatience outlasts any lease that clients have left, also if it runs once more after a failover.
const finalPatience = 12 * time.Second

// leadEach leads each of the elections, in a random order, to show that none is stuck.
func (c *client) leadEach(names []string) {
	for _, i := range c.rng.Perm(len(names)) {
		for led := false; !led && !c.over(); {
			led = c.leadOnce(election{name: names[i]})
		}
	}
}

func (c *client) leadOnce(e election) bool {
	s := c.mine()
	if s == nil {
		return false
	}
	r := event.Record{Do: event.Campaign, Election: e.String(), Scope: event.Session, Identity: c.identity(), Waits: true,
		Timeout: int64(finalPatience), Mark: event.Final}
	won, _ := c.call(s, r, func(answer *event.Record) error {
		return s.token(limit{after: finalPatience + patience, waits: true}, answer,
			"CALL le_campaign($1::text, timeout => $2::interval, identity => $3::text)", e.name, interval(finalPatience),
			r.Identity)
	})
	if won.Outcome != event.True {
		c.clear(s, e, won)
		return false
	}
	t := &term{election: e, scope: event.Session, token: won.Token, s: s, until: never}
	c.write(s, t, writing{mark: event.First, guard: "assert"})
	if !s.closed {
		c.resign(s, t)
	}
	c.settlePrepared(never) // the next leader waits for what this term guards
	return true
}

// serve uses a term in session scope or a lease: works while it leads, and then ends it in one of many ways.
func (c *client) serve(t *term) {
	if t == nil {
		return
	}
	if c.chance(0.85) {
		c.write(c.writer(t), t, writing{mark: event.First})
	}
	end := min(event.Now()+int64(c.duration(t)), c.epochEnd())
	for event.Now() < end && t.runs() && !c.over() && (t.s == nil || !t.s.closed) {
		c.act(t)
	}
	if t.span > 0 && !t.runs() && !t.ended { // not in time; is it still its own?
		c.extend(t)
	}
	if !t.ended && (t.s == nil || !t.s.closed) {
		c.leave(t)
	}
	c.lost(t)
	c.settlePrepared(event.Now())
	for c.may(Late) && c.chance(0.15) {
		c.writeLate()
	}
}

// duration returns how long the client wants to lead.
func (c *client) duration(t *term) time.Duration {
	if t.span > 0 && c.chance(0.5) {
		return time.Duration(c.rng.Float64() * 2.5 * float64(t.span))
	}
	return c.between(0, 300)
}

// act does one thing that a leader does.
func (c *client) act(t *term) {
	if t.span > 0 && t.until-event.Now() < int64(t.span)*2/3 && c.chance(0.7) {
		c.extend(t)
		return
	}
	switch c.rng.IntN(12) {
	case 0, 1:
		c.am(c.leading(t), t)
	case 2, 3, 4:
		c.write(c.writer(t), t, writing{})
	case 5:
		c.writeOnce(t)
	case 6:
		c.look(c.either(), t.election)
	case 7:
		c.look(c.other(), t.election)
	case 8:
		s := c.other()
		if version := c.observe(s, t.election, 0); c.chance(0.5) {
			c.observe(s, t.election, version)
		}
	case 9:
		c.again(t)
	case 10:
		c.late(t)
	default:
		c.sleep(c.between(0, 40))
	}
}

// late lets a term with a span run until just about its end.
func (c *client) late(t *term) {
	if left := t.until - event.Now(); t.span > 0 && c.chance(0.3) {
		c.sleep(time.Duration(left) + c.between(-5, 5) + time.Duration(c.rng.IntN(2))*c.between(0, 100))
		c.extend(t)
	}
}

// extend renews a lease, or gives a heartbeat.
func (c *client) extend(t *term) {
	if t.scope == event.ByLease {
		c.renew(t)
	} else {
		c.beat(t)
	}
}

// leading returns the session that leads; any for a lease.
func (c *client) leading(t *term) *session {
	if t.s == nil {
		return c.either()
	}
	return t.s
}

// writer returns a session to write on: that which leads, or another one, which needs the token.
func (c *client) writer(t *term) *session {
	if t.s == nil || c.chance(0.4) {
		return c.other()
	}
	return t.s
}

// leave ends a term.
func (c *client) leave(t *term) {
	s := c.leading(t)
	if s == nil {
		return
	}
	switch n := c.rng.IntN(100); {
	case n < 10:
		c.resignWhileWriting(s, t)
	case n < 15:
		c.deposeOwn(t)
	case t.scope == event.ByLease && n < 35:
		c.expire(t)
	case t.scope == event.Session && n < 27:
		s.close(n < 21)
	case t.scope == event.Session && n < 33 && c.may(Discard):
		c.discard(s, t)
	case t.scope == event.Session && n < 40 && c.may(Discard):
		c.discardWhileWriting(s, t)
	}
	if !t.ended && !s.closed {
		c.resign(s, t)
	}
}

// expire lets a lease run out, and a little longer, or not.
func (c *client) expire(t *term) {
	if c.chance(0.5) {
		c.sleep(time.Duration(t.until-event.Now()) + c.between(0, 100))
	}
	t.ended = true
}

// deposeOwn deposes this client's own term from another session.
func (c *client) deposeOwn(t *term) {
	s := c.other()
	if s == nil {
		return
	}
	c.depose(s, t.election)
	if t.s != nil {
		c.am(t.s, t)
	}
}

// leadInTransaction leads for the time of a transaction, and writes in it.
func (c *client) leadInTransaction() {
	s, e := c.mine(), c.job()
	if s == nil {
		return
	}
	isolation, end := c.isolation(), "COMMIT"
	if c.chance(0.15) {
		end = "ROLLBACK"
	}
	c.settlePrepared(never)
	err := s.exec("BEGIN ISOLATION LEVEL " + isolation)
	if err == nil && c.chance(0.1) {
		end = "ROLLBACK TO before"
		err = s.exec("SAVEPOINT before")
	}
	if err == nil {
		if won := c.bidInTransaction(s, e, isolation); won.Outcome == event.True {
			c.useTransaction(s, e, won, end)
		}
	}
	s.reset()
}

func (c *client) bidInTransaction(s *session, e election, isolation string) event.Record {
	r := event.Record{Do: event.TryXact, Election: e.String(), Scope: event.Transaction, Identity: c.identity(),
		Isolation: isolation}
	query := "SELECT le_try_become_leader_xact($1::text, identity => $2::text), le_token($1::text)"
	args := []any{e.name, c.identity()}
	l := soon
	if c.chance(0.5) {
		timeout := c.timeout()
		r.Do, r.Waits, r.Timeout = event.WaitXact, true, int64(timeout)
		query = "SELECT le_become_leader_xact($1::text, $2::interval, identity => $3::text), le_token($1::text)"
		args = []any{e.name, interval(timeout), c.identity()}
		l = c.patienceOf(timeout)
	}
	won, _ := c.call(s, r, func(answer *event.Record) error { return s.bool(l, answer, query, args...) })
	return won
}

// useTransaction writes, and commits or rolls back, which ends the term.
func (c *client) useTransaction(s *session, e election, won event.Record, end string) {
	t := &term{election: e, scope: event.Transaction, token: won.Token, s: s, until: never}
	finish := func() error {
		t.ended = true
		return c.endTransaction(s, t, end)
	}
	if c.chance(0.9) {
		c.write(s, t, writing{mark: event.First, finish: finish, rollback: end != "COMMIT", isolation: won.Isolation})
	} else {
		c.nap()
	}
	if !t.ended { // nothing is written, or an error has kept it from that
		finish()
	}
	c.lost(t)
}

func (c *client) endTransaction(s *session, t *term, end string) error {
	answer, _ := c.begin(s, event.Record{Do: event.End, Election: t.String(), Scope: event.Transaction, Token: t.token,
		Message: end})
	err := s.exec(end)
	if err == nil || !pgconn.SafeToRetry(err) && certain(&answer, err) {
		answer.Outcome = event.True // committed or not, the transaction is over
		c.end(s, answer, nil)
	} else {
		c.end(s, answer, err)
	}
	return err
}

// observe waits until the election's state has another version, and returns that: to be passed next.
func (c *client) observe(s *session, e election, after int64) int64 {
	if s == nil {
		return after
	}
	timeout := c.between(10, 300)
	seen, _ := c.call(s, event.Record{Do: event.Observe, Election: e.String(), After: after, Timeout: int64(timeout)},
		func(answer *event.Record) error {
			var identity, value *string
			var token *int64
			err := s.row(soon, []any{&answer.Version, &token, &identity, &value},
				"CALL le_observe($1::text, version => $2::bigint, timeout => $3::interval)",
				e.name, after, interval(timeout))
			answer.Outcome, answer.Identity = truth(token != nil), text(identity)
			if token != nil {
				answer.Token = *token
			}
			return err
		})
	return seen.Version
}
