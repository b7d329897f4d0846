package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"leader_election/proof/cluster"
	"leader_election/proof/event"
)

var errNone = errors.New("there is none")

var faults = []fault{
	{name: event.KillClient, weight: 6, strike: killClient},
	{name: event.StopClient, weight: 10, strike: stopClient},
	{name: event.StopBackend, weight: 8, strike: stopBackend},
	{name: event.TerminateBackend, weight: 6, strike: signalBackend(event.TerminateBackend, "pg_terminate_backend")},
	{name: event.CancelBackend, weight: 6, strike: signalBackend(event.CancelBackend, "pg_cancel_backend")},
	{name: event.KillBackend, weight: 25, heavy: true, strike: killBackend},
	{name: event.CrashServer, weight: 25, heavy: true, strike: restart(event.CrashServer, cluster.Immediate)},
	{name: event.RestartServer, weight: 20, heavy: true, strike: restart(event.RestartServer, cluster.Fast)},
	{name: event.PromoteStandby, weight: 45, heavy: true, strike: promote,
		applies:  func(o cluster.Options) bool { return o.Standby },
		possible: (*cluster.Cluster).StandbyReady},
	{name: event.CutLink, weight: 6, strike: cutLink, applies: func(o cluster.Options) bool { return o.Link }},
	{name: event.FreezeProxy, weight: 5, strike: freezeProxy},
	{name: event.CutProxy, weight: 4, strike: cutProxy},
	{name: event.RestartPooler, weight: 3, strike: restartPooler, applies: func(o cluster.Options) bool { return o.Pooler }},
	{name: event.StopPooler, weight: 3, strike: stopPooler, applies: func(o cluster.Options) bool { return o.Pooler }},
	{name: event.SetClock, weight: 6, strike: setClock, applies: func(o cluster.Options) bool { return o.Clock }},
	{name: event.FillLockTable, weight: 4, strike: fillLockTable},
	{name: event.AlterExtension, weight: 5, strike: alterExtension, applies: isExtension},
	{name: event.Declare, weight: 4, strike: declare, applies: isExtension},
	{name: event.Vacuum, weight: 3, strike: vacuum},
	{name: "depose", weight: 5, strike: depose},
	{name: event.DropExtension, weight: 1, heavy: true, rare: true, strike: dropExtension, applies: isExtension},
	{name: event.UpgradeScript, weight: 5, strike: upgradeScript, applies: func(o cluster.Options) bool { return o.Script != "" }},
}

func isExtension(o cluster.Options) bool {
	return o.Script == ""
}

// callsLast is longer than clients wait in one call.  A call fails that waits through two upgrades.
const callsLast = 12 * time.Second

// upgradeScript runs the script of the SQL edition again, as an upgrade does.
func upgradeScript(ctx context.Context, n *nemesis, _ *rand.Rand) error {
	script, err := os.ReadFile(n.cluster.Options().Script)
	if err != nil {
		return err
	}
	end := n.begin(event.Record{Do: event.UpgradeScript})
	err = n.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(ctx, string(script)).ReadAll()
		return err
	})
	end()
	pause(ctx, callsLast)
	return err
}

func (n *nemesis) client(rng *rand.Rand) (number, pid int, err error) {
	pids := n.clients.Pids()
	var numbers []int
	for number := range pids {
		numbers = append(numbers, number)
	}
	if len(numbers) == 0 {
		return 0, 0, errNone
	}
	slices.Sort(numbers)
	number = numbers[rng.IntN(len(numbers))]
	return number, pids[number], nil
}

func killClient(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	number, pid, err := n.client(rng)
	if err != nil {
		return err
	}
	n.moment(event.Record{Do: event.KillClient, Client: number, Pid: pid})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	pause(ctx, between(rng, 0, time.Second))
	return n.clients.Restart(number)
}

func stopClient(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	number, pid, err := n.client(rng)
	if err != nil {
		return err
	}
	defer n.begin(event.Record{Do: event.StopClient, Client: number, Pid: pid})()
	return cluster.Suspend(ctx, pid, between(rng, 300*time.Millisecond, 4*time.Second))
}

// backend draws a client's backend.  Those that lead or wait are drawn half of the time, if there are any.  One of a crowd
// is drawn less often than its size would have it, and then it is near the front of the line.
func (n *nemesis) backend(ctx context.Context, rng *rand.Rand) (pid int, application string, err error) {
	involved, crowd := rng.IntN(2) == 0, rng.IntN(4) == 0
	err = n.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT pid, application_name FROM pg_stat_activity
			WHERE (application_name LIKE 'client %' OR $3 AND application_name LIKE 'crowd %')
				AND backend_type = 'client backend'
			ORDER BY NOT ($1::boolean AND pid IN (SELECT pid FROM le_leaders
					UNION SELECT pid FROM le_candidates WHERE position <= 3 OR position IS NULL)),
				NOT ($3::boolean AND application_name LIKE 'crowd %'), hashint8extended(pid, $2)
			LIMIT 1`, involved, rng.Int64(), crowd).Scan(&pid, &application)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNone
	}
	return pid, application, err
}

func stopBackend(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	pid, application, err := n.backend(ctx, rng)
	if err != nil {
		return err
	}
	defer n.begin(event.Record{Do: event.StopBackend, Target: application, Pid: pid})()
	return n.cluster.StopBackend(ctx, pid, between(rng, 300*time.Millisecond, 3*time.Second))
}

func signalBackend(name, function string) func(context.Context, *nemesis, *rand.Rand) error {
	return func(ctx context.Context, n *nemesis, rng *rand.Rand) error {
		pid, application, err := n.backend(ctx, rng)
		if err != nil {
			return err
		}
		n.moment(event.Record{Do: name, Target: application, Pid: pid})
		return n.run(ctx, fmt.Sprintf("SELECT %s(%d)", function, pid))
	}
}

func killBackend(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	pid, application, err := n.backend(ctx, rng)
	if err != nil {
		return err
	}
	defer n.begin(event.Record{Do: event.KillBackend, Target: application, Pid: pid})()
	return n.cluster.CrashBackend(context.WithoutCancel(ctx), pid)
}

func restart(name string, mode cluster.Mode) func(context.Context, *nemesis, *rand.Rand) error {
	return func(ctx context.Context, n *nemesis, rng *rand.Rand) error {
		ctx = context.WithoutCancel(ctx)
		var lease event.Record
		if mode == cluster.Immediate && rng.IntN(2) == 0 {
			lease = n.takeLease(ctx)
		}
		end := n.begin(event.Record{Do: name})
		err := n.cluster.Restart(ctx, mode)
		end()
		if lease.Outcome == event.True && err == nil {
			n.endLease(ctx, lease)
		}
		return err
	}
}

// takeLease takes a lease as client 0, so that the server crashes when its client has just been told of it.  Clients seldom
// come so close to a crash.
func (n *nemesis) takeLease(ctx context.Context) event.Record {
	const ttl = 4 * time.Second
	call := n.newCall(event.Record{Do: event.Lease, Scope: event.ByLease, TTL: int64(ttl), Identity: "nemesis"})
	call.Election = fmt.Sprintf("crash.%d", call.Op)
	return n.record(ctx, call, func(ctx context.Context, conn *pgx.Conn, answer *event.Record) error {
		var token *int64
		err := conn.QueryRow(ctx, "SELECT le_lease($1::text, $2::interval, identity => 'nemesis')", call.Election,
			ttl.String()).Scan(&token)
		answer.Outcome = event.False
		if token != nil {
			answer.Outcome, answer.Token = event.True, *token
		}
		return err
	})
}

// endLease looks whether the lease runs, and resigns it.
func (n *nemesis) endLease(ctx context.Context, lease event.Record) {
	for do, query := range map[string]string{
		event.Am:     "SELECT le_am_leader($1::text, $2::bigint)",
		event.Resign: "SELECT le_resign($1::text, $2::bigint)",
	} {
		call := n.newCall(event.Record{Do: do, Election: lease.Election, Scope: event.ByLease, Token: lease.Token})
		n.record(ctx, call, func(ctx context.Context, conn *pgx.Conn, answer *event.Record) error {
			var is bool
			err := conn.QueryRow(ctx, query, lease.Election, lease.Token).Scan(&is)
			answer.Outcome = event.False
			if is {
				answer.Outcome = event.True
			}
			return err
		})
	}
}

// promotion is a way in which a primary goes.
type promotion struct {
	loss   cluster.Loss
	target string
}

var promotions = []promotion{
	{cluster.LoseNothing, "nothing lost"},
	{cluster.LoseLittle, "the last commits may be lost"},
	{cluster.LoseMuch, "the last commits are lost"},
	{cluster.LoseMuch, "the last commits are lost"},
}

// The same under Patroni.
var failovers = []promotion{
	{cluster.LoseNothing, "switchover"},
	{cluster.LoseLittle, "kill -9 of PostgreSQL"},
	{cluster.LoseMuch, "kill -9 of PostgreSQL, last WAL unsent"},
	{cluster.LoseHost, "kill -9 of PostgreSQL and Patroni"},
}

func promote(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	kind := promotions[rng.IntN(len(promotions))]
	if n.cluster.Options().Patroni { // each in turn
		kind = failovers[(n.cluster.Server()-1)%len(failovers)]
	}
	defer n.begin(event.Record{Do: event.PromoteStandby, Target: kind.target})()
	return n.cluster.Promote(ctx, kind.loss, between(rng, 200*time.Millisecond, 2*time.Second))
}

func cutLink(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	link := 1 + rng.IntN(cluster.Hosts)
	directions := []int{cluster.ToServer, cluster.ToClients, cluster.ToServer | cluster.ToClients}[rng.IntN(3)]
	target := fmt.Sprintf("link %d, %s", link, map[int]string{
		cluster.ToServer: "to the server", cluster.ToClients: "to the clients",
		cluster.ToServer | cluster.ToClients: "both directions"}[directions])
	defer n.begin(event.Record{Do: event.CutLink, Target: target})()
	if err := n.cluster.LinkDown(link, directions); err != nil {
		return err
	}
	pause(ctx, between(rng, 500*time.Millisecond, 5*time.Second))
	return n.cluster.LinkUp(link)
}

func freezeProxy(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	defer n.begin(event.Record{Do: event.FreezeProxy})()
	n.cluster.Proxy.Freeze()
	defer n.cluster.Proxy.Thaw()
	pause(ctx, between(rng, 500*time.Millisecond, 5*time.Second))
	return nil
}

func cutProxy(_ context.Context, n *nemesis, _ *rand.Rand) error {
	n.moment(event.Record{Do: event.CutProxy})
	n.cluster.Proxy.Cut()
	return nil
}

func restartPooler(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	defer n.begin(event.Record{Do: event.RestartPooler})()
	return n.cluster.RestartPooler(ctx, between(rng, 0, time.Second))
}

func stopPooler(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	defer n.begin(event.Record{Do: event.StopPooler})()
	return n.cluster.StopPooler(ctx, between(rng, 300*time.Millisecond, 3*time.Second))
}

// setClock sets the wall clock, by seconds, minutes or hours from the right time.  The server's own timeouts follow the
// wall clock: one that is pending when the clock goes back is late by as much.
func setClock(_ context.Context, n *nemesis, rng *rand.Rand) error {
	scales := []time.Duration{10 * time.Second, 10 * time.Minute, cluster.MaxClockOffset}
	scale := scales[rng.IntN(len(scales))]
	offset := between(rng, -scale, scale)
	n.moment(event.Record{Do: event.SetClock, Target: offset.Round(time.Millisecond).String()})
	return n.cluster.SetClock(offset)
}

// fillLockTable takes advisory locks until no more fit, by two integers.
func fillLockTable(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	connecting, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	conn, err := n.cluster.Control(connecting)
	if err != nil {
		return err
	}
	defer n.begin(event.Record{Do: event.FillLockTable})()
	defer closeConn(conn)
	_, err = conn.Exec(connecting, "SELECT count(pg_advisory_lock(94, i)) FROM generate_series(1, 1000000) i")
	var failed *pgconn.PgError
	if !errors.As(err, &failed) || failed.Code != "53200" {
		return fmt.Errorf("the lock table is not full: %w", err)
	}
	pause(ctx, between(rng, 500*time.Millisecond, 2*time.Second))
	return nil
}

// What an administrator may do to the extension's objects at any time.
var maintenance = []string{
	"ALTER EXTENSION leader_election UPDATE",
	"ALTER EXTENSION leader_election SET SCHEMA le",
	"ALTER EXTENSION leader_election SET SCHEMA public",
	"VACUUM FULL le_leases",
	"VACUUM FULL _le_once_done",
	"VACUUM FULL _le_declarations",
	"CLUSTER le_leases USING le_leases_pkey",
	"REINDEX TABLE le_leases",
	"REINDEX TABLE CONCURRENTLY le_leases",
	"REINDEX TABLE _le_once_done",
	"ALTER TABLE le_leases SET (fillfactor = 50)",
	"ALTER TABLE le_leases RESET (fillfactor)",
	"ALTER TABLE le_leases ALTER COLUMN identity SET STATISTICS 10",
}

func alterExtension(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	statement := maintenance[rng.IntN(len(maintenance))]
	defer n.begin(event.Record{Do: event.AlterExtension, Target: statement})()
	return n.run(ctx, "SET lock_timeout = '1s'", statement)
}

// election draws an election that is led or waited for, by name.
func (n *nemesis) election(ctx context.Context, rng *rand.Rand) (name string, err error) {
	err = n.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT name FROM (SELECT name FROM le_leaders UNION SELECT name FROM le_candidates) e WHERE name IS NOT NULL
			ORDER BY hashtextextended(name, $1) LIMIT 1`, rng.Int64()).Scan(&name)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNone
	}
	return name, err
}

func declare(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	name, err := n.election(ctx, rng)
	if err != nil {
		return err
	}
	literal := "'" + strings.ReplaceAll(name, "'", "''") + "'"
	rules := []string{"", ", candidates => 'postgres'", ", grace => '300 ms'", ", private => true"}
	statement := fmt.Sprintf("SELECT le_declare(%s%s)", literal, rules[rng.IntN(len(rules))])
	defer n.begin(event.Record{Do: event.Declare, Election: name, Target: statement})()
	if err := n.run(ctx, statement); err != nil {
		return err
	}
	pause(ctx, between(rng, 500*time.Millisecond, 3*time.Second))
	return n.run(context.WithoutCancel(ctx), fmt.Sprintf("SELECT le_undeclare(%s)", literal))
}

func vacuum(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	statements := []string{"VACUUM", "VACUUM (FREEZE, ANALYZE) le_leases", "CHECKPOINT", "ANALYZE"}
	if n.cluster.Options().Script != "" {
		statements = []string{"VACUUM", "VACUUM (FREEZE, ANALYZE) le_elections", "CHECKPOINT", "ANALYZE",
			"REINDEX TABLE CONCURRENTLY le_elections", "VACUUM FULL le_elections"}
	}
	statement := statements[rng.IntN(len(statements))]
	defer n.begin(event.Record{Do: event.Vacuum, Target: statement})()
	return n.run(ctx, statement)
}

// depose ends a term as client 0.  It is a call of the history.
func depose(ctx context.Context, n *nemesis, rng *rand.Rand) error {
	var name string
	err := n.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT name FROM le_leaders WHERE name IS NOT NULL
			ORDER BY hashint8extended(token, $1) LIMIT 1`, rng.Int64()).Scan(&name)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return errNone
	}
	if err != nil {
		return err
	}
	return n.callDepose(ctx, name, "SELECT le_depose($1::text, 'nemesis')", name)
}

func (n *nemesis) callDepose(ctx context.Context, election, query string, argument any) error {
	call := n.newCall(event.Record{Do: event.Depose, Election: election})
	n.record(ctx, call, func(ctx context.Context, conn *pgx.Conn, answer *event.Record) error {
		var deposed bool
		err := conn.QueryRow(ctx, query, argument).Scan(&deposed)
		answer.Outcome = event.False
		if deposed {
			answer.Outcome = event.True
		}
		return err
	})
	return nil
}

// newCall numbers a call of client 0.
func (n *nemesis) newCall(call event.Record) event.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.op++
	call.Kind, call.Op = event.Call, n.op
	return call
}

// record makes a call of client 0 with a connection of its own, and records it with its return, which it returns.
func (n *nemesis) record(ctx context.Context, call event.Record,
	make func(context.Context, *pgx.Conn, *event.Record) error,
) (answer event.Record) {
	err := n.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		call.Server = n.cluster.Server()
		n.log.Add(call)
		answer = call
		answer.Kind = event.Return
		err := make(ctx, conn, &answer)
		var failed *pgconn.PgError
		if err != nil {
			// what was done remains done: an error tells nothing
			answer.Outcome, answer.Message = event.Unknown, err.Error()
		}
		if errors.As(err, &failed) {
			answer.SQLState, answer.Message = failed.Code, failed.Message
		}
		n.log.Add(answer)
		return nil
	})
	if err != nil {
		n.log.Add(event.Record{Kind: event.Note, Do: call.Do, Message: "nemesis: " + err.Error()})
	}
	return answer
}

// dropExtension ends all leases, as documented, and creates the extension again, with the triggers that used it.
func dropExtension(ctx context.Context, n *nemesis, _ *rand.Rand) error {
	return n.with(context.WithoutCancel(ctx), func(ctx context.Context, conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, `SELECT pg_get_triggerdef(oid) FROM pg_trigger
			WHERE tgrelid = 'triggered'::regclass AND NOT tgisinternal`)
		triggers, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		defer n.begin(event.Record{Do: event.DropExtension})()
		if _, err := conn.Exec(ctx, "SET lock_timeout = '2s'"); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "DROP EXTENSION leader_election CASCADE"); err != nil {
			return err
		}
		for _, statement := range append([]string{"CREATE EXTENSION leader_election"}, triggers...) {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
}
