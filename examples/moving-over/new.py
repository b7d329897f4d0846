"""The new copy of a fleet that moves over from advisory locks: it leads with the old lock and the election.

How to move a running fleet over, one copy at a time, with never two leaders:
1. CREATE EXTENSION leader_election in the database of the locks (a key is a lock in one database).
2. Replace one copy at a time (old.py) by this one, in any order. It acquires the old lock first, and only then leads
   the election: the other order can deadlock with this one. A copy that holds pg_try_advisory_lock in a pool, or
   behind PgBouncer in transaction mode, is broken already: give it a connection of its own first.
3. When the last old copy is gone, replace this one by one that leads the election alone.

    DATABASE_URL=postgres://me@127.0.0.1:5432/app python3 new.py 2929 IDENTITY
"""
import os
import select
import signal
import sys
import threading
import time

import psycopg

KEY, NAME, IDENTITY = int(sys.argv[1]), sys.argv[1], sys.argv[2]  # any name will do
CONNECTION = dict(
    autocommit=True, connect_timeout=5, application_name=IDENTITY,
    keepalives_idle=1, keepalives_interval=1, keepalives_count=5, tcp_user_timeout=5000,
)


def say(event, text):
    print(f"{time.time():.3f} {IDENTITY} {event} {' '.join(str(text).split())}\n", end="", flush=True)


def do_the_job(token, stop: threading.Event):
    while not stop.wait(0.1):
        pass


def ask(conn: psycopg.Connection):
    """The token while this session leads, else None. Elects, confirms and takes over, and does not stack."""
    return conn.execute(
        "SELECT CASE WHEN le_try_become_leader(%s, identity => %s) THEN le_token(%s) END", (NAME, IDENTITY, NAME)
    ).fetchone()[0]


def unlock(conn: psycopg.Connection):
    conn.execute("SELECT pg_advisory_unlock(%s)", (KEY,))


def bid(conn: psycopg.Connection):
    """The token if this session holds both, the lock first. If it does not, it holds neither."""
    if conn.execute("SELECT pg_try_advisory_lock(%s)", (KEY,)).fetchone() != (True,):
        return None
    token = ask(conn)
    if token is None:
        unlock(conn)
    return token


def lead(conn: psycopg.Connection, token):
    stop = threading.Event()
    job = threading.Thread(target=do_the_job, args=(token, stop))
    try:
        say("elected", token)
        job.start()
        while ask(conn) == token:
            select.select([conn], [], [], 1)  # a lost connection becomes readable at once
    finally:
        stop.set()
        job.join()
        if not conn.broken:
            conn.execute("SELECT le_resign(%s)", (NAME,))
            unlock(conn)
        say("ousted", token)


def main():
    while True:
        try:
            with psycopg.connect(os.environ["DATABASE_URL"], **CONNECTION) as conn:
                while True:
                    if token := bid(conn):
                        lead(conn, token)
                    time.sleep(1)
        except psycopg.Error as error:
            say("error", error)
        time.sleep(0.5)


def on_sigterm(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt  # for which psycopg cancels the statement that runs


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        main()
    except KeyboardInterrupt:
        pass
