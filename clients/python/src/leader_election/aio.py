"""Leader election with asyncio: psycopg's ``AsyncConnection``."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from ._errors import tried
from ._every import Schedule, Task, every
from ._follow import FollowMachine, Leader
from ._options import Connect, Length, Options, seconds
from ._run import BaseElector, BaseFollower, Driver
from ._term import AsyncTerm

Job = Callable[[AsyncTerm], Awaitable[object]]


class AsyncElector(BaseElector[AsyncTerm]):
    """Campaigns for an election, and runs a job while it leads."""

    async def run(self, job: Job) -> None:
        """Campaign, and run the job in each term, in a task that is cancelled at its end.

        Returns after ``stop``. If it is cancelled, it stops as well, and at once if it is cancelled
        again.

        Raises ``PermanentError`` if something must be configured differently, ``TypeError`` if the
        job is a generator function, and ``RuntimeError`` if called again.
        """
        tried(await self._driver.drive(job, "run"))

    async def try_run(self, job: Job, wait: Length = 0) -> bool:
        """Run the job once, if elected within a time. Returns whether it ran.

        Waits until elected, for that time, for the end of the job, and for the resignation.

        Raises what the job raises, ``LostError`` if leadership was lost before the job had ended,
        the last error if the last attempt failed, and ``CancelledError`` if a stop has cancelled
        the job. An ``asyncio.TaskGroup`` takes this for its own cancellation, so a task of one must
        catch it. Can be called once, instead of ``run``, and raises ``TypeError`` and
        ``RuntimeError`` as that does.
        """
        ran = tried(await self._driver.drive(job, "try", seconds(wait)))
        if self._driver.cut:
            raise asyncio.CancelledError
        return ran


class AsyncFollower(BaseFollower):
    """Gives the present leader, or None, and then each change, until ``stop``."""

    async def __aiter__(self) -> AsyncGenerator[Leader | None, None]:
        """Return an asynchronous iterator, which waits for each change.

        It raises ``PermanentError``, and ``RuntimeError`` if it is the second one.
        """
        told: asyncio.Queue[Any] = asyncio.Queue()
        driving = asyncio.ensure_future(self._driver.drive(told.put_nowait, "run"))
        driving.add_done_callback(told.put_nowait)
        try:
            while (leader := await told.get()) is not driving:
                yield leader
        finally:
            self.stop()
            tried(await driving)


async def leader(connect: Connect, election: str, *, schema: str | None = None) -> Leader | None:
    """Return the present leader, or None. Opens a connection for this, and closes it.

    Raises ``LeaderElectionError``, at the latest after 5 s without an answer. It is a
    ``PermanentError`` if something must be configured differently.
    """
    return await Driver(FollowMachine(Options(connect, election, schema=schema))).now()


follow = AsyncFollower
__all__ = ["AsyncElector", "AsyncFollower", "AsyncTerm", "every", "follow", "leader"]
__all__ += ["Connect", "Leader", "Length", "Schedule", "Task"]
