"""Jobs of a point in time, made of the public parts of a term."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .errors import LeaderElectionError
from .options import Connect, Length, seconds
from .term import AsyncTerm, BaseTerm, Term

#: An interval, or a function from the last due time to the next, or None.
Schedule = Length | Callable[[datetime], datetime | None]

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
STEPS = 10_000


def due(schedule: Schedule, last: datetime, now: datetime) -> tuple[datetime | None, datetime]:
    """Return the last time that is due after last, or None, and where to go on."""
    if not callable(schedule):
        length = timedelta(seconds=seconds(schedule))
        latest = EPOCH + (now - EPOCH) // length * length
        return (latest, latest) if latest > last else (None, last)
    for count in range(STEPS + 1):
        following = schedule(last)
        if following is None or following > now:
            return last if count else None, last
        following = following.astimezone(UTC)  # to compare times, not what clocks show
        if following <= last:
            raise ValueError("a schedule must return a later time")
        if count < STEPS:
            last = following
    return None, last


def in_zone(schedule: Callable[[datetime], datetime | None], zone: tzinfo) -> Schedule:
    """Return a schedule that asks another one for what clocks show in a zone, as if it were UTC.

    A time that clocks leave out is due when they are put forward, and one that they show twice,
    the first time.
    """

    def following(last: datetime) -> datetime | None:
        shown = last.astimezone(zone).replace(tzinfo=UTC, fold=0)
        while found := schedule(shown):
            if found <= shown:
                raise ValueError("a schedule must return a later time")
            shown = found.astimezone(UTC)
            early, late = (shown.replace(tzinfo=zone, fold=f).astimezone(UTC) for f in (1, 0))
            if late > early:  # left out: the change is between them
                while late - early > timedelta(seconds=1):
                    middle = early + (late - early) / 2
                    before = middle.astimezone(zone).replace(tzinfo=UTC) < shown
                    early, late = (middle, late) if before else (early, middle)
                late = late.replace(microsecond=0)
            if late > last:
                return late
        return None

    return following


class Times:
    """The due times of a job, as the server tells them."""

    def __init__(self, schedule: Schedule, zone: tzinfo | None, term: BaseTerm) -> None:
        self.schedule = in_zone(schedule, zone) if zone and callable(schedule) else schedule
        self.last: datetime | None = None
        le = term._machine.options.prefix.replace("%", "%%")
        recorded = f"SELECT extract(epoch FROM due) FROM {le}le_once_done WHERE name = %s::text"
        self.sql = f"SELECT extract(epoch FROM clock_timestamp()), ({recorded})", (term.election,)

    def due(self, row: Any) -> tuple[datetime | None, datetime]:
        """Return the time that is due, or None, and where to go on."""
        now, done = (epoch and datetime.fromtimestamp(float(epoch), UTC) for epoch in row)
        self.last = self.last or done or now
        return due(self.schedule, self.last, now)


def check(schedule: Schedule, zone: tzinfo | None) -> None:
    """Check the arguments of ``every``."""
    if not callable(schedule) and (zone or not seconds(schedule) >= 1):
        raise ValueError("schedule must be an interval from 1 s, without zone, or a function")


def check_transaction(connection: Any) -> None:
    """Raise an error if the server will not commit, after an error that the task has caught."""
    if connection.info.transaction_status == TransactionStatus.INERROR:
        raise LeaderElectionError("task", "its transaction was rolled back")


def every(
    connect: Connect,
    schedule: Schedule,
    task: Callable[[Any, datetime], object],
    *,
    zone: tzinfo | None = None,
) -> Callable[[Term], None]:
    """Return a job that does a task once for each time that is due."""
    check(schedule, zone)

    def job(term: Term) -> None:
        times = Times(schedule, zone, term)

        def work(connection: Any) -> None:
            with connection.transaction():
                row = connection.cursor(row_factory=tuple_row).execute(*times.sql).fetchone()
            time, then = times.due(row)
            if time:
                with connection.transaction():
                    if term.once(connection, time):
                        task(connection, time)
                    check_transaction(connection)
            times.last = then

        while not term.cancelled:
            term.heartbeat()
            try:
                with connect() as connection:
                    connection.prepare_threshold = None
                    while not term.cancelled:
                        term.heartbeat()
                        work(connection)
                        term.wait(1)
            except Exception as error:
                term.report(error)
                term.wait(1)

    return job


def async_every(
    connect: Connect,
    schedule: Schedule,
    task: Callable[[Any, datetime], Awaitable[object] | None],
    *,
    zone: tzinfo | None = None,
) -> Callable[[AsyncTerm], Awaitable[None]]:
    """Return a job that does a task once for each time that is due."""
    check(schedule, zone)

    async def job(term: AsyncTerm) -> None:
        times = Times(schedule, zone, term)

        async def work(connection: Any) -> None:
            async with connection.transaction():
                cursor = await connection.cursor(row_factory=tuple_row).execute(*times.sql)
                row = await cursor.fetchone()
            time, then = times.due(row)
            if time:
                async with connection.transaction():
                    if await term.once(connection, time):
                        done = task(connection, time)
                        await done if inspect.isawaitable(done) else done
                    check_transaction(connection)
            times.last = then

        while True:
            term.heartbeat()
            try:
                made = connect()
                async with await made if inspect.isawaitable(made) else made as connection:
                    connection.prepare_threshold = None
                    while True:
                        term.heartbeat()
                        await work(connection)
                        await asyncio.sleep(1)
            except Exception as error:
                term.report(error)
                await asyncio.sleep(1)

    return job
