// Which calls need casts with pgx, in its five exec modes, and with database/sql + pgx stdlib in the same.
// Prints each call that does not answer as the table says, and exits 1; else one line.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

type args = []any
type fails string // expected: an error with this in its text
type want string  // expected: other than a value
type call struct {
	sql      string
	args     args
	expected any // a row of one column: its value; of more: args
}

const (
	ok, token  = want("any answer"), want("a token") // or a version; token as an argument: the latest one
	s, l, m, n = "types.go session", "types.go lease", "types.go many 1", "types.go many 2"
	busy       = "types.go busy"
	number     = int64(2929003)
	s3, ms     = 3 * time.Second, 20 * time.Millisecond
	noEncode   = fails("unable to encode") // by the client

	// what the SQL edition says of what it does not have
	needsC = "needs the C extension"
)

var null *int64
var calls = []call{
	// by name; strings, nil and intervals need no cast
	{"SELECT le_try_become_leader($1, identity => $2)", args{s, "w"}, true},   // the first call's identity stays
	{"SELECT le_try_become_leader($1, identity => $2)", args{s, "w2"}, false}, // and another is another client's
	{"SELECT le_am_leader($1, identity => $2)", args{s, "w"}, true},
	{"SELECT le_am_leader($1, $2, identity => $3)", args{s, null, "w2"}, false},
	{"SELECT le_resign($1, identity => $2)", args{s, "w2"}, false},
	{"SELECT le_try_become_leader($1)", args{s}, true},
	{"SELECT le_try_become_leader($1, identity => $2)", args{s, nil}, true},
	{"SELECT le_become_leader($1, $2, identity => $3)", args{s, "3 s", "w"}, true},
	{"SELECT le_become_leader($1, $2, identity => $3)", args{s, s3, "w"}, true},
	{"SELECT le_become_leader($1, $2)", args{busy, ms}, false},
	{"SELECT le_proclaim($1, $2)", args{s, "v"}, true},
	{"SELECT le_assert_leader($1)", args{s}, ok},
	{"CALL le_observe($1)", args{s}, args{token, token, "w", "v"}},
	{"CALL le_observe($1, version => $2, timeout => $3)", args{s, int64(0), ms}, args{token, token, "w", "v"}},
	{"CALL le_observe($1, $2, $3, $4, $5, $6)", args{s, null, s3, nil, nil, nil}, args{token, token, "w", "v"}},
	{"SELECT le_resign($1)", args{s}, true},
	// leases
	{"SELECT le_lease($1, $2, identity => $3, token => $4)", args{l, s3, "w", null}, token},
	{"SELECT le_lease($1, $2, identity => $3, token => $4)", args{l, "3 s", "w", token}, token},
	{"SELECT le_lease($1, $2, token => $3)", args{l, s3, token}, token},
	{"SELECT le_renew($1, $2)", args{l, token}, true},
	{"SELECT le_renew($1, $2, $3)", args{l, token, s3}, true},
	{"SELECT le_am_leader($1, $2)", args{l, token}, true},
	{"SELECT le_am_leader($1, $2, identity => $3)", args{l, token, "w2"}, false},
	{"SELECT le_am_leader($1, $2)", args{l, null}, false},
	{"SELECT le_proclaim($1, $2, $3)", args{l, "v", token}, true},
	{"SELECT le_assert_leader($1, $2)", args{l, token}, ok},
	{"SELECT le_resign($1, $2)", args{l, token}, true},
	// campaigns: the INOUT parameters come as a row
	{"CALL le_campaign($1)", args{s}, token},
	{"SELECT le_resign($1, $2)", args{s, null}, true},
	{"CALL le_campaign($1, timeout => $2, identity => $3)", args{s, s3, "w"}, token},
	{"SELECT le_resign($1)", args{s}, true},
	{"CALL le_campaign($1, timeout => $2, identity => $3)", args{busy, "20 ms", "w"}, nil},
	{"CALL le_campaign($1, ttl => $2, token => $3)", args{l, s3, null}, token},
	{"SELECT le_resign($1, $2)", args{l, token}, true},
	// many: a slice needs the cast
	{"CALL le_campaign($1::text[])", args{[]string{m, n}}, args{token, m}},
	{"SELECT le_resign($1)", args{m}, true},
	// the token as a setting: a string
	{"SELECT set_config('leader_election.token', $1::text, true)", args{"5"}, "5"},
	{"SELECT le_resign_all()", nil, 0}, // nothing is led any more, under whatever name
}

// errors of the client in the modes that ask the server for the types
var typed = []call{
	{"CALL le_campaign($1)", args{[]string{m, n}}, noEncode},
	{"SELECT le_try_become_leader($1)", args{number}, noEncode},
	{"SELECT set_config('leader_election.token', $1::text, true)", args{int64(5)}, noEncode},
}

// and of the server in exec and simple_protocol: these are names
var untyped = []call{
	{"CALL le_campaign($1)", args{[]string{m, n}}, fails("22023")},
	{"SELECT le_try_become_leader($1)", args{number}, true},
	{"SELECT le_resign($1)", args{number}, true},
}

func fits(got, expected any) bool {
	if e, is := expected.(args); is {
		g, is := got.(args)
		return is && slices.EqualFunc(g, e, fits)
	}
	t, _ := got.(int64)
	if err, is := got.(error); is {
		e, is := expected.(fails)
		return is && strings.Contains(err.Error(), string(e))
	}
	return expected == any(ok) || expected == any(token) && t > 0 || fmt.Sprint(got) == fmt.Sprint(expected)
}

func main() {
	ctx, done, wrong, absent := context.Background(), 0, 0, map[string]bool{}
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	other := stdlib.OpenDB(*config)
	if _, err := other.Exec("SELECT le_try_become_leader($1)", busy); err != nil {
		log.Fatal(err)
	}
	for mode := pgx.QueryExecModeCacheStatement; mode <= pgx.QueryExecModeSimpleProtocol; mode++ {
		config.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			log.Fatal(err)
		}
		db := stdlib.OpenDB(*config)
		db.SetMaxOpenConns(1)
		refused := untyped
		if mode < pgx.QueryExecModeExec {
			refused = typed
		}
		table := append(refused[:len(refused):len(refused)], calls...)
		for driver, query := range map[string]func(string, args) (args, error){
			"pgx": func(sql string, a args) (row args, err error) {
				rows, _ := conn.Query(ctx, sql, a...)
				for rows.Next() {
					row, _ = rows.Values()
				}
				return row, rows.Err()
			},
			"database/sql": func(sql string, a args) (args, error) {
				rows, err := db.Query(sql, a...)
				if err != nil {
					return nil, err
				}
				defer rows.Close()
				v, p := make(args, 4), args{}
				cols, _ := rows.Columns()
				for i := range cols {
					p = append(p, &v[i])
				}
				for err == nil && rows.Next() {
					err = rows.Scan(p...)
				}
				if err == nil {
					err = rows.Err()
				}
				return v[:len(cols)], err
			},
		} {
			latest := int64(0)
			for _, c := range append(table[:len(table):len(table)], table...) { // twice: then the statements are there
				a, got := append(args{}, c.args...), any(nil)
				for i := range a {
					if a[i] == any(token) {
						a[i] = latest
					}
				}
				if row, err := query(c.sql, a); err != nil {
					got = err
				} else if got = row; len(row) == 1 {
					got = row[0]
				}
				if t, is := got.(int64); is {
					latest = t
				}
				var refused *pgconn.PgError
				if err, is := got.(error); is && errors.As(err, &refused) && strings.Contains(refused.Hint, needsC) {
					absent[c.sql] = true
				} else if done++; !fits(got, c.expected) {
					wrong++
					fmt.Printf("%s %s: %s %v: %v, expected %v\n", driver, mode, c.sql, a, got, c.expected)
				}
			}
		}
		conn.Close(ctx)
		db.Close()
	}
	other.Close()
	for _, sql := range slices.Sorted(maps.Keys(absent)) {
		fmt.Println("go/main.go: not run, needs the C extension:", sql)
	}
	if wrong > 0 {
		os.Exit(1)
	}
	fmt.Printf("go/main.go: %d calls ok\n", done)
}
