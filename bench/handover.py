"""How long it takes from the end of a term until others know, or lead.

Leaders are psql processes, so that they can be killed.  Who waits is a
connection of this process: so the clock is the same, and hundreds can wait.
"""
import os
import select
import signal
import subprocess
import time

import psycopg2
import psycopg2.extensions


class Session:
    """A psql that stays, so that it can hold locks, and be killed."""

    def __init__(self):
        self.process = subprocess.Popen(["psql", "-XqAt"],
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def ask(self, sql):
        self.process.stdin.write(sql + ";\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Waiter:
    """A connection whose statement can be left running."""

    def __init__(self):
        self.connection = psycopg2.connect("", async_=True)
        self.settle()
        self.cursor = self.connection.cursor()
        self.pid = self.connection.info.backend_pid

    def settle(self):
        """Wait for the answer."""
        while True:
            state = self.connection.poll()
            if state == psycopg2.extensions.POLL_OK:
                return
            if state == psycopg2.extensions.POLL_READ:
                select.select([self.connection], [], [])
            else:
                select.select([], [self.connection], [])

    def send(self, sql):
        self.cursor.execute(sql)

    def answer(self):
        self.settle()
        return self.cursor.fetchone()

    def ask(self, sql):
        self.send(sql)
        self.settle()

    def hear(self):
        """Wait for a notification."""
        while not self.connection.notifies:
            select.select([self.connection], [], [])
            self.connection.poll()
        self.connection.notifies.clear()

    def fail(self):
        """Wait for an error."""
        try:
            self.settle()
        except psycopg2.Error:
            pass

    def close(self):
        self.connection.close()


def wait_for(control, condition):
    while True:
        control.ask("SELECT " + condition)
        if control.cursor.fetchone()[0]:
            return


def is_waiting(control, pids):
    """Are these backends in a lock's queue, or asleep in an extension?"""
    wait_for(control,
             "count(*) = %d FROM pg_stat_activity WHERE pid = ANY ('{%s}')"
             " AND (wait_event_type, wait_event) IN"
             " (('Lock', 'advisory'), ('Extension', 'Extension'))"
             % (len(pids), ",".join(map(str, pids))))


class Bench:
    """Leaders that end, and who waits for that."""

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
            is_waiting(self.control, [self.waiter.pid])
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
        self.control.ask("CALL le_observe('handover')")
        leader = "SELECT le_try_become_leader('handover')"

        def prepare():
            self.control.ask("CALL le_observe('handover')")
            self.waiter.send("CALL le_observe('handover', %d)"
                             % self.control.cursor.fetchone()[0])
            is_waiting(self.control, [self.waiter.pid])
        return self.released(leader, end, prepare, self.waiter.answer)

    def listen(self, end):
        def prepare():
            self.waiter.ask("LISTEN leader_election")
            self.waiter.connection.notifies.clear()

        def wait():
            self.waiter.hear()
            self.waiter.send("SELECT le_try_become_leader('handover')")
            if not self.waiter.answer()[0]:
                raise RuntimeError("the follower tried in vain")
        took = self.released("SELECT le_try_become_leader('handover')", end,
                             prepare, wait)
        self.waiter.ask("UNLISTEN *")
        self.waiter.ask("SELECT le_resign('handover')")
        return took

    def expire(self, sql):
        """From a lease's deadline to the answer of who waits."""
        self.control.ask("SELECT le_lease('handover', '200 ms')")
        self.waiter.send(sql)
        before = time.perf_counter()
        self.control.ask("SELECT extract(epoch FROM expires_in)::float8 FROM"
                         " _le_registry_terms(19525, le_key('handover'))")
        # the earliest that the deadline can be: the figure is no better than true
        deadline = before + self.control.cursor.fetchone()[0]
        token = self.waiter.answer()[0]
        took = (time.perf_counter() - deadline) * 1000
        self.waiter.ask("SELECT le_resign('handover', %d)" % token
                        if "ttl" in sql else "SELECT le_resign('handover')")
        return took

    def crowded(self, lead, sql, let_go, crowd):
        """To the first candidate's answer, with a crowd behind it."""
        def prepare():
            self.waiter.send(sql)
            is_waiting(self.control, [self.waiter.pid])
            for one in crowd:
                one.send(sql)
            is_waiting(self.control, [one.pid for one in crowd])
        took = self.released(lead, "kill", prepare, self.waiter.answer)
        self.control.ask("SELECT count(pg_cancel_backend(pid))"
                         " FROM unnest('{%s}'::int[]) pid"
                         % ",".join(str(one.pid) for one in crowd))
        for one in crowd:
            one.fail()
        self.waiter.ask(let_go)
        return took


def median_and_p99(times):
    times = sorted(times)
    return times[len(times) // 2], times[max(len(times) * 99 // 100 - 1, 0)]


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


def print_row(what, against, ours, theirs, limits):
    for name, mine, yours, limit in zip(("median", "p99"), ours, theirs, limits):
        ratio = "" if yours is None else f"{mine / yours:.2f}"
        yours = "" if yours is None else f"{yours:.2f} ms"
        print(f"| {what}, {name} | {against} | {mine:.2f} ms | {yours} | {ratio}"
              f" | {limit} |", flush=True)


def compare_ends(bench, rounds):
    """From the end of a leader to each way to learn of it."""
    for end, name in (("kill", "SIGKILL of the leader's client"),
                      ("resign", "le_resign")):
        statement = "kill" if end == "kill" else "SELECT le_resign('handover')"
        unlock = "kill" if end == "kill" else "SELECT pg_advisory_unlock(99)"
        plain = ("the same with pg_advisory_lock" if end == "kill" else
                 "pg_advisory_unlock to that of pg_advisory_lock")
        ways = (("le_campaign's answer", bench.campaign),
                ("the answer of le_campaign with many names",
                 bench.campaign_names),
                ("a LISTENing follower leads", bench.listen),
                ("le_observe's answer", bench.observe))
        times = interleave(rounds, [lambda: bench.lock(unlock)] +
                           [lambda way=way: way(statement) for _, way in ways])
        theirs = median_and_p99(times[0])
        for (what, _), ours in zip(ways, times[1:]):
            limits = (("1.10", "1.10") if what == "le_campaign's answer"
                      and end == "kill" else ("", ""))
            print_row(f"{name} to {what}", plain, median_and_p99(ours), theirs,
                      limits)


def compare_expiries(bench, rounds):
    """From a lease's deadline to the answer of who waits."""
    ways = (("le_campaign's answer", "CALL le_campaign('handover')"),
            ("the answer of le_campaign with a ttl",
             "CALL le_campaign('handover', ttl => '1 min')"))
    times = interleave(rounds, [lambda sql=sql: bench.expire(sql)
                                for _, sql in ways], warm_up=1)
    for (what, _), ours in zip(ways, times):
        print_row(f"deadline of a lease to {what}", "", median_and_p99(ours),
                  (None, None), ("2.00 ms", "20.00 ms"))


def compare_crowds(bench, rounds):
    """Whether a handover takes longer when more wait."""
    crowd = []
    for size in (1, 100, 500):
        while len(crowd) < size - 1:
            crowd.append(Waiter())
        times = interleave(rounds, [
            lambda: bench.crowded("SELECT le_try_become_leader('handover')",
                                  "CALL le_campaign('handover')",
                                  "SELECT le_resign('handover')", crowd),
            lambda: bench.crowded("SELECT pg_advisory_lock(99) IS NULL",
                                  "SELECT pg_advisory_lock(99) IS NULL",
                                  "SELECT pg_advisory_unlock(99)", crowd)],
                           warm_up=1)
        print_row(f"SIGKILL to le_campaign's answer, {size} waiting",
                  "the same with pg_advisory_lock", median_and_p99(times[0]),
                  median_and_p99(times[1]), ("", ""))
    for one in crowd:
        one.close()


def compare_handovers(rounds):
    print("\n| from what to what | against | ours | theirs | ratio | at most |")
    print("|---|---|--:|--:|--:|--:|")
    bench = Bench()
    compare_ends(bench, rounds)
    compare_expiries(bench, rounds)
    compare_crowds(bench, max(rounds // 5, 1))
