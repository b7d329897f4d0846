package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type redisCandidate struct {
	client *redis.Client
	locker *redislock.Client
	lock   *redislock.Lock
	name   string
	ttl    time.Duration
}

func openRedis(_ context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error) {
	return newRedis(servers.Address["redis"], election, ttl), nil
}

func openRedisAOF(_ context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error) {
	return newRedis(servers.Address["redis-aof"], election, ttl), nil
}

func newRedis(address, election string, ttl time.Duration) Candidate {
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: 1, DisableIdentity: true})
	return &redisCandidate{client: client, locker: redislock.New(client), name: election, ttl: ttl}
}

func (r *redisCandidate) Take(ctx context.Context) (err error) {
	r.lock, err = r.locker.Obtain(ctx, r.name, r.ttl, nil)
	return err
}

func (r *redisCandidate) Renew(ctx context.Context) error { return r.lock.Refresh(ctx, r.ttl, nil) }

// Campaign needs a deadline, since the client gives up after one ttl otherwise.
func (r *redisCandidate) Campaign(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	r.lock, err = r.locker.Obtain(ctx, r.name, r.ttl,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(pollPause)})
	return err
}

func (r *redisCandidate) Resign(ctx context.Context) error { return r.lock.Release(ctx) }

func (r *redisCandidate) Close() { _ = r.client.Close() }
