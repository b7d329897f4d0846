"""Connections of psycopg, used through its wrapper of libpq.

Statements are sent past the driver's transactions, adapters and row factories. So it does not
matter how the user has set these, and threads and asyncio have the same code.
"""

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from psycopg import OperationalError
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.waiting import wait_async

VALUES: dict[int, Callable[[bytes], Any]] = {16: b"t".__eq__, 20: int, 23: int}  # by type


_links: "weakref.WeakSet[Link]" = weakref.WeakSet()


def leave_to_parent() -> None:
    """Close the sockets in a forked child, for which the server would take the parent to live.

    The child's libpq may still use the numbers, so they belong to another file from now on.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for link in list(_links):
        if link._pgconn.status == ConnStatus.OK:
            os.dup2(null, link._fd, inheritable=False)
    os.close(null)


def count_fork() -> None:
    """Note a fork, whose child has the sockets of connections that are being opened."""
    Link.forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=count_fork, after_in_child=leave_to_parent)


class Link:
    """A connection, on which at most one statement is on its way."""

    forks = 0  # of this process

    def __init__(self, connection: Any, context: Any, beside: Callable[..., Any]) -> None:
        self.connection, self.pooled, self.asking = connection, context is not None, False
        self._context, self._beside, self._watched = context, beside, False
        self._pgconn, self._fd = connection.pgconn, connection.pgconn.socket
        _links.add(self)

    @classmethod
    async def open(cls, connect: Callable[[], Any], beside: Callable[..., Any]) -> "Link":
        """Open a connection, or enter the context manager that ``connect`` returns."""
        made = context = await beside(connect, late=lambda late: getattr(late, "close", bool)())
        if hasattr(made, "pgconn"):
            context, made.prepare_threshold = None, None  # for the tasks of ``every``
        else:
            enter = getattr(made, "__aenter__", None) or made.__enter__
            made = await beside(enter, late=lambda _: context.__exit__(None, None, None))
        return cls(made, context, beside)

    async def ask(self, sql: str, *args: Any) -> list[Any]:
        """Send a statement. Returns the row of its answer."""
        self._unwatch()
        if TransactionStatus.IDLE < self._pgconn.transaction_status < TransactionStatus.UNKNOWN:
            raise OperationalError("the connection is in a transaction")  # where no lease begins
        encoding = self.connection.info.encoding
        values = [None if arg is None else str(arg).encode(encoding) for arg in args]
        self.asking = True
        self._pgconn.send_query_params(sql.encode(encoding), values)
        result = (await wait_async(execute(self._pgconn), self._fd, 1.0))[-1]
        self.asking = False
        if result.status != ExecStatus.TUPLES_OK:
            raise error_from_result(result, encoding)
        text, fields = partial(str, encoding=encoding), range(result.nfields * result.ntuples)
        row = ((VALUES.get(result.ftype(i), text), result.get_value(0, i)) for i in fields)
        return [None if value is None else read(value) for read, value in row]

    def watch(self, on_end: Callable[[], Any]) -> None:
        """Call a function when the connection ends while no statement is on its way."""
        asyncio.get_running_loop().add_reader(self._fd, self._look, on_end)
        self._watched = True

    def _look(self, on_end: Callable[[], Any]) -> None:
        with suppress(OperationalError):
            self._pgconn.consume_input()
        if self._pgconn.status != ConnStatus.OK:
            self._unwatch()
            on_end()

    def _unwatch(self) -> None:
        if self._watched:  # else another socket may have this number by now
            asyncio.get_running_loop().remove_reader(self._fd)
        self._watched = False

    def close(self, keep: bool = False) -> Coroutine[Any, Any, None]:
        """Close the connection, unless its pool may keep it. Await the pool's context."""
        self._unwatch()
        if not (keep and self.pooled):
            self._pgconn.finish()
        return self._leave()

    async def _leave(self) -> None:
        if self.pooled:
            leave = getattr(self._context, "__aexit__", None) or self._context.__exit__
            await self._beside(leave, None, None, None)
