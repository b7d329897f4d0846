"""What the job is given."""

import asyncio
import threading
from concurrent.futures import Future
from math import inf
from typing import Any

from .errors import LostError


class AsyncTerm:
    """A term of leadership."""

    def __init__(self, elector: Any, election: str, token: int) -> None:
        #: The name of the election; of the seat if the elector campaigns for seats.
        self.election = election
        #: The fencing token, which grows from term to term.
        self.token = token
        self._elector, self._stopped = elector, threading.Event()
        self._beats, self._last_beat, self._beat_length = 0, -inf, inf
        self._confirmed_until, self._beaten_until = -inf, inf

    @property
    def cancelled(self) -> bool:
        """Whether the job was told to stop."""
        return self._stopped.is_set()

    def is_leading(self) -> bool:
        """Return whether the job may go on. Looks at the clock, and sends nothing."""
        now: float = self._elector.clock()
        return not self.cancelled and now < self._valid_until()

    def heartbeat(self) -> None:
        """Tell that the job has made progress. Sends nothing, and never fails."""
        self._last_beat = self._elector.clock()
        self._beats += 1

    def guard(self, transaction: Any) -> Any:
        """Let a transaction commit only if the term still runs.

        The transaction is a connection or cursor of psycopg, a cursor of Django, or a connection
        of SQLAlchemy. Await the call if the transaction is one for asyncio.
        """
        execute = getattr(transaction, "exec_driver_sql", transaction.execute)
        prefix = self._elector.prefix.replace("%", "%%")
        sql = f"SELECT {prefix}le_assert_leader(%s::text, %s::bigint)"
        return execute(sql, (self.election, self.token))

    async def proclaim(self, value: str | None) -> None:
        """Publish a value until the term ends. Raises ``LostError`` if the term is over."""
        await asyncio.wrap_future(self._publish(value))

    def _publish(self, value: str | None) -> Future[None]:
        if not self.is_leading():
            raise LostError("over", "the term is over")
        done: Future[None] = Future()
        self._elector.promises.add(done)
        done.add_done_callback(self._elector.promises.discard)
        self._elector.put("proclaim", value, done, self)
        if self._elector.state == "stopped":  # so nothing keeps the promise
            raise LostError("over", "the term is over")
        return done

    def _valid_until(self) -> float:
        return min(self._confirmed_until, self._beaten_until, self._last_beat + self._beat_length)


class Term(AsyncTerm):
    """A term of leadership, whose job runs in a thread."""

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep, but not after the job is told to stop. Returns whether it is told to stop."""
        return self._stopped.wait(seconds)

    def proclaim(self, value: str | None) -> None:  # type: ignore[override]
        """Publish a value until the term ends. Raises ``LostError`` if the term is over."""
        self._publish(value).result()
