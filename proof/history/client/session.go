package client

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"leader_election/proof/event"
)

const (
	patience    = 4 * time.Second // how long an answer may take
	dialTimeout = 3 * time.Second
	never       = math.MaxInt64
)

// session is a connection.
type session struct {
	c      *client
	conn   *pgx.Conn
	number int
	closed bool // and so recorded
}

// limit says when the client gives a statement up.
type limit struct {
	after  time.Duration
	cancel bool // ask the server to cancel it; otherwise the connection is closed
	waits  bool // SIGTERM ends it as well
}

var soon = limit{after: patience}

// target reads where the primary is.
func (r Route) target() (*pgx.ConnConfig, int, error) {
	config, err := pgx.ParseConfig(cmp.Or(r.Address, "dbname=postgres user=postgres") + " sslmode=disable")
	if err != nil {
		return nil, 0, err
	}
	if r.File == "" {
		return config, 1, nil
	}
	text, err := os.ReadFile(r.File)
	if err != nil {
		return nil, 0, err
	}
	primary := struct {
		Host   string
		Port   uint16
		Server int
	}{Server: 1}
	if err := json.Unmarshal(text, &primary); err != nil {
		return nil, 0, err
	}
	config.Host, config.Port = primary.Host, primary.Port
	return config, primary.Server, nil
}

func (c *client) connect(r Route) (*session, error) {
	config, server, err := r.target()
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = c.identity()
	config.RuntimeParams["client_encoding"] = "UTF8"
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	// Behind a pooler, only this tells whether there is a server, and which: the file may be that of the primary
	// before a promotion, if this process was stopped after it had read it.
	// A standby has the number of the primary that it may become.
	var pid int
	const ask = "SELECT pg_backend_pid(), current_setting('proof.server')::integer WHERE NOT pg_is_in_recovery()"
	if err := conn.QueryRow(ctx, ask, pgx.QueryExecModeSimpleProtocol).Scan(&pid, &server); err != nil {
		conn.PgConn().Conn().Close()
		return nil, err
	}
	if r.Through == PoolerTransaction {
		pid = 0 // the next transaction may be that of another backend
	}
	c.sessions++
	c.log.Add(event.Record{Kind: event.Connect, Client: c.Number, Session: c.sessions, Pid: pid, Server: server,
		Target: r.Through})
	return &session{c: c, conn: conn, number: c.sessions}, nil
}

// open returns a session by any of the routes, or nil if there is none for now.
func (c *client) open(place **session, routes ...Route) *session {
	if *place != nil && !(*place).closed {
		return *place
	}
	s, err := c.connect(routes[c.rng.IntN(len(routes))])
	if err != nil {
		c.sleep(c.between(20, 300))
		*place = nil
		return nil
	}
	*place = s
	return s
}

// mine returns the session that stands for election.
func (c *client) mine() *session {
	return c.open(&c.first, c.Route)
}

// other returns another session.
func (c *client) other() *session {
	return c.openAny(&c.second)
}

// openAny returns a session by any of the routes that the client knows.
func (c *client) openAny(place **session) *session {
	return c.open(place, append([]Route{c.Route}, c.Others...)...)
}

// either returns one of the two, for a call that any session can make.
func (c *client) either() *session {
	if c.chance(0.5) {
		return c.mine()
	}
	return c.other()
}

// drop closes a session, in an orderly way or not.
func (c *client) drop(place **session) {
	if s := *place; s != nil {
		s.close(c.chance(0.5))
		*place = nil
	}
}

func (s *session) close(orderly bool) {
	if s.closed {
		return
	}
	if orderly {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.conn.Close(ctx)
	} else {
		s.conn.PgConn().Conn().Close()
	}
	s.closed = true
	s.record()
}

// settle records the end of the session if it has ended.
func (s *session) settle() {
	if !s.closed && s.conn.IsClosed() {
		s.closed = true
		s.record()
	}
}

func (s *session) record() {
	s.c.log.Add(event.Record{Kind: event.Closed, Client: s.c.Number, Session: s.number})
}

// within runs a statement within its limit.
func (s *session) within(l limit, statement func(context.Context) error) error {
	ctx, deadline := context.Background(), l.after
	if l.waits {
		ctx = s.c.quit
	}
	if l.cancel {
		deadline += patience
		timer := time.AfterFunc(l.after, func() {
			ctx, stop := context.WithTimeout(context.Background(), patience)
			defer stop()
			s.conn.PgConn().CancelRequest(ctx)
		})
		defer timer.Stop()
	}
	ctx, stop := context.WithTimeout(ctx, deadline)
	defer stop()
	return statement(ctx)
}

// protocol chooses the simple or the extended protocol for a statement.
func (s *session) protocol(args []any) []any {
	mode := pgx.QueryExecModeExec
	if s.c.chance(0.5) {
		mode = pgx.QueryExecModeSimpleProtocol
	}
	return append([]any{mode}, args...)
}

func (s *session) row(l limit, to []any, sql string, args ...any) error {
	return s.within(l, func(ctx context.Context) error {
		return s.conn.QueryRow(ctx, sql, s.protocol(args)...).Scan(to...)
	})
}

func (s *session) exec(sql string, args ...any) error {
	return s.within(soon, func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, sql, s.protocol(args)...)
		return err
	})
}

// reset ends the transaction in which an error has left the session.
func (s *session) reset() {
	if !s.conn.IsClosed() && s.conn.PgConn().TxStatus() != 'I' {
		s.exec("ROLLBACK")
	}
	s.settle()
}

// interval writes a duration as SQL wants it; 0 is NULL.
func interval(d time.Duration) any {
	if d == 0 {
		return nil
	}
	return d.String()
}
