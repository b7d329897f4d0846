package judge

import (
	"fmt"
	"slices"
	"time"

	"leader_election/proof/event"
)

// finalLimit is how long a bid of the final phase may take.
const finalLimit = int64(10 * time.Second)

// checkStarvation checks "No wake-up is lost": when the faults are over and all others resign, each bid of the final
// phase is elected.
//
// It is sound: the bids have the mark "final", and the limit is longer than any ttl or grace period that is left.
func (v *Verdict) checkStarvation(h *history) {
	begun := slices.ContainsFunc(h.records, func(r event.Record) bool {
		return r.Kind == event.Note && r.Message == "final begins"
	})
	for _, c := range h.calls {
		if c.Mark != event.Final || !c.bids() {
			continue
		}
		begun = false
		v.count("checked", "final bids")
		wrong := ""
		switch {
		case c.answer == nil && h.last < c.At+finalLimit:
			continue
		case c.answer == nil:
			wrong = "has no answer"
		case !c.is(event.True):
			wrong = "is " + c.outcome
		case c.end > c.At+finalLimit:
			wrong = fmt.Sprintf("took %d ms", (c.end-c.At)/millisecond)
		}
		if wrong != "" {
			v.add(Violation{Check: "starvation", Election: c.Election, Records: together(c),
				Message: fmt.Sprintf("a final bid of client %d %s", c.Client, wrong)})
		}
	}
	if begun {
		v.add(Violation{Check: "checker", Message: "there are no bids in the final phase"})
	}
}

// timeoutSlack is how much later than at its timeout a bid may return.
const timeoutSlack = int64(2 * time.Second)

// checkTimeouts checks that "a bid that waits obeys its timeout".
//
// It is sound unless a fault holds up the answer, or sets the clock.
func (v *Verdict) checkTimeouts(h *history) {
	for _, c := range h.calls {
		if !c.bids() || !c.Waits || c.Timeout == 0 || c.answer == nil || h.delayed(c, c.At, c.answer.At) {
			continue
		}
		v.count("checked", "timeouts")
		if late := c.answer.At - c.At - c.Timeout; late > timeoutSlack {
			v.add(Violation{Check: "timeouts", Election: c.Election, Records: together(c),
				Message: fmt.Sprintf("a bid of client %d returned %d ms after its timeout", c.Client, late/millisecond)})
		}
	}
}

// checkProblems reports what is a violation by itself.
func (v *Verdict) checkProblems(h *history) {
	for _, p := range h.problems {
		v.add(Violation{Check: p.Do, Election: p.Election, Records: []event.Record{p}, Message: p.Message})
	}
}
