"""Leader election with asyncio: psycopg's ``AsyncConnection``."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from .every import Schedule, Task, job_of
from .follow import Leader
from .options import Connect
from .run import FollowRun, Run, in_task
from .term import AsyncTerm


class AsyncElector(Run):
    """Campaigns for an election, and runs a job while it leads."""

    async def run(self, job: Callable[[AsyncTerm], Awaitable[Any]]) -> None:
        """Campaign, and run the job in each term, in a task that is cancelled at its end.

        Returns after ``stop``. If it is cancelled, it stops as well, and at once if it is cancelled
        again. Can be called once.
        Raises ``PermanentError``.
        """
        await self.drive(job)

    async def try_run(self, job: Callable[[AsyncTerm], Awaitable[Any]], wait: float = 0) -> bool:
        """Run the job once, if elected within some seconds. Returns whether it ran.

        Raises what the job raises, ``LostError`` if leadership was lost before the job had ended,
        and the last error if the last attempt failed. Can be called once, instead of ``run``.
        """
        return await self.try_job(job, wait)


class AsyncFollower(FollowRun):
    """Gives the present leader, or None, and then each change, until ``stop``."""

    async def __aiter__(self) -> AsyncGenerator[Leader | None, None]:
        told: asyncio.Queue[Any] = asyncio.Queue()
        self._put = told.put_nowait
        driving = asyncio.ensure_future(self.drive())
        driving.add_done_callback(told.put_nowait)
        try:
            while (leader := await told.get()) is not driving:
                yield leader
        finally:
            self.stop()
            await driving


async def leader(connect: Connect, election: str, *, schema: str | None = None) -> Leader | None:
    """Return the present leader, or None."""
    return await AsyncFollower(connect, election, schema=schema).now()


def every(connect: Connect, schedule: Schedule, task: Task) -> Callable[[AsyncTerm], Any]:
    """Return a job that does a task once for each time that is due."""
    return job_of(connect, schedule, task, in_task)


follow = AsyncFollower
