package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"leader_election/proof/event"
)

// Loss says what a promoted standby lacks.
type Loss int

const (
	LoseNothing Loss = iota // the primary is shut down, after the standby has everything
	LoseLittle              // the primary is killed, and may not have sent the last commits
	LoseMuch                // the standby is cut off for a while, then the primary is killed
	LoseHost                // as LoseLittle, and the primary's Patroni is killed with it
)

// addStandby builds a standby of the present primary.
func (c *Cluster) addStandby(ctx context.Context, number int) error {
	s, err := c.newServer(number)
	if err != nil {
		return err
	}
	if s.member != nil {
		err = s.becomeStandby(ctx, c.present().timeline)
	} else {
		err = s.follow(ctx, c.present())
	}
	if err != nil {
		c.forget(s)
		return err
	}
	c.mu.Lock()
	c.standby = s
	c.mu.Unlock()
	return nil
}

func (s *server) follow(ctx context.Context, primary *server) error {
	if err := run("pg_basebackup", "-D", s.dir, "-h", "127.0.0.1", "-p", strconv.Itoa(primary.port),
		"-U", "postgres", "-X", "stream", "-c", "fast", "--no-sync"); err != nil {
		return err
	}
	if err := appendFile(filepath.Join(s.dir, "standby.signal"), ""); err != nil {
		return err
	}
	err := s.start(ctx)
	if err != nil {
		s.killAll()
	}
	return err
}

// forget removes a server that could not be made.
func (c *Cluster) forget(s *server) {
	if s.member == nil {
		_ = os.RemoveAll(s.dir)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.servers {
		if c.servers[i] == s {
			c.servers = append(c.servers[:i], c.servers[i+1:]...)
			return
		}
	}
}

// StandbyReady says whether there is a standby that can be promoted.
func (c *Cluster) StandbyReady() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.standby != nil
}

// Promote ends the primary and promotes the standby.  With LoseMuch, the standby is cut off for the given time before.
// The rows of the old primary, and the next standby, are seen to in the background.
func (c *Cluster) Promote(ctx context.Context, loss Loss, cut time.Duration) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.mu.Lock()
	old, s := c.primary, c.standby
	c.standby = nil
	c.mu.Unlock()
	if s == nil {
		return ErrNoStandby
	}

	gather, err := c.endPrimary(ctx, old, s, loss, cut)
	if err != nil {
		return err
	}
	c.Proxy.setTarget("")
	c.replication.setTarget("")
	c.replication.Cut()
	c.replication.Thaw()

	if err := s.promote(); err != nil {
		return err
	}
	err = c.lead(s)
	c.gathering.Add(1)
	c.building.Add(1)
	go func() {
		gather()
		c.gathering.Done()
		c.buildStandby(s.number + 1)
		c.building.Done()
	}()
	return err
}

// endPrimary ends a primary, and returns what gathers its rows once another one leads.
func (c *Cluster) endPrimary(
	ctx context.Context, old, next *server, loss Loss, cut time.Duration,
) (gather func(), err error) {
	if c.options.Patroni {
		return c.endMember(ctx, old, next, loss, cut)
	}
	switch loss {
	case LoseNothing:
		c.waitForStandby(ctx, old)
		old.stop(Fast)
	case LoseLittle, LoseHost:
		old.killAll()
	case LoseMuch:
		c.replication.Freeze()
		pause(ctx, cut)
		old.killAll()
	}
	return func() { c.gatherLast(old) }, nil
}

// waitForStandby gives a standby that has lost its connection the time to come back.
func (c *Cluster) waitForStandby(ctx context.Context, primary *server) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := primary.connect(ctx)
	if err != nil {
		return
	}
	defer closeConn(conn)
	for streams := false; !streams && ctx.Err() == nil; pause(ctx, 20*time.Millisecond) {
		err = conn.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming'").Scan(&streams)
		if err != nil {
			return
		}
	}
}

// promote must come to its end once the old primary has gone, so it obeys no context.  pg_promote itself
// would wait by the wall clock, which the nemesis sets.
func (s *server) promote() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	if s.member == nil {
		if _, err := conn.Exec(ctx, "SELECT pg_promote(wait => false)"); err != nil {
			return err
		}
	}
	for recovers := true; recovers; pause(ctx, 10*time.Millisecond) {
		if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovers); err != nil {
			return fmt.Errorf("server %d was not promoted: %w", s.number, err)
		}
	}
	return s.noteOrigin(ctx, conn)
}

// gatherLast gathers the rows of a primary that has ended, whose files go.
func (c *Cluster) gatherLast(old *server) {
	if err := c.gatherAlone(old); err != nil {
		c.gather(event.Record{Kind: event.Problem, Do: "checker", Server: old.number,
			Message: "the rows of a server are not known: " + err.Error()})
		return
	}
	_ = os.RemoveAll(old.dir)
}

// buildStandby tries until there is a standby: a fault can end the primary meanwhile.
func (c *Cluster) buildStandby(number int) {
	for c.running.Err() == nil {
		if c.addStandby(c.running, number) == nil {
			return
		}
		pause(c.running, 500*time.Millisecond)
	}
}

// gatherAlone starts a server that has ended, without clients, and gathers its rows.
func (c *Cluster) gatherAlone(s *server) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	s.port = alonePort + s.number
	s.more = append(s.more, "-c", "listen_addresses=127.0.0.1", "-c", "autovacuum=off", "-c", "max_wal_senders=0")
	if err := s.start(ctx); err != nil {
		return err
	}
	defer s.killAll()
	return c.gatherRows(ctx, s)
}
