"""The SQL edition, beside what a careful programmer writes by hand."""
import os
import statistics
import time

from clients import NOTHING, QUIET, Connection, Session, Waiter, psql
from tables import Table, median
from throughput import Side, print_pairs
from workloads import GSET

ROUNDS = 3
SECONDS = 5					# for one of others': each new session first compiles the functions
CLIENTS = (1, 8, 64)
CRASHES = 21
LOCKS = 20000
RENEWALS = 1000000
BESIDE = 100000				# renewals beside an old snapshot, which become ever slower
LAZY = "-c synchronous_commit=off"
SCRIPT = os.path.join(os.path.dirname(__file__), "..", "plpgsql", "leader_election.sql")

# with a token, an identity and an expiry, as the edition has them
BY_HAND = """CREATE SEQUENCE careful_token;
CREATE TABLE careful (name text PRIMARY KEY, token bigint NOT NULL, identity text NOT NULL,
 expires_at timestamptz NOT NULL) WITH (fillfactor = 25);
CREATE TABLE work (id integer PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 25);
INSERT INTO work SELECT i, 0 FROM generate_series(0, 100) i;"""
HELD = "SELECT token FROM le.le_leader(:leased)" + GSET
RENEW = (HELD, "SELECT le.le_renew(:leased, :token)")
UPSERT = """INSERT INTO careful VALUES (:leased, nextval('careful_token'), 'me', clock_timestamp() + '1 day')
 ON CONFLICT (name) DO UPDATE SET expires_at = clock_timestamp() + '1 day', identity = excluded.identity,
  token = CASE WHEN careful.expires_at < clock_timestamp() THEN excluded.token ELSE careful.token END
 WHERE careful.identity = excluded.identity OR careful.expires_at < clock_timestamp()"""
RENEW_BY_HAND = (NOTHING, UPSERT)
PAIR = (NOTHING, "SELECT le.le_lease(:name, '1 min', identity => 'me') AS token \\gset\n"
        "SELECT le.le_resign(:name, :token)")
PAIR_BY_HAND = (NOTHING, UPSERT + " RETURNING token;\n"
                "UPDATE careful SET expires_at = '-infinity' WHERE name = :leased AND identity = 'me'")
UPDATE = "UPDATE work SET n = n + 1 WHERE id = :client_id"
GUARDED = (HELD, f"BEGIN;\nSELECT le.le_assert_leader(:leased, :token);\n{UPDATE};\nCOMMIT")
GUARDED_BY_HAND = (UPSERT + " RETURNING token" + GSET,
                   "BEGIN;\nSELECT 1 FROM careful WHERE name = :leased AND token = :token"
                   f" AND expires_at > clock_timestamp() FOR KEY SHARE;\n{UPDATE};\nCOMMIT")


def compare(table, options, control, what, against, ours, theirs, least):
    pairs = [(clients, Side(options.directory, ours, clients), Side(options.directory, theirs, clients))
             for clients in CLIENTS]
    for _, *sides in pairs:		# the first run adds the elections
        for side in sides:
            side.run(control, 1)
            side.rates.clear()
    for turn in range(options.rounds or ROUNDS):
        for _, *sides in pairs:
            for side in sides[::-1 if turn % 2 else 1]:
                side.run(control, SECONDS * options.seconds)
    print_pairs(table, what, against, pairs, least)


def time_checks(table, options, control):
    """le_am_leader in the server, beside many locks."""
    other, leader = Connection(), Connection()
    other.ask(f"SELECT count(pg_advisory_lock(20000000 + i)) FROM generate_series(1, {options.scaled(LOCKS)}) i")
    leader.ask("SELECT le.le_try_become_leader('checked')")
    times = []
    for _ in range(options.rounds or ROUNDS):
        start = time.monotonic()
        leader.ask("DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM le.le_am_leader('checked'); END LOOP; END $$")
        times.append((time.monotonic() - start) / 20000 * 1e6)
    what = "le_am_leader, leading, beside 20,000 other advisory locks"
    table.row(what, "", table.judge(what, median(times), f"{median(times):.1f} us", most=10), "", "", "at most 10 us")
    other.close()
    leader.close()


def time_takeovers(table, options, control):
    times = []
    for _ in range(max(options.scaled(CRASHES), 3)):
        leader, candidate = Session(), Waiter()
        leader.ask("SELECT le.le_try_become_leader('crashed')")
        candidate.send("CALL le.le_campaign('crashed', '1 min')")
        while control.ask("SELECT count(*) FROM le.le_candidates WHERE name = 'crashed'")[0] == 0:
            pass
        start = time.monotonic()
        leader.kill()
        candidate.answer()
        times.append((time.monotonic() - start) * 1000)
        candidate.ask("SELECT le.le_resign('crashed')")
        candidate.close()
        leader.process.wait()
    what = "takeover after kill -9 of the leader's client, session scope"
    table.row(what, "", table.judge(what, statistics.median(times), f"{statistics.median(times):.1f} ms", most=20), "", "",
              "at most 20 ms")


def grow(table, options, control):
    """A million renewals, without and with an old snapshot."""
    for beside, number in (("", RENEWALS), (", beside an old snapshot", BESIDE)):
        renewals = max(options.scaled(number), 1000)
        psql("TRUNCATE le.le_elections CASCADE")
        token = psql("SELECT le.le_lease('grown', '1 min')")
        reader = Connection()
        if beside:
            reader.connection.autocommit = False
            reader.ask("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.ask("SELECT count(*) FROM le.le_elections")
        renewer = Connection(LAZY)
        start = time.monotonic()
        done = 0
        # one transaction for each renewal, as programs have it
        while done < renewals:
            some = min(renewals - done, 10000)
            renewer.ask(f"""DO $$ BEGIN FOR i IN 1 .. {some} LOOP
                PERFORM le.le_renew('grown', {token}); COMMIT; END LOOP; END $$""")
            done += some
            if not beside:
                control.ask("VACUUM le.le_elections")
        rate = renewals / (time.monotonic() - start)
        size = control.ask("SELECT pg_total_relation_size('le.le_elections') / 1e6")[0]
        reader.close()
        renewer.close()
        table.row(f"{renewals:,} renewals of a lease{beside}", "", f"{rate:,.0f} per second", f"{size:.1f} MB", "", "")
    control.ask("VACUUM FULL le.le_elections")


def measure_sql_edition(options):
    control = Connection(QUIET)
    with open(SCRIPT) as file:
        psql(file.read())
    psql("UPDATE le.le_settings SET max_ttl = '1 day'; " + BY_HAND)
    table = Table("The SQL Edition", "-what", "-against", "ours", "theirs", "ratio", "asked")
    control.ask("SELECT count(le.le_lease('lease ' || i, '1 day', identity => 'me'))"
                " FROM generate_series(0, 63) i")
    compare(table, options, control, "le_renew", "upsert by hand", RENEW, RENEW_BY_HAND, 0.8)
    compare(table, options, control, "le_lease + le_resign", "by hand", PAIR, PAIR_BY_HAND, 0.5)
    compare(table, options, control, "UPDATE after le_assert_leader", "UPDATE after SELECT ... FOR KEY SHARE", GUARDED,
            GUARDED_BY_HAND, 0.85)
    time_checks(table, options, control)
    time_takeovers(table, options, control)
    grow(table, options, control)
    control.close()
