"""A leader by a lease: psycopg 3, no connection of its own needed.

Use it behind PgBouncer in transaction mode or any pool, or to lead on when a connection or the server restarts.
The job runs in a thread of its own and looks at the clock, so that it stops in time even while a renewal hangs.

    DATABASE_URL=postgres://me@127.0.0.1:6432/app python3 lease.py ELECTION IDENTITY
"""
import os
import signal
import sys
import threading
import time

import psycopg

ELECTION, IDENTITY = sys.argv[1:3]
TTL = 3.0  # seconds: as long as the job may stand still when a program dies

# prepare_threshold=None: after five executions psycopg prepares a statement in the server, and PgBouncer in
# transaction mode hands out another server connection, which has not prepared it (before PgBouncer 1.21).
CONNECTION = dict(
    autocommit=True, prepare_threshold=None, connect_timeout=2,
    keepalives_idle=1, keepalives_interval=1, keepalives_count=2, tcp_user_timeout=2000,
)


def say(event, text):
    print(f"{time.time():.3f} {IDENTITY} {event} {' '.join(str(text).split())}\n", end="", flush=True)


class Term:
    """What we know of our leadership. It counts from before we asked, and ends early: see 'Leading by a lease'."""

    token = None
    leads_until = 0.0  # time.monotonic()
    job = None

    def left(self):
        return self.leads_until - time.monotonic()

    def renewed(self, token, asked):
        if token != self.token:
            self.end()
        self.token, self.leads_until = token, asked + TTL * 2 / 3
        if self.left() > 0 and not (self.job and self.job.is_alive()):
            self.job = threading.Thread(target=self.run)
            self.job.start()

    def run(self):
        token = self.token
        say("elected", token)
        try:
            do_the_job(token, self)
        except Exception as error:
            say("error", error)
        say("ousted", token)

    def end(self):
        self.leads_until = 0.0
        if self.job:
            self.job.join()


def do_the_job(token, term: Term):
    while (left := term.left()) > 0:
        time.sleep(min(left, 0.1))  # work in small steps here; pass the token along with what you write elsewhere


def ask(conn: psycopg.Connection, term: Term):
    """Be or stay leader; return when it is time to ask again: every ttl / 3, however long the answer took."""
    asked = time.monotonic()
    (token,) = conn.execute(
        "SELECT le_lease(%s, %s, %s, %s)", (ELECTION, f"{TTL} s", IDENTITY, term.token)
    ).fetchone()
    if token is None:  # somebody else leads
        term.end()
        term.token = None
    else:
        term.renewed(token, asked)
    time.sleep(max(0, asked + TTL / 3 - time.monotonic()))


def keep_asking(term: Term):
    while True:
        try:
            with psycopg.connect(os.environ["DATABASE_URL"], **CONNECTION) as conn:
                while True:
                    ask(conn, term)
        except psycopg.Error as error:  # keep the token, and ask again soon: the lease may well run
            say("error", error)
        time.sleep(0.3)


def resign(term: Term):
    try:
        with psycopg.connect(os.environ["DATABASE_URL"], **CONNECTION) as conn:
            conn.execute("SELECT le_resign(%s, %s)", (ELECTION, term.token))
    except psycopg.Error as error:  # then it runs out
        say("error", error)


def on_sigterm(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt  # for which psycopg cancels the statement that runs


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    my_term = Term()
    try:
        keep_asking(my_term)
    except KeyboardInterrupt:
        my_term.end()
        if my_term.token is not None:
            resign(my_term)
