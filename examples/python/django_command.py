"""A Django command of which one copy works at a time: DATABASE_URL=... python3 django_command.py

In a project, the class Command belongs into APP/management/commands/work.py.
"""
import os
import signal
from typing import Any

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection, transaction
from leader_election import Elector, Term


def connect() -> psycopg.Connection:
    return connection.get_new_connection(connection.get_connection_params())


class Command(BaseCommand):
    help = "Work while this process leads."

    def handle(self, *args: Any, **options: Any) -> None:
        elector = Elector(connect, "scheduler")
        signal.signal(signal.SIGTERM, lambda *_: elector.stop())
        elector.run(self.work)

    def work(self, term: Term) -> None:
        try:
            while not term.wait(1):
                with transaction.atomic(), connection.cursor() as cursor:
                    term.guard(cursor)
                    cursor.execute("INSERT INTO work_done (token) VALUES (%s)", [term.token])
        finally:
            connection.close()  # of this thread


if __name__ == "__main__":
    info = psycopg.conninfo.conninfo_to_dict(os.environ["DATABASE_URL"])
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": info.pop("dbname")}
    database |= {name.upper(): value for name, value in info.items()}
    settings.configure(DATABASES={"default": database})
    call_command(Command())
