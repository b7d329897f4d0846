"""Jobs of a point in time, made of the public parts of a term."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from psycopg.pq import TransactionStatus as Status
from psycopg.rows import tuple_row

from ._errors import LeaderElectionError
from ._options import Connect, Length, seconds
from ._term import AsyncTerm, Term, finished, literal, settled

#: An interval, or a function from the last due time to the next, or None.
Schedule = Length | Callable[[datetime], datetime | None]
#: Is called with a connection in a transaction, and the time that is due.
Task = Callable[[Any, datetime], object]
#: Of either flavour.
Job = Callable[[Any], Any]

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
STEPS = 10_000
XID = "pg_catalog.txid_current()"
ENDED = "its transaction was rolled back, or the task has ended it"


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
            first, other = (shown.replace(tzinfo=zone, fold=f).astimezone(UTC) for f in (0, 1))
            if first > other:  # left out: the change is between them, at a full minute
                first = other.replace(second=0, microsecond=0)
                while first.astimezone(zone).replace(tzinfo=UTC) < shown:
                    first += timedelta(minutes=1)
            if first > last:
                return first
        return None

    return following


@asynccontextmanager
async def entered(context: Any) -> AsyncGenerator[Any, None]:
    """Enter a context of either flavour."""
    async with AsyncExitStack() as stack:
        if hasattr(context, "__aenter__"):
            yield await stack.enter_async_context(context)
        else:
            yield stack.enter_context(context)


async def ask(connection: Any, sql: str) -> Any:
    """Ask a statement of one row on a connection of either flavour."""
    cursor = await settled(connection.cursor(row_factory=tuple_row).execute(sql))
    return await settled(cursor.fetchone())


async def work(connect: Connect, schedule: Schedule, task: Task, term: Any) -> None:
    """Do a task once for each time that is due, until the term ends.

    With threads, nothing has to be awaited, so that no event loop is needed.
    """
    pause, last = getattr(term, "wait", asyncio.sleep), None
    le, name = term._machine.options.prefix, literal(term.election)
    times = f"""SELECT extract(epoch FROM clock_timestamp()),
        (SELECT extract(epoch FROM due) FROM {le}le_once_done WHERE name = {name})"""
    while not term.cancelled:
        try:
            async with entered(await settled(connect())) as connection:
                connection.prepare_threshold = None
                if connection.info.transaction_status != Status.IDLE:
                    raise LeaderElectionError("task", "connect has begun a transaction")
                while not term.cancelled:
                    term.heartbeat()
                    async with entered(connection.transaction()):
                        row = await ask(connection, times)
                    now, done = (e and datetime.fromtimestamp(max(float(e), 0), UTC) for e in row)
                    last = last or done or now
                    time, then = due(schedule, last, now)
                    if time:
                        async with entered(connection.transaction()):
                            first, *begun = await ask(connection, f"{term.once_sql(time)}, {XID}")
                            if first:
                                await settled(task(connection, time))
                                # it can have ended the transaction, and begun another
                                open_still = connection.info.transaction_status == Status.INTRANS
                                same = open_still and await ask(connection, f"SELECT {XID}")
                                if not same or [*same] != begun:
                                    raise LeaderElectionError("task", ENDED)
                    last = then
                    await settled(pause(1))
        except Exception as error:
            term.report(error)
            await settled(pause(1))


def every(connect: Connect, schedule: Schedule, task: Task, *, zone: tzinfo | None = None) -> Job:
    """Return a job, of either flavour, that does a task once for each time that is due.

    Of several times that were missed, only the last one is done.

    connect -- a function that opens a connection of psycopg, in which the task is done
    schedule -- an interval, in seconds or as a ``timedelta``, from 1 s, whose multiples since
        2000-01-01 00:00 UTC are due; or a function from the last due time, in UTC, to the next
        one, with a time zone, or None
    task -- is called with the connection, in a transaction, and the due time, and does not commit
    zone -- a function as the schedule is given, and returns, what clocks show in this zone, as if
        it were UTC (default None: times in UTC)

    Raises ``ValueError`` if the interval is below 1 s, or given with a zone.
    """
    if callable(schedule):
        schedule = in_zone(schedule, zone) if zone else schedule
    elif zone or not seconds(schedule) >= 1:
        raise ValueError("schedule must be an interval from 1 s, without zone, or a function")

    def job(term: Term | AsyncTerm) -> Any:
        working = work(connect, schedule, task, term)
        return finished(working) if isinstance(term, Term) else working

    return job
