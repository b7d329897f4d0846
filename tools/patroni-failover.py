"""Fail over a cluster under Patroni while programs lead and campaign in it.

Each program tells when it relies on its term, by its own clock (the clock of
all, as they are on one machine).  No two programs may do so at one time, tokens
must grow, and after each fault there must be a leader again.
`make test-patroni` prepares what this needs: a directory with a configuration
of Patroni for each member, and the ports of the servers and of their Patronis.
The servers are left running.
"""
import collections
import contextlib
import ctypes
import itertools
import json
import math
import multiprocessing
import select
import signal
import subprocess
import sys
import time
import urllib.request

import psutil
import psycopg2

SESSION, LEASE = "scheduler", "mailer"      # elections, each by one scope
CANDIDATES = 3                              # for each election
TTL = 5                                     # of leases: the greatest allowed
PATIENCE = 120                              # seconds; the machine may be busy
MEMBERS = ("a", "b")

# At `when`, on the monotonic clock, a program knew that it leads until `until`,
# by the word of the member at this port.
Belief = collections.namedtuple("Belief",
                                "election identity token when until port")


def say(*words):
    print("==", *words, flush=True)


def wait_for(what, condition):
    """The first answer that is true; a server that is not there gives none."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, psycopg2.Error):
            answer = condition()
            if answer:
                return answer
        time.sleep(0.1)
    sys.exit(f"FAILED: waited in vain for {what}")


# --- what users write -------------------------------------------------------

def connect(where):
    connection = psycopg2.connect(where)
    connection.autocommit = True
    return contextlib.closing(connection)


def ask(connection, sql, *arguments):
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments)
        return cursor.fetchone()[0]


def write(connection, election, token):
    """Do some of the job: one transaction, which commits only while leading."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT le_assert_leader(%s, %s);"
                       " INSERT INTO work (election, token) VALUES (%s, %s)",
                       (election, token) * 2)


def lead_by_session(where, believe, pause):
    """Campaign, work until the connection breaks, and campaign again."""
    while True:
        try:
            with connect(where) as connection:
                token = ask(connection, "CALL le_campaign(%s)", SESSION)
                believe(token, time.monotonic(), math.inf, connection.info.port)
                try:
                    while not pause.is_set():
                        write(connection, SESSION, token)
                        select.select([connection], [], [], 0.2)
                finally:
                    now = time.monotonic()
                    believe(token, now, now, None)
                ask(connection, "SELECT le_resign(%s)", SESSION)
        except psycopg2.Error:
            time.sleep(0.1)
        while pause.is_set():
            time.sleep(0.1)


def lead_by_lease(where, believe, pause):
    """Ask every second; what was granted counts from before it was asked for."""
    token = None
    while True:
        try:
            with connect(where) as connection:
                while not pause.is_set():
                    asked = time.monotonic()
                    token = ask(connection, "SELECT le_lease(%s, %s, token => %s)",
                                LEASE, f"{TTL} s", token)
                    if token:
                        believe(token, time.monotonic(), asked + TTL,
                                connection.info.port)
                    while time.monotonic() < asked + 1:
                        if token:
                            write(connection, LEASE, token)
                        select.select([connection], [], [], 0.2)
                if token:
                    now = time.monotonic()
                    believe(token, now, now, None)
                    ask(connection, "SELECT le_resign(%s, %s)", LEASE, token)
                    token = None
        except psycopg2.Error as error:
            # LE003: this server was promoted, and grants no new leases yet
            time.sleep(1 if error.pgcode == "LE003" else 0.1)
        while pause.is_set() and not token:
            time.sleep(0.1)


# --- the cluster ------------------------------------------------------------

class Cluster:
    """The members, each with a Patroni."""

    def __init__(self, directory, ports):
        self.directory = directory
        self.port = dict(zip(MEMBERS, map(int, ports)))
        self.api = dict(zip(MEMBERS, ports[len(MEMBERS):]))
        self.patroni = {}
        self.where = ("host=127.0.0.1,127.0.0.1 port=%d,%d connect_timeout=3"
                      " target_session_attrs=read-write"
                      " user=postgres dbname=postgres"
                      % tuple(self.port.values()))

    def start(self, member):
        """Start a Patroni that dies with this program, however that ends."""
        with open(f"{self.directory}/{member}.log", "ab") as log:
            self.patroni[member] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "patroni",
                 f"{self.directory}/{member}.yml"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def close(self):
        for patroni in self.patroni.values():
            patroni.kill()
            patroni.wait()

    def ask(self, sql):
        """Ask the primary."""
        with connect(self.where) as connection:
            return ask(connection, sql)

    def primary(self):
        port = self.ask("SELECT current_setting('port')::integer")
        return next(member for member in MEMBERS if self.port[member] == port)

    def complete(self):
        """Has the primary a standby that has caught up?"""
        return self.ask("SELECT count(*) > 0 FROM pg_stat_replication"
                        " WHERE state = 'streaming'"
                        " AND replay_lsn = pg_current_wal_flush_lsn()")

    def switch_over(self, primary):
        order = urllib.request.Request(
            f"http://127.0.0.1:{self.api[primary]}/switchover",
            json.dumps({"leader": primary}).encode())
        wait_for("the switchover",
                 lambda: urllib.request.urlopen(order, timeout=PATIENCE))

    def kill_postgres(self, member):
        with open(f"{self.directory}/{member}/postmaster.pid",
                  encoding="utf8") as file:
            lines = file.read().split("\n")
        postmaster = psutil.Process(int(lines[0]))
        for process in [postmaster] + postmaster.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        # what is not gone with the processes, but would be with the host
        subprocess.run(["ipcrm", "-m", lines[6].split()[1]], check=True)

    def kill_host(self, member):
        self.patroni[member].kill()
        self.patroni[member].wait()
        self.kill_postgres(member)


# --- the test ---------------------------------------------------------------

def shown(token):
    """A token by the second that it was the first one of, and its number from there."""
    return f"{token >> 22}:{token & 0x3fffff}"


class Test:
    """The programs, what they believed, and what came of each fault."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.queue = multiprocessing.SimpleQueue()
        self.pause = multiprocessing.Event()
        self.beliefs = []
        self.faults = []        # title, the last belief before, the first after
        for number in range(CANDIDATES):
            for election, lead in ((SESSION, lead_by_session),
                                   (LEASE, lead_by_lease)):
                multiprocessing.Process(
                    target=self.run, daemon=True,
                    args=(lead, election, f"worker-{number + 1}")).start()

    def run(self, lead, election, identity):
        """Be one program; it ends with this one, however that ends."""
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        lead(f"{self.cluster.where} application_name={identity}",
             lambda *known: self.queue.put(Belief(election, identity, *known)),
             self.pause)

    def spans(self, election):
        """All beliefs by time, each to where the next in the same term begins."""
        while not self.queue.empty():
            self.beliefs.append(self.queue.get())
        spans = []
        following = {}
        for belief in reversed(self.beliefs):
            if belief.election == election:
                term = belief.identity, belief.token
                until = min(belief.until, following.get(term, math.inf))
                following[term] = belief.when
                if belief.when < until:
                    spans.append(belief._replace(until=until))
        return sorted(spans, key=lambda span: span.when)

    def led(self):
        now = time.monotonic()
        return all(any(span.when <= now < span.until
                       for span in self.spans(election))
                   for election in (SESSION, LEASE))

    def outrun_standby(self):
        """End all terms, and begin others that the standby never hears of,
        with tokens beyond those that were set aside before."""
        self.pause.set()
        wait_for("leaders to resign", lambda: self.cluster.ask(
            "SELECT NOT EXISTS (SELECT FROM le_leaders)"
            " AND NOT EXISTS (SELECT FROM le_candidates)"))
        wait_for("a standby", self.cluster.complete)
        psutil.Process(self.cluster.ask(
            "SELECT pid FROM pg_stat_replication")).suspend()
        self.cluster.ask("SELECT count(*) FROM generate_series(1, 1100)"
                         " WHERE le_try_become_leader('outrun')"
                         " AND le_resign('outrun')")
        self.pause.clear()
        wait_for("leaders", self.led)

    def fail_over(self, title, strike, unheard=False):
        """Strike the primary; then another member must name leaders."""
        wait_for("a standby", self.cluster.complete)
        wait_for("leaders", self.led)
        if unheard:
            self.outrun_standby()
        primary = self.cluster.primary()
        say(f"{title}: primary {primary}")
        struck = time.monotonic()
        strike(primary)
        for election in (SESSION, LEASE):
            new = wait_for(f"a leader of {election}", lambda: next(
                (span for span in self.spans(election) if span.when > struck
                 and span.port != self.cluster.port[primary]), None))
            old = max((span for span in self.spans(election)
                       if span.when < new.when), key=lambda span: span.until)
            self.faults.append((title, old, new))
        if self.cluster.patroni[primary].poll() is not None:
            self.cluster.start(primary)

    def overlaps(self, election):
        """For how many seconds two terms were both believed to run."""
        seconds = collections.Counter()
        for one, other in itertools.combinations(self.spans(election), 2):
            if (one.token, one.identity) != (other.token, other.identity):
                seconds[one.token, other.token] += max(
                    0, min(one.until, other.until) - other.when)
        return +seconds         # without those of zero

    def print_table(self):
        print("\n| fault | scope | without a leader | old token | new token"
              " | overlap |\n|---|---|--:|--:|--:|--:|")
        for title, old, new in self.faults:
            beside = sum(seconds for tokens, seconds
                         in self.overlaps(new.election).items()
                         if new.token in tokens)
            print(f"| {title} | {'session' if new.election == SESSION else 'lease'}"
                  f" | {max(0, new.when - old.until):.1f} s | {shown(old.token)}"
                  f" | {'the same' if new.token == old.token else shown(new.token)}"
                  f" | {beside:.3f} s |")

    def violations(self):
        for election in (SESSION, LEASE):
            for (one, other), seconds in self.overlaps(election).items():
                yield (f"{election}: {shown(one)} and {shown(other)} were both"
                       f" believed to lead for {seconds:.3f} s")
            terms = [term for term, _ in itertools.groupby(
                (span.token, span.identity) for span in self.spans(election))]
            for (one, _), (other, _) in itertools.pairwise(terms):
                if other <= one:
                    yield f"{election}: {shown(other)} came after {shown(one)}"
        written, late = self.cluster.ask(
            "SELECT ARRAY[count(*), count(*) FILTER (WHERE token < before)]"
            " FROM (SELECT token, lag(token) OVER"
            " (PARTITION BY election ORDER BY id) AS before FROM work) AS work")
        if late or not written:
            yield f"{late} of {written} guarded writes came after a later term's"


def main(directory, rounds, *ports):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say("starting the members")
    with contextlib.closing(Cluster(directory, ports)) as cluster:
        for member in MEMBERS:
            cluster.start(member)
            wait_for("the primary", cluster.primary)
        cluster.ask("CREATE EXTENSION leader_election; CREATE TABLE work"
                    " (id bigserial, election text, token bigint); SELECT true")
        test = Test(cluster)
        for _ in range(int(rounds)):
            test.fail_over("switchover", cluster.switch_over)
            test.fail_over("kill -9 of postgres", cluster.kill_postgres)
            test.fail_over("kill -9 of postgres, last WAL unsent",
                           cluster.kill_postgres, unheard=True)
            test.fail_over("kill -9 of postgres and Patroni", cluster.kill_host)
        wait_for("a standby", cluster.complete)
        test.print_table()
        violations = list(test.violations())
    for violation in violations:
        print("FAILED:", violation)
    if not violations:
        say("no two led at one time, and tokens only grew")
    sys.exit(bool(violations))


if __name__ == "__main__":
    main(*sys.argv[1:])
