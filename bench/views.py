"""What it takes to read the views, for few elections and for many."""
from clients import (NOTHING, QUIET, Connection, Script, Waiter, cancel,
                     wait_for, wait_until_waiting)
from crowd import Crowd
from tables import Table, limit, median

ROUNDS = 3
TERMS = 50000
CANDIDATES = 1000
# all rows, made but not sent
ALL_ROWS = "SELECT * FROM {} OFFSET 1000000"
# Once each has looked for a deadlock, after one second.  Until all have, the server
# locks all of its locks most of the time.
CALM = "max(waitstart) < clock_timestamp() - interval '2 s' FROM pg_locks WHERE NOT granted"


class Reading:
    """A statement that reads, and how long it takes in each round."""

    def __init__(self, options, sql):
        self.script = Script(options.directory, NOTHING, sql)
        self.seconds = options.seconds
        self.times = []

    def run(self):
        """Add the milliseconds that it takes, the first run of all apart."""
        rate, _ = self.script.run(1, self.seconds)
        self.times.append(1000 / rate)

    def median(self):
        return median(self.times)


def read_all(table, options, what, view, most):
    """Read all rows of a view."""
    reading = Reading(options, ALL_ROWS.format(view))
    for _ in range(options.rounds or ROUNDS):
        reading.run()
    took = reading.median()
    table.row(what, table.judge(what, took, f"{took:.1f} ms", most=most),
              limit(most, 0, " ms"))


def add_candidates(control, candidates, number):
    """Have so many more sessions wait to be elected."""
    for _ in range(number):
        candidates.append(Waiter())
        candidates[-1].send("SELECT le_become_leader('viewed')")
    wait_until_waiting(control, candidates)


def measure_views(options):
    control = Connection(QUIET)
    control.ask("SELECT le_try_become_leader('viewed')")
    candidates = []
    add_candidates(control, candidates, 1)
    crowd = Crowd()
    table = Table("Views", "-what", "took", "at most")

    crowd.add("terms", 100)
    read_all(table, options, "le_leaders, all of 100 terms", "le_leaders", 2)
    crowd.add("terms", options.scaled(TERMS) - 100)
    read_all(table, options, "le_leaders, all of 50,000 terms", "le_leaders", 500)
    crowd.clear()
    crowd.close()

    add_candidates(control, candidates, options.scaled(CANDIDATES) - 1)
    wait_for(control, CALM)
    read_all(table, options, "le_candidates, all of 1,000 candidates of one election",
             "le_candidates", 1000)
    cancel(control, candidates)
    for one in candidates:
        one.close()
    control.close()
