"""APScheduler's jobs, of one copy of the program only: DATABASE_URL=... python3 apscheduler_jobs.py"""
import os
import signal

import psycopg
from apscheduler.schedulers.background import BackgroundScheduler
from leader_election import Elector, Term


def connect() -> psycopg.Connection:
    return psycopg.connect(os.environ["DATABASE_URL"], connect_timeout=5)


def report(term: Term) -> None:
    with connect() as connection:
        term.guard(connection)  # does not commit if the term is over by then
        connection.execute("INSERT INTO work_done (token) VALUES (%s)", (term.token,))


def job(term: Term) -> None:
    scheduler = BackgroundScheduler()
    scheduler.add_job(report, "interval", seconds=1, args=[term])  # or "cron", hour=2, minute=30
    scheduler.start()
    term.wait()
    scheduler.shutdown()  # waits for those that run


elector = Elector(connect, "scheduler")
signal.signal(signal.SIGTERM, lambda *_: elector.stop())
elector.run(job)
