"""Leader election with threads: psycopg's ``Connection``."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

from . import _core
from ._core import Duration, Leader, Link, Reason, State, drive

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["Connect", "Elector", "Follower", "Term", "every", "follow", "leader"]

T = TypeVar("T")

#: What opens a connection: a function that returns a new one, such as
#: ``lambda: psycopg.connect(dsn)``. By a lease also one that returns a context manager, such as
#: the method ``connection`` of a ``psycopg_pool.ConnectionPool``.
Connect = Callable[[], Union["Connection[Any]", AbstractContextManager["Connection[Any]"]]]


class Term(_core.Term):
    """A term of leadership, as the job is given it."""

    def __init__(self, election: str, token: int, now: Callable[[], float]) -> None:
        super().__init__(election, token, now)
        self._event = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Has the job been told to stop?"""
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep for that long, but no longer than until the job is told to stop.

        Returns whether it has been told to stop.
        """
        return self._event.wait(seconds)

    def _cancel(self) -> None:
        self._event.set()
        super()._cancel()


class _Thread(Generic[T]):
    """What runs in a thread of its own."""

    def __init__(self, runtime: Runtime, coroutine: Coroutine[Any, Any, T]) -> None:
        self._runtime, self._coroutine = runtime, coroutine
        self._lock = threading.Lock()
        self._abandoned = False
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._result: Any = None
        self.thread = threading.Thread(target=self._run, name="leader_election", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._result = drive(self._coroutine)
        except BaseException as error:
            self._error = error
        with self._lock:
            self._done.set()
            late = self._abandoned and self._error is None
        if late:
            drive(self._result.close())
        self._runtime.wake()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def join(self) -> None:
        """Wait for its end. (CPython 3.11 ends a thread's ``join`` for good at a signal.)"""
        self._done.wait()
        self.thread.join()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def cancel(self) -> None:
        """Do nothing: a thread cannot be cancelled."""

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = not self.done


class Runtime:
    """The state machine's world: threads, and a selector."""

    now = staticmethod(_core.now)
    random = staticmethod(random.random)

    def __init__(self, connect: Connect) -> None:
        if not callable(connect):
            raise TypeError("connect must be callable")
        self._connect = connect
        self._waker: socket.socket | None = None
        self._threads: list[_Thread[Any]] = []

    def attach(self) -> Runtime:
        """Open what wakes it."""
        waker, self._woken = socket.socketpair()
        waker.setblocking(False)
        self._woken.setblocking(False)
        self._waker = waker
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        return self

    def wake(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(OSError):  # it is awake, or has ended
                self._waker.send(b"!")

    async def wait(self, until: float, link: Link | None) -> None:
        length = max(0.0, min(until - self.now(), 1.0))
        fd = -1 if link is None else link.fileno()
        registered = link is not None and fd >= 0
        if link is not None and registered:
            write = selectors.EVENT_WRITE if link.sending() else 0
            self._selector.register(fd, selectors.EVENT_READ | write)
        elif link is not None:
            length = 0.0  # it has ended, as poll will tell
        try:
            self._select(self._selector, length)
        finally:
            if registered:
                self._selector.unregister(fd)
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _select(self, selector: selectors.BaseSelector, seconds: float) -> None:
        selector.select(seconds)

    async def connect(self) -> Link:
        from ._psycopg import PsycopgLink

        return await PsycopgLink.open(self._connect())

    async def call(self, function: Callable[..., Any], *args: Any) -> None:
        function(*args)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> _Thread[T]:
        self._threads = [thread for thread in self._threads if thread.thread.is_alive()]
        thread = _Thread(self, coroutine)
        self._threads.append(thread)
        return thread

    def finish(self) -> None:
        """Wait for the threads that have done their work, but not for those that are given up."""
        for thread in self._threads:
            if thread.done:
                thread.thread.join()
        if self._waker is not None:
            self._selector.close()
            self._waker.close()
            self._woken.close()


class Elector:
    """Campaigns for an election, and runs a job while it leads.

    Leads in session scope, with ``ttl`` by a lease. Durations are numbers of seconds, or
    ``timedelta``.

    :param connect: opens a connection, see ``Connect``
    :param election: the name of the election, 1 to 255 bytes
    :param job: the job, a function of the term. It runs in a thread of its own, and must return
        soon when ``term.cancelled`` is true
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

    The callbacks are called one after the other, in other threads than the job.
    """

    _runtime_class = Runtime

    def __init__(
        self,
        connect: Connect,
        election: str,
        job: Callable[[Term], Any],
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

    def run(self) -> None:
        """Campaign and lead until ``stop`` is called. Can be called once.

        An exception in this thread, such as ``KeyboardInterrupt``, stops the elector as well, and
        is raised after the job has stopped and leadership is resigned.

        :raises PoolerError: if a pooler shares server connections, in session scope
        """
        if self._started:
            raise RuntimeError("an elector can run once")
        self._started = True
        self._runtime.attach()
        machine = _Thread(self._runtime, self._machine.run())
        try:
            machine.join()
        except BaseException:
            self.stop()
            machine.join()
            raise
        finally:
            self._runtime.finish()
        machine.result()

    def stop(self) -> None:
        """Tell the elector to stop the job, to resign, and to let ``run`` return. Does not wait.

        May be called from any thread, from the job, and by a signal handler.
        """
        self._machine.stop()


def leader(connect: Connect, election: str) -> Leader | None:
    """Return the leader of the election, or None."""
    _core.check_election(election)
    asker = _core.Asker(Runtime(connect).attach())
    try:
        return drive(_core.leader(asker, election))
    finally:
        drive(_close(asker))


async def _close(asker: _core.Asker) -> None:
    await asker.drop()
    runtime = asker.runtime
    assert isinstance(runtime, Runtime)
    runtime.finish()


class Follower(Iterator["Leader | None"]):
    """Iterates over the present leader of an election, or None, and then each change."""

    def __init__(
        self, connect: Connect, election: str, on_error: Callable[[Exception], Any] | None
    ) -> None:
        _core.check_election(election)
        report = on_error or (lambda error: _core.log.error("election %s: %s", election, error))
        self._asker = _core.Asker(Runtime(connect).attach())
        self._changes = _core.follow(self._asker, election, report)

    def __next__(self) -> Leader | None:
        try:
            return drive(self._next())
        except StopAsyncIteration:
            drive(_close(self._asker))
            raise StopIteration from None
        except BaseException:
            drive(_close(self._asker))
            raise

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        drive(_close(self._asker))

    async def _next(self) -> Leader | None:
        return await self._changes.__anext__()

    def stop(self) -> None:
        """End the iteration, and close the connection. May be called from any thread."""
        self._asker.stop()


def follow(
    connect: Connect, election: str, *, on_error: Callable[[Exception], Any] | None = None
) -> Follower:
    """Return an iterator over the present leader, or None, and then each change.

    It keeps a connection, and connects again after an error. ``stop`` of the iterator ends it. If
    the loop may be left in another way, use the iterator as a context manager, which closes the
    connection.
    """
    return Follower(connect, election, on_error)


def every(
    connect: Connect, interval: Duration, task: Callable[[Connection[Any], datetime], Any]
) -> Callable[[Term], None]:
    """Return a job that does a task once for each point in time.

    The task is called with a connection and the time that is due, in a transaction that
    is committed with the record of that time. It must neither commit nor roll back.
    """
    length = _core.seconds(interval)
    if not length > 0:
        raise ValueError("interval must be positive")

    def job(term: Term) -> None:
        asker = _core.Asker(Runtime(connect).attach())
        try:
            drive(_core.every(asker, length, task, term))
        finally:
            drive(_close(asker))

    return job
