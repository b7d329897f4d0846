"""The new copy of a fleet that moves over from advisory locks: le_try_become_leader by the same key.

How to move a running fleet over, one copy at a time, with never two leaders and no pause:
1. CREATE EXTENSION leader_election in the database of the locks (a key is a lock in one database).
2. Replace one copy at a time (old.py) by this one, in any order; the one that leads last, if you like. An election by
   bare key is PostgreSQL's own lock of that number, so that old and new copies exclude each other, in session and in
   transaction scope, one bigint (not the form with two integers). A copy that holds pg_try_advisory_lock in a pool, or
   behind PgBouncer in transaction mode, is broken already: give it a connection of its own first.
3. Watch: SELECT key, scope, identity, token, pid, application_name FROM le_leaders. An old leader is there, too, once
   a new copy has asked for the key; its scope, identity and token are NULL.
4. With the last old copy gone there is always a token. Only now rely on it (fencing), and on le_resign: it ends all
   at once, however often was asked. Do not mix pg_advisory_unlock(2929) into the new code.
To go on to a name, or to leases, which plain locks know nothing of, stop all copies by key before the first by name.

    DATABASE_URL=postgres://me@127.0.0.1:5432/app python3 new.py 2929 IDENTITY
"""
import os
import select
import signal
import sys
import threading
import time

import psycopg

KEY, IDENTITY = int(sys.argv[1]), sys.argv[2]  # an int, so that psycopg sends a number: text would be a name, and is refused
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
        "SELECT CASE WHEN le_try_become_leader(%s, identity => %s) THEN le_token(%s) END", (KEY, IDENTITY, KEY)
    ).fetchone()[0]


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
            conn.execute("SELECT le_resign(%s)", (KEY,))
        say("ousted", token)


def main():
    while True:
        try:
            with psycopg.connect(os.environ["DATABASE_URL"], **CONNECTION) as conn:
                while True:
                    if token := ask(conn):
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
