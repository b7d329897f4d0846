"""Many elections in one transaction, beside as many in a hundred transactions.

Without fsync, as the disk would take the most of both: each resignation of a
lease is made durable by itself.
"""
import time

import psycopg2.errors

from clients import MANY, Connection, without_fsync
from tables import Table, limit, median

ROUNDS = 3
PARTS = 100						# transactions of the other side
PATIENCE = 60					# seconds for a statement: what takes longer is not
								# tried again
MOST = 1.5						# times as long in one transaction, it is asked

# {first} and {last} are the first and the last election of the transaction
NUMBERS = "generate_series({first}, {last}) n"
LEASE = """INSERT INTO taken SELECT n, le_lease('many ' || n, '1 day')
 FROM """ + NUMBERS + """
 ON CONFLICT (n) DO UPDATE SET token = excluded.token"""
RESIGN_LEASE = """SELECT count(le_resign('many ' || n, token)) FROM taken
 WHERE n BETWEEN {first} AND {last}"""
ELECT = "SELECT count(le_try_become_leader('many ' || n)) FROM " + NUMBERS
RESIGN = "SELECT count(le_resign('many ' || n)) FROM " + NUMBERS
GUARD = "SELECT count(le_assert_leader('many ' || n)) FROM " + NUMBERS


class Job:
    """Something that is done to many elections: in one transaction or in many."""

    def __init__(self, connection, what, sql, count):
        self.connection = connection
        self.what = what
        self.sql = sql
        self.count = count
        self.times = {1: [], PARTS: []}
        self.too_long = False		# in one transaction

    def run(self, parts):
        """Do it in so many transactions, or in many if it takes too long in one."""
        if parts == 1 and self.too_long:
            return self.do(PARTS)
        began = time.perf_counter()
        try:
            self.do(parts)
        except psycopg2.errors.QueryCanceled:
            self.too_long = True
            return self.do(PARTS)
        self.times[parts].append(time.perf_counter() - began)

    def do(self, parts):
        each = -(-self.count // parts)
        for first in range(1, self.count + 1, each):
            self.connection.ask(self.sql.format(
                first=first, last=min(first + each - 1, self.count)))

    def print(self, table):
        over = self.too_long
        one = PATIENCE if over else median(self.times[1])
        hundred = median(self.times[PARTS])
        table.row(self.what, ("> " if over else "") + f"{one:.2f} s", f"{hundred:.2f} s",
                  table.judge(self.what, one / hundred, f"{one / hundred:.2f}",
                              most=MOST, over=over), limit(MOST))


def interleave(table, connection, rounds, *jobs):
    """Do the jobs one after the other, in one transaction each, in many each, ..."""
    for turn in range(rounds):
        for parts in (1, PARTS)[::-1 if turn % 2 else 1]:
            for job in jobs:
                job.run(parts)
            connection.ask("VACUUM le_leases")
    for job in jobs:
        job.print(table)


def measure_transactions(options):
    rounds = options.rounds or ROUNDS
    many = options.scaled(100000)
    connection = Connection(f"{MANY} -c statement_timeout={PATIENCE}s"
                            " -c client_min_messages=error")
    connection.ask("CREATE TEMP TABLE taken (n bigint PRIMARY KEY, token bigint)")
    table = Table("Transactions", "-what", "in one transaction", "in a hundred", "ratio",
                  "at most")

    lease = Job(connection, "le_lease, 100,000 elections", LEASE, many)
    resign_lease = Job(connection, "le_resign of a lease, 100,000 elections",
                       RESIGN_LEASE, many)
    elect = Job(connection, "le_try_become_leader, 100,000 elections", ELECT, many)
    resign = Job(connection, "le_resign in session scope, 100,000 elections", RESIGN, many)
    few = options.scaled(10000)
    guard = Job(connection, "le_assert_leader, 10,000 elections", GUARD, few)
    with without_fsync(connection):
        interleave(table, connection, rounds, lease, resign_lease)
        interleave(table, connection, rounds, elect, resign)
        Job(connection, "", ELECT, few).do(PARTS)
        interleave(table, connection, rounds, guard)
    connection.close()
