// Package judge decides whether a history violates a guarantee of doc/guarantees.md.  It judges what the clients saw,
// the rows in commit order and the faults, and knows nothing of the extension's inside.  A call whose outcome is
// unknown may have taken effect at any time from its call on, or never.
package judge

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"leader_election/proof/event"
)

// forever is the end of a call without a known outcome: it can take effect at any later time.
const forever = math.MaxInt64

const millisecond = int64(time.Millisecond)

// call is a call together with its return.
type call struct {
	event.Record               // the call
	answer       *event.Record // nil: there is none
	outcome      string
	end          int64 // its effect, if there is any, is not later
	server       int   // 0: not certain
	session      *session
	weak         bool // its success does not show that the term runs
	blind        bool // a bid that waits with a snapshot that it keeps, and so may not see that the election is vacant
}

// session is a connection of a client.
type session struct {
	event.Record
	alive int64 // the session has certainly not ended before
	over  int64 // the client has closed the session then, or was killed; 0: it has not
	calls []*call
}

type sessionKey struct{ client, number int }

// fault is a fault from its begin to its end.
type fault struct {
	event.Record
	end    int64
	server int // at its end
}

// history is what the records say, in the order of time.
type history struct {
	records   []event.Record
	calls     []*call
	elections map[string]*election
	names     []string // of the elections, in order
	sessions  map[sessionKey]*session
	faults    []fault
	rows      []event.Record // guarded rows and jobs
	published []event.Record
	problems  []event.Record
	notes     []event.Record
	writes    map[writeKey]*call // see write
	last      int64              // time of the last record
}

// election is all that concerns one election.
type election struct {
	name     string
	calls    []*call
	terms    []*term // by token
	known    map[int64]*term
	mayWin   []*call // bids that may have won without their clients' knowledge
	deposes  []*call
	again    []*call // bids that returned the token of a term of another session
	unproven []*call // calls that showed a token that no bid can have won
	before   map[*term]int64
}

// bids says whether the call can elect.
func (c *call) bids() bool {
	switch c.Do {
	case event.Try, event.Wait, event.Campaign, event.Many, event.TryXact, event.WaitXact, event.Lease:
		return true
	}
	return false
}

// scope is the scope of a bid.
func (c *call) scope() string {
	switch {
	case c.Scope != "":
		return c.Scope
	case c.Do == event.Lease || c.TTL > 0:
		return event.ByLease
	case c.Do == event.TryXact || c.Do == event.WaitXact:
		return event.Transaction
	}
	return event.Session
}

func (c *call) is(outcome string) bool { return c.outcome == outcome }

// records are the call and its answer.
func (c *call) records() []event.Record {
	if c.answer == nil {
		return []event.Record{c.Record}
	}
	return []event.Record{c.Record, *c.answer}
}

// token is that of the answer.
func (c *call) token() int64 {
	if c.answer == nil {
		return 0
	}
	return c.answer.Token
}

// won says whether the call is known to have won a term, or to have found that its session leads.
func (c *call) won() bool {
	return c.is(event.True) && c.token() > 0 && c.token() != c.Token && (c.bids() || c.Do == event.Renew)
}

// mayHaveWon says whether the call may have won a term that its client does not know.  A statement can fail after the
// election; a renewal can be a bid for a new lease.
func (c *call) mayHaveWon() bool {
	switch {
	case c.Do == event.Renew:
		return c.is(event.Unknown)
	case !c.bids():
		return false
	case c.is(event.True):
		return c.token() == 0
	}
	return c.is(event.Unknown) || c.is(event.Failed)
}

// lasts says whether what the bid may have won can go on after its answer: not so if its transaction was rolled back.
func (c *call) lasts() bool {
	return c.is(event.Unknown) || c.scope() == event.Session
}

// showsVacancy says whether the call has found its election vacant.
func (c *call) showsVacancy() bool {
	return (c.Do == event.Look || c.Do == event.Observe) && c.is(event.False)
}

// fatal are the beginnings of errors after which a session may be gone.  The server can have sent such an error before
// the call, so it does not show that the session lived then.
var fatal = []string{"57P", "08", "25P03", "25P04", "LE004", "58", "XX", "53100", "53300"}

func isFatal(state string) bool {
	return slices.ContainsFunc(fatal, func(p string) bool { return strings.HasPrefix(state, p) })
}

// lived says whether the answer shows that the session was alive when the server handled the call.
func (c *call) lived() bool {
	if c.is(event.True) || c.is(event.False) {
		return true
	}
	return c.answer != nil && c.answer.SQLState != "" && !isFatal(c.answer.SQLState)
}

// read makes a history from records.
func read(records []event.Record) *history {
	h := &history{
		records:   slices.Clone(records),
		elections: map[string]*election{},
		sessions:  map[sessionKey]*session{},
	}
	slices.SortStableFunc(h.records, func(a, b event.Record) int { return cmp.Compare(a.At, b.At) })
	type key struct {
		client int
		op     int64
	}
	open := map[key]*call{}
	for i := range h.records {
		r := &h.records[i]
		h.last = max(h.last, r.At)
		switch {
		case r.Do == event.Published:
			h.published = append(h.published, *r)
		case r.Kind == event.Connect:
			h.sessions[sessionKey{r.Client, r.Session}] = &session{Record: *r}
		case r.Kind == event.Closed:
			h.close(h.sessions[sessionKey{r.Client, r.Session}], r.At)
		case r.Kind == event.Call:
			c := &call{Record: *r, outcome: event.Unknown, end: forever}
			h.calls = append(h.calls, c)
			open[key{r.Client, r.Op}] = c
		case r.Kind == event.Return:
			if c := open[key{r.Client, r.Op}]; c != nil && c.answer == nil {
				c.answered(r)
			}
		case r.Kind == event.Fault:
			h.fault(r)
			if r.Do == event.KillClient {
				for key, s := range h.sessions {
					if key.client == r.Client {
						h.close(s, r.At)
					}
				}
			}
		case r.Kind == event.Row:
			h.rows = append(h.rows, *r)
		case r.Kind == event.Problem:
			h.problems = append(h.problems, *r)
		case r.Kind == event.Note:
			h.notes = append(h.notes, *r)
		}
	}
	h.addRushes()
	for _, c := range h.calls {
		keeps := h.ofSQLEdition() && c.Isolation != "read committed"
		c.weak = keeps && c.Do == event.Write
		c.blind = keeps && c.Isolation != "" && c.bids() && c.Waits
		h.place(c)
		h.sort(c)
	}
	for name := range h.elections {
		h.names = append(h.names, name)
	}
	slices.Sort(h.names)
	for _, name := range h.names {
		h.elections[name].findTerms()
		h.forgetUncommitted(h.elections[name])
	}
	return h
}

// forgetUncommitted leaves out terms that only a row of the SQL edition records which was rolled back before a restart:
// after that, a lease that had expired before such a term runs anew.
func (h *history) forgetUncommitted(e *election) {
	e.terms = slices.DeleteFunc(e.terms, func(t *term) bool {
		return h.ofSQLEdition() && t.scope == event.Transaction && !t.mixed &&
			!slices.ContainsFunc(t.ends, func(end *call) bool { return end.Message == "COMMIT" }) &&
			slices.ContainsFunc(h.faults, func(f fault) bool { return mayRestart(f) && f.end > t.start })
	})
}

// answered gives a call its answer.  An error of the server has ended the call, even if its outcome is not known.
func (c *call) answered(r *event.Record) {
	c.answer = r
	if r.Outcome != "" {
		c.outcome = r.Outcome
	}
	if !c.is(event.Unknown) || c.lived() && c.Do != event.Depose {
		c.end = r.At
	}
}

func (h *history) close(s *session, at int64) {
	if s != nil && s.over == 0 {
		s.over = at
	}
}

// fault notes a fault, or the end of one.
func (h *history) fault(r *event.Record) {
	if r.Phase == "end" {
		for i := len(h.faults) - 1; i >= 0; i-- {
			f := &h.faults[i]
			if f.Do == r.Do && f.Target == r.Target && f.Client == r.Client && f.end == forever {
				f.end, f.server = r.At, r.Server
				return
			}
		}
		return
	}
	f := fault{Record: *r, end: forever, server: r.Server}
	if r.Phase != "begin" {
		f.end = r.At
	}
	h.faults = append(h.faults, f)
}

// place finds the session and the server of a call.
func (h *history) place(c *call) {
	key := sessionKey{c.Client, c.Session}
	s := h.sessions[key]
	if s == nil {
		s = &session{Record: event.Record{Client: c.Client, Server: c.Server}}
		h.sessions[key] = s
	}
	c.session = s
	s.calls = append(s.calls, c)
	if c.lived() {
		s.alive = max(s.alive, c.At)
	}
	c.server = h.serverOf(c)
}

// serverOf returns the server that has answered, or 0.  A proxy or pooler can have another server than when the session
// began.  The old server of a promotion has gone when the promotion ends.
func (h *history) serverOf(c *call) int {
	if c.answer != nil && c.answer.Server > 0 {
		return c.answer.Server
	}
	if !contains(c.session.Target, "pool", "proxy") {
		return max(c.session.Server, 1)
	}
	first, last := 1, 1
	for _, f := range h.faults {
		if !promotes(f) {
			continue
		}
		if f.end <= c.At {
			first = f.server
		}
		if c.answer == nil || f.At <= c.answer.At {
			last = max(f.server, f.Server)
			if f.end == forever {
				last++
			}
		}
	}
	if first == last {
		return first
	}
	return 0
}

// sort adds a call to its elections.
func (h *history) sort(c *call) {
	names := c.Elections
	if c.Election != "" && !slices.Contains(names, c.Election) {
		names = append(slices.Clone(names), c.Election)
	}
	for _, name := range names {
		e := h.elections[name]
		if e == nil {
			e = &election{name: name, known: map[int64]*term{}}
			h.elections[name] = e
		}
		e.calls = append(e.calls, c)
		if c.mayHaveWon() {
			e.mayWin = append(e.mayWin, c)
		}
		if c.Do == event.Depose {
			e.deposes = append(e.deposes, c)
		}
	}
}

// faultsIn returns the faults that were active between two moments.
func (h *history) faultsIn(from, to int64, which func(fault) bool) []fault {
	var found []fault
	for _, f := range h.faults {
		if f.At <= to && f.end >= from && which(f) {
			found = append(found, f)
		}
	}
	return found
}

func contains(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// restarted says whether the fault has certainly restarted the server.  The nemesis notes which ones have failed.
func (h *history) restarted(f fault) bool {
	return mayRestart(f) && f.end != forever && !slices.ContainsFunc(h.notes, func(r event.Record) bool {
		return r.Do == f.Do && r.At >= f.end && r.At < f.end+int64(time.Second)
	})
}

func promotes(f fault) bool { return f.Do == event.PromoteStandby }
func drops(f fault) bool    { return f.Do == event.DropExtension }
func clocks(f fault) bool   { return f.Do == event.SetClock }

// mayRestart says whether the fault can restart the server.
func mayRestart(f fault) bool {
	return slices.Contains([]string{event.CrashServer, event.RestartServer, event.KillBackend}, f.Do)
}
