"""What the job is given."""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

from .errors import LostError


class Told:
    """Whether a job was told to stop.

    An exception of a signal handler can leave the lock of a ``threading.Event`` locked for ever,
    and ``set`` would wait for it. Here, each call that waits has a lock of its own.
    """

    def __init__(self) -> None:
        self._set, self._waiting = False, list[threading.Lock]()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for lock in self._waiting.copy():
            with suppress(RuntimeError):  # it is released
                lock.release()

    def wait(self, seconds: float | None = None) -> bool:
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        if not self._set:
            lock.acquire(timeout=-1 if seconds is None else max(0, seconds))
        self._waiting.remove(lock)
        return self._set


class AsyncTerm:
    """A term of leadership."""

    def __init__(self, machine: Any, election: str, token: int) -> None:
        #: The name of the election; of the seat if the elector campaigns for seats.
        self.election = election
        #: The fencing token, which grows from term to term.
        self.token = token
        self._machine, self._stopped = machine, Told()
        self._beats, self._last_beat, self._beat_length = 0, -inf, inf
        self._confirmed_until, self._beaten_until = -inf, inf

    @property
    def cancelled(self) -> bool:
        """Whether the job was told to stop."""
        return self._stopped.is_set()

    def is_leading(self) -> bool:
        """Return whether the job may go on. Looks at the clock, and sends nothing."""
        now: float = self._machine.clock()
        return not self.cancelled and now < self._valid_until()

    def heartbeat(self) -> None:
        """Tell that the job has made progress. Sends nothing, and never fails."""
        self._last_beat = self._machine.clock()
        self._beats += 1

    def guard(self, transaction: Any) -> Any:
        """Let a transaction commit only if the term still runs.

        The transaction is a connection or cursor of psycopg, a cursor of Django, or a connection
        of SQLAlchemy. Await the call if the transaction is one for asyncio.
        """
        execute = getattr(transaction, "exec_driver_sql", transaction.execute)
        prefix = self._machine.options.prefix.replace("%", "%%")
        sql = f"SELECT {prefix}le_assert_leader(%s::text, %s::bigint)"
        return execute(sql, (self.election, self.token))

    async def proclaim(self, value: str | None) -> None:
        """Publish a value until the term ends. Raises ``LostError`` if the term is over."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Exception | None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if not done.done():
                done.set_result(error)

        self._publish(value, lambda error: loop.call_soon_threadsafe(settle, error))
        if error := await done:
            raise error

    def _publish(self, value: str | None, done: Callable[[Any], object]) -> None:
        """Let a value be published, and done be called with an error or None."""
        driver = self._machine.driver
        driver.promises.add(done)
        driver.put("proclaim", value, done, self)
        if self._machine.state == "stopped":  # so nothing keeps the promise
            driver.settle(done, LostError("over", "the term is over"))

    def _valid_until(self) -> float:
        return min(self._confirmed_until, self._beaten_until, self._last_beat + self._beat_length)


class Term(AsyncTerm):
    """A term of leadership, whose job runs in a thread."""

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep, but not after the job is told to stop. Returns whether it is told to stop."""
        return self._stopped.wait(seconds)

    def proclaim(self, value: str | None) -> None:  # type: ignore[override]
        """Publish a value until the term ends. Raises ``LostError`` if the term is over."""
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._publish(value, done.put)
        if error := done.get():
            raise error
