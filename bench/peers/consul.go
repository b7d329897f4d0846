package main

import (
	"context"
	"net/http"
	"time"

	"github.com/hashicorp/consul/api"
)

type consul struct {
	client    *api.Client
	transport *http.Transport
	lock      *api.Lock
	session   string
	stop      chan struct{}
	ttl       time.Duration
}

func connectConsul(servers *Servers) (*api.Client, *http.Transport, error) {
	config := api.DefaultConfig()
	config.Address = servers.Address["consul"]
	client, err := api.NewClient(config)
	return client, config.Transport, err
}

// A candidate has a session, which the client renews, for all of its locks.  After a session has ended, Consul permits
// no new lock for the lock delay.  It is the default with the default ttl only, otherwise the shortest.
func openConsul(_ context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error) {
	client, transport, err := connectConsul(servers)
	if err != nil {
		return nil, err
	}
	entry := &api.SessionEntry{TTL: ttl.String(), LockDelay: time.Millisecond}
	if ttl == defaultTTL {
		entry.LockDelay = 15 * time.Second
	}
	session, _, err := client.Session().CreateNoChecks(entry, nil)
	if err != nil {
		return nil, err
	}
	stop := make(chan struct{})
	go func() { _ = client.Session().RenewPeriodic(ttl.String(), session, nil, stop) }()
	lock, err := client.LockOpts(&api.LockOptions{Key: "election/" + election, Session: session})
	if err != nil {
		return nil, err
	}
	return &consul{client, transport, lock, session, stop, ttl}, nil
}

func (c *consul) Take(ctx context.Context) error { return c.Campaign(ctx) }

func (c *consul) Renew(ctx context.Context) error {
	entry, _, err := c.client.Session().Renew(c.session, (&api.WriteOptions{}).WithContext(ctx))
	if err == nil && entry == nil {
		err = errDenied
	}
	return err
}

func (c *consul) Campaign(ctx context.Context) error {
	lost, err := c.lock.Lock(ctx.Done())
	if err == nil && lost == nil {
		err = ctx.Err()
	}
	return err
}

func (c *consul) Resign(context.Context) error { return c.lock.Unlock() }

func (c *consul) Close() {
	// the end of the renewals destroys the session
	close(c.stop)
	_, _ = c.client.Session().Destroy(c.session, nil)
	c.transport.CloseIdleConnections()
}
