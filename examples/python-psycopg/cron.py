"""A job of each minute, done once by whichever copy leads; psycopg 3, one connection kept aside, as in campaign.py.

Each run is one transaction: le_once tells whether the job of that minute is still to be done, and what the job writes
is committed together with that, or not at all. A copy that is elected late does at most the last one that was missed.

    DATABASE_URL=postgres://me@127.0.0.1:5432/app python3 cron.py ELECTION IDENTITY       (INTERVAL=60: in seconds)
"""
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time

import psycopg

ELECTION, IDENTITY = sys.argv[1:3]
INTERVAL = f"{os.environ.get('INTERVAL', 60)} s"
LONGEST_JOB = 10  # seconds

# autocommit: le_campaign waits without a snapshot only outside a transaction block.
CONNECTION = dict(
    autocommit=True, connect_timeout=5,
    keepalives_idle=1, keepalives_interval=1, keepalives_count=5, tcp_user_timeout=5000,
)


def say(event, text):
    print(f"{time.time():.3f} {IDENTITY} {event} {' '.join(str(text).split())}\n", end="", flush=True)


def do_the_job(conn: psycopg.Connection, due):
    """Write on this connection, and do not commit. Pass the due time along with what leaves the database."""


def run(conn: psycopg.Connection, due):
    with at_most(LONGEST_JOB, conn), conn.transaction():
        (first,) = conn.execute("SELECT le_once(%s, %s)", (ELECTION, due)).fetchone()
        if first:
            do_the_job(conn, due)
    if first:
        say("done", due.isoformat())


def lead(conn: psycopg.Connection):
    """Wait to be elected, then do each job when it is due, for as long as we lead."""
    (token,) = conn.execute("CALL le_campaign(%s, identity => %s)", (ELECTION, IDENTITY)).fetchone()
    seen = None
    try:
        say("elected", token)
        while True:
            leads, due = ask(conn)
            if not leads:
                raise psycopg.OperationalError("this session does not lead any more")
            if due != seen:
                run(conn, due)
                seen = due
            select.select([conn], [], [], 1)  # a lost connection becomes readable at once
    finally:  # lost it, or SIGTERM
        if not conn.broken:
            resign(conn)
        say("ousted", token)


def ask(conn: psycopg.Connection):
    """Do we lead, and which job was due last? By the server's clock, which is the same for all copies."""
    with at_most(5, conn):
        return conn.execute(
            "SELECT le_am_leader(%s, identity => %s), date_bin(%s, clock_timestamp(), '2000-01-01 00:00+0')",
            (ELECTION, IDENTITY, INTERVAL)
        ).fetchone()


@contextlib.contextmanager
def at_most(seconds, conn: psycopg.Connection):
    """Break the connection if this takes longer, as when a proxy hangs: then execute raises OperationalError."""
    watchdog = threading.Timer(seconds, hang_up, [conn.fileno()])
    watchdog.daemon = True  # SIGTERM may come just before the next line but one
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def hang_up(fileno):
    with socket.socket(fileno=os.dup(fileno)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def resign(conn: psycopg.Connection):
    try:
        conn.execute("SELECT le_resign(%s, identity => %s)", (ELECTION, IDENTITY))
    except psycopg.Error as error:  # the connection is about to be closed, which ends the term as well
        say("error", error)


def on_sigterm(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt  # for which psycopg cancels the statement that runs, and the transaction rolls back


def main():
    while True:
        try:
            with psycopg.connect(os.environ["DATABASE_URL"], **CONNECTION) as conn:
                lead(conn)
        except psycopg.Error as error:
            say("error", error)
        time.sleep(0.5)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        main()
    except KeyboardInterrupt:
        pass
