package client

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"leader_election/proof/event"
)

var errChosen = errors.New("rolled back by choice")

// writing is how a guarded transaction is to run.
type writing struct {
	mark      string
	guard     string       // "once": le_once and a row of jobs; "": le_assert_leader or a trigger, and a row
	isolation string       // of the transaction that is open; else one is begun
	level     string       // of the one that is begun, and not prepared, as another one is open; "": any
	rollback  bool         // by finish
	during    func()       // between the writing and the commit
	finish    func() error // in place of the commit
}

// pending is a prepared transaction that is to be committed or rolled back later.
type pending struct {
	gid    string
	answer event.Record
	due    int64
	commit bool
}

func (c *client) isolation() string {
	return []string{"read committed", "repeatable read", "serializable"}[c.rng.IntN(3)]
}

// nap is what the work of a transaction takes.
func (c *client) nap() {
	switch {
	case c.chance(0.02):
		c.sleep(time.Second)
	case c.chance(0.6):
		c.sleep(c.between(0, 50))
	}
}

// write runs one guarded transaction as a whole, by a term that runs or not.
func (c *client) write(s *session, t *term, w writing) {
	if s == nil {
		return
	}
	r := about(event.Write, t)
	r.Guard, r.Mark, r.Isolation = w.guard, w.mark, w.isolation
	if r.Isolation == "" {
		r.Isolation = cmp.Or(w.level, c.isolation())
	}
	if r.Guard == "" {
		r.Guard = c.guard(t)
	}
	due := ""
	if r.Guard == "once" {
		if c.settlePrepared(never); len(c.pending) > 0 {
			return // le_once would wait for the job that is prepared
		}
		if s.row(soon, []any{&due}, "SELECT date_bin('250 ms', clock_timestamp(), '2000-01-01')::text") != nil {
			s.reset()
			return
		}
	}
	r.Prepared = w.finish == nil && w.level == "" && c.may(Prepared) && c.chance(0.12)
	answer, _ := c.begin(s, r)
	err := c.fill(s, t, w, &answer, due)
	if err == nil {
		if w.during != nil {
			w.during()
		}
		c.nap()
		err = c.finish(s, w, &answer)
		if err == nil && answer.Prepared && answer.Outcome == "" {
			return // to be committed later
		}
	}
	if errors.Is(err, errChosen) {
		answer.Outcome, err = event.False, nil
	}
	c.end(s, answer, err)
	if w.finish == nil {
		s.reset()
	}
}

// fill runs a guarded transaction up to its end.  Whatever fails in it, it does not commit.
func (c *client) fill(s *session, t *term, w writing, answer *event.Record, due string) error {
	if w.isolation == "" {
		if err := s.exec("BEGIN ISOLATION LEVEL " + answer.Isolation); err != nil {
			return rolledBack{err}
		}
		if c.chance(0.2) { // an old snapshot
			if err := s.exec("SELECT count(*) FROM guarded WHERE id < 0"); err != nil {
				return rolledBack{err}
			}
			c.nap()
		}
	}
	if err := c.inSavepoint(s, func() error { return c.guardAndInsert(s, t, w, answer, due) }); err != nil {
		return rolledBack{err}
	}
	return nil
}

// inSavepoint does the work of a transaction, at times in a subtransaction, and at times in a second one after the first
// one was rolled back.
func (c *client) inSavepoint(s *session, work func() error) error {
	if !c.chance(0.3) {
		return work()
	}
	for again := c.chance(0.2); ; again = false {
		if err := s.exec("SAVEPOINT work"); err != nil {
			return err
		}
		if err := work(); err != nil {
			return err
		}
		if !again {
			return s.exec("RELEASE SAVEPOINT work")
		}
		if err := s.exec("ROLLBACK TO SAVEPOINT work"); err != nil {
			return err
		}
	}
}

// guard chooses how a row is guarded.  Only the jobs have triggers.
func (c *client) guard(t *term) string {
	if c.may(Trigger) && strings.HasPrefix(t.name, "job-") && c.chance(0.3) {
		return "trigger"
	}
	return "assert"
}

func (c *client) guardAndInsert(s *session, t *term, w writing, answer *event.Record, due string) error {
	pass := t.s != s || c.chance(0.2) // the token
	if answer.Guard == "once" {
		return c.once(s, t, answer, due, pass)
	}
	table := "guarded"
	var err error
	if answer.Guard == "trigger" {
		table = "triggered"
		if pass && (!c.may(Guarded) || c.chance(0.5)) {
			err = s.exec(fmt.Sprintf("SET LOCAL leader_election.token = %d", t.token))
		} else if pass {
			err = s.assert(t, true)
		}
	} else {
		err = s.assert(t, pass)
	}
	if err != nil {
		return err
	}
	if c.chance(0.5) {
		c.nap()
	}
	return s.exec("INSERT INTO "+table+"(election, token, client, op, mark) VALUES ($1, $2, $3, $4, $5)",
		t.name, t.token, c.Number, answer.Op, w.mark)
}

func (s *session) assert(t *term, pass bool) error {
	if pass {
		return s.exec("SELECT le_assert_leader($1::text, $2::bigint)", t.name, t.token)
	}
	return s.exec("SELECT le_assert_leader($1::text)", t.name)
}

// once does a job, unless it is done already.
func (c *client) once(s *session, t *term, answer *event.Record, due string, pass bool) error {
	var todo bool
	var err error
	if pass {
		err = s.row(soon, []any{&todo}, "SELECT le_once($1::text, $2::timestamptz, $3::bigint)", t.name, due, t.token)
	} else {
		err = s.row(soon, []any{&todo}, "SELECT le_once($1::text, $2::timestamptz)", t.name, due)
	}
	if err != nil {
		return err
	}
	answer.Message = due
	if !todo {
		answer.Mark = event.Done
		return errChosen
	}
	return s.exec("INSERT INTO jobs(election, due, token, client, op) VALUES ($1, $2::timestamptz, $3, $4, $5)",
		t.name, due, t.token, c.Number, answer.Op)
}

// finish commits, or rolls back, or prepares a transaction.
func (c *client) finish(s *session, w writing, answer *event.Record) error {
	switch {
	case w.finish != nil:
		if err := w.finish(); err != nil {
			return err
		}
		if w.rollback {
			return errChosen
		}
	case answer.Prepared:
		return c.prepare(s, answer)
	case c.chance(0.05):
		if err := s.exec("ROLLBACK"); err != nil {
			return rolledBack{err}
		}
		return errChosen
	default:
		answer.Sent = event.Now()
		if err := s.exec("COMMIT"); err != nil {
			return err
		}
	}
	answer.Outcome = event.True
	return nil
}

func (c *client) prepare(s *session, answer *event.Record) error {
	gid := fmt.Sprintf("client-%d-%d", c.Number, answer.Op)
	answer.Sent = event.Now()
	if err := s.exec("PREPARE TRANSACTION '" + gid + "'"); err != nil {
		return err
	}
	p := &pending{gid: gid, answer: *answer, commit: c.chance(0.8), due: event.Now()}
	if c.chance(0.6) {
		p.due += int64(c.between(0, 1000))
	}
	c.pending = append(c.pending, p)
	c.settlePrepared(event.Now())
	return nil
}

// settlePrepared ends the prepared transactions that are due by then, each by any session.
func (c *client) settlePrepared(due int64) {
	var left []*pending
	for _, p := range c.pending {
		if p.due > due {
			left = append(left, p)
			continue
		}
		ended := c.endPrepared(p) || c.endPrepared(p) // its session may have ended before
		if !ended && p.due+int64(10*time.Second) > event.Now() {
			left = append(left, p)
		}
	}
	c.pending = left
	if event.Now() > c.swept+int64(3*time.Second) {
		c.sweep()
	}
}

// endPrepared tells whether the transaction has ended.
func (c *client) endPrepared(p *pending) bool {
	s := c.either()
	if s == nil {
		return false
	}
	statement := "ROLLBACK PREPARED"
	p.answer.Outcome = event.False
	if p.commit {
		statement, p.answer.Outcome = "COMMIT PREPARED", event.True
	}
	err := s.exec(statement + " '" + p.gid + "'")
	defer s.settle()
	switch {
	case err == nil:
		c.log.Add(p.answer)
	case state(err) == "42704": // it has ended at an earlier try, or has not survived a failover
		p.answer.Outcome, p.answer.SQLState, p.answer.Message = event.Unknown, "42704", err.Error()
		c.log.Add(p.answer)
	default:
		s.reset()
		return false
	}
	return true
}

// sweep ends the transactions that this client, or one of its earlier incarnations, has left prepared.
func (c *client) sweep() {
	c.swept = event.Now()
	s := c.either()
	if s == nil {
		return
	}
	var gids string
	err := s.row(soon, []any{&gids}, `SELECT coalesce(string_agg(gid, ','), '') FROM pg_prepared_xacts
		WHERE gid LIKE $1::text`, fmt.Sprintf("client-%d-%%", c.Number))
	for _, gid := range strings.FieldsFunc(gids, func(r rune) bool { return r == ',' }) {
		if err == nil && !c.isPending(gid) {
			s.exec([]string{"COMMIT", "ROLLBACK"}[c.rng.IntN(2)] + " PREPARED '" + gid + "'")
		}
	}
	s.reset()
}

func (c *client) isPending(gid string) bool {
	for _, p := range c.pending {
		if p.gid == gid {
			return true
		}
	}
	return false
}

// writeOnce does the job that is due.
func (c *client) writeOnce(t *term) {
	if c.may(Once) {
		c.write(c.writer(t), t, writing{guard: "once"})
	}
}

// writeLate writes by a term that has ended.
func (c *client) writeLate() {
	if len(c.stale) == 0 {
		return
	}
	t, w := *c.stale[c.rng.IntN(len(c.stale))], writing{}
	t.s = nil // with the token
	if c.may(Once) && c.chance(0.2) {
		w.guard = "once"
	}
	c.write(c.other(), &t, w)
}
