package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"leader_election/proof/event"
)

// The programs' lines come through pipes, so a shorter overlap shows nothing; and a loop may need some time to find
// that the election is vacant.
const (
	pipeDelay   = int64(200 * time.Millisecond)
	vacantLimit = int64(20 * time.Second)
)

// belief is the time during which a process believed to lead.
type belief struct {
	client     int
	start, end int64
	records    []event.Record
}

// checkPublished checks the published loops, which are not the extension's: that no two processes believe to lead at
// the same time, and that one of them leads while they run and no fault is active.
func (v *Verdict) checkPublished(h *history) {
	elections := map[string][]event.Record{}
	for _, r := range h.published {
		elections[r.Election] = append(elections[r.Election], r)
	}
	for _, name := range slices.Sorted(maps.Keys(elections)) {
		beliefs := h.beliefs(elections[name])
		v.checkBeliefs(name, beliefs)
		v.checkVacancy(h, name, append(beliefs, belief{start: h.ended(elections[name])}))
	}
}

// beliefs returns the times of belief in one election, by their begin.  The belief of a process ends with it.
func (h *history) beliefs(records []event.Record) []belief {
	var all []belief
	open := map[int]*belief{}
	clients := map[int]bool{}
	for _, r := range records {
		clients[r.Client] = true
	}
	finish := func(r event.Record) {
		if b := open[r.Client]; b != nil {
			b.end, b.records = r.At, append(b.records, r)
			all = append(all, *b)
			delete(open, r.Client)
		}
	}
	for _, r := range h.records {
		switch {
		case !clients[r.Client]:
		case r.Do == event.Published && r.Outcome == event.True:
			if open[r.Client] == nil {
				open[r.Client] = &belief{client: r.Client, start: r.At, records: []event.Record{r}}
			}
		case r.Do == event.Published, r.Kind == event.Closed, r.Kind == event.Fault && r.Do == event.KillClient,
			r.Kind == event.Note && strings.HasSuffix(r.Message, " begins"):
			finish(r)
		}
	}
	for client := range clients {
		finish(event.Record{Client: client, At: h.last, Kind: event.Note, Message: "the history ends"})
	}
	slices.SortFunc(all, func(a, b belief) int { return cmp.Compare(a.start, b.start) })
	return all
}

// ended returns when the first of the processes has ended for good.
func (h *history) ended(records []event.Record) int64 {
	last := map[int]int64{}
	for _, r := range records {
		last[r.Client] = h.last
	}
	for _, r := range h.records {
		if _, ok := last[r.Client]; !ok {
			continue
		}
		if r.Kind == event.Closed {
			last[r.Client] = r.At
		} else if r.Kind == event.Note && strings.HasSuffix(r.Message, " begins") {
			last[r.Client] = h.last
		}
	}
	return slices.Min(slices.Collect(maps.Values(last)))
}

func (v *Verdict) checkBeliefs(name string, beliefs []belief) {
	var longest belief
	for _, b := range beliefs {
		v.count("checked", "published terms")
		if overlap := min(longest.end, b.end) - b.start; overlap > pipeDelay && longest.client != b.client {
			v.add(Violation{Check: "published", Election: name, Records: slices.Concat(longest.records, b.records),
				Message: fmt.Sprintf("two leaders: clients %d and %d for %d ms", longest.client, b.client,
					overlap/millisecond)})
		}
		if b.end > longest.end {
			longest = b
		}
	}
}

// checkVacancy looks for a time without a leader and without a fault.
func (v *Verdict) checkVacancy(h *history, name string, beliefs []belief) {
	from, records := max(beliefs[0].start, beliefs[0].end), beliefs[0].records
	for _, b := range beliefs {
		quiet := from
		for _, f := range h.faultsIn(from, b.start, func(fault) bool { return true }) {
			quiet = max(quiet, min(f.end, b.start))
		}
		if b.start-quiet > vacantLimit {
			v.add(Violation{Check: "published", Election: name, Records: slices.Concat(records, b.records),
				Message: fmt.Sprintf("no leader for %d ms without a fault", (b.start-quiet)/millisecond)})
		}
		if b.end > from {
			from, records = b.end, b.records
		}
	}
}
