"""Drive the worker program of each client library through faults, three copies each, and compare
how long two copies believed that they lead with what README.md says (A01 and A02 there).

A worker is started as `worker WAY ELECTION IDENTITY`, with the connection string in DATABASE_URL.
It prints `<unix time> <identity> elected|ousted|error <text>`, ends with status 0 at SIGTERM, and
leads with a heartbeat of 5 s or by a lease of 3 s.  `make test-examples` prepares what this needs.

All programs go through each fault at the same time, each in an election of its own.  The loops of
examples/published do, too, but are measured only.  This ends with a table, and fails if a program
did not do what README.md promises.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import psycopg2

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"

# The worker of each library: language, name, command, and whether the driver lets the library wait
# for the end of the connection.  A path is one below clients/.
WORKERS = [
    ("go", "go", "go/worker/worker", True),
    ("go", "go database/sql", "env DRIVER=sql go/worker/worker", True),
    ("python", "python", "python/venv/bin/python python/worker/worker.py", True),
    ("python", "python asyncio", "env FLAVOUR=asyncio python/venv/bin/python python/worker/worker.py", True),
    ("javascript", "javascript", "node javascript/worker/worker.js", True),
    ("java", "java", "java -Xmx64m -XX:TieredStopAtLevel=1 -jar java/worker/target/worker.jar", True),
    ("rust", "rust tokio-postgres", "rust/target/debug/worker", True),
    ("rust", "rust sqlx", "env LE_DRIVER=sqlx rust/target/debug/worker", False),
]

COPIES = 3
TTL = 3.0                   # of a lease
HEARTBEAT = 5.0
CUT = 60.0                  # how long the partition lasts
STALL = 12.0                # how long the proxy of a deposed leader stands still
STOP = 8.0                  # how long a leader is stopped
QUESTION = 1.0              # "question, in session scope: each second"
SLACK = 5.0                 # for a busy machine, until another copy is elected
AT_ONCE = 3.0               # for a busy machine, until a copy stops: processes, not networks, are slow
PATIENCE = 90.0
KEY = "2929"                # the election of the fleet that moves over, copy by copy

# A way to lead.  The validity is that of the table "Ways to lead" in README.md; expires is the time
# after which another copy is elected, if the leader has fallen silent while its connection stands.
Way = collections.namedtuple("Way", "name argument scope pooled validity expires")
WAYS = [
    Way("session", "session", "session", False, 6.0, None),
    Way("heartbeat", "heartbeat", "session", False, HEARTBEAT * 2 / 3, HEARTBEAT),
    # a lease runs for its ttl, and the others bid "each third of the ttl"
    Way("lease", "lease", "lease", False, TTL * 2 / 3, TTL * 4 / 3),
    Way("lease, PgBouncer", "lease", "lease", True, TTL * 2 / 3, TTL * 4 / 3),
]
# examples that hear nothing behind a proxy that stands still, and go on: they have no validity
PLAIN_SESSION = Way("", "", "session", False, None, None)
PLAIN_LEASE = Way("", "", "lease", False, None, TTL * 4 / 3)

Program = collections.namedtuple("Program", "name commands way hears published")
Line = collections.namedtuple("Line", "when identity event text")


def programs(languages):
    """What is run: the commands of the copies in turn, and the way to lead."""
    for language, name, command, hears in WORKERS:
        words = [str(HERE / word) if word.startswith(language + "/") else word
                 for word in command.split()]
        for way in WAYS:
            if language in languages:
                yield Program(f"{name}/{way.name}", [words + [way.argument]], way, hears, False)
    if "python" in languages:
        python = str(EXAMPLES / "drivers/python/venv/bin/python")
        yield Program("moving-over", [[python, str(EXAMPLES / "moving-over" / file)]
                                      for file in ("old.py", "new.py")], PLAIN_SESSION, True, False)
    for name, way in (("go-pgx-poll", PLAIN_SESSION), ("go-upsert-lease", PLAIN_LEASE),
                      ("go-database-sql-pool", PLAIN_SESSION)):
        if "go" in languages:
            yield Program(f"published/{name}", [[str(EXAMPLES / "published" / name)]], way, False, True)


class Proxy:
    """What one copy connects to.  It can stand still, so that nothing gets through."""

    def __init__(self, port):
        self.target, self.whole = port, threading.Event()
        self.whole.set()
        self.open = set()                       # the ports that its connections come from
        self.used = False
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            threading.Thread(target=self.join, args=(near,), daemon=True).start()

    def join(self, near):
        self.whole.wait()
        with near, contextlib.suppress(OSError):
            far = socket.create_connection(("127.0.0.1", self.target))
            with far:
                port = far.getsockname()[1]
                self.open.add(port)
                self.used = True
                back = threading.Thread(target=self.forward, args=(far, near), daemon=True)
                back.start()
                self.forward(near, far)
                back.join()
                self.open.discard(port)

    def forward(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.whole.wait()
                sink.sendall(data)
        self.whole.wait()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Copy:
    """A process, and what it has said."""

    def __init__(self, command, election, identity, port):
        self.identity = identity
        self.proxy = Proxy(port)
        self.lines, self.rubbish = [], []
        self.pauses = []                        # when it could do nothing: from, to
        self.ended = None
        url = f"postgres://postgres@127.0.0.1:{self.proxy.port}/postgres"
        self.process = subprocess.Popen(
            command + [election, identity], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "DATABASE_URL": url, "INTERVAL": "1"})
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            words = line.split(None, 3)
            if len(words) < 3 or words[1] != self.identity:
                self.rubbish.append(line)
                continue
            self.lines.append(Line(float(words[0]), *words[1:3], words[3].strip() if words[3:] else ""))
        self.process.wait()
        self.ended = self.ended or time.time()

    def terms(self):
        """Pairs of times: it believed to lead from the one to the other, and could act."""
        begun = None
        for line in list(self.lines):
            if line.event == "elected":
                begun = line.when
            elif line.event == "ousted" and begun:
                yield from self.acting(begun, line.when)
                begun = None
        if begun:
            yield from self.acting(begun, self.ended or time.time())

    def acting(self, begun, ended):
        for pause, resume in self.pauses:
            if begun < pause < ended:
                yield begun, pause
                begun = min(resume or ended, ended)
        if begun < ended:
            yield begun, ended

    def believes(self):
        events = [line.event for line in self.lines if line.event in ("elected", "ousted")]
        return self.ended is None and events[-1:] == ["elected"]

    def said(self, event, since):
        # the copies print milliseconds
        return [line for line in self.lines if line.event == event and line.when >= since - 0.001]

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Fleet:
    """The copies of one program, present and past, in one election."""

    def __init__(self, program, number, options):
        self.program, self.way = program, program.way
        self.port = options.pooler if self.way.pooled else options.port
        self.election = KEY if program.name == "moving-over" else f"{program.name} {number}"
        self.copies, self.count = [], 0
        self.failures, self.phases = [], {}
        self.given_up = False
        while self.count < COPIES:
            self.add()

    def add(self):
        self.count += 1
        command = self.program.commands[min(self.count, len(self.program.commands)) - 1]
        self.copies.append(Copy(command, self.election, f"w{self.count}", self.port))

    def alive(self):
        return [copy for copy in self.copies if copy.ended is None]

    def leaders(self):
        return [copy for copy in self.alive() if copy.believes()]

    def leader(self):
        """The copy that leads; any copy if none does, as may be with the loops as published."""
        wait_until(self.leaders, 0 if self.program.published else 20)
        return (self.leaders() or self.alive())[0]

    def settled(self):
        return len(self.leaders()) == 1

    def check(self, good, what):
        if not good and not self.program.published:
            self.failures.append(what)
            print(f"   FAILED: {self.program.name}: {what}", flush=True)

    def give_up(self):
        self.given_up = not self.program.published
        for copy in self.alive() if self.given_up else []:
            copy.process.kill()

    def elected_since(self, when, but=None):
        times = [line.when for copy in self.copies if copy is not but
                 for line in copy.said("elected", when)]
        return min(times, default=None)

    def overlap(self, since, until):
        """How long two copies acted as leaders in that time."""
        terms = sorted((max(begun, since), min(ended, until), number)
                       for number, copy in enumerate(self.copies)
                       for begun, ended in copy.terms() if ended > since and begun < until)
        total, last, whose = 0.0, 0.0, None
        for begun, ended, number in terms:
            if begun < last and number != whose:
                total += min(ended, last) - begun
            if ended > last:
                last, whose = ended, number
        return total

    def may_overlap(self, fault):
        """How long two copies may act as leaders after a fault, by README.md."""
        if fault == DEPOSED:
            # "The job is cancelled at the latest when the validity of the last confirmation has passed"
            return CUT if self.way.validity is None else self.way.validity
        if fault in (TERMINATED, RESTARTED) and self.way.scope == "session" and not self.program.hears:
            # "question, in session scope: each second"; "in session scope also reads from the
            # connection", which its driver does not let it do
            return QUESTION
        # "The job starts after the server has confirmed that this elector leads";
        # "it resigns after the job has returned";
        # "in session scope also reads from the connection, so that its end is noticed at once";
        # the validity of a lease and of a heartbeat ends before the server elects another copy
        return 0.0

    def vacancy(self, since, until):
        """The longest time in which no copy acted as leader."""
        longest, last = 0.0, since
        for begun, ended in sorted(term for copy in self.copies for term in copy.terms()):
            if ended <= since or begun >= until:
                continue
            longest, last = max(longest, begun - last), max(last, ended)
        return max(longest, until - last)


def say(*words):
    print("==", *words, flush=True)


def wait_until(condition, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def ask(port, sql, *arguments):
    connection = psycopg2.connect(f"host=127.0.0.1 port={port} user=postgres dbname=postgres")
    with contextlib.closing(connection):
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return cursor.fetchall()


def leaders_of(port, fleet):
    return ask(port, "SELECT pid FROM le_leaders WHERE name = %s OR key::text = %s",
               fleet.election, fleet.election)


def end_sessions(port, copy):
    """End all sessions of a copy that is connected to the server itself."""
    ask(port, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port = ANY(%s)",
        list(copy.proxy.open))


DEPOSED = "depose behind a stalled proxy"
TERMINATED = "pg_terminate_backend"
RESTARTED = "restart of the server"


def phase(name):
    """Note for each fleet how long two copies led, and how long none did, while a function ran."""
    def decorate(function):
        def run(fleets, *arguments):
            say(name, f"({time.time():.0f})")
            fleets = [fleet for fleet in fleets if not fleet.given_up]
            begun = time.time()
            function(fleets, *arguments)
            for fleet in fleets:
                if not wait_until(fleet.settled, 20 if fleet.program.published else PATIENCE):
                    fleet.check(False, f"{name}: no copy leads, or two do")
                    fleet.give_up()
                until = time.time()
                overlap, vacancy = fleet.overlap(begun, until), fleet.vacancy(begun, until)
                fleet.phases[name] = (overlap, vacancy)
                bound = fleet.may_overlap(name)
                fleet.check(overlap <= bound + AT_ONCE,
                            f"{name}: two copies led for {overlap:.2f} s, not {bound:.2f} s")
                fleet.check(fleet.given_up or len(fleet.alive()) == COPIES, f"{name}: a copy has ended")
            # the new copies stand for election, and their start keeps the others from nothing
            wait_until(lambda: all(copy.proxy.used for fleet in fleets for copy in fleet.alive()))
        return run
    return decorate


def in_time(fleet, since, limit, what, but=None):
    """Check that a copy is elected within so many seconds, and some slack."""
    wait_until(lambda: fleet.elected_since(since, but), limit + SLACK)
    when = fleet.elected_since(since, but)
    fleet.check(when is not None and when - since <= limit + SLACK,
                f"{what}: elected after {when and when - since} s, not {limit} s")


def stops_in_time(fleet, leader, since, limit, what):
    """Check that the leader stops its job within so many seconds, and some slack."""
    wait_until(lambda: not leader.believes() or leader.said("ousted", since), limit + AT_ONCE)
    lines = leader.said("ousted", since)
    took = lines[0].when - since if lines else time.time() - since if leader.believes() else 0
    fleet.check(took <= limit + AT_ONCE, f"{what}: leads for {took:.2f} s, not {limit:.2f} s")


@phase("start")
def start(fleets):
    for fleet in fleets:
        fleet.check(wait_until(fleet.settled), "no copy leads at first")


@phase("calm")
def calm(fleets):
    before = {copy: copy.cpu() for fleet in fleets for copy in fleet.alive()}
    since = time.time()
    time.sleep(4)
    for fleet in fleets:
        for copy in fleet.alive():
            used = copy.cpu() - before[copy]
            fleet.check(used < 1, f"{copy.identity} has used {used:.2f} s of 4 s")
            fleet.check(len(copy.proxy.open) <= 3,
                        f"{copy.identity} has {len(copy.proxy.open)} connections")
            fleet.check(not copy.said("error", since), f"{copy.identity} has errors")


@phase("SIGTERM")
def terminate(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    for leader in leaders.values():
        leader.asked = time.time()
        leader.process.send_signal(signal.SIGTERM)
    for fleet, leader in leaders.items():
        fleet.check(wait_until(lambda: leader.ended is not None, 20), "does not stop at SIGTERM")
        fleet.check(leader.process.poll() == 0, f"exit status {leader.process.poll()}")
        fleet.check(leader.said("ousted", leader.asked), "does not say that it has resigned")
        in_time(fleet, leader.asked - 0.1, 0 if fleet.way.scope == "session" else TTL / 3,
                "SIGTERM", leader)
        fleet.add()


@phase("SIGKILL")
def kill(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    for leader in leaders.values():
        leader.asked = time.time()      # the next one can be elected before the kill has returned
        leader.process.kill()
        leader.ended = time.time()
    for fleet, leader in leaders.items():
        in_time(fleet, leader.asked, 0 if fleet.way.scope == "session" else fleet.way.expires,
                "SIGKILL", leader)
        fleet.add()


@phase("SIGSTOP")
def stop(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    stopped = time.time()
    for leader in leaders.values():
        leader.pauses.append([time.time(), None])
        leader.process.send_signal(signal.SIGSTOP)
    time.sleep(STOP)
    for leader in leaders.values():
        leader.pauses[-1][1] = time.time()
        leader.process.send_signal(signal.SIGCONT)
    for fleet, leader in leaders.items():
        woken = leader.pauses[-1][1]
        if fleet.way.expires:
            in_time(fleet, stopped, fleet.way.expires, "SIGSTOP", leader)
        else:
            fleet.check((fleet.elected_since(stopped, leader) or woken) >= woken,
                        "a copy is elected while the connection of a stopped leader stands")
        # each validity is shorter than the stop: "timers can be late, the clock is not"
        if fleet.way.validity:
            stops_in_time(fleet, leader, woken, 0, "SIGCONT")


@phase(TERMINATED)
def terminate_backends(fleets, port):
    for fleet in fleets:
        since, leader = time.time(), fleet.leader()
        if fleet.way.pooled:            # its sessions are those of others as well
            continue
        end_sessions(port, leader)
        if fleet.way.scope == "session":
            in_time(fleet, since, 0, TERMINATED)
        else:
            # "error of a confirmation, by a lease: report it, ask again until in doubt"
            fleet.check(not leader.said("ousted", since), "a lease is given up with a connection")
    time.sleep(3)


@phase(RESTARTED)
def restart(fleets, server):
    since = time.time()
    server("restart", "-m", "fast")
    up = time.time()
    for fleet in fleets:
        if fleet.way.scope == "session":
            in_time(fleet, since, up - since + SLACK, "restart")
        wait_until(fleet.settled)
    time.sleep(2)
    for fleet in fleets:
        for copy in fleet.alive():
            if fleet.way.scope == "session":
                fleet.check(copy.said("error", since) or copy.said("ousted", since),
                            f"{copy.identity} says nothing of a restart")


@phase("partition")
def partition(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    cut = time.time()
    for leader in leaders.values():
        leader.proxy.whole.clear()
    for fleet, leader in leaders.items():
        if fleet.way.validity:
            stops_in_time(fleet, leader, cut, fleet.way.validity, "partition")
        if fleet.way.expires:
            in_time(fleet, cut, fleet.way.expires, "partition", leader)
    time.sleep(max(0, cut + CUT - time.time()))
    mended = time.time()
    for leader in leaders.values():
        leader.proxy.whole.set()
    for fleet, leader in leaders.items():
        if not fleet.way.expires and leader.said("ousted", cut):
            in_time(fleet, mended, 0, "after the partition")


@phase(DEPOSED)
def depose(fleets, port):
    """The server elects another copy at once, of which the leader before it cannot hear."""
    leaders = {fleet: fleet.leader() for fleet in fleets}
    stalled = time.time()
    for fleet, leader in leaders.items():
        leader.proxy.whole.clear()
        leader.stalled = time.time()
        if fleet.way.validity:
            fleet.check(ask(port, "SELECT le_depose(%s)", fleet.election) == [(True,)], "not deposed")
        else:
            end_sessions(port, leader)
    for fleet, leader in leaders.items():
        in_time(fleet, leader.stalled, 0 if fleet.way.scope == "session" else TTL / 3, DEPOSED, leader)
        if fleet.way.validity:
            stops_in_time(fleet, leader, leader.stalled, fleet.way.validity, DEPOSED)
    time.sleep(max(0, stalled + STALL - time.time()))
    for leader in leaders.values():
        leader.proxy.whole.set()


def finish(fleets, port):
    say("the end")
    last = {copy for fleet in fleets for copy in fleet.alive()}
    for copy in last:
        copy.process.send_signal(signal.SIGTERM)
    for fleet in fleets:
        for copy in fleet.copies:
            fleet.check(wait_until(lambda: copy.ended is not None, 20), f"{copy.identity} does not end")
            fleet.check(copy not in last or copy.process.poll() == 0,
                        f"{copy.identity} ends with status {copy.process.poll()}")
            with contextlib.suppress(OSError):
                copy.process.kill()
            fleet.check(not copy.rubbish, f"{copy.identity} says {copy.rubbish[:1]}")
        # a lease that a candidate was granted while it was stopped runs for its ttl
        fleet.check(wait_until(lambda: not leaders_of(port, fleet), TTL + 1), "still leads")
        tokens = [int(line.text) for line in sorted(
            line for copy in fleet.copies for line in copy.lines if line.event == "elected")
            if line.text != "0"]
        fleet.check(tokens == sorted(tokens), f"tokens do not grow: {tokens}")


def only_on_leader(port):
    """Of two that are started together, one runs its command; it is killed with the session.

    A run that succeeds says nothing, or cron would send a mail.
    """
    say("shell/only-on-leader.sh")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    script = str(EXAMPLES / "shell/only-on-leader.sh")

    def begin(command):
        return subprocess.Popen([script, "cron", "sh", "-c", command], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "DATABASE_URL": url})

    outputs = [run.communicate(timeout=60) for run in [begin("echo ran; sleep 3") for _ in "ab"]]
    quiet = {begin("true").communicate(timeout=60) for _ in range(20)} == {("", "")}
    run = begin("sleep 600; echo ran")
    led = wait_until(lambda: ask(port, "SELECT FROM le_leader('cron')"), 20)
    ask(port, "SELECT le_depose('cron')")
    killed = "ran" not in run.communicate(timeout=60)[0]
    if sorted(outputs) != [("", ""), ("ran\n", "")] or not (quiet and led and killed):
        return f"{outputs}, {quiet}, {led}, {killed}"
    return None


def every_minute(port):
    """Three that lead in turn, each of which is killed, do the job of each second at most once."""
    say("shell/every-minute.sql")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    ask(port, "CREATE TABLE report (at timestamptz, connections bigint); SELECT")
    runs = [subprocess.Popen(["psql", "-XqAt", "-v", "election=report", "-v", "every=1 s", "-d", url,
                              "-f", str(EXAMPLES / "shell/every-minute.sql")], stderr=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, text=True) for _ in range(3)]
    works = True
    for number in range(3):
        works = works and wait_until(
            lambda: ask(port, "SELECT FROM report GROUP BY at HAVING count(*) = 1 OFFSET %s", 2 * number), 20)
        if number < 2:
            (pid,), = ask(port, "SELECT pid FROM le_leader('report')")
            ask(port, "SELECT pg_terminate_backend(%s)", pid)
            wait_until(lambda: sum(run.poll() is not None for run in runs) == number + 1, 20)
    statuses = sorted(str(run.poll()) for run in runs)
    for run in runs:
        run.kill()
        run.communicate()
    twice = ask(port, "SELECT at FROM report GROUP BY at HAVING count(*) > 1")
    if not works or twice or statuses != ["2", "2", "None"]:
        return f"{works}, {twice}, {statuses}"
    return None


def pitfall(port):
    """A program that resigns on another connection of its pool is told which session leads, and why."""
    say("drivers/go/pitfall")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    run = subprocess.run([str(EXAMPLES / "drivers/go/pitfall/pitfall"), "pitfall", "w1"],
                         env={**os.environ, "DATABASE_URL": url}, timeout=60,
                         stdout=subprocess.PIPE, text=True, check=False)
    wanted = ('WARNING: this session does not lead election "pitfall"', '"w1" leads it',
              "use a lease", "leads: true, resigned: false")
    return None if all(words in run.stdout for words in wanted) else f"{run.returncode}, {run.stdout}"


def report(fleets, others):
    names = [name for name in fleets[0].phases if name not in ("start", "calm")] if fleets else []
    print("\n| seconds without a leader, and with two | " + " | ".join(names) + " |")
    print("|---|" + "--:|" * len(names))
    for fleet in fleets:
        cells = []
        for name in names:
            overlap, vacancy = fleet.phases.get(name, (0.0, float("nan")))
            cells.append(f"{vacancy:.1f}" + (f", **two: {overlap:.1f}**" if overlap > 0.05 else ""))
        print(f"| {fleet.program.name} | " + " | ".join(cells) + " |")
    print()
    failures = [(fleet.program.name, what) for fleet in fleets for what in fleet.failures]
    failures += [(name, what) for name, what in others if what]
    for fleet in fleets:
        if fleet.failures:
            print(f"What the copies of {fleet.program.name} have said:")
            for line in sorted(line for copy in fleet.copies for line in copy.lines):
                print(f"   {line.when:.3f} {line.identity} {line.event} {line.text}")
    for name, what in failures:
        print(f"FAILED: {name}: {what}")
    return not failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True, help="of the server")
    parser.add_argument("--pooler", type=int, required=True, help="port of PgBouncer")
    parser.add_argument("--data", required=True, help="the server's data directory")
    parser.add_argument("--only", default="", help="part of the name of the programs to run")
    parser.add_argument("languages", nargs="*", help="those whose programs were built")
    options = parser.parse_args()

    def server(*command):
        subprocess.run(["pg_ctl", "-s", "-w", "-D", options.data, *command], check=True,
                       stdout=subprocess.DEVNULL)

    chosen = [program for program in programs(options.languages) if options.only in program.name]
    fleets = [Fleet(program, number, options) for number, program in enumerate(chosen)]
    start(fleets)
    calm(fleets)
    terminate(fleets)
    kill(fleets)
    stop(fleets)
    terminate_backends(fleets, options.port)
    restart(fleets, server)
    partition(fleets)
    depose(fleets, options.port)
    finish(fleets, options.port)
    others = [("shell/only-on-leader.sh", only_on_leader(options.port)),
              ("shell/every-minute.sql", every_minute(options.port))]
    if "go" in options.languages:
        others.append(("drivers/go/pitfall", pitfall(options.port)))
    sys.exit(0 if report(fleets, others) else 1)


if __name__ == "__main__":
    main()
