package client

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"leader_election/proof/event"
)

// calls is how many calls and sessions a mate may record in one incarnation.
const calls = 1_000_000

// join returns a mate of the client, which has a session of its own and can make calls at the same time.  To the history,
// it is another session of this client.
func (c *client) join(number int) *client {
	for len(c.mates) < number {
		n := len(c.mates) + 1
		mate := newClient(c.Config, c.log, c.quit)
		mate.mate = n
		mate.rng = rand.New(rand.NewPCG(c.rng.Uint64(), c.rng.Uint64()))
		mate.op += int64(n) * 1000 * calls
		mate.sessions += n * calls
		c.mates = append(c.mates, mate)
	}
	return c.mates[number-1]
}

// crowd lets the mates wait for the same election, and lead in turn.
func (c *client) crowd() {
	var waiting sync.WaitGroup
	for n := range c.Crowd {
		mate := c.join(n + 1)
		mate.Ways = []string{"crowd"} // without features
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			mate.queue()
		}()
	}
	waiting.Wait()
}

// lastCall is for how long after the quiet time a member of the crowd may line up for the last time.
const lastCall = 2 * time.Second

// queue waits and leads until the quiet time, and once after it, to show that no candidate is forgotten.
func (c *client) queue() {
	for !c.over() {
		c.takeTurn(false)
	}
	for led := false; !led && c.quit.Err() == nil && event.Now() < c.QuietAt+int64(lastCall); {
		led = c.takeTurn(true)
	}
	c.drop(&c.first)
}

// takeTurn waits in line for the first of the elections, leads for a moment, and resigns.
func (c *client) takeTurn(last bool) bool {
	s := c.mine()
	if s == nil {
		return false
	}
	at := min(event.Now(), c.QuietAt) // all stand in the same line at the end
	e := election{name: fmt.Sprintf("job-1.%d", (at-c.Start)/c.EpochNS)}
	t := c.standInLine(s, e, last)
	if t == nil {
		return false
	}
	c.sleep(c.between(0, 8))
	switch n := c.rng.IntN(100); {
	case n < 5:
		c.write(s, t, writing{mark: event.First, guard: "assert"})
	case n < 10:
		c.am(s, t)
	case n < 12 && !last:
		s.close(c.chance(0.5))
	}
	if !s.closed {
		c.resign(s, t)
	}
	// a session that may lead would not be one that holds nothing
	if !t.ended && t.scope == event.Session {
		s.close(false)
	}
	return true
}

// standInLine waits as a session that holds no lock and has no snapshot, which is how most programs wait.
func (c *client) standInLine(s *session, e election, last bool) *term {
	r := event.Record{Do: event.Campaign, Election: e.String(), Scope: event.Session, Identity: c.identity(), Waits: true,
		Mark: event.Crowd}
	l := limit{after: time.Minute, waits: true}
	if !last {
		if c.chance(0.2) {
			r.Timeout = int64(c.between(500, 5000))
		} else if c.chance(0.02) {
			l = limit{after: c.between(100, 2000), cancel: true, waits: true}
		}
		if c.chance(0.1) {
			r.Do, r.Scope, r.TTL = event.Lease, event.ByLease, int64(c.ttl())
		}
	}
	won, sent := c.call(s, r, func(answer *event.Record) error {
		return s.token(l, answer, "CALL le_campaign($1::text, timeout => $2::interval, identity => $3::text, ttl => $4::interval)",
			e.name, interval(time.Duration(r.Timeout)), c.identity(), interval(time.Duration(r.TTL)))
	})
	switch won.Outcome {
	case event.True:
	case event.False:
		return nil
	default:
		s.close(false)
		return nil
	}
	t := &term{election: e, scope: r.Scope, token: won.Token, s: s, span: time.Duration(r.TTL)}
	t.extended(sent)
	if r.Scope == event.ByLease {
		t.s = nil
	}
	return t
}

// crossPatience is for how long a client waits for the end of a deadlock.
const crossPatience = 6 * time.Second

// waitCrosswise lets two sessions lead an election each, and each wait for that of the other.  The server ends one of the
// waits, even with a candidate in line that holds nothing.
func (c *client) waitCrosswise() {
	mate, third := c.join(1), c.join(2)
	s, o := c.mine(), mate.mine()
	if s == nil || o == nil {
		return
	}
	one := election{name: fmt.Sprintf("cross-%d.%d/1", c.Number, c.op)}
	two := election{name: fmt.Sprintf("cross-%d.%d/2", c.Number, c.op)}
	t, u := c.hold(s, one), mate.hold(o, two)
	var waiting sync.WaitGroup
	wait := func(c *client, e election, holds *term) {
		defer waiting.Done()
		c.waitAndYield(e, holds)
	}
	if t != nil && u != nil {
		if c.chance(0.5) && third.mine() != nil {
			waiting.Add(1)
			go wait(third, one, nil)
			c.sleep(c.between(0, 100))
		}
		waiting.Add(2)
		go wait(mate, one, u)
		c.sleep(c.between(0, 100))
		wait(c, two, t)
		waiting.Wait()
	}
	c.yield(t)
	mate.yield(u)
}

// hold leads an election of its own.
func (c *client) hold(s *session, e election) *term {
	r := event.Record{Do: event.Try, Election: e.String(), Scope: event.Session, Identity: c.identity()}
	won, _ := c.call(s, r, func(answer *event.Record) error {
		return s.bool(soon, answer, "SELECT le_try_become_leader($1::text, identity => $2::text), le_token($1::text)",
			e.name, c.identity())
	})
	if won.Outcome != event.True {
		s.close(false)
		return nil
	}
	return &term{election: e, scope: event.Session, token: won.Token, s: s, until: never}
}

// waitAndYield waits for an election, and ends what the session leads after that.
func (c *client) waitAndYield(e election, holds *term) {
	s := c.first
	r := event.Record{Do: event.Campaign, Election: e.String(), Scope: event.Session, Identity: c.identity(), Waits: true}
	if holds != nil {
		r.Mark = event.Cross
	}
	won, _ := c.call(s, r, func(answer *event.Record) error {
		return s.token(limit{after: crossPatience, waits: true}, answer,
			"CALL le_campaign($1::text, identity => $2::text)", e.name, c.identity())
	})
	if won.Outcome == event.Unknown {
		s.close(false)
	}
	if won.Outcome == event.True {
		c.yield(&term{election: e, scope: event.Session, token: won.Token, s: s, until: never})
	}
	c.yield(holds)
}

// yield resigns, unless that is done or the session has ended.
func (c *client) yield(t *term) {
	if t == nil || t.ended || t.s.closed {
		return
	}
	c.resign(t.s, t)
	if !t.ended {
		t.s.close(false)
	}
}
