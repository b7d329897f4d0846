"""What the job is given."""

import inspect
import os
import re
import threading
import time
from collections.abc import Awaitable, Coroutine
from datetime import datetime
from math import inf
from typing import Any, Protocol, TypeVar, overload

from ._errors import LeaderElectionError, LostError
from ._options import Length, seconds

Result = TypeVar("Result", covariant=True)  # noqa: PLC0105


class Executing(Protocol[Result]):
    """A connection, cursor or session, in a transaction."""

    def execute(self, statement: Any, parameters: Any = ..., /) -> Result:
        """Run a statement."""


class Connected(Protocol):
    """A connection, in a transaction, whose cursors run statements."""

    def cursor(self) -> Any:
        """Return a cursor."""


AsyncTransaction = Executing[Awaitable[Any]]
Transaction = Executing[Any] | Connected
PLAIN = re.compile(r"[\w ./-]*", re.ASCII)  # in which no library finds a parameter


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


def commits_each(transaction: Any) -> bool:
    """Return whether a connection commits each statement by itself."""
    if hasattr(transaction, "fetchval"):  # of asyncpg, whose pools are in no transaction
        return not getattr(transaction, "is_in_transaction", bool)()
    if hasattr(transaction, "exec_driver_sql"):  # of SQLAlchemy
        proxy = getattr(transaction, "sync_connection", transaction).connection
        transaction = proxy.dbapi_connection
    connection = getattr(transaction, "connection", transaction)
    status = getattr(getattr(connection, "info", None), "transaction_status", 0)
    return getattr(connection, "autocommit", False) and status == 0  # which is idle


def done(value: Any) -> Any:
    """Return what a function of the user has returned, unless it has done nothing yet."""
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError("a generator was returned, which has done nothing yet")
    return value


async def settled(value: Any) -> Any:
    """Return a value, which may have to be awaited."""
    return done(await value if inspect.isawaitable(value) else value)


def finished(doing: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        doing.send(None)
    except StopIteration as done:
        return done.value
    doing.close()
    raise TypeError("this needs asyncio: use AsyncElector and leader_election.aio")


def succeeded(row: Any) -> None:
    """Raise an error if the server has answered that the term is over."""
    if not first(row):
        raise LostError("over", "the term is over")


class BaseTerm:
    """A term of leadership, whatever its flavour."""

    def __init__(self, machine: Any, election: str, token: int) -> None:
        """Make a term, as only an elector does."""
        #: The name of the election; of the seat if the elector campaigns for seats.
        self.election = election
        #: The fencing token, which grows from term to term.
        self.token = token
        self._machine, self._told, self._process = machine, False, os.getpid()
        self._untold = threading.Lock()  # is held until the job is told to stop
        self._untold.acquire()
        self._beats, self._last_beat, self._beat_length = 0, -inf, inf
        self._confirmed_until, self._beaten_until = -inf, inf

    @property
    def cancelled(self) -> bool:
        """Whether the job was told to stop, or runs in a forked child, which nothing else tells."""
        return self._told or os.getpid() != self._process

    def _tell(self) -> None:
        """Tell the job to stop. Waits for nothing.

        An exception of a signal handler can leave the lock of a ``threading.Event`` locked for
        ever, and ``set`` would wait for it.
        """
        if not self._told:
            self._told = True
            self._untold.release()

    def is_leading(self) -> bool:
        """Return whether the job may go on. Looks at the clock, and sends nothing."""
        return not self.cancelled and bool(self._machine.clock() < self._valid_until())

    def heartbeat(self) -> None:
        """Tell that the job has made progress. Sends nothing, and never fails."""
        self._last_beat = self._machine.clock()
        self._beats += 1

    def report(self, error: BaseException) -> None:
        """Report an error of a part of the job, which goes on. Its kind is ``task``."""
        self._machine.driver.put("report", LeaderElectionError._of(error, "task"))

    @overload
    def guard(self, transaction: AsyncTransaction) -> Awaitable[None]: ...

    @overload
    def guard(self, transaction: Transaction) -> None: ...

    def guard(self, transaction: Any) -> Any:
        """Let a transaction commit only if the term still runs. Waits for the server's answer.

        The transaction is a connection or cursor of psycopg, psycopg2 or Django, a session or
        connection of SQLAlchemy, or a connection of pg8000 or asyncpg. Await the call if it is for
        asyncio.

        Raises the driver's error, with the SQLSTATE LE001 if the term is over, and ``ValueError``
        if the connection commits each statement by itself.
        """
        return self._ask(transaction, self.guard_sql(), lambda _: None)

    @overload
    def once(self, transaction: AsyncTransaction, due: datetime) -> Awaitable[bool]: ...

    @overload
    def once(self, transaction: Transaction, due: datetime) -> bool: ...

    def once(self, transaction: Any, due: datetime) -> Any:
        """Return whether the job of a due time is to be done in a transaction.

        The transaction records that, and is guarded. It is one as for ``guard``, and the errors and
        the wait are the same. Raises ``ValueError`` also if the due time has no time zone.
        """
        return self._ask(transaction, self.once_sql(due), first)

    @overload
    def proclaim(self, connection: AsyncTransaction, value: str | None) -> Awaitable[None]: ...

    @overload
    def proclaim(self, connection: Transaction, value: str | None) -> None: ...

    def proclaim(self, connection: Any, value: str | None) -> Any:
        """Publish a value until the term ends, or none by None. Waits for the server's answer.

        The connection is one as for ``guard``, and may commit each statement by itself.

        Raises ``LostError`` if the term is over, and the driver's error, such as for a value that
        is too long.
        """
        text = "NULL" if value is None else literal(value)
        return self._ask(connection, self._sql("le_proclaim", f"{text}, {self.token}"), succeeded)

    def guard_sql(self) -> str:
        """Return the statement of ``guard``, without parameters, for any library."""
        return self._sql("le_assert_leader", f"{self.token}")

    def once_sql(self, due: datetime) -> str:
        """Return the statement of ``once``, which returns true or false.

        Raises ``ValueError`` if the due time has no time zone.
        """
        if due.tzinfo is None:
            raise ValueError("a due time must have a time zone")
        return self._sql("le_once", f"to_timestamp({due.timestamp()!r}), {self.token}")

    def _sql(self, function: str, arguments: str) -> str:
        function = self._machine.options.prefix + function
        return f"SELECT {function}({literal(self.election)}, {arguments})"

    def _ask(self, transaction: Any, *what: Any) -> Any:
        """Ask something, to be awaited if the transaction is for asyncio."""
        asking, execute = self._asked(transaction, *what), getattr(transaction, "execute", None)
        waits = hasattr(transaction, "fetchval") or inspect.iscoroutinefunction(execute)
        return asking if waits else finished(asking)

    async def _asked(self, transaction: Any, sql: str, read: Any) -> Any:
        if hasattr(transaction, "get_bind"):  # a session of SQLAlchemy
            transaction = await settled(transaction.connection())
        cursor = transaction if hasattr(transaction, "execute") else transaction.cursor()
        if read is not succeeded and commits_each(transaction):
            raise ValueError("guard and once need a transaction: this commits each statement")
        if hasattr(transaction, "fetchval"):  # of asyncpg
            return read(await transaction.fetchrow(sql))
        execute = getattr(transaction, "exec_driver_sql", cursor.execute)  # of SQLAlchemy
        cursor = await settled(execute(sql)) or cursor
        return read(await settled(cursor.fetchone()))

    def _valid_until(self) -> float:
        return min(self._confirmed_until, self._beaten_until, self._last_beat + self._beat_length)


class AsyncTerm(BaseTerm):
    """A term of leadership, whose job is a task.

    election -- the name of the election; of the seat if the elector campaigns for seats
    token -- the fencing token, which grows from term to term
    """


class Term(BaseTerm):
    """A term of leadership, whose job runs in a thread.

    election -- the name of the election; of the seat if the elector campaigns for seats
    token -- the fencing token, which grows from term to term
    """

    def wait(self, length: Length | None = None) -> bool:
        """Sleep for a length of time, or without end, but not after the job is told to stop.

        Returns whether it is told to stop.
        """
        end = time.monotonic() + (inf if length is None else seconds(length))
        while not self.cancelled and (rest := end - time.monotonic()) > 0:
            if self._untold.acquire(timeout=min(rest, 1)):  # looks each second
                self._untold.release()
        return self.cancelled
