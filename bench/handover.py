"""How long it takes from the end of a term until others know, or lead.

Leaders are psql processes, so that they can be killed.  Candidates are
connections of this process: so the clock is the same, and hundreds can wait.
"""
import time

from clients import Session, Waiter, cancel, wait_until_waiting
from plots import plot
from tables import Table, median, median_and_p99

ROUNDS = 100
SMALL = 5						# a round of those with a crowd takes as long as so many
CANDIDATES = (1, 10, 100, 500)


class Bench:
    """Leaders that end, and candidates that wait for that."""

    def __init__(self):
        self.control = Waiter()
        self.waiter = Waiter()
        self.control.ask("SELECT le_try_become_leader('another')")

    def timed(self, start, end):
        began = time.perf_counter()
        start()
        end()
        return (time.perf_counter() - began) * 1000

    def released(self, lead, end, prepare, wait):
        """Milliseconds from the end of a leader to what the waiter awaits."""
        leader = Session()
        leader.ask(lead)
        prepare()
        if end == "kill":
            took = self.timed(leader.kill, wait)
            leader.process.wait()
        else:
            def resign():
                leader.process.stdin.write(end + ";\n")
                leader.process.stdin.flush()
            took = self.timed(resign, wait)
            leader.close()
        return took

    def waiting(self, end, lead, sql, let_go):
        """To the answer of a statement that waits."""
        def prepare():
            self.waiter.send(sql)
            wait_until_waiting(self.control, [self.waiter])
        took = self.released(lead, end, prepare, self.waiter.answer)
        self.waiter.ask(let_go)
        return took

    def campaign(self, end):
        return self.waiting(end, "SELECT le_try_become_leader('handover')",
                            "CALL le_campaign('handover')",
                            "SELECT le_resign('handover')")

    def lock(self, end):
        return self.waiting(end, "SELECT pg_advisory_lock(99) IS NULL",
                            "SELECT pg_advisory_lock(99) IS NULL",
                            "SELECT pg_advisory_unlock(99)")

    def campaign_names(self, end):
        return self.waiting(end, "SELECT le_try_become_leader('handover')",
                            "CALL le_campaign(ARRAY['another', 'handover'])",
                            "SELECT le_resign('handover')")

    def observe(self, end):
        leader = "SELECT le_try_become_leader('handover')"

        def prepare():
            self.waiter.send("CALL le_observe('handover', version => %d)"
                             % self.control.ask("CALL le_observe('handover')")[0])
            wait_until_waiting(self.control, [self.waiter])
        return self.released(leader, end, prepare, self.waiter.answer)

    def expire(self, sql):
        """From a lease's deadline to the answer to the candidate."""
        self.control.ask("SELECT le_lease('handover', '200 ms')")
        self.waiter.send(sql)
        before = time.perf_counter()
        left = self.control.ask("SELECT extract(epoch FROM expires_in)::float8"
                                " FROM le_leader('handover')")[0]
        # the earliest that the deadline can be: the figure is no better than true
        deadline = before + left
        token = self.waiter.answer()[0]
        took = (time.perf_counter() - deadline) * 1000
        self.waiter.ask("SELECT le_resign('handover', %d)" % token
                        if "ttl" in sql else "SELECT le_resign('handover')")
        return took

    def fall_silent(self, sql):
        """From the deadline of a leader without a heartbeat to the answer to the candidate."""
        leader = Waiter()
        leader.ask("SELECT le_try_become_leader('handover', heartbeat => '200 ms')")
        self.waiter.send(sql)
        before = time.perf_counter()
        left = self.control.ask("SELECT extract(epoch FROM expires_in)::float8"
                                " FROM le_leader('handover')")[0]
        self.waiter.answer()
        took = (time.perf_counter() - before - left) * 1000
        leader.close()
        self.waiter.ask("SELECT le_resign('handover')")
        return took

    def crowded(self, lead, end, sql, let_go, crowd):
        """To the first candidate's answer, with a crowd behind it."""
        def prepare():
            self.waiter.send(sql)
            wait_until_waiting(self.control, [self.waiter])
            for one in crowd:
                one.send(sql)
            wait_until_waiting(self.control, crowd)
        took = self.released(lead, end, prepare, self.waiter.answer)
        cancel(self.control, crowd)
        self.waiter.ask(let_go)
        return took

    def close(self):
        self.waiter.close()
        self.control.close()


def interleave(rounds, runs, warm_up=3):
    """Run all, round after round; the times of each."""
    times = [[] for _ in runs]
    for turn in range(rounds + warm_up):
        order = list(enumerate(runs))
        for place, run in order if turn % 2 == 0 else reversed(order):
            took = run()
            if turn >= warm_up:
                times[place].append(took)
    return times


def print_row(table, what, ours, theirs=None, most=(None, None)):
    """Print medians and p99s; most is of the ratio, or of milliseconds without theirs."""
    names = [f"{what}, {name}" for name in ("median", "p99")]
    if theirs is None:
        cells = [table.judge(name, value, f"{value:.2f} ms", most=limit)
                 for name, value, limit in zip(names, ours, most)] + [""] * 4
    else:
        ratios = [mine / plain for mine, plain in zip(ours, theirs)]
        cells = [f"{value:.2f} ms" for value in ours + theirs]
        cells += [table.judge(name, ratio, f"{ratio:.2f}", most=limit)
                  for name, ratio, limit in zip(names, ratios, most)]
    unit = " ms" if theirs is None else ""
    table.row(what, *cells, " / ".join(f"{limit:.2f}{unit}" for limit in most if limit))


def compare_ends(table, bench, rounds):
    """From the end of a leader to each way to learn of it."""
    for end, name in (("kill", "SIGKILL of the leader's client"),
                      ("resign", "le_resign")):
        statement = "kill" if end == "kill" else "SELECT le_resign('handover')"
        unlock = "kill" if end == "kill" else "SELECT pg_advisory_unlock(99)"
        ways = (("le_campaign's answer", bench.campaign),
                ("the answer of le_campaign with many names",
                 bench.campaign_names),
                ("le_observe's answer", bench.observe))
        times = interleave(rounds, [lambda: bench.lock(unlock)] +
                           [lambda way=way: way(statement) for _, way in ways])
        theirs = median_and_p99(times[0])
        for (what, _), ours in zip(ways, times[1:]):
            most = ((1.10, 1.10) if what == "le_campaign's answer" and end == "kill"
                    else (None, None))
            print_row(table, f"{name} to {what}", median_and_p99(ours), theirs, most)


def compare_expiries(table, bench, rounds):
    """From the deadline of a lease, or of a heartbeat, to the answer to the candidate."""
    ways = (("le_campaign's answer", "CALL le_campaign('handover')"),
            ("the answer of le_campaign with a ttl",
             "CALL le_campaign('handover', ttl => '1 min')"))
    times = interleave(rounds, [lambda sql=sql: bench.expire(sql)
                                for _, sql in ways], warm_up=1)
    for (what, _), ours in zip(ways, times):
        print_row(table, f"deadline of a lease to {what}", median_and_p99(ours),
                  most=(2, 20))
    ways = (("le_campaign's answer", "CALL le_campaign('handover')"),
            ("the answer of le_campaign with many names",
             "CALL le_campaign(ARRAY['another', 'handover'])"))
    times = interleave(rounds, [lambda sql=sql: bench.fall_silent(sql)
                                for _, sql in ways], warm_up=1)
    for (what, _), ours in zip(ways, times):
        print_row(table, f"deadline of a heartbeat to {what}", median_and_p99(ours),
                  most=(5, 20))


def compare_crowds(table, bench, rounds, options):
    """Whether a handover takes longer when more wait; return the medians."""
    crowd = []
    medians = {"le_resign to le_campaign": [], "SIGKILL to le_campaign": [],
               "pg_advisory_unlock to pg_advisory_lock": []}
    for size in CANDIDATES:
        while len(crowd) < options.scaled(size) - 1:
            crowd.append(Waiter())
        ours = ("SELECT le_try_become_leader('handover')", "CALL le_campaign('handover')",
                "SELECT le_resign('handover')")
        theirs = ("SELECT pg_advisory_lock(99) IS NULL",) * 2 + (
            "SELECT pg_advisory_unlock(99)",)
        sides = [(side, "kill" if end == "SIGKILL" else side[2])
                 for end in ("le_resign", "SIGKILL") for side in (ours, theirs)]
        times = interleave(rounds, [
            lambda side=side, end=end: bench.crowded(side[0], end, side[1], side[2], crowd)
            for side, end in sides], warm_up=1)
        for number, end in ((0, "le_resign"), (2, "SIGKILL")):
            print_row(table, f"{end} to le_campaign's answer, {size} waiting",
                      median_and_p99(times[number]), median_and_p99(times[number + 1]))
        for name, number in zip(medians, (0, 2, 1)):
            medians[name].append(median(times[number]))
    for one in crowd:
        one.close()
    return medians


def measure_handovers(options):
    rounds = options.rounds or ROUNDS
    table = Table("Handover", "-from what to what", "ours: median", "p99", "theirs: median",
                  "p99", "ratio: median", "p99", "at most")
    bench = Bench()
    compare_ends(table, bench, rounds)
    compare_expiries(table, bench, rounds)
    medians = compare_crowds(table, bench, max(rounds // SMALL, 1), options)
    bench.close()
    if options.record:
        plot(options.record, "speed-candidates", "candidates that wait",
             "ms to the next leader's answer", "linear", CANDIDATES, medians)
