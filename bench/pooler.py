"""Elections that are led by leases through PgBouncer in transaction mode.

Each is renewed every five seconds, by a statement of its own; a real fleet has a
client for each.  What the server and PgBouncer do besides the renewals is shown
by the same load of a statement that does nothing.
"""
import glob
import os
import subprocess
import time

from clients import (MANY, QUIET, Connection, process_times, server_time,
                     without_fsync)
from tables import Table, median, median_and_p99

ROUNDS = 3
ELECTIONS = 10000
INTERVAL = 5					# seconds between renewals of an election
CLIENTS = 200					# of PgBouncer
SERVERS = 20					# its connections to the server
WARM_UP = 2						# seconds that do not count
MEASURED = 10					# seconds that do

INI = """[databases]
* = host={server} port={port} user=postgres pool_size={servers}
[pgbouncer]
unix_socket_dir = {directory}
listen_port = 6432
auth_type = any
pool_mode = transaction
max_client_conn = {clients}
server_login_retry = 1
logfile = {directory}/pgbouncer.log
"""
# The elections of a client follow one another, and so do their tokens.
SCRIPT = """\\set turn mod(:turn + 1, {each})
\\set number :client_id * {each} + :turn
{statement};
"""
RENEW = "SELECT le_renew('pooled ' || :number, :token::bigint + :number)"
NOTHING = "SELECT :number, :token"
TAKE = """SELECT min(token), count(token),
 count(*) FILTER (WHERE token = first + n)
 FROM (SELECT n, token, first_value(token) OVER (ORDER BY n) AS first
       FROM (SELECT n, le_lease('pooled ' || n, '15 s') AS token
             FROM generate_series(0, {last}) n ORDER BY n) AS taken) AS numbered"""


class Pooler:
    """PgBouncer, with its socket in the given directory."""

    def __init__(self, directory):
        self.directory = directory
        path = os.path.join(directory, "pgbouncer.ini")
        with open(path, "w") as file:
            file.write(INI.format(server=os.environ["PGHOST"], port=os.environ["PGPORT"],
                                  directory=directory, servers=SERVERS,
                                  clients=CLIENTS + 10))
        self.process = subprocess.Popen(
            ["pgbouncer", "-q", path], stderr=subprocess.DEVNULL,
            env=dict(os.environ, PATH=os.environ["PATH"] + ":/usr/sbin"))
        while not os.path.exists(os.path.join(directory, ".s.PGSQL.6432")):
            if self.process.poll() is not None:
                raise RuntimeError("PgBouncer does not start")
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Load:
    """A statement for each election in turn, at a rate; what it costs."""

    def __init__(self, pooler, elections, statement):
        self.pooler = pooler
        self.elections = elections
        self.script = os.path.join(pooler.directory, f"{statement[7:10]}.sql")
        with open(self.script, "w") as file:
            file.write(SCRIPT.format(each=elections // CLIENTS, statement=statement))
        self.server, self.bouncer, self.latencies, self.rates = [], [], [], []
        self.lost = None			# leases, if it renews any

    def run(self, token):
        prefix = os.path.join(self.pooler.directory, "latency")
        for path in glob.glob(prefix + "*"):
            os.remove(path)
        pgbench = subprocess.Popen(
            ["pgbench", "-n", "-M", "extended", "-h", self.pooler.directory, "-p", "6432",
             "-D", "turn=-1", "-D", f"token={token}", "-c", str(CLIENTS),
             "-R", str(self.elections / INTERVAL), "-T", str(WARM_UP + MEASURED + 1),
             "-l", "--log-prefix", prefix, "-f", self.script],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(WARM_UP)
        began, server, bouncer = self.now()
        time.sleep(MEASURED)
        ended, server_after, bouncer_after = self.now()
        if pgbench.wait() != 0:
            raise RuntimeError("pgbench failed: " + pgbench.stderr.readline())

        self.server.append((server_after - server) / (ended - began))
        self.bouncer.append((bouncer_after - bouncer) / (ended - began))
        count = 0
        for path in glob.glob(prefix + "*"):
            with open(path) as file:
                for line in file:
                    _, _, took, _, seconds, micros, _ = line.split()
                    if began <= int(seconds) + int(micros) / 1e6 < ended:
                        self.latencies.append(int(took) / 1000)
                        count += 1
        self.rates.append(count / (ended - began))

    def now(self):
        return time.time(), server_time(), process_times(self.pooler.process.pid)[0]

    def print(self, table, what):
        middle, p99 = median_and_p99(self.latencies)
        table.row(what, f"{median(self.rates):,.0f}", f"{100 * median(self.server):.0f} %",
                  f"{100 * median(self.bouncer):.0f} %", f"{middle:.2f} ms",
                  f"{p99:.2f} ms", "" if self.lost is None else
                  table.judge(what, self.lost, str(self.lost), most=0))


def renew_all(load, control):
    """Take the leases, run the load, and count those that it has not kept."""
    last = load.elections - 1
    first, taken, numbered = control.ask(TAKE.format(last=last))
    if not taken == numbered == load.elections:
        raise RuntimeError(f"{taken} leases of {load.elections} taken,"
                           f" {numbered} with tokens one after the other")
    load.run(first)
    kept = control.ask("SELECT count(*) FILTER (WHERE le_am_leader('pooled ' || n, %d + n))"
                       " FROM generate_series(0, %d) n" % (first, last))[0]
    with without_fsync(control):
        control.ask("SELECT count(le_resign('pooled ' || n, %d + n))"
                    " FROM generate_series(0, %d) n" % (first, last))
    load.lost = (load.lost or 0) + load.elections - kept


def measure_pooler(options):
    elections = max(options.scaled(ELECTIONS) // CLIENTS, 1) * CLIENTS
    control = Connection(f"{QUIET} {MANY} -c client_min_messages=error")
    with Pooler(options.directory) as pooler:
        renew = Load(pooler, elections, RENEW)
        nothing = Load(pooler, elections, NOTHING)
        for _ in range(options.rounds or ROUNDS):
            nothing.run(0)
            renew_all(renew, control)
    control.close()

    table = Table("Pooler", "-10,000 elections, 20 server connections", "per second",
                  "server, of a core", "PgBouncer, of a core", "median", "p99", "expired")
    renew.print(table, "le_renew, each election every 5 s")
    nothing.print(table, "the same load of SELECT number, token")
