"""Drive every example as a black box: three copies of each, from whose lines on stdout is
seen who believes to lead while leaders are asked to stop, killed, stopped, cut off, and the
server is restarted.  `make test-examples` prepares what this needs.

All programs go through each fault at the same time, each in an election of its own.  The
loops "as published" do, too, but are measured only.  Ends with a table, and fails if an
example did not do what doc/examples.md promises.
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
COPIES = 3
TTL = 3.0                   # of all programs that lead by a lease
HEARTBEAT = 5.0             # of those that lead with one
CUT = 60.0                  # how long the partition lasts
STOP = 8.0                  # how long a leader is stopped
NOTICE = 3.0                # in which a program notices that it does not lead any more
SLACK = 5.0                 # for a machine that is busy, wherever something is to happen at once
PATIENCE = 90.0             # the machine may be busy
CRON = "python-psycopg/cron.py"
KEY = "2929"                # the election of a fleet that moves over, copy by copy
WITH_HEARTBEAT = ("go-pgx", "python-psycopg/campaign.py")

Program = collections.namedtuple("Program", "name commands scope pooled published heartbeat")
Line = collections.namedtuple("Line", "when event text")


def programs(python):
    """What is run: by what commands in turn, in which scope, through PgBouncer or not."""
    def run(*command):
        return [str(part) for part in command]

    def java(main):
        return run("java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp",
                   HERE / "java-jdbc/target/leader.jar", main)

    table = [
        ("go-pgx", run(HERE / "go-pgx/go-pgx"), "session"),
        ("go-lease", run(HERE / "go-lease/go-lease"), "lease"),
        ("go-database-sql/session", run(HERE / "go-database-sql/session/session"), "session"),
        ("go-database-sql/lease", run(HERE / "go-database-sql/lease/lease"), "lease"),
        ("rust-sqlx", run(HERE / "rust-sqlx/target/debug/leader"), "session"),
        ("java-jdbc/SessionLeader", java("SessionLeader"), "session"),
        ("java-jdbc/LeaseLeader", java("LeaseLeader"), "lease"),
        ("python-psycopg/campaign.py", run(python, HERE / "python-psycopg/campaign.py"), "session"),
        ("python-psycopg/campaign_async.py",
         run(python, HERE / "python-psycopg/campaign_async.py"), "session"),
        ("python-psycopg/lease.py", run(python, HERE / "python-psycopg/lease.py"), "lease"),
        (CRON, run(python, HERE / CRON), "session"),
        ("node-pg/campaign.js", run("node", HERE / "node-pg/campaign.js"), "session"),
        ("node-pg/lease.js", run("node", HERE / "node-pg/lease.js"), "lease"),
    ]
    for name, command, scope in table:
        yield Program(name, [command], scope, False, False, name in WITH_HEARTBEAT)
        if scope == "lease":
            yield Program(f"{name}, PgBouncer", [command], scope, True, False, False)
    yield Program(KEY, [run(python, HERE / "moving-over/old.py"),
                        run(python, HERE / "moving-over/new.py")], "session", False, False, False)
    for name, scope in (("go-pgx-poll", "session"), ("go-upsert-lease", "lease"),
                        ("go-database-sql-pool", "session")):
        yield Program(f"published/{name}", [run(HERE / f"published/{name}")], scope,
                      False, True, False)


class Proxy:
    """What one copy connects to: it can be cut, so that nothing gets through."""

    def __init__(self, port):
        self.target, self.whole = port, threading.Event()
        self.whole.set()
        self.open = 0                           # connections
        self.listener = socket.create_server(("127.0.0.1", 0))
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
                self.open += 1
                back = threading.Thread(target=self.forward, args=(far, near), daemon=True)
                back.start()
                self.forward(near, far)
                back.join()
                self.open -= 1

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
            self.lines.append(Line(float(words[0]), words[2], words[3].strip() if words[3:] else ""))
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
        return [line for line in self.lines if line.event == event and line.when >= since]

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Fleet:
    """The copies of one program, present and past, in one election."""

    def __init__(self, program, number, port):
        self.program, self.port = program, port
        self.election = KEY if program.name == KEY else f"{program.name} {number}"
        self.copies, self.count = [], 0
        self.failures, self.phases = [], {}
        while self.count < COPIES:
            self.add()

    def add(self):
        self.count += 1
        command = self.program.commands[min(self.count, len(self.program.commands)) - 1]
        self.copies.append(Copy(command, self.election, f"w{self.count}", self.port))

    def expires(self):
        """Is a leader that does nothing succeeded?"""
        return self.program.scope == "lease" or self.program.heartbeat

    def lost_after(self):
        """After how many seconds, if so."""
        return HEARTBEAT if self.program.heartbeat else TTL * 4 / 3

    def alive(self):
        return [copy for copy in self.copies if copy.ended is None]

    def leaders(self):
        return [copy for copy in self.alive() if copy.believes()]

    def leader(self):
        """Who leads; of a fleet in which nobody does, as may be with those published, anybody."""
        return (self.leaders() or self.alive())[0]

    def settled(self):
        return len(self.leaders()) == 1

    def check(self, good, what):
        if not good and not self.program.published:
            self.failures.append(what)
            print(f"   FAILED: {self.program.name}: {what}", flush=True)

    def elected_since(self, when, but=None):
        times = [line.when for copy in self.copies if copy is not but
                 for line in copy.said("elected", when)]
        return min(times, default=None)

    def overlap(self, since, until):
        """How long two acted as leaders in that time."""
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

    def vacancy(self, since, until):
        """The longest time in which nobody acted."""
        longest, last = 0.0, since
        for begun, ended in sorted(term for copy in self.copies for term in copy.terms()):
            if ended <= since or begun >= until:
                continue
            longest, last = max(longest, begun - last), max(last, ended)
        return max(longest, until - last)


class Observers:
    """One observer of each language, of the same election."""

    def __init__(self, python, fleet, port):
        self.fleet = fleet
        commands = ([python, HERE / "python-psycopg/observe.py"], ["node", HERE / "node-pg/observe.js"],
                    ["java", "-Xmx64m", "-cp", HERE / "java-jdbc/target/leader.jar", "Observer"])
        self.copies = [Copy([str(word) for word in command], fleet.election, f"o{number}", port)
                       for number, command in enumerate(commands)]

    def finish(self):
        elected = {line.text for copy in self.fleet.copies for line in copy.lines
                   if line.event == "elected"}
        for copy in self.copies:
            copy.process.send_signal(signal.SIGTERM)
            # of several changes that come at once, only the last one may be seen
            seen = {line.text.split()[0] for line in copy.said("observed", 0)} & elected
            self.fleet.check(len(seen) >= len(elected) - 2,
                             f"observer {copy.identity} has seen {seen} of {elected}")
            self.fleet.check(wait_until(lambda: copy.ended is not None, 20), "an observer does not end")


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


def who_leads(port, fleet):
    return ask(port, "SELECT pid FROM le_leaders WHERE name = %s OR key::text = %s",
               fleet.election, fleet.election)


def phase(name):
    """Note for each fleet how long two led, and how long nobody did, while it ran."""
    def decorate(function):
        def run(fleets, *arguments):
            say(name)
            begun = time.time()
            function(fleets, *arguments)
            for fleet in fleets:
                if not wait_until(fleet.settled, 20 if fleet.program.published else PATIENCE):
                    fleet.check(False, f"{name}: nobody leads, or two do")
                until = time.time()
                overlap, vacancy = fleet.overlap(begun, until), fleet.vacancy(begun, until)
                fleet.phases[name] = (overlap, vacancy)
                fleet.check(overlap <= NOTICE, f"{name}: two led for {overlap:.2f} s")
        return run
    return decorate


def in_time(fleet, since, limit, what, but=None):
    """Somebody is elected within so many seconds, and some slack."""
    wait_until(lambda: fleet.elected_since(since, but), limit + SLACK)
    when = fleet.elected_since(since, but)
    fleet.check(when is not None and when - since <= limit + SLACK,
                f"{what}: elected after {when and when - since} s, not {limit} s")


@phase("start")
def start(fleets):
    for fleet in fleets:
        fleet.check(wait_until(fleet.settled), "nobody leads at first")


@phase("calm")
def calm(fleets):
    before = {copy: copy.cpu() for fleet in fleets for copy in fleet.alive()}
    since = time.time()
    time.sleep(4)
    for fleet in fleets:
        for copy in fleet.alive():
            used = copy.cpu() - before[copy]
            fleet.check(used < 1, f"{copy.identity} has used {used:.2f} s of 4 s")
            fleet.check(copy.proxy.open <= 3, f"{copy.identity} has {copy.proxy.open} connections")
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
        in_time(fleet, leader.asked - 0.1, 0 if fleet.program.scope == "session" else TTL / 3,
                "SIGTERM", leader)
        fleet.add()


@phase("SIGKILL")
def kill(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    for leader in leaders.values():
        leader.process.kill()
        leader.ended = time.time()
    for fleet, leader in leaders.items():
        in_time(fleet, leader.ended, 0 if fleet.program.scope == "session" else TTL * 4 / 3,
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
        if not fleet.expires():
            woken = leader.pauses[-1][1]
            fleet.check((fleet.elected_since(stopped, leader) or woken) >= woken,
                        "somebody is elected while the connection of a paused leader stands")
        else:
            in_time(fleet, stopped, fleet.lost_after(), "SIGSTOP", leader)
            fleet.check(wait_until(lambda: leader.said("ousted", stopped), NOTICE),
                        "does not notice after a pause that it does not lead any more")


@phase("pg_terminate_backend")
def terminate_backends(fleets, port):
    for fleet in fleets:
        since = time.time()
        if fleet.program.scope == "session":
            pids = who_leads(port, fleet)
            fleet.check(len(pids) == 1, f"not one session leads: {pids}")
            for pid, in pids:
                ask(port, "SELECT pg_terminate_backend(%s)", pid)
            in_time(fleet, since, 0, "pg_terminate_backend")
    time.sleep(NOTICE)


@phase("restart of the server")
def restart(fleets, server):
    since = time.time()
    server("restart", "-m", "fast")
    up = time.time()
    for fleet in fleets:
        if fleet.program.scope == "session":
            in_time(fleet, since, up - since + SLACK, "restart")
        wait_until(fleet.settled)
    time.sleep(2)
    for fleet in fleets:
        for copy in fleet.alive():
            if fleet.program.scope == "session":
                fleet.check(copy.said("error", since) or copy.said("ousted", since),
                            f"{copy.identity} says nothing of a restart")


@phase("partition")
def partition(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    cut = time.time()
    for leader in leaders.values():
        leader.proxy.whole.clear()
    for fleet, leader in leaders.items():
        if fleet.expires():
            in_time(fleet, cut, fleet.lost_after(), "partition", leader)
    time.sleep(max(0, cut + CUT - time.time()))
    mended = time.time()
    for fleet, leader in leaders.items():
        # an old copy of those that move over does not notice, as it never has
        fleet.check(leader.said("ousted", cut) or fleet.program.name == KEY,
                    "a leader that is cut off goes on")
        leader.proxy.whole.set()
    for fleet, leader in leaders.items():
        if not fleet.expires() and leader.said("ousted", cut):
            in_time(fleet, mended, SLACK, "after the partition")


def finish(fleets, port):
    say("the end")
    for fleet in fleets:
        for copy in fleet.alive():
            copy.process.send_signal(signal.SIGTERM)
    for fleet in fleets:
        for copy in fleet.copies:
            fleet.check(wait_until(lambda: copy.ended is not None, 20), f"{copy.identity} does not end")
            with contextlib.suppress(OSError):
                copy.process.kill()
            fleet.check(not copy.rubbish, f"{copy.identity} says {copy.rubbish[:1]}")
        # a lease that a candidate was granted while it was stopped runs for its ttl
        fleet.check(wait_until(lambda: not who_leads(port, fleet), TTL + 1), "still leads")
        tokens = [int(line.text) for line in sorted(
            line for copy in fleet.copies for line in copy.lines if line.event == "elected")
            if line.text != "0"]
        fleet.check(tokens == sorted(tokens), f"tokens do not grow: {tokens}")
        if fleet.program.name == CRON:
            done = [line.text for line in sorted(
                line for copy in fleet.copies for line in copy.said("done", 0))]
            fleet.check(len(done) >= 5, f"{len(done)} jobs are done")
            fleet.check(all(one < two for one, two in zip(done, done[1:])),
                        f"jobs are done twice, or not in order: {done}")


def only_on_leader(port):
    """Of two that are started together, one runs its command; it is killed with the session."""
    say("shell/only-on-leader.sh")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    script = str(HERE / "shell/only-on-leader.sh")

    def begin(command):
        return subprocess.Popen([script, "cron", "sh", "-c", command], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True,
                                env={**os.environ, "DATABASE_URL": url})

    outputs = [run.communicate(timeout=60)[0] for run in [begin("echo ran; sleep 3") for _ in "ab"]]
    run = begin("sleep 600; echo ran")
    led = wait_until(lambda: ask(port, "SELECT FROM le_leader('cron')"), 20)
    ask(port, "SELECT le_depose('cron')")
    killed = "ran" not in run.communicate(timeout=60)[0]
    if sorted(outputs) != ["", "ran\n"] or not (led and killed):
        sys.exit(f"FAILED: only-on-leader.sh: {outputs}, {led}, {killed}")


def every_minute(port):
    """Three that lead in turn, each of which is killed, do the job of each second at most once."""
    say("shell/every-minute.sql")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    ask(port, "CREATE TABLE report (at timestamptz, connections bigint); SELECT")
    runs = [subprocess.Popen(["psql", "-XqAt", "-v", "election=report", "-v", "every=1 s", "-d", url,
                              "-f", str(HERE / "shell/every-minute.sql")], stderr=subprocess.PIPE,
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
        sys.exit(f"FAILED: every-minute.sql: {works}, {twice}, {statuses}")


def pitfall(port):
    """Who resigns on another connection of the pool is told who leads, and why that is so."""
    say("go-database-sql/pitfall")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    said = subprocess.run([str(HERE / "go-database-sql/pitfall/pitfall"), "pitfall", "w1"],
                          env={**os.environ, "DATABASE_URL": url}, timeout=60,
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    wanted = ('WARNING: this session does not lead election "pitfall"', '"w1" leads it',
              "use a lease", "leads: true, resigned: false")
    if not all(words in said for words in wanted):
        sys.exit(f"FAILED: go-database-sql/pitfall: {said}")


def check_types(python, port):
    """With each of these drivers, calls need the casts that doc/examples.md tells, and no others."""
    say("parameter types")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    for command in ([python, HERE / "python-psycopg/check_types.py"],
                    ["node", HERE / "node-pg/check_types.js"],
                    [HERE / "go-database-sql/types/types"]):
        subprocess.run(command, env={**os.environ, "DATABASE_URL": url}, timeout=120, check=True)


def report(fleets):
    names = [name for name in fleets[0].phases if name not in ("start", "calm")]
    print("\n| seconds without a leader, and with two | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for fleet in fleets:
        cells = []
        for name in names:
            overlap, vacancy = fleet.phases[name]
            cells.append(f"{vacancy:.1f}" + (f", **two: {overlap:.1f}**" if overlap > 0.05 else ""))
        name = "moving-over" if fleet.program.name == KEY else fleet.program.name
        print(f"| {name} | " + " | ".join(cells) + " |")
    failures = sum(len(fleet.failures) for fleet in fleets)
    examples = sum(not fleet.program.published for fleet in fleets)
    bad = sum(bool(fleet.failures) for fleet in fleets)
    print(f"\n{examples - bad} of {examples} examples passed, {failures} checks failed")
    return failures == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True, help="of the server")
    parser.add_argument("--pooler", type=int, required=True, help="port of PgBouncer")
    parser.add_argument("--data", required=True, help="the server's data directory")
    parser.add_argument("--python", default=sys.executable, help="that has psycopg")
    parser.add_argument("--only", default="", help="part of the name of the programs to run")
    options = parser.parse_args()

    def server(*command):
        subprocess.run(["pg_ctl", "-s", "-w", "-D", options.data, *command], check=True,
                       stdout=subprocess.DEVNULL)

    chosen = [program for program in programs(options.python) if options.only in program.name]
    fleets = [Fleet(program, number, options.pooler if program.pooled else options.port)
              for number, program in enumerate(chosen)]
    observed = [fleet for fleet in fleets if fleet.program.name == "python-psycopg/campaign.py"]
    observers = [Observers(options.python, fleet, options.port) for fleet in observed]
    start(fleets)
    calm(fleets)
    terminate(fleets)
    kill(fleets)
    stop(fleets)
    terminate_backends(fleets, options.port)
    restart(fleets, server)
    partition(fleets)
    for group in observers:
        group.finish()
    finish(fleets, options.port)
    only_on_leader(options.port)
    every_minute(options.port)
    pitfall(options.port)
    check_types(options.python, options.port)
    sys.exit(0 if report(fleets) else 1)


if __name__ == "__main__":
    main()
