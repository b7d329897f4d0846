package main

import (
	"context"
	"time"
)

// A Candidate is a client with a connection of its own, which can lead one election.
type Candidate interface {
	// Take leads an election that is vacant.
	Take(ctx context.Context) error
	// Renew extends the term, or asks whether it still runs.
	Renew(ctx context.Context) error
	// Campaign waits until this candidate leads.
	Campaign(ctx context.Context) error
	// Resign ends the term.
	Resign(ctx context.Context) error
	Close()
}

// A Peer is one way to elect a leader.
type Peer struct {
	Name   string // short, for the command line
	Title  string
	Server string // the server that it needs

	// Open connects a candidate.
	Open func(ctx context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error)

	// ShortTTL is used where peers are compared: 2 s, or the shortest that the server permits.  DefaultTTL is that of
	// the client, or 15 s if it has none.  Both are 0 if a term ends with its connection.
	ShortTTL, DefaultTTL time.Duration

	// Poll is the greatest pause between two bids of a candidate that waits; 0 if the server wakes it.
	Poll func(ttl time.Duration) time.Duration

	// ByHand tells that a leader must call Renew; otherwise the client does this by itself.
	ByHand bool

	// Throughput tells that only the throughput is of interest, and Waits that this peer's clients can wait by the
	// thousand.
	Throughput, Waits bool
}

// poll returns how long a candidate that waits may not notice anything.
func (peer *Peer) poll(ttl time.Duration) time.Duration {
	if peer.Poll == nil {
		return 0
	}
	return peer.Poll(ttl)
}

// defaultTTL is that of client-go and of Consul's client, and of those that have none.
const defaultTTL = 15 * time.Second

// pollPause is between two bids of clients that poll, where the client does not set it by itself.
const pollPause = 100 * time.Millisecond

func pollEach(time.Duration) time.Duration { return pollPause }

var peers = []*Peer{
	{Name: "session", Title: "**leader_election, session**", Server: "postgresql", Open: openSession, Waits: true},
	{Name: "quiet", Title: "**the same, `log_terms` off**", Server: "postgresql", Open: openQuiet,
		Throughput: true},
	{Name: "lease", Title: "**leader_election, lease**", Server: "postgresql", Open: openLease, ByHand: true,
		ShortTTL: 2 * time.Second, DefaultTTL: defaultTTL},
	{Name: "advisory", Title: "PostgreSQL, advisory lock", Server: "postgresql", Open: openAdvisory, Waits: true},
	{Name: "table", Title: "PostgreSQL, table of leases", Server: "postgresql", Open: openTable, ByHand: true,
		ShortTTL: 2 * time.Second, DefaultTTL: defaultTTL, Poll: pollEach},
	{Name: "etcd", Title: "etcd", Server: "etcd", Open: openEtcd, Waits: true,
		ShortTTL: 2 * time.Second, DefaultTTL: 60 * time.Second},
	{Name: "client-go", Title: "client-go, Lease in etcd", Server: "etcd", Open: openKubernetes,
		ShortTTL: 2 * time.Second, DefaultTTL: defaultTTL, Poll: retryPeriod},
	{Name: "zookeeper", Title: "ZooKeeper", Server: "zookeeper", Open: openZooKeeper, Waits: true,
		ShortTTL: 4 * time.Second, DefaultTTL: defaultTTL},
	{Name: "consul", Title: "Consul", Server: "consul", Open: openConsul,
		ShortTTL: 10 * time.Second, DefaultTTL: defaultTTL},
	{Name: "redis", Title: "Redis, not durable", Server: "redis", Open: openRedis, ByHand: true,
		ShortTTL: 2 * time.Second, DefaultTTL: defaultTTL, Poll: pollEach},
	{Name: "redis-aof", Title: "Redis, `appendfsync always`", Server: "redis-aof", Open: openRedisAOF, ByHand: true,
		Throughput: true, ShortTTL: 2 * time.Second, DefaultTTL: defaultTTL, Poll: pollEach},
}

func findPeer(name string) *Peer {
	for _, peer := range peers {
		if peer.Name == name {
			return peer
		}
	}
	return nil
}
