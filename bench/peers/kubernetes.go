package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

func init() { klog.SetLogger(logr.Discard()) }

// A leaseStore has Lease objects in etcd, which it reads and compares-and-swaps as the API server does.  There is no
// API server between it and client-go, which would cost more.
type leaseStore struct {
	client.LeaseInterface // what client-go's lock does not call
	etcd                  *clientv3.Client
}

func (s leaseStore) Leases(string) client.LeaseInterface { return s }

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func key(name string) string { return "/registry/leases/default/" + name }

func (s leaseStore) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordination.Lease, error) {
	answer, err := s.etcd.Get(ctx, key(name))
	if err != nil {
		return nil, err
	}
	if len(answer.Kvs) == 0 {
		return nil, apierrors.NewNotFound(leases, name)
	}
	lease := &coordination.Lease{}
	if err := json.Unmarshal(answer.Kvs[0].Value, lease); err != nil {
		return nil, err
	}
	lease.ResourceVersion = strconv.FormatInt(answer.Kvs[0].ModRevision, 10)
	return lease, nil
}

// put stores a Lease if its key has not changed since the revision; 0 is that of a key that is not there.
func (s leaseStore) put(ctx context.Context, lease *coordination.Lease, revision int64) (*coordination.Lease, error) {
	stored := lease.DeepCopy()
	stored.ResourceVersion = ""
	value, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	answer, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key(lease.Name)), "=", revision)).
		Then(clientv3.OpPut(key(lease.Name), string(value))).Commit()
	if err != nil {
		return nil, err
	}
	if !answer.Succeeded {
		return nil, apierrors.NewConflict(leases, lease.Name, fmt.Errorf("the object has been modified"))
	}
	stored.ResourceVersion = strconv.FormatInt(answer.Header.Revision, 10)
	return stored, nil
}

func (s leaseStore) Create(ctx context.Context, lease *coordination.Lease, _ metav1.CreateOptions) (
	*coordination.Lease, error) {
	return s.put(ctx, lease, 0)
}

func (s leaseStore) Update(ctx context.Context, lease *coordination.Lease, _ metav1.UpdateOptions) (
	*coordination.Lease, error) {
	revision, err := strconv.ParseInt(lease.ResourceVersion, 10, 64)
	if err != nil {
		return nil, err
	}
	return s.put(ctx, lease, revision)
}

type kubernetes struct {
	etcd   *clientv3.Client
	lock   *resourcelock.LeaseLock
	ttl    time.Duration
	cancel context.CancelFunc // ends the loop
	done   chan struct{}      // is closed when the loop has ended
	record resourcelock.LeaderElectionRecord
}

var identities atomic.Int64

func openKubernetes(_ context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error) {
	etcd, err := connectEtcd(context.Background(), servers)
	if err != nil {
		return nil, err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: "default", Name: election},
		Client:     leaseStore{etcd: etcd},
		LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%p-%d", etcd, identities.Add(1))},
	}
	return &kubernetes{etcd: etcd, lock: lock, ttl: ttl}, nil
}

// The periods have the proportions of client-go's defaults: 15 s, 10 s and 2 s.
func renewDeadline(ttl time.Duration) time.Duration { return ttl * 2 / 3 }
func retryPeriod(ttl time.Duration) time.Duration   { return ttl * 2 / 15 }

// write stores a record with this holder, as the loop does.
func (k *kubernetes) write(ctx context.Context, holder string) error {
	now := metav1.Now()
	k.record.HolderIdentity = holder
	k.record.LeaseDurationSeconds = int(k.ttl / time.Second)
	k.record.AcquireTime, k.record.RenewTime = now, now
	return k.lock.Update(ctx, k.record)
}

// Take makes the calls that the loop makes, which cannot try only once.
func (k *kubernetes) Take(ctx context.Context) error {
	record, _, err := k.lock.Get(ctx)
	if apierrors.IsNotFound(err) {
		k.record = resourcelock.LeaderElectionRecord{HolderIdentity: k.lock.Identity(),
			LeaseDurationSeconds: int(k.ttl / time.Second), AcquireTime: metav1.Now(), RenewTime: metav1.Now()}
		return k.lock.Create(ctx, k.record)
	}
	if err != nil {
		return err
	}
	if record.HolderIdentity != "" {
		return errDenied
	}
	k.record = *record
	return k.write(ctx, k.lock.Identity())
}

func (k *kubernetes) Renew(ctx context.Context) error { return k.write(ctx, k.lock.Identity()) }

// Campaign runs client-go's loop, which then renews.
func (k *kubernetes) Campaign(ctx context.Context) error {
	leads := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: k.lock, LeaseDuration: k.ttl, RenewDeadline: renewDeadline(k.ttl), RetryPeriod: retryPeriod(k.ttl),
		ReleaseOnCancel: true, Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leads) }, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return err
	}
	loop, cancel := context.WithCancel(context.Background())
	k.cancel, k.done = cancel, make(chan struct{})
	go func() {
		defer close(k.done)
		elector.Run(loop)
	}()
	select {
	case <-leads:
		return nil
	case <-ctx.Done():
		k.stop()
		return ctx.Err()
	}
}

// stop ends the loop, which releases what it holds.
func (k *kubernetes) stop() {
	k.cancel()
	<-k.done
	k.cancel = nil
}

func (k *kubernetes) Resign(ctx context.Context) error {
	if k.cancel != nil {
		k.stop()
		return nil
	}
	return k.write(ctx, "")
}

func (k *kubernetes) Close() {
	if k.cancel != nil {
		k.stop()
	}
	_ = k.etcd.Close()
}
