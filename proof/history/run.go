package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"leader_election/proof/event"
	"leader_election/proof/judge"
)

// A round has servers, clients and histories of its own.  Its seed makes it begin with the same random numbers again.
const roundLength = time.Minute

// When a violation is looked for, rounds are shorter, since the first one that has it is the last.
const huntLength = 30 * time.Second

// Under Patroni, a round has room for each kind of failover.
const patroniLength = 2 * time.Minute

// Published loops know nothing of the extension, and their servers have no standby.
var faultsOfLoops = []string{event.FreezeProxy, event.StopClient, event.KillClient, event.TerminateBackend}

// Patroni ends and starts the servers itself.
var faultsUnderPatroni = []string{event.PromoteStandby, event.StopClient, event.KillClient, event.StopBackend,
	event.TerminateBackend, event.FreezeProxy, event.CutProxy, "depose"}

type options struct {
	dir         string
	seconds     int
	seed        uint64
	faults      []string // only these; nil: all but the rare ones
	assert      bool
	patroni     bool // servers under Patroni
	crowd       int  // sessions that wait for the same election; -1: as the seed says
	untilCaught bool
	keepAll     bool   // also the histories without violations
	edition     string // sql: the script in place of the extension
	script      string
	loop        string // a published loop instead of the extension's clients
	program     string
}

func parse(arguments []string) options {
	var o options
	var faults string
	flags := flag.NewFlagSet("prove run", flag.ExitOnError)
	flags.StringVar(&o.dir, "dir", "", "where servers and histories go")
	flags.IntVar(&o.seconds, "seconds", 60, "for how long faults strike, in all rounds together")
	flags.Uint64Var(&o.seed, "seed", 0, "of the first round")
	flags.StringVar(&faults, "faults", "", "only these faults; none: no faults")
	flags.BoolVar(&o.assert, "assert", false, "insist on a server with assertions")
	flags.BoolVar(&o.patroni, "patroni", false, "let Patroni fail over")
	flags.IntVar(&o.crowd, "crowd", -1, "so many sessions wait for the same election; -1: as the seed says")
	flags.BoolVar(&o.untilCaught, "until-caught", false, "end at the first violation")
	flags.BoolVar(&o.keepAll, "keep-all", false, "keep the histories without violations, too")
	flags.StringVar(&o.edition, "edition", "", "sql: the SQL edition in place of the extension")
	flags.StringVar(&o.script, "script", "", "its script")
	flags.StringVar(&o.loop, "loop", "", "run this published loop")
	flags.StringVar(&o.program, "program", "", "its program")
	flags.Parse(arguments)
	o.faults = strings.Fields(faults)
	if o.loop != "" && len(o.faults) == 0 {
		o.faults = faultsOfLoops
	}
	if o.patroni && len(o.faults) == 0 {
		o.faults = faultsUnderPatroni
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1 << 31)
	}
	return o
}

// hunts says whether a violation is looked for.
func (o options) hunts() bool {
	return o.untilCaught || o.loop != ""
}

// length returns for how long faults strike in the next round.
func (o options) length(passed time.Duration) time.Duration {
	most := roundLength
	if o.patroni {
		most = patroniLength
	} else if o.hunts() {
		most = huntLength
	}
	return min(most, time.Duration(o.seconds)*time.Second-passed)
}

// run lets rounds follow one another, and returns the exit status.
func run(arguments []string) int {
	o := parse(arguments)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	sum, shown := judge.NewVerdict(), newProgress()
	var caught []string
	rounds, failed := 0, 0
	for passed := time.Duration(0); o.length(passed) > 0 && ctx.Err() == nil; rounds++ {
		length := o.length(passed)
		passed += length
		verdict, err := playAndJudge(ctx, o, shown, o.seed+uint64(rounds), length)
		if err != nil {
			fmt.Fprintf(os.Stderr, "prove: seed %d: %v\n", o.seed+uint64(rounds), err)
			failed++
			if o.hunts() {
				rounds++
				break
			}
			continue
		}
		add(sum, verdict)
		shown.violations = len(sum.Violations)
		if len(verdict.Violations) > 0 {
			failed++
			caught = checks(verdict)
			if o.hunts() {
				rounds++
				break
			}
		}
	}
	if o.hunts() {
		return hunted(caught)
	}
	if rc := summarize(sum, rounds, failed); ctx.Err() == nil {
		return rc
	}
	return 1
}

// add adds the counts of a round to those of all.
func add(sum, verdict *judge.Verdict) {
	for what, counts := range verdict.Counts {
		if sum.Counts[what] == nil {
			sum.Counts[what] = map[string]int{}
		}
		for kind, n := range counts {
			sum.Counts[what][kind] += n
		}
	}
	for kind, times := range verdict.Failovers {
		sum.Failovers[kind] = append(sum.Failovers[kind], times...)
	}
	sum.Violations = append(sum.Violations, verdict.Violations...)
}

// checks returns the names of the checks that found a violation.
func checks(verdict *judge.Verdict) []string {
	var names []string
	for _, violation := range verdict.Violations {
		if !slices.Contains(names, violation.Check) {
			names = append(names, violation.Check)
		}
	}
	return names
}

// hunted tells whether a violation that was looked for was found, and returns the exit status.
func hunted(caught []string) int {
	if len(caught) == 0 {
		fmt.Println("not caught")
		return 1
	}
	fmt.Println("caught:", strings.Join(caught, ", "))
	return 0
}

// playAndJudge plays a round and judges it.  Only what shows a violation stays.
func playAndJudge(ctx context.Context, o options, shown *progress, seed uint64, length time.Duration) (*judge.Verdict, error) {
	dir := filepath.Join(o.dir, fmt.Sprint(seed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	showing, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		shown.show(showing, dir)
		close(ended)
	}()
	defer func() {
		stop()
		<-ended
	}()
	begin := time.Now()
	if err := play(ctx, o, dir, seed, length); err != nil {
		return nil, keep(o.dir, dir, seed, err)
	}
	played := time.Now()
	verdict, err := judgeFiles(dir)
	if err != nil {
		return nil, keep(o.dir, dir, seed, err)
	}
	fmt.Printf("seed %d: %.0f s of faults; %d violations; played in %.0f s, judged in %.0f s\n", seed, length.Seconds(),
		len(verdict.Violations), played.Sub(begin).Seconds(), time.Since(played).Seconds())
	if len(verdict.Violations) > 0 {
		judge.Report(verdict, os.Stdout)
		return verdict, keep(o.dir, dir, seed, nil)
	}
	if o.keepAll {
		return verdict, keep(o.dir, dir, seed, nil, "client-*.jsonl", "coordinator.jsonl")
	}
	return verdict, os.RemoveAll(dir)
}

// keep moves histories and logs of a round, or the named files, to where tools/prove takes them from, and removes the
// rest.
func keep(all, dir string, seed uint64, err error, patterns ...string) error {
	to := filepath.Join(all, "kept", fmt.Sprint(seed))
	if mkdir := os.MkdirAll(to, 0o755); mkdir != nil {
		return mkdir
	}
	if len(patterns) == 0 {
		patterns = []string{"*.jsonl", "*.json", "*.html", "*.log", "*.stderr", "*/*.log", "violations/*"}
	}
	for _, pattern := range patterns {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, file := range files {
			os.Rename(file, filepath.Join(to, filepath.Base(file)))
		}
	}
	os.RemoveAll(dir)
	return err
}

// judgeFiles judges the histories of a directory.
func judgeFiles(dir string) (*judge.Verdict, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []event.Record
	for _, file := range files {
		records, err := event.Read(file)
		if err != nil {
			return nil, err
		}
		all = append(all, records...)
	}
	violations := filepath.Join(dir, "violations")
	if err := os.MkdirAll(violations, 0o755); err != nil {
		return nil, err
	}
	return judge.Judge(all, violations), nil
}

// judgeAgain judges kept histories, and returns the exit status.
func judgeAgain(dirs []string) int {
	sum := judge.NewVerdict()
	failed := 0
	for _, dir := range dirs {
		verdict, err := judgeFiles(dir)
		fail(err)
		fmt.Printf("%s: %d violations\n", dir, len(verdict.Violations))
		add(sum, verdict)
		if len(verdict.Violations) > 0 {
			failed++
		}
	}
	return summarize(sum, len(dirs), failed)
}

// summarize reports on all rounds, and returns the exit status.
func summarize(sum *judge.Verdict, rounds, failed int) int {
	judge.Report(sum, os.Stdout)
	fmt.Printf("%d passed, %d failed\n", rounds-failed, failed)
	if failed > 0 || rounds == 0 {
		return 1
	}
	return 0
}
