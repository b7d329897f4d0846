"""Drive the worker program of each client library through faults, three copies each, and compare
how long two copies believed that they led, and how long none led, with what README.md says (A01 and
A02 there).

A worker is started as `worker WAY ELECTION IDENTITY`, with the connection string in DATABASE_URL.
It prints `<unix time> <identity> elected|ousted|error <text>`, ends with status 0 at SIGTERM, and
leads with a heartbeat of 5 s or by a lease of 3 s.  `make test-examples` prepares what this needs.

All programs go through each fault at the same time, each in an election of its own.  This ends with
a table.  Each cell is judged by may_overlap and may_be_vacant below, and the function of a fault
judges what else README.md says of it.  The loops of examples/published are measured only.  The
programs of doc/getting-started.md run beside them, as they are.
"""
import argparse
import collections
import contextlib
import itertools
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

# The worker of each library: language, name, command, whether the driver lets the library wait for
# the end of the connection, and whether it knows several hosts.  A path is one below clients/.
WORKERS = [
    ("go", "go", "go/worker/worker", True, True),
    ("python", "python", "python/venv/bin/python python/worker/worker.py", True, True),
    ("python", "python asyncio", "env FLAVOUR=asyncio python/venv/bin/python python/worker/worker.py",
     True, True),
    ("javascript", "javascript", "node javascript/worker/worker.js", True, False),
    ("java", "java", "java -Xmx64m -XX:TieredStopAtLevel=1 -jar java/worker/target/worker.jar", True, True),
    ("rust", "rust tokio-postgres", "rust/target/debug/worker", True, True),
    ("rust", "rust sqlx", "env LE_DRIVER=sqlx rust/target/debug/worker", False, False),
    ("command", "pg_leader", "command/worker.sh", True, True),
]

# The programs of doc/getting-started.md, and those of the libraries that have none there.  A path is
# one below examples/.
EXAMPLE_PROGRAMS = [
    ("go", "getting-started/go/example"),
    ("python", "python/venv/bin/python getting-started/python/main.py"),
    ("javascript", "node getting-started/javascript/main.js"),
    ("java", "java -Xmx64m -XX:TieredStopAtLevel=1 -cp java/target/classes:java/target/dependency/* Main"),
    ("rust", "../clients/rust/target/debug/example"),
]

COPIES = 3
TTL = 3.0                   # of a lease
HEARTBEAT = 5.0
MAX_TTL = 10.0              # max_ttl of both servers
CUT = 60.0                  # how long the partition lasts
STALL = 12.0                # how long the proxy of a deposed leader stands still
STOP = 8.0                  # how long a leader is stopped
DETECT = 3.0                # how long the failure of a primary goes unnoticed
QUESTION = 1.0              # "in session scope, leadership is confirmed each second"
SLACK = 5.0                 # for a busy machine, and pauses after errors, until a copy is elected
AT_ONCE = 1.0               # for a busy machine, until a copy stops; more if this process is late, too
PATIENCE = 90.0
KEY = "2929"                # the election of the fleet that moves over, copy by copy

# A way to lead.  The validity is that of README.md, "Ways to Lead"; expires is the time after which
# another copy is elected, if the leader has fallen silent while its connection stands.
Way = collections.namedtuple("Way", "name argument scope pooled validity expires")
WAYS = [
    Way("session", "session", "session", False, 6.0, None),
    Way("heartbeat", "heartbeat", "session", False, HEARTBEAT * 2 / 3, HEARTBEAT),
    # a lease runs for its ttl, and the others bid "each third of the ttl"
    Way("lease", "lease", "lease", False, TTL * 2 / 3, TTL * 4 / 3),
    Way("lease, PgBouncer", "lease", "lease", True, TTL * 2 / 3, TTL * 4 / 3),
]
# programs that hear nothing behind a proxy that stands still, and go on: they have no validity
PLAIN_SESSION = Way("", "", "session", False, None, None)
PLAIN_LEASE = Way("", "", "lease", False, None, TTL * 4 / 3)

Program = collections.namedtuple("Program", "name commands way hears hosts published")
Line = collections.namedtuple("Line", "when identity event text")


def programs(languages):
    """What is run: the commands of the copies in turn, and the way to lead."""
    for language, name, command, hears, hosts in WORKERS:
        words = [str(HERE / word) if word.startswith(language + "/") else word
                 for word in command.split()]
        for way in WAYS:
            if language in languages:
                yield Program(f"{name}/{way.name}", [words + [way.argument]], way, hears,
                              hosts and not way.pooled, False)
    if "python" in languages:
        python = str(EXAMPLES / "drivers/python/venv/bin/python")
        yield Program("moving-over", [[python, str(EXAMPLES / "moving-over" / file)]
                                      for file in ("old.py", "new.py")], PLAIN_SESSION, True, True, False)
    for name, way in (("go-pgx-poll", PLAIN_SESSION), ("go-upsert-lease", PLAIN_LEASE),
                      ("go-database-sql-pool", PLAIN_SESSION)):
        if "go" in languages:
            yield Program(f"published/{name}", [[str(EXAMPLES / "published" / name)]], way, False, True,
                          True)


class Proxy:
    """An address of the server.  It can stand still, so that nothing gets through, and move."""

    def __init__(self, target, whole, port=0):
        self.target, self.whole = target, whole
        self.open = set()                       # the ports that its connections come from
        self.used = False
        self.listener = socket.create_server(("127.0.0.1", port), backlog=100)
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

    def __init__(self, command, election, identity, servers):
        self.identity = identity
        self.whole = threading.Event()          # whether its network lets anything through
        self.whole.set()
        self.proxies = [Proxy(port, self.whole) for port in servers]
        self.lines, self.rubbish = [], []
        self.pauses = []                        # when it could do nothing: from, to
        self.ended = None
        url = f"postgres://postgres@{','.join(f'127.0.0.1:{proxy.port}' for proxy in self.proxies)}/postgres"
        url += "?target_session_attrs=read-write" if len(servers) > 1 else ""
        self.process = subprocess.Popen(
            command + [election, identity], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "DATABASE_URL": url, "INTERVAL": "1s"})
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

    def used(self):
        return any(proxy.used for proxy in self.proxies)

    def connections(self):
        return [port for proxy in self.proxies for port in proxy.open]

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
        self.servers = [options.pooler if self.way.pooled else options.port]
        if program.hosts:
            self.servers.append(options.standby)
        self.election = KEY if program.name == "moving-over" else f"{program.name} {number}"
        self.copies, self.count = [], 0
        self.failures, self.phases = [], {}
        self.given_up = False
        while self.count < COPIES:
            self.add()

    def add(self):
        self.count += 1
        command = self.program.commands[min(self.count, len(self.program.commands)) - 1]
        # each second copy tries the standby first
        servers = self.servers[::-1] if self.count % 2 else self.servers
        self.copies.append(Copy(command, self.election, f"w{self.count}", servers))

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

    def elections_since(self, when, but=None):
        return sorted(line for copy in self.copies if copy is not but
                      for line in copy.said("elected", when))

    def move(self, port):
        """Let the name that this program knows lead to another server."""
        if not self.program.hosts and not self.way.pooled:
            self.servers = [port]
            for copy in self.copies:
                copy.proxies[0].target = port

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
            # "cancelled at the latest when the validity of the last confirmation has passed"
            return STALL if self.way.validity is None else self.way.validity
        if fault in (TERMINATED, RESTARTED, PROMOTED) and self.way.scope == "session" \
                and not self.program.hears:
            # "the end of the connection also means lost, at once", but its driver cannot hear of it
            return QUESTION
        # "The job starts after the server has confirmed that this elector leads";
        # "while the job runs, the elector does not give up leadership";
        # the validity of a lease and of a heartbeat ends before the server elects another copy
        return 0.0

    def may_be_vacant(self, fault, down):
        """How long no copy may act as leader after a fault that lasted so long, by README.md."""
        if fault == STARTED:
            return PATIENCE
        if self.way.scope == "session":
            # the session ends with the fault, unless the server ends it when a heartbeat is missing
            return {RESTARTED: down, PROMOTED: down}.get(fault) or min(down, self.way.expires or down)
        # "A bid for a lease that is denied is repeated a third of the ttl after it was sent"
        return {TERMINATED: 0.0, DEPOSED: TTL / 3, SIGTERM: TTL / 3,
                # the lease runs on, or runs for its ttl again
                RESTARTED: down + TTL * 4 / 3,
                # "After a promotion, the server grants no new lease for max_ttl"
                PROMOTED: down + MAX_TTL + TTL / 3}.get(fault, self.way.expires)

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


def ask(port, sql, *arguments, database="postgres"):
    connection = psycopg2.connect(f"host=127.0.0.1 port={port} user=postgres dbname={database}")
    with contextlib.closing(connection):
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return cursor.fetchall() if cursor.statusmessage.startswith("SELECT") else []


def run(command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def pg_ctl(data, *command):
    run(["pg_ctl", "-s", "-w", "-D", data, *command])


def leaders_of(port, fleet):
    # a copy that moves over can lead by the lock alone
    return ask(port, "SELECT pid FROM le_leaders WHERE name = %s UNION SELECT pid FROM pg_locks "
               "WHERE granted AND locktype = 'advisory' AND objsubid = 1 AND classid = 0 AND objid::text = %s",
               fleet.election, fleet.election)


def end_sessions(port, connections):
    """End the sessions of the connections that come from these ports."""
    ask(port, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port = ANY(%s)",
        connections)


class Lateness:
    """How late this process is woken, at worst: so late can the copies be, too."""

    def __init__(self):
        self.worst = 0.0
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            due = time.monotonic() + 0.05
            time.sleep(0.05)
            self.worst = max(self.worst, time.monotonic() - due)

    def at_once(self):
        return AT_ONCE + 2 * self.worst


STARTED = "start"
SIGTERM = "SIGTERM"
TERMINATED = "pg_terminate_backend"
RESTARTED = "restart of the server"
DEPOSED = "depose behind a stalled proxy"
PROMOTED = "failover"
LATENESS = Lateness()


def phase(name):
    """Judge for each fleet how long two copies led, and how long none did, in a fault.

    The function makes the fault, and returns for how long that kept each session from being led.
    """
    def decorate(function):
        def run(fleets, *arguments):
            say(name, f"({time.time():.0f})")
            fleets = [fleet for fleet in fleets if not fleet.given_up]
            begun, LATENESS.worst = time.time(), 0.0
            down = function(fleets, *arguments) or 0.0
            for fleet in fleets:
                if not wait_until(fleet.settled, 20 if fleet.program.published else PATIENCE):
                    fleet.check(False, f"{name}: no copy leads, or two do")
                    fleet.give_up()
                until = time.time()
                overlap, vacancy = fleet.overlap(begun, until), fleet.vacancy(begun, until)
                fleet.phases[name] = (overlap, vacancy)
                bound = fleet.may_overlap(name)
                fleet.check(overlap <= bound + LATENESS.at_once(),
                            f"{name}: two copies led for {overlap:.2f} s, not {bound:.2f} s")
                bound = fleet.may_be_vacant(name, down)
                fleet.check(vacancy <= bound + SLACK,
                            f"{name}: no copy led for {vacancy:.2f} s, not {bound:.2f} s")
                fleet.check(fleet.given_up or len(fleet.alive()) == COPIES, f"{name}: a copy has ended")
            # the new copies bid, and their start keeps the others from nothing
            wait_until(lambda: all(copy.used() for fleet in fleets for copy in fleet.alive()))
            return down
        return run
    return decorate


def stops_in_time(fleet, leader, since, limit, what):
    """Check that the leader stops its job within so many seconds."""
    wait_until(lambda: not leader.believes() or leader.said("ousted", since), limit + SLACK)
    lines = leader.said("ousted", since)
    took = lines[0].when - since if lines else time.time() - since if leader.believes() else 0
    fleet.check(took <= limit + LATENESS.at_once(), f"{what}: leads for {took:.2f} s, not {limit:.2f} s")


@phase(STARTED)
def start(fleets):
    for fleet in fleets:
        fleet.check(wait_until(fleet.settled), "no copy leads at first")


@phase("calm")
def calm(fleets):
    time.sleep(2)       # a bid that the start of all copies held up has failed by then
    before = {copy: copy.cpu() for fleet in fleets for copy in fleet.alive()}
    since = time.time()
    time.sleep(4)
    for fleet in fleets:
        for copy in fleet.alive():
            used = copy.cpu() - before[copy]
            fleet.check(used < 1, f"{copy.identity} has used {used:.2f} s of 4 s")
            fleet.check(len(copy.connections()) <= 3,
                        f"{copy.identity} has {len(copy.connections())} connections")
            fleet.check(not copy.said("error", since), f"{copy.identity} has errors")


@phase(SIGTERM)
def terminate(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    for leader in leaders.values():
        leader.asked = time.time()
        leader.process.send_signal(signal.SIGTERM)
    for fleet, leader in leaders.items():
        fleet.check(wait_until(lambda: leader.ended is not None, 20), "does not stop at SIGTERM")
        fleet.check(leader.process.poll() == 0, f"exit status {leader.process.poll()}")
        fleet.check(leader.said("ousted", leader.asked), "does not say that it has resigned")
        fleet.add()


@phase("SIGKILL")
def kill(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    for leader in leaders.values():
        leader.process.kill()
        leader.process.wait()
        leader.ended = time.time()
    for fleet in fleets:
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
        if not fleet.way.expires:
            fleet.check(not [line for line in fleet.elections_since(stopped, leader) if line.when < woken],
                        "a copy is elected while the connection of a stopped leader stands")
        # each validity is shorter than the stop, and passes "though no timer has run"
        if fleet.way.validity:
            stops_in_time(fleet, leader, woken, 0, "SIGCONT")
    return time.time() - stopped


def terminate_leaders(fleets, options):
    """End the connections of the leaders; return the fleets of which one was ousted then."""
    leaders = {fleet: fleet.leader() for fleet in fleets}
    since = time.time()
    end_sessions(options.port, [port for fleet, leader in leaders.items() if not fleet.way.pooled
                                for port in leader.connections()])
    end_sessions(options.port, list(options.moving.open))       # PgBouncer's
    time.sleep(3)
    return [fleet for fleet, leader in leaders.items() if leader.said("ousted", since)]


@phase(TERMINATED)
def terminate_backends(fleets, options):
    ousted = terminate_leaders(fleets, options)
    given_up = [fleet for fleet in ousted if fleet.way.scope != "session"]
    for fleet in fleets:
        if fleet.way.scope == "session":
            fleet.check(fleet in ousted, "a session ends, and its job goes on")
    if given_up:
        # "By a lease, a renewal that fails is reported, and repeated": within a second here, which is
        # over if a busy machine or further connections of the same pool use it up
        for fleet in given_up:
            wait_until(fleet.settled, PATIENCE)
        for fleet in terminate_leaders(given_up, options):
            fleet.check(False, "a lease is given up with a connection, twice")


@phase(RESTARTED)
def restart(fleets, options):
    since = time.time()
    pg_ctl(options.data, "restart", "-m", "fast")
    up = time.time()
    for fleet in fleets:
        wait_until(fleet.settled)
    time.sleep(2)
    for fleet in fleets:
        for copy in fleet.alive():
            if fleet.way.scope == "session":
                fleet.check(copy.said("error", since) or copy.said("ousted", since),
                            f"{copy.identity} says nothing of a restart")
    return up - since


@phase("partition")
def partition(fleets):
    leaders = {fleet: fleet.leader() for fleet in fleets}
    cut = time.time()
    for leader in leaders.values():
        leader.whole.clear()
    for fleet, leader in leaders.items():
        if fleet.way.validity:
            stops_in_time(fleet, leader, cut, fleet.way.validity, "partition")
    time.sleep(max(0, cut + CUT - time.time()))
    for leader in leaders.values():
        leader.whole.set()
    return time.time() - cut


@phase(DEPOSED)
def depose(fleets, options):
    """The server elects another copy at once, of which the leader before it cannot hear."""
    leaders = {fleet: fleet.leader() for fleet in fleets}
    stalled = time.time()
    for fleet, leader in leaders.items():
        leader.whole.clear()
        leader.stalled = time.time()
        if fleet.way.validity:
            fleet.check(ask(options.port, "SELECT le_depose(%s)", fleet.election) == [(True,)], "not deposed")
        else:
            end_sessions(options.port, leader.connections())
    for fleet, leader in leaders.items():
        limit = (0 if fleet.way.scope == "session" else TTL / 3) + SLACK
        wait_until(lambda: fleet.elections_since(leader.stalled, leader), limit)
        others = fleet.elections_since(leader.stalled, leader)
        fleet.check(others and others[0].when - leader.stalled <= limit, "no other copy is elected")
        if fleet.way.validity:
            stops_in_time(fleet, leader, leader.stalled, fleet.way.validity, DEPOSED)
    time.sleep(max(0, stalled + STALL - time.time()))
    for leader in leaders.values():
        leader.whole.set()


@phase(PROMOTED)
def fail_over(fleets, options):
    """The primary crashes, and its synchronous standby is promoted."""
    ask(options.port, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    ask(options.port, "SELECT pg_reload_conf()")
    ((lsn,),) = ask(options.port, "SELECT pg_current_wal_flush_lsn()")
    if not wait_until(lambda: ask(options.port, "SELECT FROM pg_stat_replication "
                                  "WHERE sync_state = 'sync' AND replay_lsn >= %s", lsn)):
        sys.exit("the standby does not follow")
    leaders = {fleet: fleet.leader() for fleet in fleets}
    holders = {fleet: [(line.identity, line.text) for line in leader.said("elected", 0)][-1:]
               for fleet, leader in leaders.items()}
    since = time.time()
    pg_ctl(options.data, "stop", "-m", "immediate")
    # the programs that know one name meet the standby: "a standby refuses bids"
    options.moving.target = options.standby
    for fleet in fleets:
        fleet.move(options.standby)
    time.sleep(DETECT)
    promoted = time.time()
    if ask(options.standby, "SELECT pg_promote()") != [(True,)]:
        sys.exit("the standby is not promoted")
    up, options.port = time.time(), options.standby
    time.sleep(2)
    for fleet, leader in leaders.items():
        if fleet.way.scope == "session":
            fleet.check(leader.said("ousted", since), "a session ends, and its job goes on")
        elif not fleet.program.published:
            wait_until(fleet.settled, up - time.time() + MAX_TTL + TTL / 3 + SLACK)
            # "a lease that had reached the standby runs on", and until max_ttl has passed, no other
            # one is granted
            other = [line.when - promoted for line in fleet.elections_since(since)
                     if (line.identity, line.text) not in holders[fleet]]
            fleet.check(min(other, default=MAX_TTL) >= MAX_TTL, f"another lease begins after {other} s")
    return up - since


class Example:
    """Copies of a program of the documents, unchanged, in the database of its language.

    Each second copy connects through PgBouncer in session mode.  The leader works each second: it adds
    a row to the table work_done, or prints "leading, token 7".
    """

    def __init__(self, language, command, options):
        self.language, self.command, self.options = language, command.split(), options
        self.copies, self.output, self.printed, self.failures, self.pauses = [], [], [], [], {}
        for _ in range(COPIES):
            self.add()

    def add(self):
        port, database = self.options.moving.port, self.language
        if len(self.copies) % 2:
            port, database = self.options.pooler, database + "_session"
        url = (f"jdbc:postgresql://127.0.0.1:{port}/{database}?user=postgres" if self.language == "java"
               else f"postgres://postgres@127.0.0.1:{port}/{database}")
        copy = subprocess.Popen(self.command, cwd=EXAMPLES, env={**os.environ, "DATABASE_URL": url}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.copies.append(copy)
        threading.Thread(target=self.read, args=(copy,), daemon=True).start()

    def read(self, copy):
        for line in copy.stdout:
            self.output.append(f"{time.time():.3f} {copy.pid} {line.rstrip()}")
            if line.startswith("leading, token "):
                self.printed.append((time.time(), int(line.split()[2])))

    def work(self, since=0.0):
        """Pairs of a time and a token, in the order of the commits: a writer guards its transaction."""
        rows = ask(self.options.port, "SELECT extract(epoch FROM at)::float8, token FROM work_done "
                   "WHERE at > to_timestamp(%s) ORDER BY at", since, database=self.language)
        return rows + [act for act in self.printed if act[0] > since]

    def leader(self):
        return ask(self.options.port, "SELECT identity FROM le_leader('scheduler')", database=self.language)

    def check(self, good, what):
        if not good:
            self.failures.append(what)
            print(f"   FAILED: the program in {self.language}: {what}", flush=True)

    def kill(self):
        """Kill the leader, whose identity contains its process ID."""
        wait_until(self.leader)
        ((identity,),) = self.leader()
        leader = next(copy for copy in self.copies if copy.pid == int(identity.split(":")[-2]))
        self.copies.remove(leader)
        leader.kill()
        leader.wait()

    def goes_on(self, fault, since, down):
        """Judge the longest pause of the work since a fault, which lasted so long."""
        now = time.time()
        wait_until(lambda: self.work(now), down + SLACK)
        times = [since] + [when for when, _ in self.work(since)]
        times += [time.time()] if times[-1] < now else []
        pause = max(after - before for before, after in zip(times, times[1:]))
        self.pauses[fault] = max(pause, self.pauses.get(fault, 0))
        # a step of the work is a second
        self.check(pause <= 1 + down + SLACK, f"{fault}: no copy worked for {pause:.1f} s")
        self.check(all(copy.poll() is None for copy in self.copies), f"{fault}: a copy has ended")

    def finish(self):
        for copy in self.copies:
            copy.send_signal(signal.SIGTERM)
        ends = {copy.wait(20) for copy in self.copies}
        self.check(ends == {143 if self.language == "java" else 0}, f"the copies end with {ends}")
        self.check(not self.leader(), "still leads")
        tokens = [token for _, token in self.work()]
        self.check(tokens == sorted(tokens), f"tokens do not grow: {tokens}")


def kill_examples(examples):
    """Kill leaders so often that copies of both kinds lead."""
    say("SIGKILL of the examples")
    for _ in range(COPIES):
        since = time.time()
        for example in examples:
            example.kill()
        for example in examples:
            example.goes_on("SIGKILL", since, 0.0)
            example.add()


def finish(fleets, port):
    say("the end")
    last = {copy for fleet in fleets for copy in fleet.alive()}
    for copy in last:
        copy.process.send_signal(signal.SIGTERM)
    for fleet in fleets:
        for copy in fleet.copies:
            fleet.check(wait_until(lambda: copy.ended is not None, 20), f"{copy.identity} does not end")
            # SIGTERM ends a pg_leader that waits with 128 + 15, and else its command does
            ends = (0, 143) if fleet.program.name.startswith("pg_leader") else (0,)
            fleet.check(copy not in last or copy.process.poll() in ends,
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


def for_cron(port):
    """Of two that are started together, one runs its command; it is killed with the session.

    A run that succeeds says nothing, or cron would send a mail.
    """
    say("pg_leader run --no-wait")
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"

    def begin(command):
        return subprocess.Popen(["pg_leader", "run", "--no-wait", "-d", url, "cron", "sh", "-c", command],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

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


def make_standby(options):
    """Make a standby that streams from the server, with the same max_ttl."""
    if options.sql:
        ask(options.port, "UPDATE le_settings SET max_ttl = make_interval(secs => %s)", MAX_TTL)
    else:
        ask(options.port, f"ALTER SYSTEM SET leader_election.max_ttl = '{MAX_TTL} s'")
        ask(options.port, "SELECT pg_reload_conf()")
    folder = options.data + "-standby"
    run(["pg_basebackup", "-R", "-c", "fast", "-D", folder,
         "-d", f"host=127.0.0.1 port={options.port} user=postgres"])
    with open(folder + "/postgresql.auto.conf", "a", encoding="ascii") as conf:
        conf.write(f"port = {options.standby}\n")
    pg_ctl(folder, "-l", folder + ".log", "start")


def several(figures):
    """Several figures in a cell; one that all share stands once."""
    cells = [f"{figure:.1f}" for figure in figures]
    return " / ".join(cells if len(set(cells)) > 1 else cells[:1])


def print_table(fleets, examples):
    """Print for how long none led, and two; the ways of a library in one scope share a row."""
    names = [name for name in fleets[0].phases if name not in (STARTED, "calm")] if fleets else []
    print("\n| seconds without a leader, and with two | " + " | ".join(names) + " |")
    print("|---|" + "--:|" * len(names))
    for (library, _), group in itertools.groupby(
            fleets, lambda fleet: (fleet.program.name.split("/")[0], fleet.way.scope)):
        row = list(group)
        cells = [library + ", " + " / ".join(fleet.way.name for fleet in row) if row[0].way.name
                 else row[0].program.name]
        for name in names:
            overlaps, vacancies = zip(*(fleet.phases.get(name, (0.0, float("nan"))) for fleet in row))
            two = f", **two: {several(overlaps)}**" if max(overlaps) > 0.05 else ""
            cells.append(several(vacancies) + two)
        print("| " + " | ".join(cells) + " |")
    if examples:
        print("\n| seconds in which a program of the documents did no work | " + " | ".join(examples[0].pauses) + " |")
        print("|---|" + "--:|" * len(examples[0].pauses))
    for example in examples:
        print(f"| {example.language} | " + " | ".join(f"{pause:.1f}" for pause in example.pauses.values()) + " |")


def report(fleets, examples, others):
    print_table(fleets, examples)
    print()
    failures = [(f"the program in {example.language}", what) for example in examples for what in example.failures]
    failures += [(fleet.program.name, what) for fleet in fleets for what in fleet.failures]
    failures += [(name, what) for name, what in others if what]
    for fleet in fleets:
        if fleet.failures:
            print(f"What the copies of {fleet.program.name} have said:")
            for line in sorted(line for copy in fleet.copies for line in copy.lines):
                print(f"   {line.when:.3f} {line.identity} {line.event} {line.text}")
    for example in examples:
        if example.failures:
            print(f"What the copies of the program in {example.language} have said:", *example.output, sep="\n   ")
    for name, what in failures:
        print(f"FAILED: {name}: {what}")
    return not failures


def drive(fleets, examples, options):
    def also(fault, function):
        since = time.time()
        down = function(fleets, options)
        for example in examples:
            example.goes_on(fault, since, down)

    start(fleets)
    calm(fleets)
    terminate(fleets)
    kill(fleets)
    kill_examples(examples)
    stop(fleets)
    also(TERMINATED, terminate_backends)
    also(RESTARTED, restart)
    partition(fleets)
    depose(fleets, options)
    also(PROMOTED, fail_over)
    finish(fleets, options.port)
    for example in examples:
        example.finish()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True, help="of the server")
    parser.add_argument("--data", required=True, help="the server's data directory")
    parser.add_argument("--pooler", type=int, required=True, help="port of PgBouncer")
    parser.add_argument("--moving", type=int, required=True,
                        help="port where PgBouncer looks for the server, free")
    parser.add_argument("--standby", type=int, required=True, help="port for a standby, free")
    parser.add_argument("--only", default="", help="part of the name of the programs to run")
    parser.add_argument("languages", nargs="*", help="those whose programs were built")
    options = parser.parse_args()

    options.moving = Proxy(options.port, threading.Event(), options.moving)
    options.moving.whole.set()
    ((version,),) = ask(options.port, "SELECT le_version()")
    options.sql = "SQL edition" in version
    make_standby(options)
    chosen = [program for program in programs(options.languages) if options.only in program.name]
    fleets = [Fleet(program, number, options) for number, program in enumerate(chosen)]
    examples = [Example(language, command, options) for language, command in EXAMPLE_PROGRAMS
                if language in options.languages and options.only in command]
    try:
        drive(fleets, examples, options)
    finally:
        for example in examples:
            for copy in example.copies:
                copy.kill()
        for fleet in fleets:
            for copy in fleet.copies:
                with contextlib.suppress(OSError):
                    copy.process.kill()
    others = [("shell/every-minute.sql", every_minute(options.port))]
    if "command" in options.languages:
        others.append(("pg_leader run --no-wait", for_cron(options.port)))
    if "go" in options.languages:
        others.append(("drivers/go/pitfall", pitfall(options.port)))
    sys.exit(0 if report(fleets, examples, others) else 1)


if __name__ == "__main__":
    main()
