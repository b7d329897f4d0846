// Package nemesis injects faults into a run, one after another and some at the same time.
package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"leader_election/proof/cluster"
	"leader_election/proof/event"
)

// Clients is what the nemesis knows of the clients.
type Clients interface {
	// Pids returns the processes of the clients that run, by the number of the client.
	Pids() map[int]int
	// Restart starts a client that was killed, under the same number.
	Restart(n int) error
}

// queryTimeout is how long a statement of the nemesis may take: it can wait for a backend that is stopped.
const queryTimeout = 5 * time.Second

// A heavy fault ends all sessions.  The time from one to the next leaves clients time to work.
const (
	heavyLeast = 5 * time.Second
	heavyMost  = 18 * time.Second
)

// The time is shorter if there are no other faults.
const onlyHeavyMost = 5 * time.Second

type nemesis struct {
	cluster *cluster.Cluster
	clients Clients
	log     *event.Log

	mu    sync.Mutex
	busy  map[string]bool // faults that are under way
	heavy bool            // one of them is heavy
	op    int64           // number of the last call of client 0
}

// fault is a kind of fault.  It does not overlap itself.
type fault struct {
	name    string
	weight  int
	heavy   bool
	rare    bool // only if it is asked for
	applies func(o cluster.Options) bool
	// possible says whether the fault can begin now; nil: always.
	possible func(c *cluster.Cluster) bool
	// strike injects the fault, records it, and heals it.  When the context ends, it heals at once.
	strike func(ctx context.Context, n *nemesis, rng *rand.Rand) error
}

func (f fault) is(word string) bool {
	first, _, _ := strings.Cut(f.name, " ")
	return word == first || strings.ReplaceAll(word, "-", " ") == f.name
}

// Names returns the names of all faults.
func Names() []string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return names
}

// Run injects faults until the context ends, then heals everything.  It injects those in only, or else all but the rare
// ones.  A fault goes by its name, with spaces or hyphens, or by the first word of it.
func Run(
	ctx context.Context, c *cluster.Cluster, clients Clients, log *event.Log, rng *rand.Rand, only []string,
) error {
	for _, word := range only {
		if !slices.ContainsFunc(faults, func(f fault) bool { return f.is(word) }) {
			return fmt.Errorf("there is no fault %q: these are %s", word, strings.Join(Names(), ", "))
		}
	}
	n := &nemesis{cluster: c, clients: clients, log: log, busy: map[string]bool{}}
	n.injectAll(ctx, rng, choose(c.Options(), only))

	healing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return c.Heal(healing)
}

func choose(o cluster.Options, only []string) []fault {
	var chosen []fault
	for _, f := range faults {
		asked := slices.ContainsFunc(only, f.is) || len(only) == 0 && !f.rare
		if asked && (f.applies == nil || f.applies(o)) {
			chosen = append(chosen, f)
		}
	}
	return chosen
}

func (n *nemesis) injectAll(ctx context.Context, rng *rand.Rand, chosen []fault) {
	var running sync.WaitGroup
	defer running.Wait()
	least, most := heavyLeast, heavyMost
	if !slices.ContainsFunc(chosen, func(f fault) bool { return !f.heavy }) {
		least, most = onlyHeavyMost/2, onlyHeavyMost
	}
	nextHeavy := time.Now().Add(between(rng, least/2, most/2))
	for pause(ctx, between(rng, 200*time.Millisecond, 2*time.Second)) {
		f, ok := n.pick(rng, chosen, time.Now().After(nextHeavy))
		if !ok {
			continue
		}
		if f.heavy {
			nextHeavy = time.Now().Add(between(rng, least, most))
		}
		its := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
		running.Add(1)
		go func() {
			defer running.Done()
			n.inject(ctx, f, its)
		}()
	}
}

// pick draws a fault by weight among those that can begin now, and marks it as under way.
func (n *nemesis) pick(rng *rand.Rand, chosen []fault, heavyDue bool) (fault, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var possible []fault
	sum := 0
	for _, f := range chosen {
		if n.busy[f.name] || f.heavy && (n.heavy || !heavyDue) || f.possible != nil && !f.possible(n.cluster) {
			continue
		}
		possible = append(possible, f)
		sum += f.weight
	}
	if sum == 0 {
		return fault{}, false
	}
	drawn := rng.IntN(sum)
	for _, f := range possible {
		if drawn -= f.weight; drawn < 0 {
			n.busy[f.name] = true
			n.heavy = n.heavy || f.heavy
			return f, true
		}
	}
	panic("not reached")
}

func (n *nemesis) inject(ctx context.Context, f fault, rng *rand.Rand) {
	if err := f.strike(ctx, n, rng); err != nil {
		n.log.Add(event.Record{Kind: event.Note, Do: f.name, Message: "fault: " + err.Error()})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.busy, f.name)
	if f.heavy {
		n.heavy = false
	}
}

// begin records the begin of a fault, and returns what records its end.
func (n *nemesis) begin(r event.Record) (end func()) {
	r.Kind, r.Phase, r.Server = event.Fault, "begin", n.cluster.Server()
	n.log.Add(r)
	return func() {
		r.At, r.Phase, r.Server = 0, "end", n.cluster.Server()
		n.log.Add(r)
	}
}

// moment records a fault that has no duration.
func (n *nemesis) moment(r event.Record) {
	r.Kind, r.Server = event.Fault, n.cluster.Server()
	n.log.Add(r)
}

// with runs a function with a connection to the primary, for at most the time of a statement.
func (n *nemesis) with(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	conn, err := n.cluster.Control(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return do(ctx, conn)
}

func (n *nemesis) run(ctx context.Context, statements ...string) error {
	return n.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		for _, statement := range statements {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

// pause waits for a time, and returns false if the context has ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
