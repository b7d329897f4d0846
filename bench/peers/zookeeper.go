package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"
)

type zookeeper struct {
	conn *zk.Conn
	lock *zk.Lock
	path string
	node string // of the lock that is held, once it is asked for
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func openZooKeeper(ctx context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error) {
	conn, events, err := zk.Connect([]string{servers.Address["zookeeper"]}, ttl, zk.WithLogger(silent{}),
		zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case event := <-events:
			if event.State == zk.StateHasSession {
				path := "/" + election
				return &zookeeper{conn: conn, lock: zk.NewLock(conn, path, zk.WorldACL(zk.PermAll)), path: path}, nil
			}
		case <-ctx.Done():
			conn.Close()
			return nil, ctx.Err()
		}
	}
}

func (z *zookeeper) Take(context.Context) error { return z.lock.Lock() }

// Renew asks whether the lock's node is still there.  The client pings by itself.
func (z *zookeeper) Renew(context.Context) error {
	if z.node == "" {
		nodes, _, err := z.conn.Children(z.path)
		if err != nil {
			return err
		}
		if len(nodes) != 1 {
			return fmt.Errorf("%d candidates of %s instead of one", len(nodes), z.path)
		}
		z.node = z.path + "/" + nodes[0]
	}
	there, _, err := z.conn.Exists(z.node)
	if err == nil && !there {
		err = errDenied
	}
	return err
}

// Campaign ends early only if Close is called.
func (z *zookeeper) Campaign(context.Context) error { return z.lock.Lock() }

func (z *zookeeper) Resign(context.Context) error {
	z.node = ""
	return z.lock.Unlock()
}

func (z *zookeeper) Close() { z.conn.Close() }
