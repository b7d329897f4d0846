"""What a thousand candidates of one election cost while they wait, and one by one lead."""
import selectors
import time

from clients import NOTHING, Connection, Script, Waiter, server_time
from tables import Table, limit, median, median_and_p99
from throughput import NAMES
from workloads import LOCK_UNLOCK

ROUNDS = 2
CANDIDATES = 1000
SETTLED = 3						# seconds after which each has looked for a deadlock, or should have
BESIDE = 4						# times as long as other runs of pgbench
IDLE = 4						# seconds in which the server's work is measured
WAITING = ("SELECT count(*) FROM pg_stat_activity WHERE query = %s AND state = 'active'"
           " AND (wait_event_type, wait_event) IN"
           " (('Lock', 'advisory'), ('Extension', 'Extension'))")


class Line:
    """Sessions that wait for the same, in one way."""

    def __init__(self, what, take, let_go):
        self.what, self.take, self.let_go = what, take, let_go
        self.arrivals, self.idle, self.beside, self.gaps = [], [], [], []

    def run(self, options, bystander, control):
        """Have them wait and take their turns; alone is the rate of the bystander's alone."""
        alone, _ = bystander.run(1, BESIDE * options.seconds)
        leader = Waiter()
        leader.ask(self.take)
        others = [Waiter() for _ in range(options.scaled(CANDIDATES))]
        began = time.perf_counter()
        for one in others:
            one.send(self.take)
        while self.waiting(control) < len(others):
            time.sleep(0.1)
        self.arrivals.append(time.perf_counter() - began)

        time.sleep(SETTLED)
        cpu = server_time()
        time.sleep(IDLE)
        self.idle.append((server_time() - cpu) / IDLE)
        beside, _ = bystander.run(1, BESIDE * options.seconds)
        self.beside.append(beside / alone)
        self.let_lead(leader, others)
        for one in (leader, *others):
            one.close()

    def waiting(self, control):
        control.cursor.execute(WAITING, (self.take,))
        return control.cursor.fetchone()[0]

    def let_lead(self, leader, others):
        """Let each lead, and resign at once; note how long after the one before it."""
        selector = selectors.DefaultSelector()
        for one in others:
            selector.register(one.connection, selectors.EVENT_READ, one)
        leader.send(self.let_go)
        last = time.perf_counter()
        left = len(others)
        while left:
            for key, _ in selector.select():
                one = key.data
                one.settle()
                now = time.perf_counter()
                self.gaps.append(1000 * (now - last))
                last = now
                selector.unregister(one.connection)
                one.send(self.let_go)
                left -= 1
        leader.settle()
        for one in others:
            one.settle()

    def print(self, table, asked):
        idle, beside = median(self.idle), median(self.beside)
        middle, p99 = median_and_p99(self.gaps)
        most, most_p99, least = asked
        table.row(self.what, f"{median(self.arrivals):.1f} s",
                  table.judge(f"{self.what}, CPU", idle, f"{idle:.3f}", most=most),
                  f"{middle:.2f} ms",
                  table.judge(f"{self.what}, p99", p99, f"{p99:.2f} ms", most=most_p99),
                  table.judge(f"{self.what}, bystander", beside, f"{beside:.2f}", least=least))


def measure_crowd(options):
    control = Connection()
    bystander = Script(options.directory, NAMES + ";\n" + NOTHING, LOCK_UNLOCK[1])
    lines = (Line("CALL le_campaign", "CALL le_campaign('crowded')",
                  "SELECT le_resign('crowded')"),
             Line("SELECT pg_advisory_lock", "SELECT pg_advisory_lock(98)",
                  "SELECT pg_advisory_unlock(98)"))
    for turn in range(options.rounds or ROUNDS):
        for line in lines[::-1 if turn % 2 else 1]:
            line.run(options, bystander, control)
    control.close()

    table = Table("Crowd", "-1,000 sessions in", "all wait after", "server's CPU, of a core",
                  "handover, median", "handover, p99", "a bystander's locks, to those alone")
    asked = (0.05, 10, 0.7)
    table.row("asked of le_campaign", "", f"at most {limit(asked[0])}", "",
              f"at most {limit(asked[1], 0, ' ms')}", f"at least {limit(asked[2])}")
    lines[0].print(table, asked)
    lines[1].print(table, (None,) * 3)
