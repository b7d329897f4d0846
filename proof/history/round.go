package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"time"

	"leader_election/proof/client"
	"leader_election/proof/cluster"
	"leader_election/proof/event"
	"leader_election/proof/nemesis"
	"leader_election/proof/published"
)

const (
	clients   = 12
	elections = 3
	// how long clients that are told to end may take: a statement on a connection that was cut runs into its timeout
	patience = 30 * time.Second
	// copies of a published loop: so few that faults often meet the one that leads
	copies = 4
	// the clients of the end, which find out whether every election can be led
	finalists = 3
	// the clients from this number on are crowds, each by another route
	firstCrowd = 101
	crowds     = 2
	// a crowd is in line when the faults end, and its members may take so long in turn
	crowdStays = 3 * time.Second
	drain      = 100 * time.Millisecond
)

// round is a cluster with its clients.
type round struct {
	options
	dir     string
	seed    uint64
	length  time.Duration
	log     *event.Log
	cluster *cluster.Cluster
	fleet   *fleet
	begin   int64
	size    int // of the crowd
}

// play lets clients elect for a time while faults strike, and gathers what is left at the end.
func play(ctx context.Context, o options, dir string, seed uint64, length time.Duration) error {
	log, err := event.Open(filepath.Join(dir, "coordinator.jsonl"))
	if err != nil {
		return err
	}
	extension, own := o.loop == "", o.loop == "" && !o.patroni
	crowd := 0
	if own {
		crowd = o.crowdOf(seed)
	}
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Seed: seed, Assert: o.assert, Standby: extension,
		Pooler: own, Link: own, Clock: own && o.script == "", Patroni: o.patroni, Crowd: crowd, Script: o.script})
	if err != nil {
		return err
	}
	defer c.Stop()
	if o.edition != "" {
		log.Add(event.Record{Kind: event.Note, Message: event.EditionIs + o.edition})
	}
	r := &round{options: o, dir: dir, seed: seed, length: length, log: log, cluster: c, begin: event.Now(), size: crowd}
	r.fleet = &fleet{dir: dir, log: log, inHost: c.CommandInHost, members: map[int]*member{}}
	defer r.fleet.finish(0, 0)
	if err := c.EnsureTriggers(ctx, r.jobs()...); err != nil {
		return err
	}
	if err := r.startClients(); err != nil {
		return err
	}
	if err := r.strike(ctx); err != nil {
		return err
	}
	log.Add(event.Record{Kind: event.Note, Message: event.FaultsEnd})
	if o.loop != "" {
		r.fleet.finish(0, patience)
		return nil
	}
	r.fleet.finish(patience+time.Duration(r.size)*drain, patience/3)
	return r.conclude(ctx)
}

// jobs returns the names of the elections of all epochs, and of those that clients may reach when they end.
func (r *round) jobs() []string {
	var names []string
	for k := 1; k <= elections; k++ {
		for e := range int((r.length+patience)/r.epoch()) + 1 {
			names = append(names, fmt.Sprintf("job-%d.%d", k, e))
		}
	}
	return names
}

// strike lets the nemesis work until the clients become quiet.
func (r *round) strike(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.length)
	defer cancel()
	if slices.Contains(r.faults, "none") {
		<-ctx.Done()
		return nil
	}
	rng := rand.New(rand.NewPCG(r.seed, 0x6e656d65736973))
	if err := nemesis.Run(ctx, r.cluster, r.fleet, r.log, rng, r.faults); err != nil {
		return fmt.Errorf("the nemesis: %w", err)
	}
	<-ctx.Done()
	return nil
}

func (r *round) startClients() error {
	member, all := r.elector, clients
	if r.loop != "" {
		member, all = r.publishedLoop, copies
	}
	for n := 1; n <= all; n++ {
		if err := r.fleet.start(member(n)); err != nil {
			return err
		}
		// published loops would ask in step
		time.Sleep(50 * time.Millisecond)
	}
	for n := range min(r.size, crowds) {
		if err := r.fleet.start(r.crowd(firstCrowd+n, (r.size+n)/crowds)); err != nil {
			return err
		}
	}
	return nil
}

// crowd is a process of many clients, which wait for the same election.  Killed or stopped, it takes all of them with it.
func (r *round) crowd(n, size int) *member {
	route := r.routes()[n%crowds]
	m := &member{number: n, command: "client"}
	m.config = func(incarnation int) any {
		return client.Config{Number: n, Clients: clients, Incarnation: incarnation, Seed: r.seed, Dir: r.dir,
			Start: r.begin, EpochNS: int64(r.epoch()), QuietAt: r.begin + int64(r.length+crowdStays),
			Elections: elections, Route: route, Crowd: size}
	}
	return m
}

// crowdOf returns the size of the crowd in a round: every third round has one, unless another size is asked for.
func (o options) crowdOf(seed uint64) int {
	rng := rand.New(rand.NewPCG(seed, 0x63726f7764))
	switch {
	case o.crowd >= 0:
		return o.crowd
	case o.hunts() || rng.IntN(3) > 0:
		return 0
	}
	return 100 + rng.IntN(201)
}

// elector is a client of the extension.  The clients come along different ways.
func (r *round) elector(n int) *member {
	routes := r.routes()
	first := routes[n%len(routes)]
	m := &member{number: n, command: "client"}
	if first.Through == client.Link {
		m.host = 1 + n/len(routes)%cluster.Hosts
		first.File = r.cluster.Addresses().Links[m.host-1]
		routes = nil
	}
	m.config = func(incarnation int) any {
		return client.Config{Number: n, Clients: clients, Incarnation: incarnation, Seed: r.seed, Dir: r.dir,
			Start: r.begin, EpochNS: int64(r.epoch()), QuietAt: r.begin + int64(r.length), Elections: elections,
			LongTTL: r.patroni, Ways: r.ways(), Route: first, Others: routes}
	}
	return m
}

// ways returns what the clients do.
func (o options) ways() []string {
	if o.edition == "sql" {
		return client.WaysOfSQL
	}
	return []string{client.Trigger}
}

// epoch returns after what time the clients turn to other elections.  It is longer than a failover takes.
func (o options) epoch() time.Duration {
	if o.patroni {
		return 20 * time.Second
	}
	return 8 * time.Second
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// routes returns the ways from the servers' namespace, and last that of a client with a link.
func (r *round) routes() []client.Route {
	a := r.cluster.Addresses()
	if r.patroni {
		return []client.Route{
			{Address: a.Members + " dbname=postgres user=postgres", Through: client.Direct},
			{Address: "host=127.0.0.1 port=" + port(a.Proxy) + " dbname=postgres user=postgres", Through: client.Proxy},
		}
	}
	return []client.Route{
		{File: a.File, Through: client.Direct},
		{Address: "host=127.0.0.1 port=" + port(a.Proxy) + " dbname=postgres user=postgres", Through: client.Proxy},
		{Address: "host=127.0.0.1 port=" + port(a.Pooler) + " dbname=session user=postgres",
			Through: client.PoolerSession},
		{Address: "host=127.0.0.1 port=" + port(a.Pooler) + " dbname=transaction user=postgres",
			Through: client.PoolerTransaction},
		{Through: client.Link},
	}
}

// publishedLoop is a client that knows nothing of the extension.  One half of these clients comes through the proxy, the
// other one does not.
func (r *round) publishedLoop(n int) *member {
	address := r.cluster.Addresses().Proxy
	if n%2 == 0 {
		address = r.cluster.FirstAddress()
	}
	m := &member{number: n, command: "published"}
	m.config = func(int) any {
		return published.Config{Number: n, Dir: r.dir, Loop: r.loop, Program: r.program, Election: "1",
			Address: fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&application_name=client%%20%d", address, n),
			Env:     []string{"INTERVAL=1s", "TERM_LENGTH=2s"}}
	}
	return m
}

// conclude lets the last elections be led once more, and gathers what is left.
func (r *round) conclude(ctx context.Context) error {
	if err := r.cluster.EndPrepared(ctx, r.log); err != nil {
		return err
	}
	r.log.Add(event.Record{Kind: event.Note, Message: "final begins"})
	if err := r.finals(); err != nil {
		return err
	}
	if err := r.cluster.Leftovers(ctx, r.log); err != nil {
		return err
	}
	if err := r.cluster.Facts(ctx, r.log); err != nil {
		return err
	}
	return r.cluster.LogProblems(r.log)
}

// finals lets fresh clients lead each of the last elections.
func (r *round) finals() error {
	var names []string
	last := int64(r.length / r.epoch())
	for k := 1; k <= elections; k++ {
		for e := max(0, last-2); e <= last; e++ {
			names = append(names, fmt.Sprintf("job-%d.%d", k, e))
		}
	}
	for i := range finalists {
		m := r.elector(clients + 1 + i)
		m.host = 0
		route := r.routes()[0]
		m.config = func(int) any {
			return client.Config{Number: m.number, Clients: clients, Seed: r.seed, Dir: r.dir, Start: r.begin,
				EpochNS: int64(r.epoch()), QuietAt: event.Now() + int64(patience), Elections: elections, Route: route,
				Final: names}
		}
		if err := r.fleet.start(m); err != nil {
			return err
		}
	}
	r.fleet.finish(2*patience, patience/3)
	return nil
}
