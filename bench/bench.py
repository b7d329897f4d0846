#!/usr/bin/env python3
"""Measure leader_election beside what a user would call otherwise.

Every figure is a ratio of two things measured in one run, in interleaved
rounds, as medians.  Needs a running server with the extension's files, found
through PGHOST and the like, and its data directory in PGDATA.  `make bench`
prepares all that.
"""
import argparse
import os
import re
import statistics
import subprocess
import tempfile

from handover import Session, compare_handovers

# Each script has the same shape, so that only the statements differ.  NAME and
# KEY stand for the election of each client.  FIRST is run once by each client.
SCRIPT = """\
\\if :first
{first};
\\set first 0
\\endif
{statements};
"""
# what a lease's holder knows is kept in pgbench's variables
GSET = " \\gset\nSELECT 1"
BACKEND_PID = ("SELECT pg_backend_pid()",) * 2
AM_LEADER = ("SELECT le_try_become_leader(NAME)", "SELECT le_am_leader(NAME)")
ELECT = "SELECT le_try_become_leader(NAME)"
ELECT_RESIGN = ELECT + ";\nSELECT le_resign(NAME)"
LOCK = "SELECT pg_try_advisory_lock(KEY)"
LOCK_UNLOCK = LOCK + ";\nSELECT pg_advisory_unlock(KEY)"
SELF_CHECK = """SELECT count(*) FROM pg_locks
 WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objid = 10"""
NOTHING = "SELECT 1"
HOLD_LEASE = """SELECT 'lease ' || :client_id AS lease, coalesce(
 (SELECT token FROM le_leader('lease ' || :client_id)),
 le_lease('lease ' || :client_id, '1 day')) AS token""" + GSET
RENEW = (HOLD_LEASE, "SELECT le_renew(:lease, :token)")
LEASE = (HOLD_LEASE, "SELECT le_lease(:lease, '1 day', 'me', :token)")
# what people write today, with one row for each election
UPSERT_TABLE = """CREATE TABLE lease (key text PRIMARY KEY,
 leader_id text NOT NULL, valid_until timestamptz NOT NULL)"""
UPSERT = """INSERT INTO lease VALUES ({key}, {leader}, now() + '1 day')
 ON CONFLICT (key) DO UPDATE
 SET leader_id = excluded.leader_id, valid_until = excluded.valid_until
 WHERE lease.valid_until < now() OR lease.leader_id = excluded.leader_id"""
UPSERT_OWN = ("SELECT 'lease ' || :client_id AS lease" + GSET,
              UPSERT.format(key=":lease", leader="'me'"))
UPSERT_DENIED = (NOTHING, UPSERT.format(key="'held'", leader="'follower'"))

# a write of the leader's, on any of its connections: without a guard, guarded, and
# checked as people do it today, in as many statements
LEADER = """SELECT set_config('leader_election.token', token::text, false), token
 FROM le_leader('leased')""" + GSET
LAZY = "SET synchronous_commit = off;\n" + LEADER
WRITE = "UPDATE {table} SET n = n + 1 WHERE id = :client_id"
PLAIN = WRITE.format(table="plain")
GUARDED = WRITE.format(table="guarded")
BLOCK = "BEGIN;\n{check};\n" + PLAIN + ";\nCOMMIT"
ASSERTED = BLOCK.format(check="SELECT le_assert_leader('leased', :token)")
EPOCH = "SELECT token FROM epoch WHERE name = 'leased' AND token = :token FOR SHARE"
SHARED = BLOCK.format(check=EPOCH)
SHARED_AT_ONCE = """WITH epoch AS MATERIALIZED (""" + EPOCH + """)
 UPDATE plain SET n = n + 1 FROM epoch WHERE id = :client_id"""
WRITE_TABLES = """CREATE TABLE plain WITH (fillfactor = 50) AS
 SELECT id, 0 AS n FROM generate_series(0, 7) AS id;
 ALTER TABLE plain ADD PRIMARY KEY (id);
 CREATE TABLE guarded (LIKE plain INCLUDING ALL);
 INSERT INTO guarded SELECT * FROM plain;
 CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guarded
 EXECUTE FUNCTION le_guard('leased');
 CREATE TABLE epoch AS SELECT name, token FROM le_leader('leased');
 ALTER TABLE epoch ADD PRIMARY KEY (name)"""

OPTIONS = {"unannounced": "-c leader_election.notify=off"}
OPTIONS["quiet"] = OPTIONS["unannounced"] + " -c leader_election.log_terms=off"

# What, its first and its repeated statements, against what, likewise, the least
# ratio, and what is special about the first side: runs with 5,000 other advisory
# locks held ("crowd"), with leader_election.notify off ("unannounced"), or with
# leader_election.log_terms off as well ("quiet")
WORKLOADS = [
    ("le_am_leader, leading", AM_LEADER,
     "SELECT pg_backend_pid()", BACKEND_PID, 0.95, None),
    ("le_am_leader, 5,000 other advisory locks held", AM_LEADER,
     "the same without them", AM_LEADER, 0.95, "crowd"),
    ("le_try_become_leader, denied",
     (NOTHING, "SELECT le_try_become_leader('held')"),
     "pg_try_advisory_lock, denied",
     (NOTHING, "SELECT pg_try_advisory_lock(77)"), 0.95, None),
    ("le_try_become_leader, leading already", (ELECT, ELECT),
     "pg_try_advisory_lock, re-entrant", (LOCK, LOCK), 0.95, None),
    ("le_try_become_leader + le_resign, log_terms and notify off",
     (NOTHING, ELECT_RESIGN),
     "pg_try_advisory_lock + pg_advisory_unlock",
     (NOTHING, LOCK_UNLOCK), 0.85, "quiet"),
    ("le_try_become_leader + le_resign, notify off",
     (NOTHING, ELECT_RESIGN),
     "pg_try_advisory_lock + pg_advisory_unlock",
     (NOTHING, LOCK_UNLOCK), None, "unannounced"),
    ("le_try_become_leader + le_resign",
     (NOTHING, ELECT_RESIGN),
     "pg_try_advisory_lock + pg_advisory_unlock",
     (NOTHING, LOCK_UNLOCK), None, None),
    ("le_renew, by the holder", RENEW,
     "SELECT pg_backend_pid()", BACKEND_PID, 0.90, None),
    ("le_lease, by the holder", LEASE,
     "SELECT pg_backend_pid()", BACKEND_PID, 0.90, None),
    ("le_renew, by the holder", RENEW,
     "upsert of a lease table, by the holder", UPSERT_OWN, 10, None),
    ("le_lease, by the holder", LEASE,
     "upsert of a lease table, by the holder", UPSERT_OWN, 10, None),
    ("le_lease, denied by a lease",
     (NOTHING, "SELECT le_lease('leased', '1 day')"),
     "pg_try_advisory_lock, denied",
     (NOTHING, "SELECT pg_try_advisory_lock(77)"), 0.90, None),
    ("one-row UPDATE, guarded by the trigger le_guard", (LEADER, GUARDED),
     "the same UPDATE without it", (LEADER, PLAIN), 0.90, None),
    ("one-row UPDATE, guarded by the trigger le_guard", (LEADER, GUARDED),
     "the same UPDATE with SELECT ... FOR SHARE in it",
     (LEADER, SHARED_AT_ONCE), 1, None),
    ("one-row UPDATE after le_assert_leader", (LEADER, ASSERTED),
     "the same after SELECT ... FOR SHARE", (LEADER, SHARED), 1, None),
    ("one-row UPDATE, guarded, synchronous_commit off", (LAZY, GUARDED),
     "the same UPDATE without a guard", (LAZY, PLAIN), None, None),
    ("one-row UPDATE after le_assert_leader, synchronous_commit off", (LAZY, ASSERTED),
     "the same after SELECT ... FOR SHARE", (LAZY, SHARED), None, None),
    ("upsert of a lease table, by the holder", UPSERT_OWN,
     "SELECT pg_backend_pid()", BACKEND_PID, None, None),
    ("upsert of a lease table, denied", UPSERT_DENIED,
     "SELECT pg_backend_pid()", BACKEND_PID, None, None),
    ("self-check over pg_locks, 5,000 advisory locks held",
     (NOTHING, SELF_CHECK),
     "SELECT pg_backend_pid()", BACKEND_PID, None, "crowd"),
]


def psql(sql):
    """Run SQL in a session of its own and return its output."""
    return subprocess.run(["psql", "-XqAtc", sql], check=True,
                          stdout=subprocess.PIPE, text=True).stdout.strip()


def pin(cores):
    """Let the postmaster, this process and their children use these cores."""
    with open(os.path.join(os.environ["PGDATA"], "postmaster.pid")) as file:
        postmaster = int(file.readline())
    for process in (postmaster, 0):
        os.sched_setaffinity(process, cores)


def cost():
    """How far WAL and transaction ids have come."""
    row = psql("SELECT pg_current_wal_insert_lsn() - '0/0',"
               " pg_snapshot_xmax(pg_current_snapshot())")
    return [int(value) for value in row.split("|")]


class Side:
    """One side of a comparison: a pgbench script, its rates and costs."""

    def __init__(self, path, statements, clients, special):
        self.path = path
        self.special = special
        self.rates = []
        self.wal = self.xids = self.transactions = 0
        script = SCRIPT.format(first=statements[0], statements=statements[1])
        if clients == 1:
            script = script.replace("NAME", "'scheduler'")
            script = script.replace("KEY", "1001")
        else:
            script = script.replace("NAME", ":client_id::text")
            script = script.replace("KEY", ":client_id")
        with open(path, "w") as file:
            file.write(script)

    def run(self, clients, seconds):
        environment = dict(os.environ,
                           PGOPTIONS=OPTIONS.get(self.special, ""))
        wal, xids = cost()
        output = subprocess.run(
            ["pgbench", "-n", "-M", "prepared", "-D", "first=1",
             "-c", str(clients), "-T", str(seconds), "-f", self.path],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment).stdout
        wal_after, xids_after = cost()
        self.rates.append(float(re.search(r"tps = ([0-9.]+)", output)[1]))
        self.transactions += int(
            re.search(r"actually processed: ([0-9]+)", output)[1])
        self.wal += wal_after - wal
        self.xids += xids_after - xids

    def per_transaction(self):
        return (f"{self.wal / self.transactions:.2f}",
                f"{self.xids / self.transactions:.4f}")


def compare(directory, clients, rounds, seconds, crowd):
    """Run all workloads in interleaved rounds and print their ratios."""
    sides = [[Side(os.path.join(directory, f"{number}.ours"), what[1], clients,
                   what[5]),
              Side(os.path.join(directory, f"{number}.theirs"), what[3],
                   clients, None)]
             for number, what in enumerate(WORKLOADS)]
    for turn in range(rounds):
        for pair in sides:
            for side in pair if turn % 2 == 0 else reversed(pair):
                if side.special == "crowd":
                    crowd.ask("SELECT count(pg_advisory_lock(i))"
                              " FROM generate_series(100001, 105000) i")
                side.run(clients, seconds)
                if side.special == "crowd":
                    crowd.ask("SELECT pg_advisory_unlock_all() IS NULL")

    for workload, pair in zip(WORKLOADS, sides):
        # of the two in one round, which had the same weather
        ratio = statistics.median(ours / theirs for ours, theirs
                                  in zip(pair[0].rates, pair[1].rates))
        least = "" if workload[4] is None else f"{workload[4]:.2f}"
        wal, xids = pair[0].per_transaction()
        print(f"| {workload[0]} | {workload[2]} | {clients} "
              f"| {statistics.median(pair[0].rates):,.0f} | {ratio:.3f} "
              f"| {least} | {wal} | {xids} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--only", default="",
                        help="workloads that have this in their names")
    parser.add_argument("--handovers", type=int, default=100)
    arguments = parser.parse_args()
    WORKLOADS[:] = [what for what in WORKLOADS if arguments.only in what[0]]

    psql("SET client_min_messages = warning;"
         "CREATE EXTENSION IF NOT EXISTS leader_election;" + UPSERT_TABLE)
    psql("SELECT le_lease('leased', '1 day');"
         + UPSERT.format(key="'held'", leader="'leader'"))
    psql(WRITE_TABLES)
    cores = os.sched_getaffinity(0)
    holder = Session()
    holder.ask("SELECT le_try_become_leader('held'), pg_advisory_lock(77)")
    crowd = Session()

    print("| what | against | clients | per second | ratio | at least"
          " | WAL bytes each | xids each |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as directory:
        pin({min(cores)})
        compare(directory, 1, arguments.rounds, arguments.seconds, crowd)
        pin(cores)
        compare(directory, 8, arguments.rounds, arguments.seconds, crowd)
    crowd.close()
    holder.close()

    if arguments.handovers > 0:
        compare_handovers(arguments.handovers)


if __name__ == "__main__":
    main()
