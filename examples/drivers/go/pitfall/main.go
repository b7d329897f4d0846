// Command pitfall makes the mistake that a connection pool invites: it leads on one connection and
// resigns on another. pg_advisory_unlock then returns false, no program looks at that, and all
// others are blocked forever. le_resign returns false as well, but its WARNING says which session
// leads, and what to do about it. le_leaders shows the leader, and le_depose ends its term.
//
// The client library for Go (clients/go) does it right.
//
// Run: DATABASE_URL=postgres://... go run ./pitfall ELECTION IDENTITY
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

func main() {
	election, identity := os.Args[1], os.Args[2]
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	// without this, a WARNING is for the server's log only
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		fmt.Printf("%s: %s\nDETAIL: %s\nHINT: %s\n", notice.Severity, notice.Message, notice.Detail, notice.Hint)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()

	// a transaction elsewhere in the program, which has the connection by which we shall lead
	leads := ask(db, "SELECT le_try_become_leader($1, identity => $2)", election, identity)
	busy, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer busy.Rollback()

	// so the pool hands out another one for this
	resigned := ask(db, "SELECT le_resign($1)", election)
	fmt.Printf("leads: %t, resigned: %t\n", leads, resigned)
}

func ask(db *sql.DB, question string, arguments ...any) (answer bool) {
	if err := db.QueryRow(question, arguments...).Scan(&answer); err != nil {
		log.Fatal(err)
	}
	return answer
}
