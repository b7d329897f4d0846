package judge

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"leader_election/proof/event"
)

func isJob(r event.Record) bool { return r.Guard == "once" }

// write returns the transaction that has written a row.
func (h *history) write(r event.Record) *call {
	if h.writes == nil {
		h.writes = map[writeKey]*call{}
		for _, c := range h.calls {
			if c.Do == event.Write {
				h.writes[writeKey{c.Client, c.Op}] = c
			}
		}
	}
	return h.writes[writeKey{r.Client, r.Op}]
}

type writeKey struct {
	client int
	op     int64
}

// checkRows checks "Guarded transactions" by the rows in the order of their commits.  A row has the token of its
// transaction, which was not told that it has failed.  The tokens of an election do not decrease: so all rows of a
// term, its first one too, come after those of former terms.  A transaction that was open when a later term had been
// elected is not there.  An acknowledged transaction is there.
//
// It is sound: the order is that of the commit records on one server, and no term begins while a transaction is
// guarded.  A row that has survived a failover is older than all others.  Transactions of sessions that may have led
// another term than their client knew are left out.
func (v *Verdict) checkRows(h *history) {
	found := map[writeKey][]int{} // the servers with a row of the transaction
	type place struct {
		server   int
		election string
	}
	last := map[place]event.Record{}
	rows := slices.SortedStableFunc(slices.Values(h.rows), func(a, b event.Record) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Order, b.Order))
	})
	for _, r := range rows {
		w := h.write(r)
		if !v.checkWriter(r, w) {
			continue
		}
		key := writeKey{r.Client, r.Op}
		found[key] = append(found[key], r.Server)
		e := h.elections[r.Election]
		if e == nil || e.doubtful(w) {
			continue
		}
		v.count("checked", "rows")
		at := place{r.Server, r.Election}
		before, ok := last[at]
		if ok && r.Token < before.Token && r.Phase != event.Survived {
			v.add(Violation{Check: "rows", Election: r.Election,
				Records: append(together(w, h.write(before)), before, r),
				Message: fmt.Sprintf("a row of token %d was committed after one of token %d", r.Token, before.Token)})
		}
		if !ok || r.Token > before.Token {
			last[at] = r
		}
		if r.Phase != event.Survived && !h.dropped(e) {
			v.checkStale(e, r, w)
		}
	}
	v.checkAcknowledged(h, found)
}

// checkWriter checks a row against its transaction.
func (v *Verdict) checkWriter(r event.Record, w *call) bool {
	wrong := ""
	switch {
	case w == nil:
		wrong = "no transaction has written the row"
	case w.Token != r.Token || w.Election != r.Election:
		wrong = "the row is not that of its transaction"
	case w.is(event.Failed), w.is(event.False) && !(w.Prepared && r.Server != w.server):
		// a server that is promoted may have the prepared transaction, but not that it was rolled back
		wrong = "a row of a transaction that was not committed is there"
	}
	if wrong != "" {
		v.add(Violation{Check: "rows", Election: r.Election, Records: append(together(w), r), Message: wrong})
	}
	return wrong == ""
}

// doubtful says whether the session of a transaction led, but perhaps by another token than its client knew.
func (e *election) doubtful(w *call) bool {
	t := e.known[w.Token]
	if t == nil || t.session == nil || t.session != w.session {
		return false
	}
	latest, sure := e.latest(w)
	return latest != t || !sure
}

// checkStale checks that no later term had been won when a transaction was about to commit or to be prepared, or when
// it began if that is not known.
func (v *Verdict) checkStale(e *election, r event.Record, w *call) {
	open := w.At
	if w.answer != nil && w.server == r.Server {
		open = max(open, w.answer.Sent)
	}
	later := e.wonBefore(r.Token, r.Server, open)
	for later != nil && w.weak && later.scope == event.Transaction {
		// that can have been rolled back, while the guard waited for it
		later = e.wonBefore(later.token, r.Server, open)
	}
	if later != nil {
		v.add(Violation{Check: "rows", Election: r.Election, Records: append(together(later.win, w), r),
			Message: fmt.Sprintf("token %d has written after token %d had been elected", r.Token, later.token)})
	}
}

// checkAcknowledged checks that the rows of committed transactions are there.  A prepared transaction can be
// committed on a later server.
func (v *Verdict) checkAcknowledged(h *history, found map[writeKey][]int) {
	unread := h.unread()
	for _, w := range h.calls {
		if w.Do != event.Write || !w.is(event.True) || w.server == 0 || len(h.rows) == 0 || unread[w.server] {
			continue
		}
		servers := found[writeKey{w.Client, w.Op}]
		v.count("checked", "acknowledged rows")
		if !slices.Contains(servers, w.server) && !(w.Prepared && (len(servers) > 0 || len(unread) > 0)) {
			v.add(Violation{Check: "rows", Election: w.Election, Records: together(w),
				Message: fmt.Sprintf("the row of a committed transaction is not on server %d", w.server)})
		}
	}
}

// unread are the servers of which the rows could not be read.
func (h *history) unread() map[int]bool {
	unread := map[int]bool{}
	for _, p := range h.problems {
		if p.Do == "checker" {
			unread[p.Server] = true
		}
	}
	return unread
}

// checkJobs checks "Jobs".  On each server, the times of the jobs that le_once has allowed for an election grow in the
// order of their commits, so each is done once.  The jobs that have survived a failover are older than all others.  A job
// that le_once has refused was done, or a later one was.
//
// It is sound: le_once reads the last committed time, and its transactions exclude each other.
func (v *Verdict) checkJobs(h *history) {
	type place struct {
		server   int
		election string
	}
	type done struct {
		due time.Time
		row event.Record
	}
	last := map[place]done{}
	rows := slices.SortedStableFunc(slices.Values(h.rows), func(a, b event.Record) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Order, b.Order), compareDue(a, b))
	})
	for _, r := range rows {
		if e := h.elections[r.Election]; !isJob(r) || e != nil && h.dropped(e) {
			continue
		}
		due, ok := dueOf(r)
		if !ok {
			v.add(Violation{Check: "checker", Records: []event.Record{r}, Message: "the time of a job is not known"})
			continue
		}
		at := place{r.Server, r.Election}
		before, ok := last[at]
		v.count("checked", "jobs")
		if ok && !due.After(before.due) {
			v.add(Violation{Check: "jobs", Election: r.Election,
				Records: append(together(h.write(before.row), h.write(r)), before.row, r),
				Message: fmt.Sprintf("the job of %s was done after that of %s", r.Message, before.row.Message)})
		}
		last[at] = done{due, r}
	}
	for _, w := range h.calls {
		if w.Do == event.Write && w.answer != nil && w.answer.Mark == event.Done {
			v.checkRefused(h, w)
		}
	}
}

// checkRefused checks that the refused job, or a later one, was done by a transaction that began before the answer.
func (v *Verdict) checkRefused(h *history, w *call) {
	refused, ok := dueOf(*w.answer)
	if e := h.elections[w.Election]; !ok || e == nil || h.dropped(e) || w.server == 0 || h.unread()[w.server] {
		return
	}
	v.count("checked", "refused jobs")
	if !slices.ContainsFunc(h.rows, func(r event.Record) bool {
		due, ok := dueOf(r)
		by := h.write(r)
		return isJob(r) && ok && r.Server == w.server && r.Election == w.Election && !due.Before(refused) &&
			by != nil && by.At < w.answer.At
	}) {
		v.add(Violation{Check: "jobs", Election: w.Election, Records: together(w),
			Message: fmt.Sprintf("the job of %s was refused, and not done before", w.answer.Message)})
	}
}

// compareDue puts surviving rows, which have no order, into that of their times.
func compareDue(a, b event.Record) int {
	x, _ := dueOf(a)
	y, _ := dueOf(b)
	return x.Compare(y)
}

func dueOf(r event.Record) (time.Time, bool) {
	due, err := time.Parse("2006-01-02 15:04:05.999999-07", r.Message)
	return due, err == nil
}
