package judge

import (
	"cmp"
	"fmt"
	"slices"

	"leader_election/proof/event"
)

// checkObservers checks "Views" and what le_observe returns.  A token that is shown was won by a bid.  No leader is
// shown that is older than one that was shown or elected before.  An observer returns another version than the one that
// it has passed, or waits for its whole timeout.  A version stands for one leader, or for a vacancy.
//
// It is sound: a token is shown while it leads, and tokens of a server grow.  A fault that sets the clock meanwhile can
// end a timeout early.  The leader that is shown is the one that has won the term.
func (v *Verdict) checkObservers(h *history) {
	for _, name := range h.names {
		e := h.elections[name]
		for _, c := range e.unproven {
			v.add(Violation{Check: "observers", Election: name, Records: together(c),
				Message: fmt.Sprintf("a term is shown that no bid has won: %s", describe(c))})
		}
		for _, c := range e.calls {
			v.checkReturn(h, c)
			v.checkShown(e, c)
		}
		v.checkVersions(e)
		if h.dropped(e) {
			continue
		}
		for _, server := range e.servers() {
			v.checkBackwards(e, on(server, e.calls))
		}
	}
	for _, s := range h.sessions {
		if !contains(s.Target, "pool") && !slices.ContainsFunc(h.faults, drops) {
			v.checkRevival(h, s)
		}
	}
}

// checkReturn checks that an observation has waited for another version.
func (v *Verdict) checkReturn(h *history, c *call) {
	if c.Do != event.Observe || c.After == 0 || !c.is(event.True) && !c.is(event.False) {
		return
	}
	v.count("checked", "observers")
	early := c.Timeout == 0 || c.end-c.At < c.Timeout-5*millisecond
	if c.answer.Version == c.After && early && len(h.faultsIn(c.At, c.end, clocks)) == 0 {
		v.add(Violation{Check: "observers", Election: c.Election, Records: together(c),
			Message: fmt.Sprintf("version %d was passed, and returned before the timeout", c.After)})
	}
}

// checkVersions checks that a version stands for one leader, or for a vacancy.
func (v *Verdict) checkVersions(e *election) {
	first := map[int64]*call{}
	for _, c := range e.calls {
		if c.Do != event.Observe || !c.is(event.True) && !c.is(event.False) {
			continue
		}
		version := c.answer.Version
		if other := first[version]; other == nil {
			first[version] = c
		} else if other.token() != c.token() {
			v.add(Violation{Check: "observers", Election: e.name, Records: together(other, c),
				Message: fmt.Sprintf("version %d stands for token %d and for token %d", version, other.token(), c.token())})
		}
	}
}

// checkShown checks that a view shows one leader, with the identity and the scope of the bid that has won the term.
func (v *Verdict) checkShown(e *election, c *call) {
	if c.Do != event.Look || !c.is(event.True) {
		return
	}
	wrong := ""
	t := e.known[c.token()]
	switch {
	case c.answer.Message != "":
		wrong = c.answer.Message
	case t == nil || t.win == nil || t.mixed:
	case c.answer.Identity != t.win.Identity:
		wrong = fmt.Sprintf("identity %q instead of %q", c.answer.Identity, t.win.Identity)
	case c.answer.Scope != t.scope:
		wrong = fmt.Sprintf("scope %q instead of %q", c.answer.Scope, t.scope)
	}
	if wrong != "" {
		v.add(Violation{Check: "observers", Election: e.name, Records: append(together(c), t.winner()...),
			Message: fmt.Sprintf("token %d is shown with %s", c.token(), wrong)})
	}
}

// winner are the records of the bid that has won the term, if it is known.
func (t *term) winner() []event.Record {
	if t == nil {
		return nil
	}
	return together(t.win)
}

// checkBackwards compares each leader that is shown with the greatest token of the calls that had returned before.
func (v *Verdict) checkBackwards(e *election, calls []*call) {
	token := func(c *call) int64 {
		if t := e.known[c.token()]; t != nil && !slices.Contains(e.terms, t) {
			return 0 // forgotten
		}
		won := c.won() && (c.Do != event.Many || c.answer.Election == e.name)
		if won || c.Do == event.Look || c.Do == event.Observe {
			return c.token()
		}
		return 0
	}
	byEnd := slices.SortedFunc(slices.Values(calls), func(a, b *call) int { return cmp.Compare(a.end, b.end) })
	var greatest *call
	for _, c := range calls {
		for len(byEnd) > 0 && byEnd[0].end < c.At {
			if greatest == nil || token(byEnd[0]) > token(greatest) {
				greatest = byEnd[0]
			}
			byEnd = byEnd[1:]
		}
		if greatest == nil || token(c) <= 0 || c.bids() {
			continue
		}
		v.count("checked", "leaders shown")
		if token(greatest) > token(c) {
			v.add(Violation{Check: "observers", Election: e.name, Records: together(greatest, c),
				Message: fmt.Sprintf("token %d is shown after token %d", token(c), token(greatest))})
		}
	}
}

// checkRevival checks that a session does not see a term run that it has seen over: an observation has found a vacancy
// after it.  A restart of the server, which can revive a lease, ends the session.
func (v *Verdict) checkRevival(h *history, s *session) {
	seen, over := map[string]int64{}, map[string]*call{} // the latest term, and the vacancy after it
	last := map[string]int64{}                           // term before that vacancy
	for _, c := range s.calls {
		if c.Do != event.Look && c.Do != event.Observe || c.answer == nil {
			continue
		}
		e := c.Election
		if c.token() > 0 && c.token() <= last[e] {
			v.add(Violation{Check: "observers", Election: e, Records: together(over[e], c),
				Message: fmt.Sprintf("token %d is shown after its end", c.token())})
		}
		seen[e] = max(seen[e], c.token())
		if c.Do == event.Observe && c.showsVacancy() && !h.hidden(h.elections[e], c) {
			last[e], over[e] = seen[e], c
		}
	}
}
