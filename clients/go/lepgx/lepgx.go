// Package lepgx connects package leaderelection to pgx: by its pool, or by its
// driver for database/sql.
//
// Its statements need no prepared statements and no settings of the driver, so
// that leading by a lease works through PgBouncer in transaction mode.
package lepgx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	leaderelection "github.com/leader-election/leader_election/clients/go"
)

// PoolDB is a [leaderelection.DB] and a [leaderelection.Transactor] over pgx's
// pool. Make it by [Pool].
type PoolDB struct{ pool *pgxpool.Pool }

// Pool returns a DB that uses a pool. In session scope it opens a connection
// for each campaign, beside the pool and with its configuration.
func Pool(pool *pgxpool.Pool) PoolDB { return PoolDB{pool} }

// QueryRow implements [leaderelection.Querier].
func (d PoolDB) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return row{d.pool}.QueryRow(ctx, query, args, dest...)
}

// Connect implements [leaderelection.DB].
func (d PoolDB) Connect(ctx context.Context) (leaderelection.Conn, error) {
	config := d.pool.Config()
	c := &poolConn{}
	life, kill := context.WithCancel(context.Background())
	c.kill = kill
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			kill()
			return nil, err
		}
	}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		socket, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(life, func() { _ = socket.Close() })
		}
		return socket, err
	}
	config.ConnConfig.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()} // another one can wait for the server
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		kill()
		return nil, err
	}
	c.row, c.conn = row{conn}, conn
	if config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Transact implements [leaderelection.Transactor].
func (d PoolDB) Transact(ctx context.Context, f func(pgx.Tx, leaderelection.Querier) error) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return f(tx, row{tx}) })
}

// A row asks by a pool, a connection or a transaction.
type row struct {
	from interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
}

func (r row) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return r.from.QueryRow(ctx, query, unprepared(args)...).Scan(dest...)
}

// unprepared returns the arguments of a statement that is not to be prepared.
func unprepared(args []any) []any { return append([]any{pgx.QueryExecModeExec}, args...) }

type poolConn struct {
	row
	conn *pgx.Conn
	kill context.CancelFunc // closes all sockets, also those of requests to cancel
}

func (c *poolConn) Wait(ctx context.Context) error { return wait(ctx, c.conn) }

// Close gives a request to cancel a second to reach the server. pgx itself
// would try that in the background, for longer.
func (c *poolConn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.Close(ctx)
	select {
	case <-c.conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
	c.kill()
	<-c.conn.PgConn().CleanupDone()
}

// wait reads from an idle connection until ctx is done.
func wait(ctx context.Context, conn *pgx.Conn) error {
	for ctx.Err() == nil {
		if _, err := conn.WaitForNotification(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// SQLDB is a [leaderelection.DB] and a [leaderelection.Transactor] over
// database/sql with pgx's driver. Make it by [SQL].
type SQLDB struct{ db *sql.DB }

// SQL returns a DB that uses the connections of a [sql.DB] whose driver is
// pgx's, package stdlib. In session scope it takes a connection out of the
// pool for each campaign and closes it in the end. If the pool has a maximum
// of open connections, this one counts.
func SQL(db *sql.DB) SQLDB { return SQLDB{db} }

// QueryRow implements [leaderelection.Querier].
func (d SQLDB) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return sqlRow{d.db}.QueryRow(ctx, query, args, dest...)
}

// Connect implements [leaderelection.DB].
func (d SQLDB) Connect(ctx context.Context) (leaderelection.Conn, error) {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	c := &sqlConn{sqlRow: sqlRow{conn}, conn: conn}
	err = conn.Raw(func(beneath any) error {
		pgxConn, ok := beneath.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("lepgx.SQL needs the driver pgx, not %T; use leaderelection.SQL", beneath)
		}
		c.beneath = pgxConn.Conn()
		return nil
	})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

// Transact implements [leaderelection.Transactor].
func (d SQLDB) Transact(ctx context.Context, f func(*sql.Tx, leaderelection.Querier) error) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after the commit
	if err := f(tx, sqlRow{tx}); err != nil {
		return err
	}
	return tx.Commit()
}

// A sqlRow asks by a sql.DB, sql.Conn or sql.Tx.
type sqlRow struct {
	from interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
}

func (r sqlRow) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return r.from.QueryRowContext(ctx, query, unprepared(args)...).Scan(dest...)
}

type sqlConn struct {
	sqlRow
	conn    *sql.Conn
	beneath *pgx.Conn
}

func (c *sqlConn) Wait(ctx context.Context) error {
	return c.conn.Raw(func(any) error { return wait(ctx, c.beneath) })
}

// Close gives a request to cancel a second to reach the server. If that does
// not suffice, pgx goes on trying in the background for up to 15 seconds.
func (c *sqlConn) Close() {
	_ = c.conn.Raw(func(any) error { return driver.ErrBadConn }) // has database/sql close the connection
	select {
	case <-c.beneath.PgConn().CleanupDone():
	case <-time.After(time.Second):
	}
}
