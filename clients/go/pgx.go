package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A query is a statement, and where its answer goes.
type query struct {
	sql        string
	args, into []any
}

// ask runs the statement. It needs no prepared statements, whatever the pool
// is configured for, so that it works through PgBouncer.
func (q query) ask(ctx context.Context, o *Options, from Querier) error {
	return explained(from.QueryRow(ctx, o.le(q.sql), append([]any{pgx.QueryExecModeExec}, q.args...)...).Scan(q.into...))
}

// interval returns d, or NULL, as a text: a pool can send durations as any type.
func interval(d time.Duration) any {
	if d == 0 {
		return nil
	}
	return fmt.Sprintf("%d us", d.Microseconds())
}

// A link asks one statement at a time, in the background: each on any
// connection of the pool, or all on one of its own, whose end it notices.
type link struct {
	driver  *driver
	life    context.Context
	kill    context.CancelFunc // closes all sockets, also those of requests to cancel
	mu      sync.Mutex         // held while a statement is on its way; protects the rest
	conn    *pgx.Conn          // its own
	unwatch func()
}

// ask calls begun when it has a connection.
func (l *link) ask(q query, begun func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.driver.m.opens {
		return l.driver.pool.AcquireFunc(l.life, func(conn *pgxpool.Conn) error {
			begun()
			err := l.on(l.life, conn.Conn(), q)
			if err != nil {
				_ = conn.Conn().Close(l.life) // it may lead to a server that is none any more
			}
			return err
		})
	}
	if l.conn != nil {
		l.unwatch()
	} else if err := l.connect(); err != nil {
		return err
	}
	begun()
	err := l.on(context.Background(), l.conn, q)
	l.watch()
	return err
}

// on runs the statement on a connection, unless that is in a transaction, which
// would not commit.
func (l *link) on(ctx context.Context, conn *pgx.Conn, q query) error {
	if conn.PgConn().TxStatus() != 'I' {
		return errors.New("the connection is in a transaction, by a hook of the pool")
	}
	return q.ask(ctx, l.driver.m.opt, conn)
}

// A socket is closed once, by pgx or with its link, and survives what that does.
type socket struct {
	net.Conn
	close func() error
}

func (s socket) Close() error { return s.close() }

// connect opens a connection with the configuration of the pool.
func (l *link) connect() (err error) {
	hooks := l.driver.pool.Config()
	config := hooks.ConnConfig
	if hooks.BeforeConnect != nil {
		if err = hooks.BeforeConnect(l.life, config); err != nil {
			return err
		}
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if ctx.Value(l) == nil { // no request to cancel is sent
			return nil, net.ErrClosed
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		} else if v := reflect.ValueOf(conn); v.Kind() == reflect.Invalid || v.Kind() == reflect.Pointer && v.IsNil() {
			// panics in goroutines of pgx would follow
			return nil, errors.New("DialFunc has returned no connection")
		}
		s := &socket{conn, sync.OnceValue(func() error { return caught(conn.Close) })}
		context.AfterFunc(l.life, func() { _ = s.Close() })
		return s, nil
	}
	// what pgx calls during a statement can wait for the job, which waits for the answer to the bid
	config.OnPgError = func(_ *pgconn.PgConn, err *pgconn.PgError) bool { return err.SeverityUnlocalized != "FATAL" }
	config.OnNotification, config.OnNotice, config.Tracer, config.BuildContextWatcherHandler = nil, nil, nil, func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()} // so that unwatch leaves the connection open
	}
	ctx := context.WithValue(l.life, l, l)
	if l.conn, err = pgx.ConnectConfig(ctx, config); err == nil && hooks.AfterConnect != nil {
		err = hooks.AfterConnect(ctx, l.conn)
	}
	return err
}

// watch reads from the connection until the next statement, if the read can
// then be ended: a socket, such as that of an SSH tunnel, can have no deadlines.
func (l *link) watch() {
	if l.unwatch = func() {}; l.conn.IsClosed() || l.conn.PgConn().Conn().SetDeadline(time.Time{}) != nil {
		return
	}
	ctx, cancel := context.WithCancel(l.life)
	ended := make(chan struct{})
	l.unwatch = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		err := caught(func() (err error) {
			for err == nil {
				_, err = l.conn.WaitForNotification(ctx)
			}
			return err
		})
		if ctx.Err() == nil {
			l.driver.post(func() {
				if l.driver.link == l {
					l.driver.m.onBroken(err)
				}
			})
		}
	}()
}

// close takes leave of the server if no statement is on its way. Otherwise it
// leaves nothing but the end of the socket: no request to cancel.
func (l *link) close() {
	defer l.kill()
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock() // a statement can still come
	if l.unwatch != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = within(ctx, func() error { l.unwatch(); return l.conn.Close(ctx) })
	}
}
