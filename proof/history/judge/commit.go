package judge

import (
	"fmt"

	"leader_election/proof/event"
)

// checkCommits checks that a guarded transaction "does not commit if its own term is over": the commit, or the PREPARE,
// was sent when calls had told of the end of the term, or when its lease or heartbeat had certainly expired.
//
// It is sound: the check at the commit comes after that, and a term that has ended does not come back.  Left out are
// leases that a restart can have revived, what the resigning session itself does in its transaction, and sessions that
// may have led another term than their client knew.
func (v *Verdict) checkCommits(h *history) {
	for _, w := range h.calls {
		if w.Do != event.Write || !w.is(event.True) || w.server == 0 || w.answer.Sent == 0 {
			continue
		}
		e := h.elections[w.Election]
		if e == nil || h.dropped(e) || e.doubtful(w) {
			continue
		}
		v.count("checked", "commits")
		if end := h.endedBefore(e, w); end != nil {
			v.add(Violation{Check: "rows", Election: e.name, Records: together(e.known[w.Token].win, end, w),
				Message: fmt.Sprintf("token %d has committed after the end of its term", w.Token)})
		}
	}
}

// endedBefore returns a call that had ended the term of a transaction before its commit was sent, that had found it
// ended, or that has extended it last; or nil.
func (h *history) endedBefore(e *election, w *call) *call {
	t, sent := e.known[w.Token], w.answer.Sent
	if t == nil || t.scope == event.Transaction || t.mixed {
		return nil
	}
	for _, c := range on(w.server, t.ends) {
		if c.is(event.True) && c.end < sent && (t.session == nil || c.session != w.session) {
			return c
		}
	}
	if t.server != w.server || len(h.faultsIn(t.start, sent, mayRevive)) > 0 {
		return nil
	}
	for _, c := range on(w.server, t.denials) {
		if c.At > t.end && c.end < sent && t.isTold(c) {
			return c
		}
	}
	if over, by := e.lastExtension(t, sent); over < sent {
		return by
	}
	return nil
}

// isTold says whether a denial is about the term for certain: it is on the session that leads, or has its token.
func (t *term) isTold(c *call) bool {
	return c.Token == t.token && (t.scope == event.ByLease || c.session == t.session)
}
