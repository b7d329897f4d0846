package cluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"leader_election/proof/event"
)

// EndPrepared commits or rolls back the prepared transactions that clients have left.  Call it after all clients
// have ended.
func (c *Cluster) EndPrepared(ctx context.Context, log *event.Log) error {
	conn, err := c.Control(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	names, err := pgx.CollectRows(must(conn.Query(ctx, "SELECT gid FROM pg_prepared_xacts ORDER BY gid")),
		pgx.RowTo[string])
	if err != nil {
		return err
	}
	for i, name := range names {
		verb := []string{"COMMIT", "ROLLBACK"}[i%2]
		_, err := conn.Exec(ctx, fmt.Sprintf("%s PREPARED '%s'", verb, strings.ReplaceAll(name, "'", "''")))
		if err != nil {
			return err
		}
		log.Add(event.Record{Kind: event.Note, Message: fmt.Sprintf("%s PREPARED '%s'", verb, name)})
	}
	return nil
}

// must leaves the error of a query to the rows, which report it as well.
func must(rows pgx.Rows, _ error) pgx.Rows {
	return rows
}

// What must be gone after the end of all clients.
var leftovers = []string{
	`SELECT 'leader', row_to_json(l)::text FROM le_leaders l`,
	`SELECT 'candidate', row_to_json(c)::text FROM le_candidates c`,
	`SELECT 'candidate counted', row_to_json(s)::text FROM pg_stat_leader_election s WHERE candidates > 0`,
	`SELECT 'advisory lock', row_to_json(l)::text FROM pg_locks l WHERE locktype = 'advisory'`,
	`SELECT 'prepared transaction', row_to_json(p)::text FROM pg_prepared_xacts p`,
	`SELECT 'session', row_to_json(a)::text FROM pg_stat_activity a
		WHERE backend_type = 'client backend' AND application_name NOT IN ('coordinator', 'Patroni')`,
}

// wakeTimers lets all sessions look at their timers, by a clock that is ahead of each that a timer was set by.  Otherwise a
// timer that was set before the wall clock went back would wait for as long, and with it the look for a deadlock, and for a
// client that is gone.
func (c *Cluster) wakeTimers(ctx context.Context, conn *pgx.Conn) error {
	if c.options.Clock {
		if err := c.SetClock(MaxClockOffset + time.Hour); err != nil {
			return err
		}
	}
	pids, err := pgx.CollectRows(must(conn.Query(ctx,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")), pgx.RowTo[int])
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGALRM) // it may have ended
	}
	return err
}

// Leftovers records what is left behind when all clients have ended, and nothing of it goes away within the time that
// leases and vanished clients may take.  It ends PgBouncer, which keeps its sessions.
func (c *Cluster) Leftovers(ctx context.Context, log *event.Log) error {
	conn, err := c.Control(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	if c.pooler != nil {
		c.pooler.stop()
	}
	if err := c.wakeTimers(ctx, conn); err != nil {
		return err
	}
	var found []event.Record
	for deadline := time.Now().Add(MaxTTL + 4*DeadPeerTimeout); ; pause(ctx, 200*time.Millisecond) {
		if found, err = findLeftovers(ctx, conn, c.options.Script != ""); err != nil {
			return err
		}
		if len(found) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(found) == 0 && c.options.Script == "" {
		if found, err = findKept(ctx, conn); err != nil {
			return err
		}
	}
	for _, r := range found {
		r.Server = c.Server()
		log.Add(r)
	}
	return nil
}

// findKept returns the elections that the registry keeps, because some session is said to observe or to campaign, though
// there is none: after a resignation, a reset forgets all others.
func findKept(ctx context.Context, conn *pgx.Conn) ([]event.Record, error) {
	for _, statement := range []string{
		"SELECT le_undeclare(name) FROM le_declarations",
		"SELECT le_try_become_leader(name), le_resign(name) FROM pg_stat_leader_election",
		"SELECT pg_stat_leader_election_reset()",
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	return leftBehind(ctx, conn, "SELECT 'kept election', row_to_json(s)::text FROM pg_stat_leader_election s")
}

func findLeftovers(ctx context.Context, conn *pgx.Conn, sql bool) ([]event.Record, error) {
	var found []event.Record
	for _, query := range leftovers {
		if sql && strings.Contains(query, "pg_stat_leader_election") {
			continue
		}
		more, err := leftBehind(ctx, conn, query)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// leftBehind records what a query finds left behind.
func leftBehind(ctx context.Context, conn *pgx.Conn, query string) ([]event.Record, error) {
	return pgx.CollectRows(must(conn.Query(ctx, query)), func(row pgx.CollectableRow) (event.Record, error) {
		r := event.Record{Kind: event.Problem, Do: "left behind"}
		err := row.Scan(&r.Target, &r.Message)
		return r, err
	})
}

var (
	// what is never right in a server's log
	accident = regexp.MustCompile(`PANIC:  |TRAP: |\] XX\d\d\d (?:WARNING|ERROR|FATAL):|terminated by exception|` +
		`WARNING:  .*(?:leak|you don't own a lock|not owned by|detected write past|AbortTransaction while|` +
		`StartTransactionCommand: unexpected)|` +
		`AddressSanitizer|runtime error:|Assertion .* failed`)
	// what REINDEX CONCURRENTLY says after an earlier one was canceled, and what a former primary under Patroni is told
	// before pg_rewind
	explained = regexp.MustCompile(`XX002 WARNING:  cannot reindex invalid index .*_cc(?:new|old)\d*" concurrently, skipping|` +
		`XX000 ERROR:  requested starting point .* is not in this server's history`)
	killed = regexp.MustCompile(`\(PID (\d+)\) was terminated by signal (\d+)`)
	exited = regexp.MustCompile(`\(PID \d+\) exited with exit code (\d+)`)
)

// LogProblems records what the logs of all servers tell of accidents.  The end of a backend by CrashBackend is none.
func (c *Cluster) LogProblems(log *event.Log) error {
	for _, s := range c.all() {
		if err := c.searchLog(s, log); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) searchLog(s *server, log *event.Log) error {
	file, err := os.Open(s.log)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		if c.options.Script != "" && strings.Contains(lines.Text(), "WARNING:  you don't own a lock") {
			continue // a test of a beacon that is not held, see doc/managed.md
		}
		if c.isAccident(lines.Text()) {
			log.Add(event.Record{Kind: event.Problem, Do: "server log", Server: s.number, Message: lines.Text()})
		}
	}
	return lines.Err()
}

func (c *Cluster) isAccident(line string) bool {
	if accident.MatchString(line) {
		return !explained.MatchString(line)
	}
	if match := killed.FindStringSubmatch(line); match != nil {
		pid, _ := strconv.Atoi(match[1])
		c.mu.Lock()
		defer c.mu.Unlock()
		return match[2] != "9" || !c.crashed[pid]
	}
	match := exited.FindStringSubmatch(line)
	return match != nil && match[1] != "0" && match[1] != "1"
}
