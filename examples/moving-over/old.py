"""The old copy of a fleet that moves over to leader_election: pg_try_advisory_lock on a connection of its own.

This is how such a program looks today, and it is correct; new.py tells how to move over. ELECTION is the key, a bigint.

    DATABASE_URL=postgres://me@127.0.0.1:5432/app python3 old.py 2929 IDENTITY
"""
import os
import select
import signal
import sys
import threading
import time

import psycopg

KEY, IDENTITY = int(sys.argv[1]), sys.argv[2]
CONNECTION = dict(
    autocommit=True, connect_timeout=5, application_name=IDENTITY,
    keepalives_idle=1, keepalives_interval=1, keepalives_count=5, tcp_user_timeout=5000,
)


def say(event, text):
    print(f"{time.time():.3f} {IDENTITY} {event} {' '.join(str(text).split())}\n", end="", flush=True)


def do_the_job(stop: threading.Event):
    while not stop.wait(0.1):
        pass


def lead(conn: psycopg.Connection):
    stop = threading.Event()
    job = threading.Thread(target=do_the_job, args=(stop,))
    try:
        say("elected", 0)  # there is no token
        job.start()
        while True:
            conn.execute("SELECT 1")  # not the lock again: it would stack, and one unlock would not release it
            select.select([conn], [], [], 1)  # a lost connection becomes readable at once
    finally:
        stop.set()
        job.join()
        if not conn.broken:
            conn.execute("SELECT pg_advisory_unlock(%s)", (KEY,))
        say("ousted", 0)


def main():
    while True:
        try:
            with psycopg.connect(os.environ["DATABASE_URL"], **CONNECTION) as conn:
                while True:
                    if conn.execute("SELECT pg_try_advisory_lock(%s)", (KEY,)).fetchone() == (True,):
                        lead(conn)
                    time.sleep(1)
        except psycopg.Error as error:
            say("error", error)
        time.sleep(0.5)


def on_sigterm(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        main()
    except KeyboardInterrupt:
        pass
