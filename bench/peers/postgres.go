package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"
)

var errDenied = errors.New("another candidate leads")

// createPeers makes what the peers in PostgreSQL need.
const createPeers = `CREATE EXTENSION leader_election;
CREATE TABLE lease (key text PRIMARY KEY, leader text NOT NULL, valid_until timestamptz NOT NULL)`

// A row of the table is taken if there is none, or if it has expired, and renewed by the same statement.
const upsert = `INSERT INTO lease VALUES ($1, $2, clock_timestamp() + $3::interval)
 ON CONFLICT (key) DO UPDATE SET leader = excluded.leader, valid_until = excluded.valid_until
 WHERE lease.valid_until < clock_timestamp() OR lease.leader = excluded.leader`

const renewRow = `UPDATE lease SET valid_until = clock_timestamp() + $3::interval
 WHERE key = $1 AND leader = $2 AND valid_until >= clock_timestamp()`

type postgres struct {
	conn     *pgx.Conn
	election string
}

func connect(ctx context.Context, servers *Servers, election string, settings ...string) (postgres, error) {
	config, err := pgx.ParseConfig(servers.Address["postgresql"])
	if err != nil {
		return postgres{}, err
	}
	for i := 0; i < len(settings); i += 2 {
		config.RuntimeParams[settings[i]] = settings[i+1]
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	return postgres{conn, election}, err
}

func (p postgres) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx)
}

// yes runs a statement that is to return true.
func (p postgres) yes(ctx context.Context, sql string, args ...any) error {
	var answer bool
	if err := p.conn.QueryRow(ctx, sql, args...).Scan(&answer); err != nil {
		return err
	}
	if !answer {
		return errDenied
	}
	return nil
}

// A session leads as long as it has its connection.
type session struct{ postgres }

func openSession(ctx context.Context, servers *Servers, election string, _ time.Duration) (Candidate, error) {
	p, err := connect(ctx, servers, election)
	return session{p}, err
}

func openQuiet(ctx context.Context, servers *Servers, election string, _ time.Duration) (Candidate, error) {
	p, err := connect(ctx, servers, election, "leader_election.log_terms", "off")
	return session{p}, err
}

func (s session) Take(ctx context.Context) error {
	return s.yes(ctx, "SELECT le_try_become_leader($1::text)", s.election)
}

func (s session) Renew(ctx context.Context) error {
	return s.yes(ctx, "SELECT le_am_leader($1::text)", s.election)
}

func (s session) Campaign(ctx context.Context) error {
	_, err := s.conn.Exec(ctx, "CALL le_campaign($1::text)", s.election)
	return err
}

func (s session) Resign(ctx context.Context) error {
	return s.yes(ctx, "SELECT le_resign($1::text)", s.election)
}

// A lease is renewed by its token.
type lease struct {
	postgres
	ttl   time.Duration
	token *int64
}

func openLease(ctx context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error) {
	p, err := connect(ctx, servers, election)
	return &lease{p, ttl, nil}, err
}

func (l *lease) Take(ctx context.Context) error {
	err := l.conn.QueryRow(ctx, "SELECT le_lease($1, $2)", l.election, l.ttl).Scan(&l.token)
	if err == nil && l.token == nil {
		err = errDenied
	}
	return err
}

func (l *lease) Renew(ctx context.Context) error {
	return l.yes(ctx, "SELECT le_renew($1, $2)", l.election, l.token)
}

func (l *lease) Campaign(ctx context.Context) error {
	return l.conn.QueryRow(ctx, "CALL le_campaign($1::text, ttl => $2)", l.election, l.ttl).Scan(&l.token)
}

func (l *lease) Resign(ctx context.Context) error {
	return l.yes(ctx, "SELECT le_resign($1, $2)", l.election, l.token)
}

// An advisory lock, by a key as programs make it from a name.
type advisory struct {
	postgres
	key int64
}

func openAdvisory(ctx context.Context, servers *Servers, election string, _ time.Duration) (Candidate, error) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(election))
	p, err := connect(ctx, servers, election)
	return advisory{p, int64(hash.Sum64())}, err
}

func (a advisory) Take(ctx context.Context) error {
	return a.yes(ctx, "SELECT pg_try_advisory_lock($1)", a.key)
}

// Renew asks whether the connection, and thus the lock, is still there.
func (a advisory) Renew(ctx context.Context) error {
	return a.yes(ctx, "SELECT true")
}

func (a advisory) Campaign(ctx context.Context) error {
	_, err := a.conn.Exec(ctx, "SELECT pg_advisory_lock($1)", a.key)
	return err
}

func (a advisory) Resign(ctx context.Context) error {
	return a.yes(ctx, "SELECT pg_advisory_unlock($1)", a.key)
}

// A table of leases, as careful programs have it.
type table struct {
	postgres
	ttl    time.Duration
	leader string
}

func openTable(ctx context.Context, servers *Servers, election string, ttl time.Duration) (Candidate, error) {
	p, err := connect(ctx, servers, election)
	if err != nil {
		return nil, err
	}
	return table{p, ttl, fmt.Sprint(p.conn.PgConn().PID())}, nil
}

// one runs a statement that is to change one row.
func (t table) one(ctx context.Context, sql string, args ...any) error {
	tag, err := t.conn.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() != 1 {
		err = errDenied
	}
	return err
}

func (t table) Take(ctx context.Context) error {
	return t.one(ctx, upsert, t.election, t.leader, t.ttl)
}

func (t table) Renew(ctx context.Context) error {
	return t.one(ctx, renewRow, t.election, t.leader, t.ttl)
}

func (t table) Campaign(ctx context.Context) error {
	for {
		err := t.Take(ctx)
		if !errors.Is(err, errDenied) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollPause):
		}
	}
}

func (t table) Resign(ctx context.Context) error {
	return t.one(ctx, "DELETE FROM lease WHERE key = $1 AND leader = $2", t.election, t.leader)
}
