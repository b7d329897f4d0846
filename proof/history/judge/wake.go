package judge

import (
	"fmt"
	"slices"
	"time"

	"leader_election/proof/event"
)

// A bid that waits has reached the server after this time, and is woken within that time.
const (
	arrival   = int64(200 * time.Millisecond)
	wakeLimit = int64(500 * time.Millisecond)
	manyLimit = int64(1500 * time.Millisecond) // of a candidate for many, which can have to wait for a prepared transaction
	recovery  = int64(8 * time.Second)         // for which a promoted server may grant no leases, or a client not go on
	notice    = int64(1500 * time.Millisecond) // in which a server finds that a connection was closed
)

// checkWakeUps checks "No wake-up is lost": while a candidate waits in line, the election is not vacant for long.
//
// It is sound: the election is vacant for certain when all terms that were won before, and all bids that may have
// won, are over by what calls have told; a candidate may wait for guarded transactions, for the leases that a
// promoted server does not know, and for what a fault holds up.  Times before the end of any of these are left out.  A
// blind bid is not judged, and others may stand in line behind it.
func (v *Verdict) checkWakeUps(h *history) {
	for _, name := range h.names {
		e := h.elections[name]
		if h.dropped(e) {
			continue
		}
		vacant := e.vacantFrom(h)
		told := map[int64]bool{}
		for _, c := range e.calls {
			if c.bids() && c.Waits && !c.blind && c.server > 0 && c.end != forever {
				v.checkVacant(h, e, c, vacant, told)
			}
		}
	}
}

// checkVacant checks that the election is not vacant for long between two terms while the candidate waits.  What was told
// of another candidate is not told again.
func (v *Verdict) checkVacant(h *history, e *election, c *call, vacant func(int64) int64, told map[int64]bool) {
	to := c.end
	if !c.is(event.True) {
		to -= arrival // it may have been canceled before its answer
	}
	most := wakeLimit
	if c.Do == event.Many {
		most = manyLimit
	}
	for _, limit := range append(endsOfTerms(e, c, to), to) {
		from := max(c.At+arrival, vacant(limit))
		if limit-from > most {
			from = h.heldUp(e, from, limit)
		}
		if limit <= from {
			continue
		}
		v.count("checked", "wake-ups")
		if limit-from > most && !told[limit] {
			told[limit] = true
			v.add(Violation{Check: "wake-ups", Election: e.name, Records: h.around(e.calls, c.server),
				Message: fmt.Sprintf("the election was vacant for %d ms while client %d waited",
					(limit-from)/millisecond, c.Client)})
			return
		}
	}
}

// endsOfTerms returns when each term that was won while the candidate waited had begun.
func endsOfTerms(e *election, c *call, to int64) []int64 {
	var begun []int64
	for _, t := range e.terms {
		if t.server == c.server && t.end > c.At && t.end < to {
			begun = append(begun, t.end)
		}
	}
	return begun
}

// vacantFrom returns a function that returns when all terms and transactions had ended that began before a moment, or
// forever.
func (e *election) vacantFrom(h *history) func(moment int64) int64 {
	overs, settled, known := map[*term]int64{}, map[*call]int64{}, map[int64]int64{}
	vacancies := e.vacancies()
	for _, t := range e.terms {
		overs[t] = h.latestEnd(e, t, vacancies)
	}
	for _, m := range e.mayWin {
		settled[m] = e.settled(h, m)
	}
	return func(moment int64) int64 {
		from, ok := known[moment]
		if !ok {
			from = e.vacantBefore(h, moment, overs, settled)
			known[moment] = from
		}
		return from
	}
}

func (e *election) vacantBefore(h *history, moment int64, overs map[*term]int64, settled map[*call]int64) int64 {
	from := int64(0)
	for _, t := range e.terms {
		if t.end < moment {
			from = max(from, overs[t])
		} else if t.win == nil || t.start < moment && !t.win.Waits {
			from = max(from, t.start) // when it began is not known
		}
	}
	for _, m := range e.mayWin {
		if m.At < moment {
			from = max(from, settled[m])
		}
	}
	for _, w := range e.calls {
		if w.blind && w.At < moment {
			from = max(from, min(w.end, h.gone(w.session)))
		}
		if w.Do == event.Write && w.At < moment {
			switch {
			case w.is(event.True) || w.lived():
				from = max(from, w.end)
			case w.Prepared:
				from = forever
			default:
				from = max(from, h.gone(w.session))
			}
		}
	}
	return from
}

// latestEnd returns a time at which the term was certainly over, or forever.
func (h *history) latestEnd(e *election, t *term, vacancies []*call) int64 {
	over := int64(forever)
	for _, c := range t.ends {
		over = min(over, c.end)
	}
	for _, c := range slices.Concat(t.denials, vacancies) {
		if c.At > t.end && c.server == t.server {
			over = min(over, c.end)
		}
	}
	for _, later := range e.terms {
		if later.token > t.token && later.server == t.server {
			over = min(over, later.end)
		}
	}
	expired, _ := e.lastExtension(t, forever)
	over = min(over, expired)
	if t.session != nil {
		over = min(over, h.gone(t.session))
	}
	for _, c := range t.leads {
		if c.At > over || c.end > over && len(h.faultsIn(c.At, c.end, mayRevive)) > 0 {
			return forever // a restart can have revived it
		}
	}
	return over
}

// vacancies are the calls that have found the election vacant.
func (e *election) vacancies() []*call {
	var found []*call
	for _, c := range e.calls {
		if c.showsVacancy() {
			found = append(found, c)
		}
	}
	return found
}

// gone returns when a session has ended for certain after its client closed the connection, or forever.
func (h *history) gone(s *session) int64 {
	if s.over == 0 || s.Target == "" {
		return forever
	}
	at := s.over + notice
	for _, f := range h.faults {
		if !f.holdsUp(s) || f.At > at || f.end < s.over-int64(time.Second) {
			continue
		}
		if f.Do == event.CutLink { // TCP may send the end again only after seconds
			return forever
		}
		at = max(at, later(f.end, notice))
	}
	return at
}

// settled returns when a bid that may have won leads no more for certain, or forever: its session has said so or has
// ended, or the election was vacant or led by another one since.
func (e *election) settled(h *history, m *call) int64 {
	effect, over := m.end, int64(forever)
	if gone := h.gone(m.session); gone != forever {
		effect = min(effect, gone)
		if over = gone; m.scope() == event.ByLease {
			over = later(gone, m.TTL)
		}
	}
	if effect == forever {
		return forever
	}
	if !m.lasts() && m.end != forever {
		return m.end
	}
	for _, c := range e.calls {
		if c.At < effect {
			continue
		}
		own := (c.Do == event.Am || c.Do == event.Try) && c.is(event.False) ||
			c.Do == event.Resign && (c.is(event.True) || c.is(event.False))
		if own && c.session == m.session && m.scope() != event.ByLease || c.server == m.server && c.showsVacancy() {
			over = min(over, c.end)
		}
	}
	for _, t := range e.terms {
		if t.win != nil && t.server == m.server && max(t.start, e.lastBefore(t)) >= effect {
			over = min(over, t.end)
		}
	}
	return over
}

// heldUp returns until when, between two moments, a fault may have held up one of those that may be elected.
func (h *history) heldUp(e *election, from, to int64) int64 {
	until := from
	for _, f := range h.faults {
		switch {
		case f.At > to:
		case mayRestart(f) || promotes(f):
			until = max(until, later(f.end, recovery))
		case slices.ContainsFunc(e.calls, func(c *call) bool {
			return c.bids() && c.At <= to && c.end >= from && f.holdsUp(c.session)
		}):
			until = max(until, later(f.end, int64(time.Second)))
		}
	}
	return until
}

// later is a time after another one, unless that is forever.
func later(at, by int64) int64 {
	if at == forever {
		return forever
	}
	return at + by
}
