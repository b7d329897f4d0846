"""Drives a state machine: a queue of what has happened, a timer, and a connection.

All else happens beside it, in tasks or threads, and puts its result into the queue.
"""

import asyncio
import concurrent.futures
import inspect
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from .elector import ElectorMachine
from .errors import POOLER, LeaderElectionError, LostError
from .follow import FollowMachine, Leader
from .options import DefaultIdentity, Statement
from .psycopg import Link
from .term import AsyncTerm

SETTINGS = """
SELECT pg_backend_pid(),
       count(set_config(name, CASE name WHEN 'application_name' THEN $1::text
                      WHEN 'client_connection_check_interval' THEN '5s' ELSE '0' END, false))
FROM pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout',
               'idle_in_transaction_session_timeout', 'transaction_timeout')
   OR name = 'application_name' AND setting = ''
   OR name = 'client_connection_check_interval' AND setting = '0'"""
DIAGNOSE = """
SELECT (SELECT nspname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
        WHERE proname = 'le_version' ORDER BY p.oid LIMIT 1),
       current_database()"""

MISSING = (
    'leader_election is not installed in database "{}": '
    "run CREATE EXTENSION leader_election, or install the SQL edition"
)
ELSEWHERE = (
    'leader_election is in schema "{}": set the option schema to it, or add it to search_path'
)


async def in_task(function: Callable[..., Any], *args: Any, late: Any = None) -> Any:
    """Call a function, or a coroutine function."""
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


def start(function: Callable[..., Any], *args: Any) -> "concurrent.futures.Future[Any]":
    """Call a function in a thread of its own."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def call() -> None:
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # such as SystemExit, which would end the event loop
            future.set_exception(RuntimeError(repr(error)))

    threading.Thread(target=call, name="leader_election", daemon=True).start()
    return future


async def in_thread(function: Callable[..., Any], *args: Any, late: Any = bool) -> Any:
    """Call a function in a thread of its own, and wait for it.

    If it is given up, late is called with what it returns then.
    """
    call = start(function, *args)
    try:
        return await asyncio.wrap_future(call)
    except asyncio.CancelledError:
        call.add_done_callback(lambda call: call.exception() or late(call.result()))
        raise


def block(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in an event loop of its own."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(coroutine)


class Run(ElectorMachine):
    """An elector that is driven. The flavours say how functions of the user are called."""

    beside = staticmethod(in_task)
    _loop: asyncio.AbstractEventLoop | None = None
    _link: Link | None = None  # unless a statement is on its way
    _asking: asyncio.Future[Any] | None = None
    _ended: tuple[LeaderElectionError | None, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._events: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._telling, self._logging = asyncio.Lock(), asyncio.Lock()
        self.promises: set[concurrent.futures.Future[None]] = set()  # of calls of proclaim

    def stop(self) -> None:
        """Let ``run`` return. Does not wait. May be called by any thread and signal handler."""
        self.put("stop")

    def put(self, *event: Any) -> None:
        """Tell the state machine what has happened. May be called from any thread."""
        put = self._events.put_nowait
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(put, event) if self._loop else put(event)

    async def try_job(self, job: Callable[[Any], Any], wait: float) -> bool:
        """Run the job once, if elected in time. Returns whether it ran."""
        try:
            await self.drive(job, "try", wait)
        except LeaderElectionError as error:
            if error.kind == "job" and error.__cause__:
                raise error.__cause__ from None
            if error.kind != "denied":
                raise
            return False
        return True

    async def drive(self, job: Callable[[Any], Any] = bool, *begin: Any) -> None:
        """Drive the state machine to its end.

        If this is cancelled, that is a stop. If it is cancelled again, it ends at once.
        """
        if self._loop:
            raise RuntimeError("can be run once only")
        if getattr(self.identity, "process", os.getpid()) != os.getpid():
            self.identity = DefaultIdentity()  # it was made before a fork
        self._job, self._loop, cancelled = job, asyncio.get_running_loop(), False
        put = self._events.put_nowait
        put(begin or ("run",))
        try:
            while not self._ended:
                # look each second: timers stand while suspended
                timer = self._loop.call_later(min(self.wakeup() - self.clock(), 1), put, ("",))
                try:
                    event = await self._events.get()
                except asyncio.CancelledError:
                    if cancelled:
                        raise
                    cancelled, event = True, ("stop",)
                timer.cancel()
                for kind, *args in self.step(self.clock(), *event):
                    getattr(self, "_act_" + kind)(*args)
            error = await self._conclude(*self._ended)
        finally:
            self._abandon()
        if cancelled:
            raise asyncio.CancelledError
        if error:
            raise error

    def _act_end(self, error: LeaderElectionError | None) -> None:
        self._ended = (error,)

    async def _conclude(self, error: LeaderElectionError | None) -> LeaderElectionError | None:
        """Say in words what is wrong, and wait a moment for what still runs."""
        with suppress(Exception):
            if error and error.kind == POOLER:
                await self._expel()
            elif error and error.kind == "extension":
                schema, base = await self.once(DIAGNOSE)
                if schema is None:
                    error.args = (MISSING.format(base),)
                elif schema != self.schema:
                    error.args = (ELSEWHERE.format(schema),)
        for _ in range(2):
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=1)
                for task in late:
                    task.cancel()
        return error

    async def _expel(self) -> None:
        for _ in range(10):  # it can run in the session that it ends, or in one that another ends
            try:
                await self.once(*self.statement("expel"))
                return
            except Exception as error:
                if not getattr(error, "sqlstate", None):
                    raise

    def _abandon(self) -> None:
        """Leave nothing behind, also if the state machine has not come to its end."""
        self._phase = "stopped"
        if self.term:
            self.term._stopped.set()
        self._act_close()
        for task in list(self._tasks):
            task.cancel()
        for done in list(self.promises):
            self._act_proclaimed((None, done), LostError("over", "the term is over"))

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Connections

    async def once(self, sql: str, *args: Any) -> list[Any]:
        """Ask one statement on a connection of its own."""
        async with asyncio.timeout(self.limit):
            link = await Link.open(self.connect, self.beside)
            try:
                return await link.ask(sql, *args)
            finally:
                await link.close(keep=not link.asking)

    def _act_ask(self, serial: int, kind: str, *args: Any) -> None:
        statement = () if kind == "open" else self.statement(kind, *args)
        self._asking = self._spawn(self._ask_server(serial, statement))

    async def _ask_server(self, serial: int, statement: Statement) -> None:
        link, self._link = self._link, None
        row, keep = [], False
        try:
            if not link:
                link = await Link.open(self.connect, self.beside)
                if self.opens:  # else a pooler may share the server connection
                    row = await link.ask(SETTINGS, f"leader_election: {self.election}")
            self.put("begun", serial)
            if statement:
                row = await link.ask(*statement)
            self.put("answer", serial, *row)
            keep = True
        except (Exception, asyncio.CancelledError) as error:
            self.put("failed", serial, LeaderElectionError.of(error))
            keep = self.opens and link is not None and not link.asking
        if link and keep and (self.opens or not link.pooled):
            self._link = link
            link.watch(lambda: self.put("broken") if self.opens else self._drop())
        elif link:
            self._spawn(link.close(keep))

    def _act_close(self) -> None:
        if self._asking:
            self._asking.cancel()  # which closes its connection
        self._drop()

    def _drop(self) -> None:
        if self._link:
            self._spawn(self._link.close())
            self._link = None

    # Callbacks

    def _act_error(self, error: LeaderElectionError) -> None:
        if self.on_error:
            self._spawn(self._tell(self.on_error, error))
        else:
            raised = error.__cause__ if error.kind in ("job", "callback", "task") else None
            self._log(logging.ERROR, "election %s: %s", self.election, error, exc_info=raised)

    async def _tell(self, on_error: Callable[[Any], Any], error: LeaderElectionError) -> None:
        async with self._telling:  # in order
            try:
                await self.beside(on_error, error)
            except Exception as failed:
                self._log(logging.ERROR, "the error callback has failed", exc_info=failed)

    def _log(self, level: int, *what: Any, exc_info: Any = None) -> None:
        """Log beside the state machine, whose loop a handler may block otherwise."""
        self._spawn(self._write(partial(self.logger.log, level, *what, exc_info=exc_info)))

    async def _write(self, log: Callable[[], None]) -> None:
        async with self._logging:  # in order
            with suppress(Exception):
                await in_thread(log)

    def _call(self, function: Callable[..., Any] | None, *args: Any) -> None:
        self._calling = self._spawn(self.beside(function or bool, *(args if function else ())))
        self._calling.add_done_callback(
            lambda call: self.put("returned", None if call.cancelled() else call.exception())
        )

    def _act_elected(self, term: AsyncTerm, _: str) -> None:
        self._log(logging.INFO, "elected in %s, with token %d", term.election, term.token)
        self._call(self.on_elected, term)

    def _act_job(self, term: AsyncTerm, _: str) -> None:
        self._call(self._job, term)

    def _act_ousted(self, term: AsyncTerm, reason: str) -> None:
        self._log(logging.INFO, "the term in %s is over: %s", term.election, reason)
        self._call(self.on_ousted, term, reason)

    def _act_cancel(self) -> None:
        if self.beside is in_task:  # a thread looks at its term
            self._calling.cancel()

    def _act_proclaimed(self, call: tuple[Any, Any], error: LeaderElectionError | None) -> None:
        if call[1].set_running_or_notify_cancel():  # else nothing waits for it any more
            call[1].set_exception(error) if error else call[1].set_result(None)


class FollowRun(Run, FollowMachine):
    """A follower that is driven."""

    _put: Callable[[Any], None]

    async def now(self) -> Leader | None:
        """Return the present leader, or None."""
        _, *found = await self.once(*self.statement("observe"))
        return Leader(*found) if found[0] is not None else None

    def _act_told(self, *leader: Any) -> None:
        self._put(Leader(*leader) if leader[0] is not None else None)
