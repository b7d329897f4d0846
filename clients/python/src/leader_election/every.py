"""Jobs of a point in time: the due times, and the job around them."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from .errors import LeaderElectionError
from .options import Connect
from .psycopg import Link
from .run import in_task
from .term import AsyncTerm

#: An interval in seconds, or a function from the last due time to the next.
Schedule = float | Callable[[datetime], datetime | None]
#: Is called with a connection in a transaction, and the time that is due.
Task = Callable[[Any, datetime], Any]

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
STEPS = 10_000


def due(schedule: Schedule, last: datetime, now: datetime) -> tuple[datetime | None, datetime]:
    """Return the last time that is due after last, or None, and where to go on."""
    if not callable(schedule):
        length = timedelta(seconds=schedule)
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


def moment(epoch: str) -> datetime:
    """Return a time that the server gave in seconds since 1970."""
    return datetime.fromtimestamp(float(epoch), UTC)


def job_of(
    connect: Connect, schedule: Schedule, task: Task, beside: Callable[..., Any]
) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return a job that does the task once for each time that is due, until its term ends."""
    if not callable(schedule) and not schedule >= 1:
        raise ValueError("schedule must be an interval from 1 s, or a function")

    async def job(term: AsyncTerm) -> None:
        machine, name, link, last = term._machine, term.election, None, None
        le = machine.options.prefix
        recorded = f"SELECT extract(epoch FROM due) FROM {le}le_once_done WHERE name = $1::text"
        times = f"SELECT extract(epoch FROM clock_timestamp()), ({recorded})"
        once = f"SELECT {le}le_once($1::text, $2::timestamptz, $3::bigint)"
        try:
            while not term.cancelled:
                term.heartbeat()
                try:
                    async with asyncio.timeout(machine.limit):
                        link = link or await Link.open(connect, beside)
                        now, done = await link.ask(times, name)
                    last = last or moment(done or now)
                    time, then = due(schedule, last, moment(now))
                    if time:
                        await link.ask("BEGIN")
                        if (await link.ask(once, name, time.isoformat(), term.token))[0]:
                            await in_task(task, link.connection, time)
                        if await link.ask("COMMIT") != ["COMMIT"]:
                            raise LeaderElectionError("task", "its transaction was rolled back")
                    last = then
                except Exception as error:
                    machine.driver.put("note", "task", error)
                    if link:
                        await link.close()
                    link = None
                await asyncio.sleep(1)
        finally:
            if link:
                await link.close()

    return job
