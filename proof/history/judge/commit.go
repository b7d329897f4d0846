package judge

import (
	"fmt"

	"leader_election/proof/event"
)

// checkCommits checks that a guarded transaction "does not commit if its own term is over": the commit, or the PREPARE,
// was sent after the answer to a resignation of the term.
//
// It is sound: a resignation that is true has ended the term, unless the resigning session held it for its transaction,
// too.  The check at the commit comes after that.
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
		if end := e.endedBefore(w); end != nil {
			v.add(Violation{Check: "rows", Election: e.name, Records: together(end, w),
				Message: fmt.Sprintf("token %d has committed after the end of its term", w.Token)})
		}
	}
}

// endedBefore returns a call that had ended the term of a transaction before its commit was sent, or nil.
func (e *election) endedBefore(w *call) *call {
	t := e.known[w.Token]
	if t == nil || t.scope == event.Transaction {
		return nil
	}
	for _, c := range on(w.server, t.ends) {
		if c.Do == event.Resign && c.is(event.True) && c.end < w.answer.Sent && (t.session == nil || c.session != w.session) {
			return c
		}
	}
	return nil
}
