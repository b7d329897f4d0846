"""The clients that measure: psql, connections of this process, and pgbench."""
import contextlib
import glob
import os
import re
import select
import signal
import subprocess
import tempfile
import time

import psycopg2
import psycopg2.extensions

# The log of what only prepares a measurement does not count.
QUIET = "-c leader_election.log_terms=off"
# A lease is a term of the session's, too, until its transaction ends.
MANY = "-c leader_election.max_terms_per_session=1000000"
NOTHING = "SELECT 1"
TICKS = os.sysconf("SC_CLK_TCK")

# Each script has the same shape, so that only the statements differ.  The first
# statement is run once by each client.
SCRIPT = """\
\\if :first
{first};
\\set first 0
\\endif
{repeated};
"""


def psql(sql):
    """Run SQL in a session of its own and return its output."""
    return subprocess.run(
        ["psql", "-XqAt", "-c", "SET client_min_messages = warning", "-c", sql],
        check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Session:
    """A psql that stays, so that it can hold locks, and be killed."""

    def __init__(self):
        self.process = subprocess.Popen(["psql", "-XqAt"],
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def ask(self, sql):
        """Run a statement with one row and return it."""
        self.process.stdin.write(sql + ";\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Connection:
    """A connection that runs each statement in a transaction of its own."""

    def __init__(self, options=""):
        self.connection = psycopg2.connect("", options=options)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()

    def ask(self, sql):
        """Run a statement and return its first row, if it has any."""
        self.cursor.execute(sql)
        return self.cursor.fetchone() if self.cursor.description else None

    def close(self):
        self.connection.close()


class Waiter:
    """A connection whose statement can be left running."""

    def __init__(self):
        self.connection = psycopg2.connect("", async_=True)
        self.settle()
        self.cursor = self.connection.cursor()
        self.pid = self.connection.info.backend_pid

    def sleep_until(self, event):
        """Wait for the socket; unlike select(), with any number of them open."""
        poll = select.poll()
        poll.register(self.connection, event)
        poll.poll()

    def settle(self):
        """Wait for the answer."""
        while True:
            state = self.connection.poll()
            if state == psycopg2.extensions.POLL_OK:
                return
            self.sleep_until(select.POLLIN if state == psycopg2.extensions.POLL_READ
                             else select.POLLOUT)

    def send(self, sql):
        self.cursor.execute(sql)

    def answer(self):
        self.settle()
        return self.cursor.fetchone()

    def ask(self, sql):
        """Run a statement and return its first row, if it has any."""
        self.send(sql)
        self.settle()
        return self.cursor.fetchone() if self.cursor.description else None

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
        if control.ask("SELECT " + condition)[0]:
            return


def wait_until_waiting(control, waiters):
    """Wait until these are in a lock's queue, or asleep in an extension."""
    wait_for(control,
             "count(*) = %d FROM pg_stat_activity WHERE pid = ANY ('{%s}')"
             " AND (wait_event_type, wait_event) IN"
             " (('Lock', 'advisory'), ('Extension', 'Extension'))"
             % (len(waiters), ",".join(str(one.pid) for one in waiters)))


def cancel(control, waiters):
    """Cancel what these wait for."""
    control.ask("SELECT count(pg_cancel_backend(pid)) FROM unnest('{%s}'::int[]) pid"
                % ",".join(str(one.pid) for one in waiters))
    for one in waiters:
        one.fail()


@contextlib.contextmanager
def without_fsync(connection):
    """Have the server not wait for the disk, while much is prepared or compared."""
    set_fsync(connection, "off")
    try:
        yield
    finally:
        set_fsync(connection, "on")


def set_fsync(connection, value):
    connection.ask(f"ALTER SYSTEM SET fsync = {value}")
    connection.ask("SELECT pg_reload_conf()")
    while connection.ask("SHOW fsync")[0] != value:
        pass


def postmaster():
    """The process ID of the server's first process."""
    with open(os.path.join(os.environ["PGDATA"], "postmaster.pid")) as file:
        return int(file.readline())


def process_times(pid):
    """Seconds of CPU time of a process, of its children that have ended, and its parent."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    with open(f"/proc/{pid}/schedstat") as file:
        own = int(file.read().split()[0]) / 1e9	# stat counts in ticks of ten milliseconds
    return own, (int(fields[13]) + int(fields[14])) / TICKS, int(fields[1])


def server_time():
    """Seconds of CPU time that the server has taken, with all its processes."""
    parent = postmaster()
    while True:
        own, ended, _ = process_times(parent)
        total = own + ended
        for path in glob.glob("/proc/[0-9]*"):
            try:
                own, _, of = process_times(os.path.basename(path))
            except OSError:			# it has ended meanwhile
                continue
            if of == parent:
                total += own
        if process_times(parent)[1] == ended:	# else one was counted twice, or not at all
            return total


def idle():
    """The part of the processors' time that is free, in two seconds."""
    def read():
        with open("/proc/stat") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)
    free, total = read()
    time.sleep(2)
    free_later, total_later = read()
    return (free_later - free) / (total_later - total)


class Cores:
    """What the server's new sessions, and the clients, may run on."""

    ALL = os.sched_getaffinity(0)

    @classmethod
    def use(cls, clients):
        """A single client shares a core with its server process; more use all."""
        cores = {min(cls.ALL)} if clients == 1 else cls.ALL
        for process in (postmaster(), 0):
            os.sched_setaffinity(process, cores)


class Script:
    """A script for pgbench, written to a directory."""

    def __init__(self, directory, first, repeated):
        number, self.path = tempfile.mkstemp(".sql", dir=directory)
        with open(number, "w") as file:
            file.write(SCRIPT.format(first=first, repeated=repeated))

    def run(self, clients, seconds, options="", host=None):
        """Return transactions per second, and how many there were."""
        return self.run_pgbench(clients, ["-T", str(seconds)], options, host)

    def run_times(self, clients, times, options=""):
        """Let each client do it so many times, and return transactions per second."""
        return self.run_pgbench(clients, ["-t", str(times)], options)[0]

    def run_pgbench(self, clients, until, options, host=None):
        Cores.use(clients)
        count = 0
        while count == 0:			# connecting may have taken all of the time
            run = subprocess.run(
                ["pgbench", "-n", "-M", "prepared", "-D", "first=1", "-D", "turn=-1",
                 "-c", str(clients), *until, "-f", self.path],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=dict(os.environ, PGOPTIONS=options, PGHOST=host or os.environ["PGHOST"]))
            if run.returncode != 0:
                raise RuntimeError("pgbench failed: " + run.stderr.partition("\n")[0])
            count = int(re.search(r"actually processed: ([0-9]+)", run.stdout)[1])
        Cores.use(None)
        return float(re.search(r"tps = ([0-9.]+)", run.stdout)[1]), count
