package judge

import (
	"fmt"
	"slices"

	"leader_election/proof/event"
)

// checkLeases checks "Duration", "Restarts" and "Failover" of leases by the clocks of their holders, and "End of the
// session": no later term is won before there is a reason for the end of the term.  A lease that was called for or
// renewed at a time runs for its ttl from then on, at least, through crashes and restarts.  A session leads until it
// has ended, has resigned, or was reset or deposed.
//
// It is sound: the server counts the ttl from when it handles the call, which is later.  Of several renewals, the one
// with the shortest ttl of those that can have been the last counts.  All calls that may have ended the term are
// reasons from when they were called.
func (v *Verdict) checkLeases(h *history) {
	h.check(func(e *election, t *term, server int) {
		if t.win == nil {
			return
		}
		what := t.scope
		if len(t.beats) > 0 {
			what = "heartbeat"
		}
		v.count("checked", "end: "+what)
		over := h.earliestEnd(e, t, server)
		if later := e.wonBefore(t.token, server, over); later != nil {
			v.add(Violation{Check: "end: " + what, Election: e.name,
				Records: append(together(t.win, later.win), together(t.extended...)...),
				Message: fmt.Sprintf("token %d was elected when token %d still ran", later.token, t.token)})
		}
		if t.scope == event.ByLease {
			v.checkFailover(h, e, t, server)
		}
	})
}

// checkFailover checks "Failover": a promoted server grants no new lease until every lease that it might not know of
// has expired.  A candidate in session or transaction scope waits only for leases that the standby had received.  It
// had received this one if a row is there that was written later.
func (v *Verdict) checkFailover(h *history, e *election, t *term, server int) {
	over := h.earliestEnd(e, t, server)
	for _, c := range t.extended { // of a change of the ttl, the standby need not know
		over = min(over, h.lastSent(t, server)+c.TTL)
	}
	for _, later := range e.terms {
		if later.token <= t.token || later.server <= server || later.win == nil || later.end >= over {
			continue
		}
		if later.scope != event.ByLease && !h.received(t, server, later.server) {
			v.count("checked", "failover, lease not received")
			continue
		}
		v.add(Violation{Check: "failover", Election: e.name,
			Records: append(together(t.win, later.win), together(t.extended...)...),
			Message: fmt.Sprintf("token %d was elected on server %d when token %d, a lease of server %d, still ran",
				later.token, later.server, t.token, server)})
	}
	v.count("checked", "failover")
}

// lastSent returns when the last call was sent that has certainly renewed the lease.
func (h *history) lastSent(t *term, server int) int64 {
	sent := int64(0)
	for _, c := range on(server, t.extended) {
		if c.is(event.True) {
			sent = max(sent, c.At)
		}
	}
	return sent
}

// received says whether a row that was written on a server after the lease was granted has survived on a later server.
func (h *history) received(t *term, server, later int) bool {
	return t.server == server && t.win != nil && slices.ContainsFunc(h.rows, func(r event.Record) bool {
		w := h.write(r)
		return r.Server == later && r.Phase == event.Survived && w != nil && w.server == server && w.At > t.end
	})
}

// checkExpired checks that "its token can no longer renew" an expired lease.  The lease has certainly expired when its
// longest ttl has passed since the last answer to a call that can have renewed it.
//
// It is sound: the server has handled each call before its answer.  A call without an answer can renew at any time, and
// a restart can have the lease run once more, so these terms are left out from then on.
func (v *Verdict) checkExpired(h *history) {
	h.check(func(e *election, t *term, server int) {
		if t.scope == event.ByLease && t.server == server && t.win != nil {
			v.checkLate(h, e, t, "expired lease")
		}
	})
}

func byTTL(a, b *call) int { return int(min(max(a.TTL-b.TTL, -1), 1)) }

// mayRevive says whether the fault can have a lease run once more.
func mayRevive(f fault) bool { return mayRestart(f) || promotes(f) }

// longest is the longest time for which a call can have extended the term, or 0 if the term does not expire.
func (t *term) longest() int64 {
	switch {
	case t.win == nil || t.mixed:
		return 0
	case t.scope == event.ByLease:
		return slices.MaxFunc(t.extended, byTTL).TTL
	case t.win.Beat > 0:
		return slices.Max(t.beats)
	}
	return 0
}

// lastExtension returns a time at which the term had certainly expired, as far as calls extended it that were sent
// before a moment, and the last of them.  The time is forever where that is not known.
func (e *election) lastExtension(t *term, moment int64, but ...*call) (over int64, by *call) {
	span := t.longest()
	if span == 0 {
		return forever, nil
	}
	extensions := e.extensions(t)
	if last := t.lastRenewal(extensions, moment, but); last != nil {
		return last.end + last.TTL, last
	}
	over, by = t.end+span, t.win
	for _, x := range extensions {
		switch {
		case x.At > moment || slices.Contains(but, x):
		case x.end == forever:
			return forever, nil
		case x.end+span > over:
			over, by = x.end+span, x
		}
	}
	return over, by
}

// lastRenewal returns the renewal of a lease that was certainly the last one before a moment: its ttl counts, even if it
// is shorter than that of earlier ones.  All calls before it are known to have extended the lease, or not.
func (t *term) lastRenewal(extensions []*call, moment int64, but []*call) *call {
	if t.scope != event.ByLease {
		return nil
	}
	var last *call
	for _, x := range extensions {
		if x.At > moment || slices.Contains(but, x) {
			continue
		}
		if !x.is(event.True) {
			return nil
		}
		if last == nil || x.At > last.At {
			last = x
		}
	}
	for _, x := range extensions {
		if last != nil && x != last && x.At <= moment && !slices.Contains(but, x) && x.end >= last.At {
			return nil
		}
	}
	return last
}

// extensions are the calls that can have extended the term.  Bids with a heartbeat count as if they gave one.
func (e *election) extensions(t *term) []*call {
	extended := slices.Clone(t.extended)
	if t.scope == event.Session {
		for _, c := range e.calls {
			if c.session == t.session && c.bids() && c.Beat > 0 {
				extended = append(extended, c)
			}
		}
	}
	return extended
}

// checkLate checks that the term does not lead when its span has passed since the last call that can have extended it.
func (v *Verdict) checkLate(h *history, e *election, t *term, check string) {
	for _, c := range t.leads {
		over, by := e.lastExtension(t, c.end, c)
		if over == forever || c.server != t.server || len(h.faultsIn(t.start, c.end, mayRevive)) > 0 {
			continue
		}
		v.count("checked", check)
		if c.At > over {
			v.add(Violation{Check: check, Election: e.name, Records: together(t.win, by, c),
				Message: fmt.Sprintf("token %d led %d ms after its end", t.token, (c.At-over)/millisecond)})
		}
	}
}
