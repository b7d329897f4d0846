"""What the measured elections have to bear beside them: others, and other locks."""
from clients import MANY, QUIET, Connection, without_fsync

CHUNK = 1000					# elections in one transaction
# another measurement covers elections that remain without a leader
FORGET = "SELECT pg_stat_leader_election_reset()"

TAKE = {
    "terms": "SELECT count(*) FILTER (WHERE le_try_become_leader('beside ' || n))"
             " FROM generate_series({first}, {last}) n",
    "leases": "WITH taken AS (INSERT INTO crowd SELECT n, le_lease('beside ' || n, '1 day')"
              " FROM generate_series({first}, {last}) n RETURNING token)"
              " SELECT count(token) FROM taken",
    "locks": "SELECT count(*) FILTER (WHERE pg_try_advisory_lock(n))"
             " FROM generate_series({first}, {last}) n",
}


class Crowd:
    """Terms, leases and plain advisory locks, all held by one session."""

    def __init__(self):
        self.connection = Connection(f"{QUIET} {MANY}")
        self.connection.ask("CREATE TEMP TABLE crowd (n bigint PRIMARY KEY, token bigint)")
        self.end = 1000000			# of the numbers in use; not those of other locks

    def add(self, kind, count):
        """Add so many of terms, leases or locks."""
        with without_fsync(self.connection):
            for first in range(self.end, self.end + count, CHUNK):
                last = min(first + CHUNK, self.end + count) - 1
                taken = self.connection.ask(TAKE[kind].format(first=first, last=last))[0]
                if taken != last - first + 1:
                    raise RuntimeError(f"only {taken} {kind} of {last - first + 1} were free")
        self.end += count

    def clear(self):
        """Have none any more, as if there had never been any."""
        self.connection.ask("SELECT le_resign_all(), pg_advisory_unlock_all()")
        with without_fsync(self.connection):
            while self.connection.ask(
                    "WITH gone AS (DELETE FROM crowd WHERE n IN"
                    " (SELECT n FROM crowd LIMIT %d) RETURNING n, token)"
                    " SELECT count(le_resign('beside ' || n, token)) FROM gone"
                    % CHUNK)[0] > 0:
                pass
        self.connection.ask("TRUNCATE crowd")
        self.connection.ask("VACUUM le_leases")
        self.connection.ask(FORGET)

    def close(self):
        self.connection.close()
