"""A leader in session scope, without asyncio: psycopg 3, one connection kept aside for leadership.

Use it where the program can keep a connection of its own: straight to PostgreSQL, or through PgBouncer in session
mode. Never on a connection of a pool, nor through PgBouncer in transaction mode: see lease.py for those.
The connection is the leadership: it waits in le_campaign, and is watched while the program leads.  A job that hangs gives
no heartbeat, and loses the leadership to the next program.

    DATABASE_URL=postgres://me@127.0.0.1:5432/app python3 campaign.py ELECTION IDENTITY
"""
import os
import select
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

ELECTION, IDENTITY = sys.argv[1:3]
HEARTBEAT = "5 s"  # longer than a step of the job takes, and than it takes to notice that no answer comes

# autocommit: le_campaign waits without a snapshot only outside a transaction block.
# The rest finds out in 5 s that the server's host is gone, before the server gives us up (dead_peer_timeout, 15 s).
CONNECTION = dict(
    autocommit=True, connect_timeout=5,
    keepalives_idle=1, keepalives_interval=1, keepalives_count=5, tcp_user_timeout=5000,
)


def say(event, text):
    print(f"{time.time():.3f} {IDENTITY} {event} {' '.join(str(text).split())}\n", end="", flush=True)


def do_the_job(token, stop: threading.Event, progress: threading.Event):
    while not stop.wait(0.1):
        progress.set()  # work in small steps here; pass the token along with what you write elsewhere


def lead(conn: psycopg.Connection, jobs: ThreadPoolExecutor):
    """Wait to be elected, then do the job for as long as we lead."""
    campaign = "CALL le_campaign(%s, identity => %s, heartbeat => %s)"
    (token,) = conn.execute(campaign, (ELECTION, IDENTITY, HEARTBEAT)).fetchone()
    stop, progress, job = threading.Event(), threading.Event(), None
    try:
        say("elected", token)
        job = jobs.submit(do_the_job, token, stop, progress)
        while not job.done():
            if not still_leads(conn, progress):
                raise psycopg.OperationalError("this session does not lead any more")
            select.select([conn], [], [], 1)  # a lost connection becomes readable at once
    finally:  # lost it, SIGTERM, or the job is done
        stop.set()
        if job and job.exception():  # waits for the job to end
            say("error", job.exception())
        if not conn.broken:
            resign(conn)
        say("ousted", token)


def still_leads(conn: psycopg.Connection, progress: threading.Event):
    """Give a heartbeat if the job has made progress since the last one, else only ask.

    Break the connection if no answer comes, as when a proxy hangs: then execute raises OperationalError.
    """
    question = "SELECT le_am_leader(%s)"
    if progress.is_set():
        progress.clear()
        question = "SELECT le_heartbeat(%s)"
    watchdog = threading.Timer(2, hang_up, [conn.fileno()])
    watchdog.start()
    try:
        return conn.execute(question, (ELECTION,)).fetchone()[0]
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
    raise KeyboardInterrupt  # for which psycopg cancels the statement that runs, such as le_campaign


def main():
    with ThreadPoolExecutor(max_workers=1) as jobs:
        while True:
            try:
                with psycopg.connect(os.environ["DATABASE_URL"], **CONNECTION) as conn:
                    while True:
                        lead(conn, jobs)
                        time.sleep(0.5)  # the job was done, or has failed: let others have a turn
            except psycopg.Error as error:
                say("error", error)
            time.sleep(0.5)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        main()
    except KeyboardInterrupt:
        pass
