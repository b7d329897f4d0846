"""A program of which one copy works at a time: DATABASE_URL=postgres://... python3 main.py"""
import os
import signal

import psycopg
from leader_election import Elector, Term


def job(term: Term) -> None:
    while not term.wait(1):
        print(f"leading, token {term.token}", flush=True)  # the step of the job


elector = Elector(lambda: psycopg.connect(os.environ["DATABASE_URL"]), "scheduler")
signal.signal(signal.SIGTERM, lambda *_: elector.stop())
elector.run(job)
