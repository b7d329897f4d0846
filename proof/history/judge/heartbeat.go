package judge

import "leader_election/proof/event"

// checkHeartbeats checks "Missing heartbeat": when the longest heartbeat of a term has passed since the last answer
// to a call that can have given one, the term is over for all sessions, and a late heartbeat does not revive it.
// That no other term begins before is checked by checkLeases.
//
// It is sound as checkExpired is.
func (v *Verdict) checkHeartbeats(h *history) {
	h.check(func(e *election, t *term, server int) {
		if t.server != server || t.win == nil || t.win.Beat == 0 || t.mixed || t.scope != event.Session {
			return
		}
		v.checkLate(h, e, t, "late heartbeat")
	})
}
