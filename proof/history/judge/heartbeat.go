package judge

import (
	"slices"

	"leader_election/proof/event"
)

// checkHeartbeats checks "Missing heartbeat": when the longest heartbeat of a term has passed since the last answer
// to a call that can have given one, the term is over for all sessions, and a late heartbeat does not revive it.
// That no other term begins before is checked by checkLeases.
//
// It is sound as checkExpired is.  Bids with a heartbeat count as if they gave one.
func (v *Verdict) checkHeartbeats(h *history) {
	h.check(func(e *election, t *term, server int) {
		if t.server != server || t.win == nil || t.win.Beat == 0 || t.mixed || t.scope != event.Session {
			return
		}
		extended := slices.Clone(t.extended)
		for _, c := range e.calls {
			if c.session == t.session && c.bids() && c.Beat > 0 {
				extended = append(extended, c)
			}
		}
		v.checkLate(h, e, t, "late heartbeat", slices.Max(t.beats), extended)
	})
}
