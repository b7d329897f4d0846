"""Leader election with asyncio: psycopg's ``AsyncConnection``."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _core
from ._core import Duration, Leader, Link, Reason, State, Term

if TYPE_CHECKING:
    from psycopg import AsyncConnection

__all__ = ["AsyncElector", "Connect", "Term", "every", "follow", "leader"]

T = TypeVar("T")

#: What opens a connection: a function that returns a new one, such as
#: ``lambda: psycopg.AsyncConnection.connect(dsn)``. By a lease also one that returns a context
#: manager, such as the method ``connection`` of a ``psycopg_pool.AsyncConnectionPool``.
Connect = Callable[
    [],
    Awaitable["AsyncConnection[Any]"] | AbstractAsyncContextManager["AsyncConnection[Any]"],
]


class _Task(Generic[T]):
    """What runs in a task of its own."""

    def __init__(self, runtime: Runtime, coroutine: Coroutine[Any, Any, T]) -> None:
        self._cancelled = False
        self.task = asyncio.get_running_loop().create_task(coroutine)
        self.task.add_done_callback(lambda task: runtime.wake())

    @property
    def done(self) -> bool:
        return self.task.done()

    def result(self) -> T:
        try:
            return self.task.result()
        except asyncio.CancelledError:
            if self._cancelled:
                raise _core.Stopped from None
            raise

    def cancel(self) -> None:
        self._cancelled = True
        self.task.cancel()

    def abandon(self) -> None:
        if not self.done:
            self.task.cancel()
            self.task.add_done_callback(self._close)

    def _close(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is None:
            task.result().hang_up()
            asyncio.get_running_loop().create_task(task.result().close())


class Runtime:
    """The state machine's world: tasks, and the event loop."""

    now = staticmethod(_core.now)
    random = staticmethod(random.random)

    def __init__(self, connect: Connect) -> None:
        if not callable(connect):
            raise TypeError("connect must be callable")
        self._connect = connect
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[_Task[Any]] = []

    def attach(self) -> None:
        """Belong to the event loop that runs."""
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, until: float, link: Link | None) -> None:
        loop, event = asyncio.get_running_loop(), self._event
        length = max(0.0, min(until - self.now(), 1.0))
        fd = -1 if link is None else link.fileno()
        if fd >= 0:
            loop.add_reader(fd, event.set)
            if link is not None and link.sending():
                loop.add_writer(fd, event.set)
        elif link is not None:
            length = 0.0  # it has ended, as poll will tell
        timer = loop.call_later(length, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()
            if fd >= 0:
                loop.remove_reader(fd)
                loop.remove_writer(fd)
            event.clear()

    async def connect(self) -> Link:
        from ._psycopg import PsycopgLink

        return await PsycopgLink.open(self._connect())

    async def call(self, function: Callable[..., Any], *args: Any) -> None:
        result = function(*args)
        if inspect.isawaitable(result):
            await result

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> _Task[T]:
        self._tasks = [task for task in self._tasks if not task.done]
        task = _Task(self, coroutine)
        self._tasks.append(task)
        return task

    async def finish(self) -> None:
        """Wait for the tasks that were cancelled, but not for those that do not end."""
        tasks = [task.task for task in self._tasks if not task.done]
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self._loop = None


class AsyncElector:
    """Campaigns for an election, and runs a job while it leads.

    Leads in session scope, with ``ttl`` by a lease. Durations are numbers of seconds, or
    ``timedelta``.

    :param connect: opens a connection, see ``Connect``
    :param election: the name of the election, 1 to 255 bytes
    :param job: the job, a coroutine function of the term. It runs in a task of its own, which is
        cancelled when it is to stop
    :param identity: tells the candidates apart; by default the host name, process ID and four
        random hexadecimal digits
    :param seats: campaign for that many seats instead of one election
    :param heartbeat: in session scope, how long the job may go without ``term.heartbeat()``
    :param ttl: how long a lease lasts that is not renewed
    :param renew_on_heartbeat: renew the lease only if the job has called ``term.heartbeat()``
    :param stop_timeout: how long the job may take to stop before that is reported
    :param on_elected: called with the term, before the job starts
    :param on_ousted: called with the term and the reason, after the job has stopped
    :param on_error: called with each error; by default, errors are logged by the logger
        ``leader_election``

    The callbacks are functions or coroutine functions, and are called one after the other.
    """

    _runtime_class = Runtime

    def __init__(
        self,
        connect: Connect,
        election: str,
        job: Callable[[Term], Awaitable[Any]],
        *,
        identity: str | None = None,
        seats: int | None = None,
        heartbeat: Duration | None = None,
        ttl: Duration | None = None,
        renew_on_heartbeat: bool = False,
        stop_timeout: Duration = 10,
        on_elected: Callable[[Term], Any] | None = None,
        on_ousted: Callable[[Term, Reason], Any] | None = None,
        on_error: Callable[[Exception], Any] | None = None,
    ) -> None:
        options = _core.Options.checked(
            election, identity, seats, heartbeat, ttl, renew_on_heartbeat, stop_timeout
        )
        self._runtime = self._runtime_class(connect)
        callbacks = on_elected, on_ousted, on_error
        self._machine = _core.Machine(self._runtime, options, Term, job, *callbacks)
        self._started = False

    @property
    def identity(self) -> str:
        """What tells this elector apart from other candidates."""
        return self._machine.options.identity

    @property
    def state(self) -> State:
        """The state: ``waiting``, ``leading``, ``stopping``, ``paused`` or ``stopped``."""
        return self._machine.state

    async def run(self) -> None:
        """Campaign and lead until ``stop`` is called. Can be called once.

        If its task is cancelled, that stops the elector as well, and ``CancelledError`` is raised
        after the job has stopped and leadership is resigned.

        :raises PoolerError: if a pooler shares server connections, in session scope
        """
        if self._started:
            raise RuntimeError("an elector can run once")
        self._started = True
        self._runtime.attach()
        machine = asyncio.get_running_loop().create_task(self._machine.run())
        cancelled: asyncio.CancelledError | None = None
        while not machine.done():
            try:
                await asyncio.wait({machine})
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop()
        await self._runtime.finish()
        if cancelled is not None:
            raise cancelled
        machine.result()

    def stop(self) -> None:
        """Tell the elector to stop the job, to resign, and to let ``run`` return. Does not wait.

        May be called from any thread, from the job, and by a signal handler.
        """
        self._machine.stop()


def _asker(connect: Connect) -> tuple[Runtime, _core.Asker]:
    runtime = Runtime(connect)
    runtime.attach()
    return runtime, _core.Asker(runtime)


async def leader(connect: Connect, election: str) -> Leader | None:
    """Return the leader of the election, or None."""
    _core.check_election(election)
    runtime, asker = _asker(connect)
    try:
        return await _core.leader(asker, election)
    finally:
        await asker.drop()
        await runtime.finish()


async def follow(
    connect: Connect, election: str, *, on_error: Callable[[Exception], Any] | None = None
) -> AsyncGenerator[Leader | None, None]:
    """Yield the present leader, or None, and then each change.

    It keeps a connection, and connects again after an error. To end it, cancel the task that
    iterates, or close the iterator.
    """
    _core.check_election(election)
    report = on_error or (lambda error: _core.log.error("election %s: %s", election, error))
    runtime, asker = _asker(connect)
    changes = _core.follow(asker, election, report)
    try:
        async for change in changes:
            yield change
    finally:
        await asker.drop()
        await runtime.finish()


def every(
    connect: Connect,
    interval: Duration,
    task: Callable[[AsyncConnection[Any], datetime], Awaitable[Any]],
) -> Callable[[Term], Coroutine[Any, Any, None]]:
    """Return a job that does a task once for each point in time.

    The task is called with a connection and the time that is due, in a transaction that
    is committed with the record of that time. It must neither commit nor roll back.
    """
    length = _core.seconds(interval)
    if not length > 0:
        raise ValueError("interval must be positive")

    async def job(term: Term) -> None:
        runtime, asker = _asker(connect)
        try:
            await _core.every(asker, length, task, term)
        finally:
            await asker.drop()
            await runtime.finish()

    return job
