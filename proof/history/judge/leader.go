package judge

import "fmt"

// check runs a check for each term, on each server that has answered calls about it.
func (h *history) check(one func(e *election, t *term, server int)) {
	for _, name := range h.names {
		e := h.elections[name]
		if h.dropped(e) {
			continue
		}
		servers := e.servers()
		for _, t := range e.terms {
			for _, server := range servers {
				if t.server == server || len(on(server, t.leads)) > 0 {
					one(e, t, server)
				}
			}
		}
	}
}

// wonBefore returns a term after the one with a token that a server has certainly begun before a moment.
func (e *election) wonBefore(token int64, server int, at int64) *term {
	for _, later := range e.terms {
		if later.token > token && later.server == server && later.win != nil && later.end < at {
			return later
		}
	}
	return nil
}

// checkLeaders checks "At most one leader".  A term certainly runs from the return of the call that won it to the last
// call that found it running.  No later term of the same server is won in between.
//
// It is sound: both times are those of the clients, and so within the term.  Terms of different servers are not
// compared, as a lease can run once more beside its successor after a failover.
func (v *Verdict) checkLeaders(h *history) {
	h.check(func(e *election, t *term, server int) {
		v.count("checked", "leaders")
		last, by := t.lastLead(server)
		if later := e.wonBefore(t.token, server, last); later != nil {
			v.add(Violation{Check: "leaders", Election: e.name, Records: together(t.win, later.win, by),
				Message: fmt.Sprintf("token %d led when token %d had been elected", t.token, later.token)})
		}
	})
}
