package judge

import (
	"fmt"
	"time"

	"leader_election/proof/event"
)

// margin is the time after which a bid that waits certainly stands in line.
const margin = int64(300 * time.Millisecond)

// checkOrder checks "Order": a candidate that was already in line when another bid was sent is elected before that bid
// wins.  A bid that does not wait, or waits for many elections, does not overtake it.
//
// It is sound: a bid that waits for one election stands in line when the margin has passed since its call, unless a
// fault may have kept it from the server, and until its return, or its timeout.  A candidate for many elections was not
// elected before the last call that found the former term running.  Successors that are named go first: a resignation
// with one excuses all.
func (v *Verdict) checkOrder(h *history) {
	for _, name := range h.names {
		e := h.elections[name]
		if h.dropped(e) {
			continue
		}
		for _, first := range e.calls {
			if from, to, ok := h.inLine(first); ok {
				v.checkOvertaken(e, first, from, to)
				v.checkSuccessor(e, first, from)
			}
		}
	}
}

// inLine returns the time during which a candidate certainly stood in the queue of one election.
func (h *history) inLine(c *call) (from, to int64, ok bool) {
	if !c.bids() || !c.Waits || c.Do == event.Many || c.server == 0 || !c.is(event.True) && !c.is(event.False) {
		return 0, 0, false
	}
	from, to = c.At+margin, c.end
	if c.is(event.False) {
		if c.Timeout == 0 {
			return 0, 0, false
		}
		to = min(to, c.At+c.Timeout)
	}
	delays := func(f fault) bool {
		return !contains(f.Do, "kill client", "terminate backend", "cancel backend") &&
			(f.Do != "stop client" || f.Client == c.Client)
	}
	if to <= from || len(h.faultsIn(c.At-int64(time.Second), from, delays)) > 0 {
		return 0, 0, false
	}
	return from, to, true
}

// checkOvertaken checks that no bid that was sent while the candidate stood in line has won before.
func (v *Verdict) checkOvertaken(e *election, first *call, from, to int64) {
	v.count("checked", "order")
	for _, t := range e.terms {
		if t.win == nil || t.win == first || t.server != first.server || t.end >= to || t.win.session == first.session {
			continue
		}
		if first.is(event.True) && t.token > first.token() {
			continue
		}
		begun := t.start
		if t.win.Do == event.Many {
			begun = max(begun, e.lastBefore(t))
		}
		if begun < from || e.namesSuccessor(first.At, t.end) {
			continue
		}
		v.add(Violation{Check: "order", Election: e.name, Records: together(first, t.win),
			Message: fmt.Sprintf("a bid of client %d won token %d, and has overtaken client %d, which waited for %d ms",
				t.win.Client, t.token, first.Client, (begun-first.At)/millisecond)})
	}
}

// lastBefore returns a time at which a former term still ran.
func (e *election) lastBefore(t *term) int64 {
	at := int64(0)
	for _, former := range e.terms {
		if former.token < t.token && former.server == t.server {
			last, _ := former.lastLead(t.server)
			at = max(at, last)
		}
	}
	return at
}

// namesSuccessor says whether a resignation may have named a successor between two moments.
func (e *election) namesSuccessor(from, to int64) bool {
	for _, c := range e.calls {
		if c.Do == event.Resign && c.Successor != "" && !c.is(event.False) && c.At <= to && c.end >= from {
			return true
		}
	}
	return false
}

// checkSuccessor checks that a candidate that stood in line is elected next if a resignation has named it.  The session of
// another bid with its identity can have been named instead, and have died.
func (v *Verdict) checkSuccessor(e *election, c *call, from int64) {
	if !c.is(event.True) {
		return
	}
	for _, t := range e.terms {
		if t.server != c.server || t.token >= c.token() || len(t.ends) != 1 {
			continue
		}
		r := t.ends[0]
		if r.Do != event.Resign || r.Successor == "" || r.Successor != c.Identity || r.At < from || e.rival(c, r) {
			continue
		}
		v.count("checked", "successors")
		for _, next := range e.terms {
			if next.token > t.token && next.token < c.token() && next.server == c.server && next.win != nil {
				v.add(Violation{Check: "order", Election: e.name, Records: together(t.win, r, next.win, c),
					Message: fmt.Sprintf("token %d was resigned in favor of client %d, and client %d was elected", t.token,
						c.Client, next.win.Client)})
			}
		}
	}
}

// rival says whether another bid with the identity of a candidate may have waited at a resignation.
func (e *election) rival(c, resign *call) bool {
	for _, other := range e.calls {
		if other != c && other.bids() && other.Identity == c.Identity && other.At <= resign.end &&
			(other.end >= resign.At || !other.lived()) {
			return true
		}
	}
	return false
}
