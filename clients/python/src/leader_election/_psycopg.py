"""Connections of psycopg, used through its wrapper of libpq.

Statements are sent past the driver's transactions, adapters and row factories. So it does not
matter how the user has set these, no statement is prepared by name, nothing waits without a
deadline, and threads and asyncio have the same code.
"""

from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection, Connection, DatabaseError, Error, OperationalError, errors
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

from ._core import Row, log


class PsycopgLink:
    """A link on a psycopg connection, or on one that a context manager yields."""

    def __init__(self, connection: Any, context: Any = None) -> None:
        self.connection = connection
        self.pooled = context is not None
        self._context = context
        self._pgconn = connection.pgconn
        self._encoding: str = connection.info.encoding
        self._row: Row | None = None
        self._error: Error | None = None
        self._pending = self._flushing = False
        self._lock = threading.Lock()

    @classmethod
    async def open(cls, made: Any) -> PsycopgLink:
        """Return a link on what the user's connection factory has returned."""
        if inspect.isawaitable(made) and not hasattr(made, "__aenter__"):
            made = await made
        context = None
        if not isinstance(made, (Connection, AsyncConnection)):
            context = made
            if hasattr(made, "__aenter__"):
                made = await context.__aenter__()
            elif hasattr(made, "__enter__"):
                made = context.__enter__()
            if not isinstance(made, (Connection, AsyncConnection)):
                raise TypeError(f"the factory returned no connection of psycopg, but {made!r}")
        link = cls(made, context)
        if link._pgconn.transaction_status != TransactionStatus.IDLE:
            await link.close()
            raise OperationalError("the factory returned a connection in a transaction, or closed")
        if context is None:  # ours: for the statements of the user's task
            made.prepare_threshold = None
        return link

    def send(self, sql: str, args: Sequence[str | None]) -> None:
        values = [None if arg is None else arg.encode(self._encoding) for arg in args]
        self._row, self._error, self._pending = None, None, True
        self._pgconn.send_query_params(sql.encode(), values)
        self._flushing = bool(self._pgconn.flush())

    def poll(self) -> Row | None:
        pgconn = self._pgconn
        if self._flushing:
            self._flushing = bool(pgconn.flush())
        pgconn.consume_input()
        while self._pending and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._pending = False
                if self._error is not None:
                    raise self._error
                return () if self._row is None else self._row
            if result.status == ExecStatus.TUPLES_OK:
                values = (result.get_value(0, i) for i in range(result.nfields))
                if result.ntuples:
                    self._row = tuple(
                        None if v is None else v.decode(self._encoding) for v in values
                    )
            elif result.status == ExecStatus.COMMAND_OK:
                self._row = ((result.command_status or b"").decode(),)
            else:
                self._error = self._read_error(result)
        if pgconn.status == ConnStatus.BAD:
            raise OperationalError("the connection has ended")
        return None

    def _read_error(self, result: Any) -> Error:
        message = result.error_message.decode(self._encoding, "replace").strip()
        state = (result.error_field(ord("C")) or b"").decode()
        try:
            return errors.lookup(state)(message)
        except KeyError:  # such as LE003, or no SQLSTATE as the connection has ended
            error = (DatabaseError if state else OperationalError)(message)
            error.sqlstate = state or None
            return error

    def fileno(self) -> int:
        return int(self._pgconn.socket) if self._pgconn.status == ConnStatus.OK else -1

    def sending(self) -> bool:
        return self._flushing

    def hang_up(self) -> None:
        with self._lock:
            if self._pgconn.status == ConnStatus.OK:
                shared = socket.socket(fileno=self._pgconn.socket)
                try:
                    shared.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it has ended already
                finally:
                    shared.detach()

    async def release(self) -> None:
        try:
            if hasattr(self._context, "__aexit__"):
                await self._context.__aexit__(None, None, None)
            else:
                self._context.__exit__(None, None, None)
        except Exception:  # the statement has been answered nevertheless
            log.warning("a pool has not taken its connection back", exc_info=True)

    async def close(self) -> None:
        if self._pending:
            self.hang_up()  # or closing could wait for what has yet to be sent
        with self._lock:
            self._pgconn.finish()
        if self.pooled:
            await self.release()
