// Package client is one client process.  It stands for election in all the ways that the reference describes, writes
// while it leads, and sometimes when it does not any more.  It records what it has called and what it was answered.
package client

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"leader_election/proof/event"
)

// Values of Through.
const (
	Direct            = "direct"
	Proxy             = "proxy"
	PoolerSession     = "pooler session"
	PoolerTransaction = "pooler transaction"
	Link              = "link"
)

// Route is a way to reach the primary.
type Route struct {
	Address string // a connection string of libpq
	File    string // if not empty: a JSON file with the host, port and server at present, in place of those in Address
	Through string
}

// Config says what a client is and does.
type Config struct {
	Number      int
	Clients     int // how many clients there are
	Incarnation int
	Seed        uint64
	Dir         string
	Start       int64 // of the run, by event.Now
	EpochNS     int64
	QuietAt     int64 // from then on, the client resigns what it leads, and ends
	Elections   int
	LongTTL     bool     // leases outlast a failover by Patroni
	Ways        []string // names of ways and features; all but Trigger if empty, or if only Trigger is named
	Route                // of the session that stands for election
	Others      []Route  // further routes for the other session; it also takes the first one
	Final       []string // lead each of these elections once, and do nothing else
	Crowd       int      // be a crowd of so many sessions, and do nothing else
}

// The features are what a client may do besides its ways.
const (
	Once     = "once"     // do jobs by le_once
	Prepared = "prepared" // prepare transactions
	Cancel   = "cancel"   // cancel bids that wait
	Late     = "late"     // write by terms that have ended
	Discard  = "discard"  // discard the session's state
	// rely on le_assert_leader where a trigger guards
	Guarded = "guarded"
)

// WaysOfSQL is what the SQL edition has.
var WaysOfSQL = []string{"session", "heartbeat", "transaction", "lease", "many", "seats", "observe", "look", "depose",
	"cross", Once, Prepared, Cancel, Late, Discard, Guarded, Trigger}

// Trigger is a feature that is only on if it is named: the table triggered has the trigger of each election by name.
const Trigger = "trigger"

// way is one way to be busy for a while.
type way struct {
	name    string
	weight  int
	session bool // needs a session of its own
	run     func(*client)
}

var ways = []way{
	{"session", 30, true, (*client).leadInSession},
	{"heartbeat", 15, true, (*client).leadWithHeartbeat},
	{"transaction", 20, false, (*client).leadInTransaction},
	{"lease", 30, false, (*client).leadByLease},
	{"many", 10, false, (*client).leadOneOfMany},
	{"seats", 6, false, (*client).takeSeat},
	{"observe", 4, false, (*client).follow},
	{"look", 2, false, (*client).lookAround},
	{"depose", 2, false, (*client).deposeAny},
	{"cross", 6, true, (*client).waitCrosswise},
}

type client struct {
	Config
	log      *event.Log
	rng      *rand.Rand
	quit     context.Context // done at SIGTERM
	op       int64
	sessions int
	first    *session // stands for election
	second   *session // another one, for what needs only the token
	stale    []*term
	pending  []*pending
	swept    int64 // when prepared transactions were last looked for
	mates    []*client
	mate     int // number among the mates of another client, from 1; 0: none of them
}

// Main is the process, until SIGTERM or its quiet time.
func Main(configFile string) error {
	text, err := os.ReadFile(configFile)
	if err != nil {
		return err
	}
	var config Config
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", configFile, err)
	}
	log, err := event.Open(filepath.Join(config.Dir, fmt.Sprintf("client-%d.jsonl", config.Number)))
	if err != nil {
		return err
	}
	quit, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	newClient(config, log, quit).work()
	return nil
}

func newClient(config Config, log *event.Log, quit context.Context) *client {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "client %d %d", config.Number, config.Incarnation)
	config.Others = slices.DeleteFunc(config.Others, func(r Route) bool { return r.Address == "" && r.File == "" })
	return &client{
		Config:   config,
		log:      log,
		rng:      rand.New(rand.NewPCG(config.Seed, hash.Sum64())),
		quit:     quit,
		op:       int64(config.Incarnation) * 1_000_000,
		sessions: config.Incarnation * 1000,
	}
}

func (c *client) identity() string {
	switch {
	case c.mate == 0:
		return fmt.Sprintf("client %d", c.Number)
	case c.Crowd > 0:
		return fmt.Sprintf("crowd %d.%d", c.Number, c.mate)
	}
	return fmt.Sprintf("client %d.%d", c.Number, c.mate)
}

func (c *client) may(name string) bool {
	if name != Trigger && !slices.ContainsFunc(c.Ways, func(way string) bool { return way != Trigger }) {
		return true
	}
	return slices.Contains(c.Ways, name)
}

func (c *client) over() bool {
	return c.quit.Err() != nil || event.Now() >= c.QuietAt
}

func (c *client) work() {
	choice := c.choice()
	switch {
	case len(c.Final) > 0:
		c.leadEach(c.Final)
		choice = nil
	case c.Crowd > 0:
		c.crowd()
		return
	}
	for !c.over() && len(choice) > 0 {
		c.settlePrepared(event.Now())
		choice[c.rng.IntN(len(choice))].run(c)
		if c.chance(0.1) {
			c.drop(&c.second)
		}
	}
	for try := 0; try < 3 && (try == 0 || len(c.pending) > 0); try++ {
		c.settlePrepared(never)
	}
	c.sweep()
	for _, one := range append(c.mates, c) {
		one.drop(&one.first)
		one.drop(&one.second)
	}
}

// choice returns the ways that the client may take, each as often as its weight says.
func (c *client) choice() []way {
	var all []way
	for _, w := range ways {
		if c.may(w.name) && !(w.session && c.Through == PoolerTransaction) {
			all = append(all, slices.Repeat([]way{w}, w.weight)...)
		}
	}
	return all
}

func (c *client) chance(p float64) bool {
	return c.rng.Float64() < p
}

// between returns a random number of milliseconds.
func (c *client) between(low, high int) time.Duration {
	return time.Duration(low+c.rng.IntN(high-low+1)) * time.Millisecond
}

// sleep waits, but not when the client is told to stop.
func (c *client) sleep(d time.Duration) {
	select {
	case <-c.quit.Done():
	case <-time.After(d):
	}
}

func (c *client) epoch() int64 {
	return (event.Now() - c.Start) / c.EpochNS
}

func (c *client) epochEnd() int64 {
	return c.Start + (c.epoch()+1)*c.EpochNS
}

// election is known by its name.
type election struct {
	name string
}

func (e election) String() string {
	return e.name
}

func (c *client) job() election {
	return election{name: fmt.Sprintf("job-%d.%d", 1+c.rng.IntN(c.Elections), c.epoch())}
}

// call records a call, makes it, and records its return.  It returns that, and when the call was sent.
func (c *client) call(s *session, r event.Record, make func(*event.Record) error) (event.Record, int64) {
	answer, sent := c.begin(s, r)
	return c.end(s, answer, make(&answer)), sent
}

func (c *client) begin(s *session, r event.Record) (event.Record, int64) {
	c.op++
	r.Kind, r.Client, r.Session, r.Op = event.Call, c.Number, s.number, c.op
	sent := c.log.Add(r)
	r.Kind = event.Return
	return r, sent
}

func (c *client) end(s *session, answer event.Record, err error) event.Record {
	if err != nil {
		judge(&answer, err)
	}
	c.log.Add(answer)
	s.settle()
	return answer
}
