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
// elected before the last call that found the former term running.
func (v *Verdict) checkOrder(h *history) {
	for _, name := range h.names {
		e := h.elections[name]
		if h.dropped(e) {
			continue
		}
		for _, first := range e.calls {
			if from, to, ok := h.inLine(first); ok {
				v.checkOvertaken(e, first, from, to)
			}
		}
	}
}

// inLine returns the time during which a candidate certainly stood in the queue of one election.
func (h *history) inLine(c *call) (from, to int64, ok bool) {
	if !c.bids() || !c.Waits || c.Do == event.Many || c.server == 0 {
		return 0, 0, false
	}
	from = c.At + margin
	if to, ok = h.leaves(c); !ok || to <= from || h.delayed(c, c.At, from) {
		return 0, 0, false
	}
	return from, to, true
}

// leaves returns a time before which a bid that waits had not left the queue.  The server's timeouts follow the wall
// clock: if that is set, a bid with a timeout may go to the end of the line.  An answer can be held up.
func (h *history) leaves(c *call) (to int64, ok bool) {
	switch {
	case c.is(event.True):
		to = c.end
		if c.Timeout > 0 {
			for _, f := range h.faultsIn(c.At, c.end, clocks) {
				to = min(to, f.At)
			}
		}
		return to, true
	case c.is(event.False) && c.Timeout > 0:
		return min(c.end, c.At+c.Timeout), len(h.faultsIn(c.At, c.end, clocks)) == 0
	case c.answer != nil && c.answer.SQLState == "57014":
		return c.end - arrival, !h.delayed(c, c.At, c.end)
	}
	return 0, false
}

// delayed says whether a fault may have held up the client's calls, or their answers.
func (h *history) delayed(c *call, from, to int64) bool {
	return len(h.faultsIn(from-int64(time.Second), to, func(f fault) bool { return f.holdsUp(c.session) })) > 0
}

// holdsUp says whether the fault may hold up the calls of a session.
func (f fault) holdsUp(s *session) bool {
	switch f.Do {
	case event.KillClient, event.TerminateBackend, event.CancelBackend:
		return false
	case event.StopClient:
		return f.Client == s.Client
	case event.FreezeProxy, event.CutProxy:
		return contains(s.Target, "proxy")
	case event.CutLink:
		return contains(s.Target, "link")
	case event.RestartPooler, event.StopPooler:
		return contains(s.Target, "pool")
	}
	return true
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
		if begun < from {
			continue
		}
		v.add(Violation{Check: "order", Election: e.name, Records: together(first, t.win),
			Message: fmt.Sprintf("a bid of client %d won token %d, and has overtaken client %d, which waited for %d ms",
				t.win.Client, t.token, first.Client, (begun-first.At)/millisecond)})
	}
}

// lastBefore returns a time at which a former term still ran.
func (e *election) lastBefore(t *term) int64 {
	if e.before == nil {
		e.before = map[*term]int64{}
		last := map[int]int64{} // of each server
		for _, former := range e.terms {
			e.before[former] = last[former.server]
			at, _ := former.lastLead(former.server)
			last[former.server] = max(last[former.server], at)
		}
	}
	return e.before[t]
}
