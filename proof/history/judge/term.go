package judge

import (
	"cmp"
	"slices"

	"leader_election/proof/event"
)

// term is a term of which the token is known.
type term struct {
	token   int64
	scope   string
	server  int      // on which it began; 0: not certain
	session *session // that leads; nil for a lease
	win     *call    // nil: the bid is not known
	start   int64    // it began at this time or later,
	end     int64    // and at this time or earlier
	mixed   bool     // both scopes of the session have a part in it

	leads    []*call // it ran at some time within each of these calls
	denials  []*call // it did not run at some time within each of these
	extended []*call // calls that have extended it, or may have: of a lease, or with a heartbeat
	ends     []*call // each has ended it, unless it was over
	mayEnd   []*call // each may have ended it
	unended  bool    // of a transaction of which the end is not known
	shown    *call   // the first call that has shown it, if the bid is not known
	beats    []int64 // the heartbeats that it may have
}

// findTerms finds the terms of an election, and what the calls tell of them.
func (e *election) findTerms() {
	for _, c := range e.calls {
		if c.won() && (c.Do != event.Many || c.answer.Election == e.name) {
			e.addWin(c)
		}
	}
	for _, c := range e.calls {
		e.learn(c)
	}
	for _, t := range e.known {
		e.terms = append(e.terms, t)
		t.learnFromSession(e)
	}
	slices.SortFunc(e.terms, func(a, b *term) int { return cmp.Compare(a.token, b.token) })
	e.findUnproven()
}

// findUnproven finds the terms that no bid can have won, since each bid wins at most one: as many bids as there are terms
// without a known bid must have been sent before these terms were shown.
func (e *election) findUnproven() {
	var unknown []*term
	for _, t := range e.terms {
		if t.win == nil {
			unknown = append(unknown, t)
		}
	}
	slices.SortFunc(unknown, func(a, b *term) int { return cmp.Compare(a.end, b.end) })
	for i, t := range unknown {
		bids := 0
		for _, m := range e.mayWin {
			if m.At < t.end {
				bids++
			}
		}
		if bids <= i {
			e.unproven = append(e.unproven, t.shown)
		}
	}
}

// addWin adds the term that a bid has won.  The session can have won it by an earlier bid that seemed to fail.
func (e *election) addWin(c *call) {
	if t := e.known[c.token()]; t != nil {
		switch {
		case t.session == nil || t.session != c.session:
			e.again = append(e.again, c)
		default:
			t.mixed = t.mixed || t.scope != c.scope()
			t.leads = append(t.leads, c)
		}
		return
	}
	t := &term{token: c.token(), scope: c.scope(), server: c.server, win: c, start: c.At, end: c.end}
	if t.scope == event.ByLease {
		t.extended = []*call{c}
	} else {
		t.session = c.session
		for _, m := range e.mayWin {
			if m.session == c.session && m.At < c.At && m.lasts() && !e.foundOver(m, c) {
				t.start = min(t.start, m.At)
				t.mixed = t.mixed || m.scope() != t.scope
			}
		}
	}
	e.known[t.token] = t
}

// foundOver says whether the session has found between two of its calls that it does not lead.
func (e *election) foundOver(m, c *call) bool {
	return slices.ContainsFunc(e.calls, func(found *call) bool {
		return found.session == c.session && found.Do == event.Am && found.scope() == event.Session &&
			found.is(event.False) && m.At < found.At && found.At < c.At
	})
}

// shown returns the term of a token that a call has shown.  If no bid is known to have won it, then one of those did
// that may have.
func (e *election) shown(token int64, c *call) *term {
	if t := e.known[token]; t != nil {
		if t.win == nil && c.end < t.end {
			t.end, t.shown = c.end, c
		}
		return t
	}
	t := &term{token: token, start: forever, end: c.end, shown: c}
	for _, m := range e.mayWin {
		t.start = min(t.start, m.At)
	}
	if t.start > c.end {
		e.unproven = append(e.unproven, c)
		return nil
	}
	e.known[token] = t
	return t
}

// latest returns the term that the session has won last before the call, and whether it can have won another one since.
func (e *election) latest(c *call) (t *term, sure bool) {
	for _, other := range e.known {
		if other.session == c.session && other.win != nil && other.win.At < c.At &&
			(t == nil || other.win.At > t.win.At) {
			t = other
		}
	}
	if t == nil {
		return nil, false
	}
	for _, m := range e.mayWin {
		if m.session == c.session && m.At > t.win.At && m.At < c.end && m.lasts() {
			return t, false
		}
	}
	return t, true
}

// subject returns the term that a call is about.  A call on the session that leads is about what the session leads.
func (e *election) subject(c *call) (t *term, sure bool) {
	t = e.known[c.Token]
	if c.Token == 0 || t != nil && t.session == c.session {
		return e.latest(c)
	}
	if t == nil && c.is(event.True) {
		t = e.shown(c.Token, c)
	}
	return t, t != nil
}

// learn notes what a call tells of a term.
func (e *election) learn(c *call) {
	switch c.Do {
	case event.Look, event.Observe:
		if token := c.token(); token > 0 && (c.is(event.True) || c.is(event.False)) {
			if t := e.shown(token, c); t != nil {
				t.leads = append(t.leads, c)
			}
		}
	case event.Renew, event.Lease:
		e.learnRenewal(c)
	case event.Am, event.Heartbeat, event.Resign, event.Write:
		t, sure := e.subject(c)
		switch {
		case t != nil:
			t.learn(c, sure)
		case c.is(event.True) && !slices.ContainsFunc(e.mayWin, func(m *call) bool { return m.At < c.end }):
			e.unproven = append(e.unproven, c)
		}
	case event.Try, event.Wait:
		if t, _ := e.latest(c); t != nil && t.scope == event.Session && c.is(event.False) {
			t.denials = append(t.denials, c) // a session that leads is told so
		}
	}
}

// learnRenewal notes a renewal, which can be a new lease: then the former one was over.
func (e *election) learnRenewal(c *call) {
	t := e.known[c.Token]
	if c.Token == 0 || t == nil {
		return
	}
	switch {
	case c.is(event.False) || c.won():
		t.denials = append(t.denials, c)
	case c.is(event.True):
		t.leads = append(t.leads, c)
		t.extended = append(t.extended, c)
	default:
		t.extended = append(t.extended, c)
	}
}

// learn notes a call that is about the term, or about another one of which the client does not know.
func (t *term) learn(c *call, sure bool) {
	if c.Do == event.Heartbeat && !c.is(event.False) {
		t.extended = append(t.extended, c)
	}
	switch {
	case c.Do == event.Write:
		if c.is(event.True) && sure && t.token == c.Token && !c.weak {
			t.leads = append(t.leads, c)
		} else if c.answer != nil && c.answer.SQLState == "LE001" {
			t.denials = append(t.denials, c)
		}
	case c.is(event.True) && sure:
		t.leads = append(t.leads, c)
	case c.is(event.False) && (c.Do != event.Resign || t.scope != event.Transaction && !t.mixed):
		t.denials = append(t.denials, c)
	}
	if c.Do == event.Resign && !c.is(event.False) {
		if c.is(event.True) && sure && !t.mixed {
			t.ends = append(t.ends, c)
		} else {
			t.mayEnd = append(t.mayEnd, c)
		}
	}
}

// learnFromSession notes what else has happened on the session that leads.
func (t *term) learnFromSession(e *election) {
	if t.session == nil {
		return
	}
	for _, c := range e.calls {
		mine := !c.is(event.False) && (!c.is(event.True) || c.token() == t.token)
		if c.session == t.session && c.bids() && c.Beat > 0 && mine && c.At >= t.start {
			t.beats = append(t.beats, c.Beat)
		}
	}
	t.unended = t.scope == event.Transaction || t.mixed
	for _, c := range t.session.calls {
		if c.At <= t.win.At {
			continue
		}
		switch {
		case c.Do == event.Discard && t.scope == event.Session && !t.mixed && c.is(event.True):
			t.ends = append(t.ends, c)
		case c.Do == event.Discard && (t.scope == event.Session || t.mixed):
			t.mayEnd = append(t.mayEnd, c)
		case t.scope == event.Session && !t.mixed:
		case c.Do == event.End && c.is(event.True) && !t.mixed:
			t.ends = append(t.ends, c)
			t.unended = false
			return
		case c.Do == event.End:
			t.mayEnd = append(t.mayEnd, c)
			t.unended = false
		case c.is(event.Failed) || c.is(event.Unknown):
			t.mayEnd = append(t.mayEnd, c)
		}
	}
}

// on returns the calls that the server has answered.
func on(server int, calls []*call) []*call {
	var found []*call
	for _, c := range calls {
		if c.server == server {
			found = append(found, c)
		}
	}
	return found
}

// lastLead is the latest time for which the term is known to have run on the server, or later.
func (t *term) lastLead(server int) (at int64, by *call) {
	for _, c := range on(server, t.leads) {
		if c.At > at {
			at, by = c.At, c
		}
	}
	return at, by
}

// life is the time of a term between two restarts of its server.  Only a lease has more than one.
type life struct {
	start int64 // not earlier
	cut   int64 // the restart that ends the life began then, or forever
	end   int64 // and had happened then
	over  int64 // the term did not end earlier in this life
}

// lives returns the lives of a term on a server.  With certain, the calls that have certainly ended it, or the term
// that led then, count as well.
func (h *history) lives(e *election, t *term, server int, certain bool) []life {
	lives := []life{{start: t.start, cut: forever, end: forever}}
	if t.scope == event.ByLease || t.win == nil {
		for _, f := range h.faults {
			if f.Server == server && mayRestart(f) && f.end >= t.start {
				last := &lives[len(lives)-1]
				last.cut, last.end = f.At, f.end
				lives = append(lives, life{start: max(f.At, t.start), cut: forever, end: forever})
			}
		}
	}
	for k := range lives {
		l := &lives[k]
		l.over = max(l.start, min(h.spanEnd(t, server, l), t.otherEnd(e, server, certain)))
	}
	return lives
}

// earliestEnd returns a time before which the term did not end on the server.
func (h *history) earliestEnd(e *election, t *term, server int) int64 {
	over := int64(forever)
	for _, l := range h.lives(e, t, server, true) {
		if l.over <= l.end {
			return l.over
		}
		over = l.over
	}
	return over
}

// spanEnd returns a time before which a lease, or a term with a heartbeat, did not expire in a life.  The call that
// extended it last was handled when all true ones had been sent, and gave it its whole span.
func (h *history) spanEnd(t *term, server int, l *life) int64 {
	spans := t.beats
	if t.scope == event.ByLease {
		spans = nil
	} else if len(spans) == 0 {
		return forever
	}
	sent := int64(0)
	if t.server == server {
		sent = t.start
	}
	for _, c := range on(server, t.extended) {
		if c.is(event.True) && c.end < l.cut {
			sent = max(sent, c.At)
		}
	}
	if sent == 0 || t.win == nil {
		return l.start
	}
	if t.scope == event.ByLease {
		for _, c := range t.extended {
			if c.At < l.end && c.end >= sent {
				spans = append(spans, c.TTL)
			}
		}
	}
	span := slices.Min(spans)
	if l.start > t.start && h.restartedAt(l.start) {
		sent = max(sent, l.start)
	}
	return sent + span
}

// restartedAt says whether a certain restart began at that time: a lease then runs for its whole ttl.
func (h *history) restartedAt(at int64) bool {
	return slices.ContainsFunc(h.faults, func(f fault) bool { return f.At == at && h.restarted(f) })
}

// outlived says whether the session has told that the term is over: then it has not ended with the session.
func (t *term) outlived() bool {
	return slices.ContainsFunc(t.denials, func(c *call) bool {
		return c.session == t.session && !contains(c.session.Target, "pooler transaction")
	})
}

// otherEnd returns a time before which the term did not end for another reason than a missing renewal or heartbeat.
func (t *term) otherEnd(e *election, server int, certain bool) int64 {
	if t.win == nil || t.server == 0 || t.unended {
		return t.start
	}
	over := int64(forever)
	if t.session != nil && !t.outlived() {
		over = max(t.session.alive, t.start)
	}
	for _, c := range t.mayEnd {
		over = min(over, c.At)
	}
	for _, c := range t.ends {
		if certain || c.server != server {
			over = min(over, c.At)
		}
	}
	for _, c := range e.deposes {
		if c.end >= t.start && !c.is(event.False) && (certain || !c.is(event.True) || c.server != server) {
			over = min(over, max(c.At, t.start))
		}
	}
	return over
}
