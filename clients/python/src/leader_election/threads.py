"""Leader election with threads: psycopg's ``Connection``."""

import asyncio
import queue
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from .every import Schedule, Task, job_of
from .follow import Leader
from .options import Connect
from .run import FollowRun, Run, block, in_thread, start
from .term import Term


class Elector(Run):
    """Campaigns for an election, and runs a job while it leads."""

    beside = staticmethod(in_thread)
    new_term = Term

    def run(self, job: Callable[[Term], Any]) -> None:
        """Campaign, and run the job in each term, in a thread of its own.

        Returns after ``stop``. Ctrl-C stops it as well, and again, at once. Can be called once.
        Raises ``PermanentError``.
        """
        block(self.drive(job))

    def try_run(self, job: Callable[[Term], Any], wait: float = 0) -> bool:
        """Run the job once, if elected within some seconds. Returns whether it ran.

        Raises what the job raises, ``LostError`` if leadership was lost before the job had ended,
        and the last error if the last attempt failed. Can be called once, instead of ``run``.
        """
        ran: bool = block(self.try_job(job, wait))
        return ran


class Follower(FollowRun):
    """Gives the present leader, or None, and then each change, until ``stop``."""

    beside = staticmethod(in_thread)

    def __iter__(self) -> Iterator[Leader | None]:
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._put = told.put
        driving = start(block, self.drive())
        driving.add_done_callback(told.put)
        try:
            yield from iter(told.get, driving)
            driving.result()
        finally:
            self.stop()


def leader(connect: Connect, election: str, *, schema: str | None = None) -> Leader | None:
    """Return the present leader, or None."""
    found: Leader | None = block(Follower(connect, election, schema=schema).now())
    return found


def every(connect: Connect, schedule: Schedule, task: Task) -> Callable[[Term], None]:
    """Return a job that does a task once for each time that is due."""
    job = job_of(connect, schedule, task, in_thread)

    async def until_told(term: Term) -> None:
        doing, told = asyncio.ensure_future(job(term)), asyncio.wrap_future(start(term.wait))
        await asyncio.wait([doing, told], return_when=asyncio.FIRST_COMPLETED)
        doing.cancel()
        with suppress(asyncio.CancelledError):
            await doing

    return lambda term: block(until_told(term))


follow = Follower
