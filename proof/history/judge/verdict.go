package judge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/anishathalye/porcupine"

	"leader_election/proof/event"
)

// Violation is a finding that no right server explains.
type Violation struct {
	Check    string         `json:"check"`
	Election string         `json:"election,omitempty"`
	Message  string         `json:"message"`
	Records  []event.Record `json:"records"` // those that show it
	File     string         `json:"-"`       // of these, in JSON
	Drawing  string         `json:"-"`       // of the operations, in HTML

	model *porcupine.Model
	info  *porcupine.LinearizationInfo
}

// Verdict is what Judge has found.  Counts has the number of things of each kind, by the kind of the count: "faults",
// "linear" (results of porcupine), "facts", "checked" (cases in which a check could have failed), and each Do with its
// outcomes.
type Verdict struct {
	Violations []Violation
	Counts     map[string]map[string]int
	Failovers  map[string][]time.Duration // see timeFailovers

	mu sync.Mutex
}

// NewVerdict returns a verdict without findings.
func NewVerdict() *Verdict {
	return &Verdict{Counts: map[string]map[string]int{}, Failovers: map[string][]time.Duration{}}
}

// Judge checks the records of all clients, of the nemesis and of the coordinator.  It writes each violation to the
// folder.
func Judge(records []event.Record, dir string) *Verdict {
	v := NewVerdict()
	h := read(records)
	v.countAll(h)
	v.timeFailovers(h)
	checks := []check{
		{"problems", (*Verdict).checkProblems},
		{"leaders", (*Verdict).checkLeaders},
		{"leases", (*Verdict).checkLeases},
		{"expired", (*Verdict).checkExpired},
		{"heartbeats", (*Verdict).checkHeartbeats},
		{"tokens", (*Verdict).checkTokens},
		{"rows", (*Verdict).checkRows},
		{"commits", (*Verdict).checkCommits},
		{"jobs", (*Verdict).checkJobs},
		{"order", (*Verdict).checkOrder},
		{"wake-ups", (*Verdict).checkWakeUps},
		{"starvation", (*Verdict).checkStarvation},
		{"timeouts", (*Verdict).checkTimeouts},
		{"crowd", (*Verdict).checkCrowd},
		{"deadlocks", (*Verdict).checkDeadlocks},
		{"observers", (*Verdict).checkObservers},
		{"published", (*Verdict).checkPublished},
		{"linear", (*Verdict).checkLinear},
	}
	for _, c := range checks {
		if !h.smaller(c.name) {
			c.run(v, h)
		}
	}
	slices.SortStableFunc(v.Violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Check, b.Check), cmp.Compare(a.Election, b.Election))
	})
	for i := range v.Violations {
		v.Violations[i].write(dir, i+1)
	}
	return v
}

// check is one of the checks.
type check struct {
	name string
	run  func(*Verdict, *history)
}

// smallerInSQL are the checks of what the SQL edition does not promise, see doc/managed.md.
var smallerInSQL = []string{
	"commits", // a guard is not checked at COMMIT: the term may have ended, but has no successor
	"order",   // candidates are in order within a round
}

// smaller says whether the edition of the history does not promise what the check is about.
func (h *history) smaller(check string) bool {
	return slices.Contains(smallerInSQL, check) && h.ofSQLEdition()
}

// ofSQLEdition says whether the servers had the SQL edition.  Above READ COMMITTED, a guard of that does not judge the
// time of its term, see weak, and a bid does not see that the election has become vacant, see blind.
func (h *history) ofSQLEdition() bool {
	return slices.ContainsFunc(h.notes, func(n event.Record) bool { return n.Message == event.EditionIs+"sql" })
}

// add notes a violation.
func (v *Verdict) add(violation Violation) {
	v.mu.Lock()
	defer v.mu.Unlock()
	slices.SortStableFunc(violation.Records, func(a, b event.Record) int { return cmp.Compare(a.At, b.At) })
	v.Violations = append(v.Violations, violation)
}

func (v *Verdict) count(what, kind string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.Counts[what] == nil {
		v.Counts[what] = map[string]int{}
	}
	v.Counts[what][kind]++
}

func (v *Verdict) countAll(h *history) {
	for _, c := range h.calls {
		v.count(c.Do, c.outcome)
	}
	for _, f := range h.faults {
		if f.Do != rush {
			v.count("faults", f.Do)
		}
	}
	facts := map[string]int{"elections": len(h.names), "rows": 0, "jobs": 0, "terms": 0}
	for _, name := range h.names {
		facts["terms"] += len(h.elections[name].terms)
	}
	for _, r := range h.rows {
		if isJob(r) {
			facts["jobs"]++
		} else {
			facts["rows"]++
		}
	}
	v.Counts["facts"] = facts
}

// timeFailovers notes how long it took, from the begin of each promotion, until the promoted server had elected a leader
// in session scope, and until it had granted or renewed a lease.
func (v *Verdict) timeFailovers(h *history) {
	for _, f := range h.faults {
		for _, scope := range []string{event.Session, event.ByLease} {
			end := int64(forever)
			for _, c := range h.calls {
				if promotes(f) && c.server == f.server && c.Scope == scope && c.is(event.True) &&
					(c.bids() || c.Do == event.Renew) {
					end = min(end, c.end)
				}
			}
			if end != forever {
				kind := f.Target + ", " + scope
				v.Failovers[kind] = append(v.Failovers[kind], time.Duration(end-f.At))
			}
		}
	}
}

// around returns the records of calls on a server, with the faults meanwhile.
func (h *history) around(calls []*call, server int) []event.Record {
	var records []event.Record
	from, to := int64(forever), int64(0)
	for _, c := range calls {
		if c.server == server || c.server == 0 || c.answer == nil {
			records = append(records, c.records()...)
			from, to = min(from, c.At), max(to, c.At)
		}
	}
	for _, f := range h.faultsIn(from, to, func(fault) bool { return true }) {
		records = append(records, f.Record)
	}
	return records
}

// together returns the records of some calls.
func together(calls ...*call) []event.Record {
	var records []event.Record
	for _, c := range calls {
		if c != nil {
			records = append(records, c.records()...)
		}
	}
	return records
}

// write writes a violation to files.  A failure to do so does not change the verdict.
func (x *Violation) write(dir string, number int) {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, x.Check+" "+x.Election)
	name := filepath.Join(dir, fmt.Sprintf("violation-%03d-%s", number, safe))
	text, err := json.MarshalIndent(x, "", " ")
	if err == nil {
		err = os.WriteFile(name+".json", append(text, '\n'), 0o644)
	}
	if err != nil {
		x.Message += fmt.Sprintf(" (not written: %v)", err)
		return
	}
	x.File = name + ".json"
	if x.model == nil {
		return
	}
	if err := porcupine.VisualizePath(*x.model, *x.info, name+".html"); err == nil {
		x.Drawing = name + ".html"
	}
}

// mostPrinted is how many violations of each check are printed.
const mostPrinted = 3

// Report prints what was counted, and the violations.
func Report(v *Verdict, w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "call\ttrue\tfalse\tfailed\tunknown\n")
	special := []string{"facts", "faults", "linear", "checked"}
	for _, do := range slices.Sorted(maps.Keys(v.Counts)) {
		if !slices.Contains(special, do) {
			n := v.Counts[do]
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\n", do, n[event.True], n[event.False], n[event.Failed],
				n[event.Unknown])
		}
	}
	table.Flush()
	for _, what := range special {
		fmt.Fprintf(w, "%s: %s\n", what, list(v.Counts[what]))
	}
	for _, kind := range slices.Sorted(maps.Keys(v.Failovers)) {
		times := slices.Sorted(slices.Values(v.Failovers[kind]))
		fmt.Fprintf(w, "failover: %s: %.1f to %.1f s in %d\n", kind, times[0].Seconds(), times[len(times)-1].Seconds(),
			len(times))
	}
	printed := map[string]int{}
	for _, x := range v.Violations {
		if printed[x.Check]++; printed[x.Check] > mostPrinted {
			continue
		}
		fmt.Fprintf(w, "VIOLATION of %q", x.Check)
		if x.Election != "" {
			fmt.Fprintf(w, " in election %q", x.Election)
		}
		fmt.Fprintf(w, ": %s\n", x.Message)
		for _, file := range []string{x.File, x.Drawing} {
			if file != "" {
				fmt.Fprintf(w, "    %s\n", file)
			}
		}
	}
	fmt.Fprintf(w, "%d violations\n", len(v.Violations))
}

// list writes counts as "a 1, b 2".
func list(counts map[string]int) string {
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}
