package judge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"leader_election/proof/event"
)

// rush is a time in which so many sessions begin that their first calls come late.  It is treated as a fault.
const (
	rush     = "rush"
	rushSize = 30
)

// addRushes finds the times in which many sessions began, each within a second of the last one.
func (h *history) addRushes() {
	var began []int64
	for _, r := range h.records {
		if r.Kind == event.Connect {
			began = append(began, r.At)
		}
	}
	for i := 0; i+rushSize <= len(began); i++ {
		from, last := began[i], began[i+rushSize-1]
		if last-from > int64(time.Second) {
			continue
		}
		from, last = from-int64(time.Second), last+int64(time.Second)
		if n := len(h.faults); n > 0 && h.faults[n-1].Do == rush && h.faults[n-1].end >= from {
			h.faults[n-1].end = last
			continue
		}
		h.faults = append(h.faults, fault{Record: event.Record{At: from, Kind: event.Fault, Do: rush}, end: last})
	}
}

// turnLimit is how long each member of a crowd may lead, on average, until the next one does.
const turnLimit = int64(50 * time.Millisecond)

// checkCrowd checks "No wake-up is lost" for a crowd: when the faults have ended, all of those that wait are elected, or
// return at their timeouts.
//
// It is sound: the limit is longer than any ttl that is left, and grows with the number of those in line.  A prepared
// transaction that only the coordinator ends can hold them all up.
func (v *Verdict) checkCrowd(h *history) {
	quiet := int64(forever)
	for _, r := range h.notes {
		switch {
		case r.Message == event.FaultsEnd:
			quiet = r.At
		case strings.Contains(r.Message, " PREPARED '"):
			return
		}
	}
	var waiting []*call
	in := map[string]int64{}
	for _, c := range h.calls {
		if c.Mark == event.Crowd && c.bids() && (c.answer == nil || c.answer.At > quiet) && !h.killed(c) {
			waiting = append(waiting, c)
			in[c.Election]++
		}
	}
	for _, c := range waiting {
		limit := max(c.At, quiet) + finalLimit + in[c.Election]*turnLimit
		wrong := ""
		switch {
		case c.answer == nil && h.last < limit:
			continue
		case c.answer == nil:
			wrong = "has no answer"
		case c.answer.At > limit:
			wrong = fmt.Sprintf("took %d ms", (c.answer.At-max(c.At, quiet))/millisecond)
		case c.answer.At > quiet+int64(time.Second) && !c.settled():
			wrong = "is " + c.outcome
		}
		v.count("checked", "crowd after the faults")
		if wrong != "" {
			v.add(Violation{Check: "starvation", Election: c.Election, Records: together(c),
				Message: fmt.Sprintf("after the faults, a bid of a crowd of %d %s", in[c.Election], wrong)})
		}
	}
}

// settled says whether the bid was elected, or has ended as it was asked to.
func (c *call) settled() bool {
	return c.is(event.True) || c.is(event.False) && c.Timeout > 0 || c.answer.SQLState == "57014"
}

// killed says whether the client was killed after it had sent the call.
func (h *history) killed(c *call) bool {
	return slices.ContainsFunc(h.faults, func(f fault) bool {
		return f.Do == event.KillClient && f.Client == c.Client && f.At >= c.At
	})
}

// deadlockLimit is how long two sessions may wait for each other: for deadlock_timeout, and as long as a wake-up may be
// late.
const deadlockLimit = int64(time.Second) + timeoutSlack

// checkDeadlocks checks that bids "take part in deadlock detection".  A session that leads or holds nothing is part of no
// deadlock.  Of two sessions that each lead the election for which the other one waits, one does not wait for long.
//
// It is sound: what was true when both waits began does not change while they last, since these elections have no other
// leaders.  A fault can hold up both sessions and their timers.
func (v *Verdict) checkDeadlocks(h *history) {
	crossed := map[string][]*call{}
	for _, c := range h.calls {
		switch {
		case c.Mark == event.Crowd && c.bids():
			v.count("checked", "bids that hold nothing")
			if c.answer != nil && c.answer.SQLState == "40P01" {
				v.add(Violation{Check: "deadlocks", Election: c.Election, Records: together(c),
					Message: fmt.Sprintf("a bid of client %d, which holds nothing, is in a deadlock", c.Client)})
			}
		case c.Mark == event.Cross && c.bids() && c.answer != nil:
			pair, _, _ := strings.Cut(c.Election, "/")
			crossed[pair] = append(crossed[pair], c)
		}
	}
	for _, pair := range crossed {
		if len(pair) != 2 {
			continue
		}
		a, b := pair[0], pair[1]
		from, to := max(a.At, b.At), min(a.answer.At, b.answer.At)
		if h.delayed(a, from, to) || h.delayed(b, from, to) {
			continue
		}
		v.count("checked", "deadlocks")
		if to-from > deadlockLimit {
			v.add(Violation{Check: "deadlocks", Election: a.Election, Records: together(a, b),
				Message: fmt.Sprintf("two sessions of client %d waited for each other for %d ms", a.Client,
					(to-from)/millisecond)})
		}
	}
}
