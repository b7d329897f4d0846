package leaderelection

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// settings are made on each connection of its own. They return the process ID.
const settings = `SELECT pg_backend_pid(),
	count(set_config(name, CASE name WHEN 'application_name' THEN $1::text
		WHEN 'client_connection_check_interval' THEN '5s' ELSE '0' END, false))
	FROM pg_settings
	WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout',
		'idle_in_transaction_session_timeout', 'transaction_timeout')
	OR name = 'application_name' AND setting = ''
	OR name = 'client_connection_check_interval' AND setting = '0'`

// sessionWay leads by a connection of its own, whose end is that of the term.
func sessionWay(heartbeat time.Duration) way {
	heartbeat = cmp.Or(heartbeat, never)
	limit := min(5*time.Second, heartbeat/3)
	return way{bid: "bid", opens: true, interval: min(time.Second, heartbeat/4), validity: 6 * time.Second,
		limit: limit, patience: limit, retry: never, round: 300 * time.Second}
}

// session returns a statement in session scope.
func (e *Elector) session(a action, r *answer) query {
	switch a.what {
	case "open":
		return open(e.m.election, r)
	case "bid":
		sql := fmt.Sprintf(`CALL le_campaign($1::text, timeout => '%.3f s', heartbeat => $2::interval, identity => $3::text)`, a.wait.Seconds())
		return e.bid(sql, e.opt.Heartbeat, r)
	case "beat":
		return query{`SELECT le_heartbeat($1::text), pg_backend_pid()`, []any{a.term.election}, []any{&r.leads, &r.pid}}
	case "resign":
		return query{`SELECT le_resign($1::text, identity => $2::text)`, []any{a.term.election, e.opt.Identity}, []any{&r.leads}}
	}
	return query{`SELECT le_am_leader($1::text, identity => $2::text), pg_backend_pid()`, []any{a.term.election, e.opt.Identity}, []any{&r.leads, &r.pid}}
}

func open(election string, r *answer) query {
	return query{settings, []any{"leader_election: " + election}, []any{&r.pid, nil}}
}

// bid returns a bid for the election, or for any of its seats.
func (e *Elector) bid(sql string, length time.Duration, r *answer) query {
	q := query{sql, []any{e.m.election, interval(length), e.opt.Identity}, []any{&r.token}}
	if e.opt.Seats > 0 {
		q.sql = strings.Replace(q.sql, "$1::text", "le_seats($1::text, $4::int)", 1)
		q.args, q.into = append(q.args, e.opt.Seats), append(q.into, &r.name)
	}
	return q
}
