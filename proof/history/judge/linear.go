package judge

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"leader_election/proof/event"
)

// The time that porcupine may take for the part of an election on one server, and for all together.
const (
	oneTimeout = 3 * time.Second
	allTimeout = 12 * time.Second
)

// What a step of an election is.
const (
	begins   = "begins"     // a term begins, which is vacant before
	leads    = "leads"      // the term runs
	denied   = "not led by" // the term does not run
	resigns  = "resigns"    // the term runs, and ends
	ends     = "releases"   // the term ends, if it runs
	mayEnd   = "may end"    // the session has gone, or the lease has expired: the term ends, or has ended
	revives  = "may revive" // a restart: the lease that was last runs once more
	deposes  = "is deposed" // whatever term ends, if one runs
	isVacant = "is vacant"
)

// step is the input of an operation.
type step struct {
	what  string
	term  int // number of the term, from 1
	token int64
	lease bool
	early bool  // mayEnd: the term may begin only later, in another life
	call  *call // nil: no call tells of it
}

// leadership is the state of an election.
type leadership struct {
	term    int   // which runs, or 0
	token   int64 // the greatest of all terms
	expired int   // the last term, if it is a lease that can have expired
}

// checkLinear checks "At most one leader", "Growing tokens" and the ways in which terms end: each election on each
// server must behave as if each call took effect in one moment between call and return.
//
// It is sound: the history of a right server is accepted.  A term that no call has shown is left out, which only leaves
// the election vacant for longer; false bids are left out, as they are right in any state.  A term ends by a call that
// has certainly ended it, or at any time from the first moment on at which a reason is possible: the session has not
// answered any more, the lease or heartbeat can have been missed, or a resignation, deposition or reset may have taken
// effect.  A lease that has expired can run once more after a restart.  A lease that a promoted server knows is there
// from its start; what the old server knew else is forgotten.
func (v *Verdict) checkLinear(h *history) {
	type part struct {
		election *election
		server   int
	}
	parts := make(chan part)
	deadline := time.Now().Add(allTimeout)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for p := range parts {
				timeout := min(oneTimeout, max(time.Until(deadline), time.Millisecond))
				v.checkPart(h, p.election, p.server, timeout)
			}
		}()
	}
	for _, name := range h.names {
		e := h.elections[name]
		if h.dropped(e) {
			v.count("linear", "left out: extension dropped")
			continue
		}
		for _, server := range e.servers() {
			parts <- part{e, server}
		}
	}
	close(parts)
	workers.Wait()
}

// dropped says whether the extension was dropped during the election: then its terms have ended, or their locks remain.
func (h *history) dropped(e *election) bool {
	if len(e.calls) == 0 {
		return false
	}
	first, last := e.calls[0].At, int64(0)
	for _, c := range e.calls {
		last = max(last, c.At)
	}
	return len(h.faultsIn(first, last, drops)) > 0
}

// servers are those that have answered calls about the election.
func (e *election) servers() []int {
	var servers []int
	for _, c := range e.calls {
		if c.server > 0 && c.answer != nil && !slices.Contains(servers, c.server) {
			servers = append(servers, c.server)
		}
	}
	slices.Sort(servers)
	return servers
}

func (v *Verdict) checkPart(h *history, e *election, server int, timeout time.Duration) {
	operations, first := h.operations(e, server)
	model := electionModel(first)
	switch porcupine.CheckOperationsTimeout(model, operations, timeout) {
	case porcupine.Ok:
		v.count("linear", "ok")
	case porcupine.Unknown:
		v.count("linear", "unknown")
	default:
		v.count("linear", "illegal")
		arrange(operations)
		_, info := porcupine.CheckOperationsVerbose(model, operations, timeout)
		info.AddAnnotations(h.annotations(operations))
		records := h.around(e.calls, server)
		v.add(Violation{Check: "linearizable", Election: e.name, Records: records, model: &model, info: &info,
			Message: fmt.Sprintf("no order of the %d operations on server %d explains their results; "+
				"not even of these: %s", len(operations), server, story(shrink(model, operations)))})
	}
}

// operations returns the operations on one server, and the state in which it began.
func (h *history) operations(e *election, server int) ([]porcupine.Operation, leadership) {
	b := &builder{h: h}
	var first leadership
	for i, t := range e.terms {
		shown := on(server, t.leads)
		if t.server != server && len(shown) == 0 {
			continue
		}
		// a term of which only the token is known can be a lease, and run on after a restart
		s := step{term: i + 1, token: t.token, lease: t.scope == event.ByLease || t.win == nil}
		switch {
		case t.server == server:
			b.addCall(s.of(begins, t.win), t.start, t.end)
		case t.server == 0:
			b.addCall(s.of(begins, t.win), t.start, firstEnd(shown))
		case first.term == 0:
			first = leadership{term: s.term, token: t.token}
		}
		for _, c := range shown {
			if !slices.Contains(t.ends, c) {
				b.addCall(s.of(leads, c), c.At, c.end)
			}
		}
		for _, c := range on(server, t.denials) {
			b.addCall(s.of(denied, c), c.At, c.end)
		}
		for _, c := range on(server, t.ends) {
			what := ends
			if c.Do == event.Resign {
				what = resigns
			}
			b.addCall(s.of(what, c), c.At, c.end)
		}
		b.addEnds(e, t, s, server)
	}
	for _, c := range on(server, e.calls) {
		switch {
		case c.Do == event.Depose && c.is(event.True):
			b.addCall(step{what: deposes, call: c}, c.At, c.end)
		case c.showsVacancy() && !h.hidden(e, c):
			b.addCall(step{what: isVacant, call: c}, c.At, c.end)
		}
	}
	b.narrow(len(e.terms))
	return b.operations, first
}

// hidden says whether an observation of the SQL edition can show a vacancy while a term runs: one in transaction scope,
// which its own session sees only, or one of which a heartbeat or renewal has come in time, but has not been committed.
func (h *history) hidden(e *election, c *call) bool {
	return h.ofSQLEdition() && slices.ContainsFunc(e.terms, func(t *term) bool {
		if slices.ContainsFunc(t.extended, func(x *call) bool { return x.At < c.end && x.end > c.At }) {
			return true
		}
		if t.scope != event.Transaction && !t.mixed || t.start > c.end {
			return false
		}
		return !slices.ContainsFunc(t.ends, func(end *call) bool { return end.end < c.At })
	})
}

// narrow has no term begin before the calls that are about former ones.  That changes no verdict, since a term does not
// run after a later one has begun, but it spares porcupine the orders of a crowd that bids at the same time.
func (b *builder) narrow(terms int) {
	last := make([]int64, terms+1) // when a step of the term was called
	for _, o := range b.operations {
		switch s := o.Input.(step); s.what {
		case begins, leads, resigns:
			last[s.term] = max(last[s.term], o.Call)
		}
	}
	for k := 1; k <= terms; k++ {
		last[k] = max(last[k], last[k-1])
	}
	for i := range b.operations {
		o := &b.operations[i]
		if s := o.Input.(step); s.what == begins {
			o.Call = max(o.Call, min(last[s.term-1], o.Return))
		}
	}
}

func (s step) of(what string, c *call) step {
	s.what, s.call = what, c
	return s
}

func firstEnd(calls []*call) int64 {
	end := int64(forever)
	for _, c := range calls {
		end = min(end, c.end)
	}
	return end
}

type builder struct {
	h          *history
	operations []porcupine.Operation
}

// addCall adds an operation.
func (b *builder) addCall(s step, from, to int64) {
	to = max(from, min(to, b.h.last+1))
	b.operations = append(b.operations, porcupine.Operation{Input: s, Call: from, Return: to})
}

// addEnds adds that the term may end in each of its lives, and may be revived by each restart.  It has ended for good
// when a later term has begun.
func (b *builder) addEnds(e *election, t *term, s step, server int) {
	next := b.h.last + 1
	for _, later := range e.terms {
		if later.server == server && later.token > t.token {
			next = min(next, later.end)
		}
	}
	for k, l := range b.h.lives(e, t, server, false) {
		if l.start > next {
			break
		}
		shown := int64(0)
		for _, c := range on(server, t.leads) {
			if c.At >= l.start && c.end < l.cut {
				shown = max(shown, c.At)
			}
		}
		if k > 0 {
			b.addCall(s.of(revives, nil), l.start, next)
		}
		if over := max(l.over, shown); over <= l.end {
			end := s.of(mayEnd, nil)
			switch t.server {
			case server:
				end.early = l.end < t.end
			case 0:
				end.early = l.end < firstEnd(on(server, t.leads))
			}
			b.addCall(end, over, min(next, l.end))
		}
	}
}

// arrange gives each operation a line in the drawing, so that those of a line do not overlap.
func arrange(operations []porcupine.Operation) {
	slices.SortStableFunc(operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	type line struct {
		client int
		end    int64
	}
	var lines []line
	for i := range operations {
		o := &operations[i]
		client := -1
		if c := o.Input.(step).call; c != nil {
			client = c.Client
		}
		free := func(l line) bool { return l.client == client && l.end < o.Call }
		o.ClientId = slices.IndexFunc(lines, free)
		if o.ClientId < 0 {
			o.ClientId = len(lines)
			lines = append(lines, line{client: client})
		}
		lines[o.ClientId].end = o.Return
	}
}

func electionModel(first leadership) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return first },
		Step: func(state, input, _ any) (bool, any) {
			return state.(leadership).after(input.(step))
		},
		Hash: func(state any) uint64 {
			l := state.(leadership)
			return uint64(l.term)<<32 ^ uint64(l.token) ^ uint64(l.expired)<<48
		},
		DescribeOperation: func(input, _ any) string { return input.(step).String() },
		DescribeState:     func(state any) string { return state.(leadership).String() },
	}
}

// after says whether a step is right in a state, and what the state is then.
func (l leadership) after(s step) (bool, leadership) {
	vacant := leadership{token: l.token}
	switch s.what {
	case begins:
		return l.term == 0 && s.token > l.token, leadership{term: s.term, token: s.token}
	case leads:
		return l.term == s.term, l
	case denied:
		return l.term != s.term, l
	case resigns:
		return l.term == s.term, vacant
	case ends:
		if l.term == s.term {
			return true, vacant
		}
	case mayEnd:
		if l.term == s.term {
			if s.lease {
				vacant.expired = s.term
			}
			return true, vacant
		}
		return s.early || l.token >= s.token, l
	case revives:
		if l.term == 0 && l.expired == s.term {
			return true, leadership{term: s.term, token: l.token}
		}
	case deposes:
		return true, vacant
	case isVacant:
		return l.term == 0, l
	}
	return true, l
}

func (l leadership) String() string {
	if l.term == 0 {
		return fmt.Sprintf("vacant after %d", l.token)
	}
	return fmt.Sprintf("led by %d", l.token)
}

func (s step) String() string {
	text := s.what
	if s.token > 0 {
		text = fmt.Sprintf("%s %d", text, s.token)
	}
	if s.call != nil {
		return fmt.Sprintf("%s: %s", describe(s.call), text)
	}
	return text
}

// describe writes a call with its answer.
func describe(c *call) string {
	text := fmt.Sprintf("client %d.%d %s", c.Client, c.Session, c.Do)
	if c.Identity != "" {
		text += fmt.Sprintf(" as %q", c.Identity)
	}
	if c.Token != 0 {
		text += fmt.Sprintf(" token %d", c.Token)
	}
	text += " -> " + c.outcome
	if c.token() != 0 {
		text += fmt.Sprintf(" %d", c.token())
	}
	if c.answer != nil && c.answer.SQLState != "" {
		text += " " + c.answer.SQLState
	}
	return text
}

// annotations are the faults that were active during the operations.
func (h *history) annotations(operations []porcupine.Operation) []porcupine.Annotation {
	from, to := int64(forever), int64(0)
	for _, o := range operations {
		from, to = min(from, o.Call), max(to, o.Return)
	}
	var drawn []porcupine.Annotation
	for _, f := range h.faultsIn(from, to, func(fault) bool { return true }) {
		drawn = append(drawn, porcupine.Annotation{Tag: f.Do, Start: f.At, End: min(f.end, h.last+1),
			Description: f.Do, Details: fmt.Sprintf("%s %s client %d server %d", f.Do, f.Target, f.Client, f.Server)})
	}
	return drawn
}
