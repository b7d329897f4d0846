"""What the job is given."""

import asyncio
import inspect
import queue
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Any, Protocol, overload

from .errors import LostError


class AsyncTransaction(Protocol):
    """A connection, cursor or session for asyncio, in a transaction."""

    def execute(self, statement: Any, parameters: Any = ..., /) -> Awaitable[Any]:
        """Run a statement."""


class Executing(Protocol):
    """A connection, cursor or session, in a transaction."""

    def execute(self, statement: Any, parameters: Any = ..., /) -> Any:
        """Run a statement."""


class Connected(Protocol):
    """A connection, in a transaction, whose cursors run statements."""

    def cursor(self) -> Any:
        """Return a cursor."""


Transaction = Executing | Connected
PLAIN = re.compile(r"[\w ./-]*", re.ASCII)  # in which no library finds a parameter


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


def literal(text: str) -> str:
    """Return a text as a literal in which no library finds a parameter."""
    if PLAIN.fullmatch(text):
        return f"'{text}'"
    return f"convert_from(decode('{text.encode().hex()}', 'hex'), 'UTF8')"


def first(row: Any) -> Any:
    """Return the value of a row of one, whatever makes rows."""
    if isinstance(row, dict):
        return next(iter(row.values()))
    return row if isinstance(row, bool) else row[0]


def nothing(_: Any) -> None:
    """Return nothing."""


class BaseTerm:
    """A term of leadership, whatever its flavour."""

    def __init__(self, machine: Any, election: str, token: int) -> None:
        #: The name of the election; of the seat if the elector campaigns for seats.
        self.election = election
        #: The fencing token, which grows from term to term.
        self.token = token
        self._machine, self._told = machine, Told()
        self._beats, self._last_beat, self._beat_length = 0, -inf, inf
        self._confirmed_until, self._beaten_until = -inf, inf

    @property
    def cancelled(self) -> bool:
        """Whether the job was told to stop."""
        return self._told.is_set()

    def is_leading(self) -> bool:
        """Return whether the job may go on. Looks at the clock, and sends nothing."""
        now: float = self._machine.clock()
        return not self.cancelled and now < self._valid_until()

    def heartbeat(self) -> None:
        """Tell that the job has made progress. Sends nothing, and never fails."""
        self._last_beat = self._machine.clock()
        self._beats += 1

    def report(self, error: BaseException) -> None:
        """Report an error of a part of the job, which goes on. Its kind is ``task``."""
        self._machine.driver.put("note", "task", error)

    @overload
    def guard(self, transaction: AsyncTransaction) -> Awaitable[None]: ...

    @overload
    def guard(self, transaction: Transaction) -> None: ...

    def guard(self, transaction: Any) -> Any:
        """Let a transaction commit only if the term still runs.

        The transaction is a connection or cursor of psycopg, psycopg2 or Django, a session or
        connection of SQLAlchemy, or a connection of asyncpg. Await the call if it is for asyncio.
        """
        return self._ask(
            transaction, "le_assert_leader({}::text, {}::bigint)", [self.token], nothing
        )

    @overload
    def once(self, transaction: AsyncTransaction, due: datetime) -> Awaitable[bool]: ...

    @overload
    def once(self, transaction: Transaction, due: datetime) -> bool: ...

    def once(self, transaction: Any, due: datetime) -> Any:
        """Return whether the job of a due time is to be done in a transaction.

        The transaction records that, and is guarded. It is one as for ``guard``.
        """
        function = "le_once({}::text, {}::timestamptz, {}::bigint)"
        return self._ask(transaction, function, [aware(due), self.token], first)

    def guard_sql(self) -> str:
        """Return the statement of ``guard``, without parameters, for any other library."""
        return self._sql("le_assert_leader", f"{self.token}")

    def once_sql(self, due: datetime) -> str:
        """Return the statement of ``once``, which returns true or false."""
        return self._sql("le_once", f"to_timestamp({aware(due).timestamp()!r}), {self.token}")

    def _sql(self, function: str, arguments: str) -> str:
        prefix, schema = self._machine.options.prefix, self._machine.options.schema or ""
        if not PLAIN.fullmatch(schema):
            escaped = (f"\\+{ord(letter):06x}" for letter in schema)
            prefix = f'U&"{"".join(escaped)}".'
        return f"SELECT {prefix}{function}({literal(self.election)}, {arguments})"

    def _ask(
        self, transaction: Any, function: str, args: list[Any], read: Callable[[Any], Any]
    ) -> Any:
        values, prefix = (self.election, *args), self._machine.options.prefix
        numbered = f"SELECT {prefix}{function.format('$1', '$2', '$3')}"
        if hasattr(transaction, "fetchval"):  # of asyncpg
            return self._read(transaction.fetchrow(numbered, *values), read)
        if hasattr(transaction, "get_bind"):  # a session of SQLAlchemy
            transaction = transaction.connection()
        if inspect.iscoroutine(transaction):
            return self._later(transaction, function, args, read)
        sql = f"SELECT {prefix.replace('%', '%%')}{function.format(*['%s'] * 3)}"
        if hasattr(transaction, "exec_driver_sql"):
            dollars = transaction.dialect.paramstyle == "numeric_dollar"
            result = transaction.exec_driver_sql(numbered if dollars else sql, values)
        else:
            if not hasattr(transaction, "execute"):
                transaction = transaction.cursor()
            result = transaction.execute(sql, values) or transaction
        return self._read(result, read)

    def _read(self, result: Any, read: Callable[[Any], Any]) -> Any:
        """Read the row of a result, which may have to be awaited, as the row may."""

        async def later() -> Any:
            row = await result
            row = row.fetchone() if hasattr(row, "fetchone") else row
            return read(await row if inspect.isawaitable(row) else row)

        return later() if inspect.isawaitable(result) else read(result.fetchone())

    async def _later(self, transaction: Awaitable[Any], *how: Any) -> Any:
        return await self._ask(await transaction, *how)

    def _publish(self, value: str | None, done: Callable[[Any], object]) -> None:
        """Let a value be published, and done be called with an error or None."""
        driver = self._machine.driver
        driver.promises.add(done)
        driver.put("proclaim", value, done, self)
        if self._machine.state == "stopped":  # so nothing keeps the promise
            driver.settle(done, LostError("over", "the term is over"))

    def _valid_until(self) -> float:
        return min(self._confirmed_until, self._beaten_until, self._last_beat + self._beat_length)


class AsyncTerm(BaseTerm):
    """A term of leadership, whose job is a task."""

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


class Term(BaseTerm):
    """A term of leadership, whose job runs in a thread."""

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep, but not after the job is told to stop. Returns whether it is told to stop."""
        return self._told.wait(seconds)

    def proclaim(self, value: str | None) -> None:
        """Publish a value until the term ends. Raises ``LostError`` if the term is over."""
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._publish(value, done.put)
        if error := done.get():
            raise error


def aware(time: datetime) -> datetime:
    """Return a time that has a time zone."""
    if time.tzinfo is None:
        raise ValueError("a due time must have a time zone")
    return time
