package leaderelection

import "context"

// A Querier asks the server one question.
type Querier interface {
	// QueryRow runs one statement, in autocommit unless the Querier belongs to
	// a transaction, and scans the one row of its answer into dest, as
	// [database/sql.Row.Scan] does. It returns when ctx is done, even if the
	// network is silent.
	QueryRow(ctx context.Context, sql string, args []any, dest ...any) error
}

// A DB is the database in which the elections are held. [SQL] makes one of a
// [database/sql.DB], and package lepgx of pgx's pool. For another driver,
// implement it.
//
// A QueryRow may use any connection.
type DB interface {
	Querier
	// Connect opens a connection that nothing else uses, or takes one out of
	// a pool for good. It returns when ctx is done.
	Connect(ctx context.Context) (Conn, error)
}

// A Conn is a connection that one goroutine uses at a time.
type Conn interface {
	Querier
	// Wait returns nil when ctx is done. It returns an error as soon as the
	// connection has ended, if the driver can notice that.
	Wait(ctx context.Context) error
	// Close closes the connection, also during or after a QueryRow that was
	// given up. It does not wait for the server for longer than a second.
	Close()
}

// A Transactor is a DB that can run a transaction, as [Every] needs it. Tx is
// the driver's type of a transaction.
type Transactor[Tx any] interface {
	DB
	// Transact begins a transaction on a connection of its own and calls f.
	// It commits if f returns nil, and rolls back otherwise.
	Transact(ctx context.Context, f func(tx Tx, q Querier) error) error
}
