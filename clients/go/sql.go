package leaderelection

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"reflect"
	"time"
)

// SQLDB is a [DB] and a [Transactor] over database/sql. Make it by [SQL].
type SQLDB struct{ db *sql.DB }

// SQL returns a DB that uses the connections of a [sql.DB], with any driver
// that knows $1 as a placeholder. With pgx's driver, use package lepgx, which
// notices at once when a connection ends.
//
// In session scope it takes a connection out of the pool for each campaign
// and closes it in the end. If the pool has a maximum of open connections,
// this one counts.
func SQL(db *sql.DB) SQLDB { return SQLDB{db} }

// QueryRow implements [Querier].
func (d SQLDB) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return row{d.db}.QueryRow(ctx, query, args, dest...)
}

// Connect implements [DB].
func (d SQLDB) Connect(ctx context.Context) (Conn, error) {
	found := make(chan *sqlConn)
	failed := make(chan error, 1)
	go func() {
		conn, err := d.db.Conn(ctx)
		if err != nil {
			failed <- err
			return
		}
		c := &sqlConn{row{conn}, conn}
		select {
		case found <- c:
		case <-ctx.Done(): // nothing waits for it any more
			c.Close()
		}
	}()
	select {
	case c := <-found:
		return c, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Transact implements [Transactor].
func (d SQLDB) Transact(ctx context.Context, f func(*sql.Tx, Querier) error) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after the commit
	if err := f(tx, row{tx}); err != nil {
		return err
	}
	return tx.Commit()
}

// A row asks by a sql.DB, sql.Conn or sql.Tx.
type row struct {
	from interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
}

// QueryRow does not rely on the driver to return when ctx is done, as some wait
// until the server has answered their request to cancel. It scans into copies
// of dest, which the caller does not share.
func (r row) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	copies := make([]any, len(dest))
	for i, d := range dest {
		copies[i] = reflect.New(reflect.TypeOf(d).Elem()).Interface()
	}
	answered := make(chan error, 1)
	go func() { answered <- r.from.QueryRowContext(ctx, query, args...).Scan(copies...) }()
	select {
	case err := <-answered:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	for i, d := range dest {
		reflect.ValueOf(d).Elem().Set(reflect.ValueOf(copies[i]).Elem())
	}
	return nil
}

// A sqlConn cannot read from its connection, so only questions tell that it
// has ended.
type sqlConn struct {
	row
	conn *sql.Conn
}

func (c *sqlConn) Wait(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close has database/sql close the connection, which does not happen before a
// question that was given up has returned.
func (c *sqlConn) Close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}
