"""The new copy of such a fleet with the client library: it leads by name, and its job holds the old lock as well.

The order is the other one than that of new.py, so do not mix the two. When the last old copy is gone, replace hold_the_old_lock.

    DATABASE_URL=postgres://me@127.0.0.1:5432/app python3 library.py 2929 IDENTITY
"""
import os
import select
import signal
import sys
import time

import psycopg

from leader_election import Elector, Term

KEY, NAME, IDENTITY = int(sys.argv[1]), sys.argv[1], sys.argv[2]  # any name will do


def say(event, text):
    print(f"{time.time():.3f} {IDENTITY} {event} {' '.join(str(text).split())}\n", end="", flush=True)


def connect():
    return psycopg.connect(os.environ["DATABASE_URL"], connect_timeout=5)


def hold_the_old_lock(job):
    def with_lock(term: Term):
        with connect() as conn:
            conn.autocommit = True
            while conn.execute("SELECT pg_try_advisory_lock(%s)", (KEY,)).fetchone() != (True,):
                if term.wait(1):
                    return
            job(term, lambda: not select.select([conn], [], [], 0)[0])  # a lost connection becomes readable

    return with_lock


def do_the_job(term: Term, is_locked):
    say("elected", term.token)
    try:
        while term.is_leading() and is_locked() and not term.wait(0.1):
            pass
    finally:
        say("ousted", term.token)


if __name__ == "__main__":
    elector = Elector(connect, NAME, identity=IDENTITY, on_error=lambda error: say("error", error))
    signal.signal(signal.SIGTERM, lambda *_: elector.stop())
    elector.run(hold_the_old_lock(do_the_job))
