package judge

import (
	"cmp"
	"fmt"
	"slices"
)

// checkTokens checks "Growing tokens": of two terms of the database, the one that was won before the bid for the other
// was sent has the lower token.  No two terms have the same token.
//
// It is sound: tokens are drawn between call and return.  A promoted server, and an extension that was created again,
// may not know some tokens and relies on the clock, so their tokens are compared with others only while no fault has
// set the clock.
func (v *Verdict) checkTokens(h *history) {
	var all []*win
	named := map[int64]*win{}
	for _, name := range h.names {
		e := h.elections[name]
		for _, t := range e.terms {
			if t.win == nil {
				continue
			}
			w := &win{t, name}
			all = append(all, w)
			if other := named[t.token]; other != nil {
				v.add(Violation{Check: "tokens", Election: name, Records: together(other.win, t.win),
					Message: fmt.Sprintf("token %d was given to elections %q and %q", t.token, other.election, name)})
			}
			named[t.token] = w
		}
		for _, c := range e.again {
			v.add(Violation{Check: "tokens", Election: name, Records: together(e.known[c.token()].win, c),
				Message: fmt.Sprintf("token %d was given to two bidders", c.token())})
		}
	}
	clock := int64(forever)
	for _, f := range h.faults {
		if clocks(f) {
			clock = min(clock, f.At)
		}
	}
	servers := map[int][]*win{}
	var comparable []*win
	dropped := slices.ContainsFunc(h.faults, drops)
	for _, w := range all {
		if w.end < clock {
			comparable = append(comparable, w)
		}
		if w.server > 0 && (!dropped || clock == forever) {
			servers[w.server] = append(servers[w.server], w)
		}
	}
	v.compareTokens(comparable)
	for _, wins := range servers {
		v.compareTokens(wins)
	}
}

// win is a term with its election.
type win struct {
	*term
	election string
}

// compareTokens compares each token with the greatest of those that were won before its bid.
func (v *Verdict) compareTokens(wins []*win) {
	byStart := slices.SortedFunc(slices.Values(wins), func(a, b *win) int { return cmp.Compare(a.start, b.start) })
	byEnd := slices.SortedFunc(slices.Values(wins), func(a, b *win) int { return cmp.Compare(a.end, b.end) })
	var greatest *win
	for _, w := range byStart {
		for len(byEnd) > 0 && byEnd[0].end < w.start {
			if greatest == nil || byEnd[0].token > greatest.token {
				greatest = byEnd[0]
			}
			byEnd = byEnd[1:]
		}
		if greatest == nil {
			continue
		}
		v.count("checked", "tokens")
		if greatest.token >= w.token {
			v.add(Violation{Check: "tokens", Election: w.election, Records: together(greatest.win, w.win),
				Message: fmt.Sprintf("token %d is not greater than token %d of election %q, which was won before",
					w.token, greatest.token, greatest.election)})
		}
	}
}
