// Package drivers tests the library with packages that programs use beside it, which the library
// itself does not need.
package drivers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adhocore/gronx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	leaderelection "github.com/leader-election/leader_election/clients/go"
	_ "github.com/lib/pq"
	"github.com/robfig/cron/v3"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

var (
	ctx           = context.Background()
	errRolledBack = errors.New("the transaction is rolled back")
)

// A transaction can guard itself, and run a statement, for which it has an own way.
type transaction struct {
	leaderelection.Tx
	exec func(sql string) error
	read func(sql string, into *bool) error
}

// A way to run a function in a transaction.
type way func(f func(tx transaction) error) error

func ofPgx(pool *pgxpool.Pool) way {
	return func(f func(transaction) error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return f(transaction{tx, func(sql string) error {
				_, err := tx.Exec(ctx, sql)
				return err
			}, func(sql string, into *bool) error { return tx.QueryRow(ctx, sql).Scan(into) }})
		})
	}
}

func ofSQL(db *sql.DB) way {
	return func(f func(transaction) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := f(transaction{leaderelection.SQL(tx), func(sql string) error {
			_, err := tx.ExecContext(ctx, sql)
			return err
		}, func(sql string, into *bool) error { return tx.QueryRowContext(ctx, sql).Scan(into) }}); err != nil {
			return err
		}
		return tx.Commit()
	}
}

func ofGORM(db *gorm.DB) way {
	return func(f func(transaction) error) error {
		return db.Transaction(func(tx *gorm.DB) error {
			return f(transaction{
				leaderelection.SQL(tx.Statement.ConnPool.(leaderelection.SQLTx)),
				func(sql string) error { return tx.Exec(sql).Error },
				func(sql string, into *bool) error { return tx.Raw(sql).Scan(into).Error },
			})
		})
	}
}

func dsn(t *testing.T, mode string) string {
	t.Helper()
	dsn, err := url.Parse(os.Getenv("DATABASE_URL"))
	if err != nil || dsn.Host == "" {
		t.Skip("needs a server: DATABASE_URL is not set")
	}
	query := dsn.Query()
	query.Set("sslmode", "disable")
	if mode != "" {
		query.Set("default_query_exec_mode", mode)
	}
	dsn.RawQuery = query.Encode()
	return dsn.String()
}

func open(t *testing.T, mode string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(ctx, dsn(t, mode))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func openSQL(t *testing.T, driver string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func openGORM(t *testing.T, pool *pgxpool.Pool, config gorm.Config) *gorm.DB {
	t.Helper()
	config.Logger = logger.Discard
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: stdlib.OpenDBFromPool(pool)}), &config)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// TestS10S11Transactions guards a transaction, and records a job in it, with each kind of
// transaction, in an election whose name looks like a parameter to one of the drivers.
func TestS10S11Transactions(t *testing.T) {
	pool := open(t, "")
	for name, in := range map[string]way{
		"pgx":          ofPgx(pool),
		"pgx, exec":    ofPgx(open(t, "exec")),
		"pgx, simple":  ofPgx(open(t, "simple_protocol")),
		"SQL, pgx":     ofSQL(openSQL(t, "pgx")),
		"SQL, pq":      ofSQL(openSQL(t, "postgres")),
		"GORM":         ofGORM(openGORM(t, pool, gorm.Config{})),
		"GORM, cached": ofGORM(openGORM(t, pool, gorm.Config{PrepareStmt: true})),
	} {
		for kind, election := range map[string]string{"plain": "le_a/b-c.d e", "evil": `?, :x %s $1 @y {fn} ?? '; -- "\`, "other": "ключ ☃"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				elector, err := leaderelection.New(pool, fmt.Sprint(election, time.Now().UnixNano()), &leaderelection.Options{TTL: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				var former *leaderelection.Term
				if ran, err := elector.TryRun(ctx, 0, func(_ context.Context, term *leaderelection.Term) error {
					former = term
					if err := in(func(tx transaction) error { return term.Proclaim(ctx, tx, "?, $1") }); err != nil {
						return err
					}
					if leader, err := leaderelection.LeaderOf(ctx, pool, term.Election(), nil); err != nil || leader == nil || leader.Value == nil || *leader.Value != "?, $1" {
						t.Error(leader, err)
					}
					return recordOnce(t, in, term)
				}); !ran || err != nil {
					t.Fatal(ran, err)
				}
				for i, call := range []func(tx transaction) error{
					func(tx transaction) error { return former.Guard(ctx, tx) },
					func(tx transaction) error { return tx.exec(former.GuardSQL()) },
					func(tx transaction) error { return tx.read(former.OnceSQL(time.Now()), new(bool)) },
				} {
					if err := in(call); err == nil || !isState(err, "LE001") {
						t.Error(i, err)
					}
				}
				if err := in(func(tx transaction) error { return former.Proclaim(ctx, tx, "") }); !errors.Is(err, leaderelection.ErrLost) {
					t.Error(err)
				}
			})
		}
	}
}

// A transaction that a statement has ended is refused. The first statement of one is not, see
// TestS10S11Transactions.
func TestS11EndedByAStatement(t *testing.T) {
	pool := open(t, "")
	elector, err := leaderelection.New(pool, fmt.Sprint("ended", time.Now().UnixNano()), &leaderelection.Options{TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if ran, err := elector.TryRun(ctx, 0, func(_ context.Context, term *leaderelection.Term) error {
		for name, in := range map[string]way{
			"pgx":         ofPgx(pool),
			"SQL, pgx":    ofSQL(openSQL(t, "pgx")),
			"SQL, simple": ofSQL(stdlib.OpenDBFromPool(open(t, "simple_protocol"))),
			"SQL, pq":     ofSQL(openSQL(t, "postgres")),
			"GORM":        ofGORM(openGORM(t, pool, gorm.Config{})),
		} {
			for call, fenced := range map[string]func(leaderelection.Tx) error{
				"guard": func(tx leaderelection.Tx) error { return term.Guard(ctx, tx) },
				"once":  func(tx leaderelection.Tx) error { _, err := term.Once(ctx, tx, time.Now()); return err },
			} {
				err := in(func(tx transaction) error { return errors.Join(tx.exec("COMMIT"), fenced(tx.Tx)) })
				ended := errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone)
				if !ended || !strings.Contains(err.Error(), "no transaction is open there") {
					t.Error(name, call, err)
				}
			}
		}
		var recorded int
		err := pool.QueryRow(ctx, "SELECT count(*) FROM le_once_done WHERE name = $1", term.Election()).Scan(&recorded)
		if recorded > 0 {
			t.Error(recorded)
		}
		return err
	}); !ran || err != nil {
		t.Error(ran, err)
	}
}

// The statements of guard and once are the same in each transaction, as a connection keeps those that
// it has prepared.
func TestS11Prepared(t *testing.T) {
	pool, db := open(t, ""), openSQL(t, "pgx")
	db.SetMaxOpenConns(1)
	elector, err := leaderelection.New(pool, fmt.Sprint("prepared", time.Now().UnixNano()), &leaderelection.Options{TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if ran, err := elector.TryRun(ctx, 0, func(_ context.Context, term *leaderelection.Term) error {
		for range 20 {
			if err := ofSQL(db)(func(tx transaction) error {
				_, err := term.Once(ctx, tx.Tx, time.Now())
				return errors.Join(err, term.Guard(ctx, tx.Tx))
			}); err != nil {
				return err
			}
		}
		var prepared int
		err := db.QueryRow("SELECT count(*) FROM pg_prepared_statements").Scan(&prepared)
		if prepared > 5 {
			t.Error(prepared)
		}
		return err
	}); !ran || err != nil {
		t.Error(ran, err)
	}
}

// What GORM has beside a transaction is none.
func TestS11GORM(t *testing.T) {
	for _, config := range []gorm.Config{{}, {PrepareStmt: true}, {SkipDefaultTransaction: true}} {
		if _, isTx := openGORM(t, open(t, ""), config).Statement.ConnPool.(leaderelection.SQLTx); isTx {
			t.Error(config)
		}
	}
}

func isState(err error, state string) bool {
	var server interface{ SQLState() string }
	return errors.As(err, &server) && server.SQLState() == state
}

// recordOnce checks that a job is to be done until it is recorded, by a call and by a statement.
func recordOnce(t *testing.T, in way, term *leaderelection.Term) error {
	due := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	for i, want := range []bool{true, true, false, true, true, false, false} {
		err := in(func(tx transaction) (err error) {
			if err := errors.Join(term.Guard(ctx, tx), tx.exec(term.GuardSQL())); err != nil {
				return err
			}
			var first bool
			switch {
			case i < 3:
				first, err = term.Once(ctx, tx, due)
			case i < 6: // the next one, by as little as there is
				err = tx.read(term.OnceSQL(due.Add(time.Microsecond)), &first)
			default: // the same one again, by a call
				first, err = term.Once(ctx, tx, due.Add(time.Microsecond))
			}
			if first != want {
				t.Error(i, first, term.OnceSQL(due))
			}
			if err == nil && i%3 == 0 {
				return errRolledBack
			}
			return err
		})
		if err != nil && err != errRolledBack {
			return err
		}
	}
	return nil
}

// every reads a cron expression by gronx.
func every(expression string) leaderelection.Schedule {
	return leaderelection.ScheduleFunc(func(last time.Time) time.Time {
		next, err := gronx.NextTickAfter(expression, last, false)
		if err != nil {
			panic(err)
		}
		return next
	})
}

// TestT6Zones asks libraries of cron expressions for due times over changes of the clock.
func TestT6Zones(t *testing.T) {
	for _, c := range []struct{ zone, expression, last, want string }{
		{"Europe/Berlin", "30 2 * * *", "2026-10-23T12:00:00Z", "10-24T00:30 10-25T00:30 10-26T01:30"},
		{"Europe/Berlin", "30 2 * * *", "2026-10-25T01:10:00Z", "10-26T01:30"}, // begun in the second hour from 2 to 3
		{"Europe/Berlin", "*/40 2 * * *", "2026-10-24T20:00:00Z", "10-25T00:00 10-25T00:40 10-26T01:00"},
		{"Europe/Berlin", "30 2 * * *", "2027-03-26T12:00:00Z", "03-27T01:30 03-28T01:00 03-29T00:30"},
		{"Europe/Berlin", "15,45 2 * * *", "2027-03-27T12:00:00Z", "03-28T01:00 03-29T00:15 03-29T00:45"},
		{"Europe/Berlin", "30 2 * * 0", "2027-03-26T12:00:00Z", "03-28T01:00 04-04T00:30"},
		{"Australia/Lord_Howe", "45 1 * * *", "2026-04-03T00:00:00Z", "04-03T14:45 04-04T14:45 04-05T15:15"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-02T00:00:00Z", "10-02T15:45 10-03T15:30 10-04T15:15"},
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-03T00:00:00Z", "11-03T03:00 11-04T03:00 11-05T02:00"},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		robfig, err := cron.ParseStandard(c.expression)
		if err != nil {
			t.Fatal(err)
		}
		for name, schedule := range map[string]leaderelection.Schedule{"gronx": every(c.expression), "robfig/cron": robfig} {
			zoned, err := leaderelection.InZone(zone, schedule)
			if err != nil {
				t.Fatal(err)
			}
			last, _ := time.Parse(time.RFC3339, c.last)
			for _, want := range strings.Fields(c.want) {
				if last = zoned.Next(last); last.UTC().Format("01-02T15:04") != want {
					t.Error(name, c, last.UTC())
				}
			}
		}
	}
}

// TestS07Due lets two electors do a task in a transaction of GORM, which fails at first.
func TestS07Due(t *testing.T) {
	pool := open(t, "")
	election := fmt.Sprint("due", time.Now().UnixNano())
	db := openGORM(t, pool, gorm.Config{})
	if err := db.Exec("CREATE TABLE " + election + " (due timestamptz)").Error; err != nil {
		t.Fatal(err)
	}
	defer db.Exec("DROP TABLE " + election)
	var failures, reports atomic.Int32
	job, err := leaderelection.Due(leaderelection.Interval(time.Second), func(ctx context.Context, term *leaderelection.Term, due time.Time) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			first, err := term.Once(ctx, leaderelection.SQL(tx.Statement.ConnPool.(leaderelection.SQLTx)), due)
			if err != nil || !first {
				return err
			}
			if err := tx.Exec("INSERT INTO "+election+" VALUES (?)", due).Error; err != nil {
				return err
			}
			if failures.Add(1) < 3 {
				return errRolledBack
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 6*time.Second)
	defer cancel()
	first, leave := context.WithTimeout(ctx, 3*time.Second)
	defer leave()
	ended := make(chan error)
	for _, ctx := range []context.Context{first, ctx} {
		elector, err := leaderelection.New(pool, election, &leaderelection.Options{OnError: func(err error) {
			if reports.Add(1); !errors.Is(err, errRolledBack) {
				t.Error(err)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- elector.Run(ctx, job) }()
	}
	<-ended
	<-ended
	var done, different int
	if err := db.Raw("SELECT count(*), count(DISTINCT due) FROM "+election).Row().Scan(&done, &different); err != nil || done < 2 || done != different || reports.Load() != 2 {
		t.Error(err, done, different, reports.Load())
	}
}
