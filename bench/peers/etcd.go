package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

type etcd struct {
	client   *clientv3.Client
	session  *concurrency.Session
	election *concurrency.Election
}

func connectEtcd(ctx context.Context, servers *Servers) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{servers.Address["etcd"]},
		DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
}

func openEtcd(ctx context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error) {
	client, err := connectEtcd(context.Background(), servers)
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return &etcd{client, session, concurrency.NewElection(session, "/election/"+election)}, nil
}

func (e *etcd) Take(ctx context.Context) error { return e.Campaign(ctx) }

func (e *etcd) Renew(ctx context.Context) error {
	_, err := e.client.KeepAliveOnce(ctx, e.session.Lease())
	return err
}

func (e *etcd) Campaign(ctx context.Context) error { return e.election.Campaign(ctx, "candidate") }

func (e *etcd) Resign(ctx context.Context) error { return e.election.Resign(ctx) }

func (e *etcd) Close() {
	// the session's end revokes its lease
	_ = e.session.Close()
	_ = e.client.Close()
}
