"""A worker whose writes are fenced: DATABASE_URL=postgres://... python3 main.py"""
import os
import signal

import psycopg
from leader_election import Elector, Term


def connect() -> psycopg.Connection:
    return psycopg.connect(os.environ["DATABASE_URL"], connect_timeout=5)


def job(term: Term) -> None:
    with connect() as connection:  # of the job's own, or one of your pool
        while not term.wait(1):
            with connection.transaction():
                term.guard(connection)
                connection.execute("INSERT INTO work_done (token) VALUES (%s)", (term.token,))


elector = Elector(connect, "scheduler")
signal.signal(signal.SIGTERM, lambda *_: elector.stop())
elector.run(job)
