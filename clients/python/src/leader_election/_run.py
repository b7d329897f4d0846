"""Drives a state machine: a queue of what has happened, a timer, and a connection.

All else happens beside it, in tasks or threads, and puts its result into the queue. At the end is
what the electors and followers of both flavours have.
"""

import asyncio
import concurrent.futures
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from psycopg import OperationalError

from ._elector import Machine
from ._errors import Kind, LeaderElectionError, permanent
from ._follow import FollowMachine, Leader
from ._options import LOGGER, Connect, Health, Length, Options, Reason, State, Statement
from ._psycopg import Link
from ._term import AsyncTerm, BaseTerm, done, settled

T = TypeVar("T", bound=BaseTerm)
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

#: What ends a job without ending the program: its errors, and what has ended a coroutine in it.
FAILURES = (Exception, asyncio.CancelledError, GeneratorExit)
#: What a future does not carry, or takes for something else.
UNFIT = StopIteration, concurrent.futures.CancelledError
MISSING = """leader_election is not installed in database "{}": \
run CREATE EXTENSION leader_election, or install the SQL edition"""
ELSEWHERE = """leader_election is in schema "{}": \
set the option schema to it, or add it to search_path"""


async def in_task(function: Callable[..., Any], *args: Any, late: Any = None) -> Any:
    """Call a function, or a coroutine function."""
    return await settled(function(*args))


async def raised_by(function: Callable[..., Any], *args: Any) -> BaseException | None:
    """Call a function. Returns what it raises, which could end the event loop otherwise."""
    try:
        await in_task(function, *args)
    except BaseException as error:
        return error
    return None


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that must not be a coroutine function."""
    if inspect.isawaitable(result := function(*args)):
        raise TypeError("a coroutine function was given to threads: use asyncio's names")
    return done(result)


def start(function: Callable[..., Any], *args: Any) -> "concurrent.futures.Future[Any]":
    """Call a function in a thread of its own."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def call() -> None:
        try:
            future.set_result(plainly(function, *args))
        except BaseException as error:
            # an event loop that waits would end by some, and not take or mistake others
            fit = isinstance(error, Exception) and not isinstance(error, UNFIT)
            future.set_exception(error if fit else LeaderElectionError._of(error))

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


class Driver:
    """Drives a state machine. The flavours say how functions of the user are called."""

    beside = staticmethod(in_task)
    new_term: type[BaseTerm] = AsyncTerm
    job: Callable[[Any], Any]
    _driven = False
    _loop: asyncio.AbstractEventLoop | None = None
    _link: Link | None = None  # unless a statement is on its way
    _asking: asyncio.Future[Any] | None = None
    _calling: asyncio.Future[Any]
    _ended: tuple[LeaderElectionError | None, ...] = ()
    _raised: BaseException | None = None  # by the job or a callback
    # numbers of calls of the job and callbacks: that has not returned, the last, that was cancelled
    _number = _calls = _told = 0
    cut = False  # was the job, by a stop or a lost term?

    def __init__(self, machine: Machine) -> None:
        self.machine, self.options = machine, machine.options
        machine.driver, machine.new_term = self, self.new_term
        self._events: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._telling, self._logging = asyncio.Lock(), asyncio.Lock()  # which keep the order

    def put(self, *event: Any, call: int = 0) -> None:
        """Tell what has happened, such as the end of a call. May be called from any thread."""
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(self._put, event, call)
            else:
                self._put(event)
        except RuntimeError:  # which a signal handler can raise, too
            if not self._loop or not self._loop.is_closed():
                raise

    def _put(self, event: tuple[Any, ...], call: int = 0) -> None:
        if call:
            if call != self._number:
                return  # that call has returned already
            self._number = 0
        self._events.put_nowait(event)

    def look(self) -> None:
        """Look whether all is well, once a second at least."""

    def drive(self, job: Callable[[Any], Any], *begin: Any) -> Coroutine[Any, Any, Any]:
        """Drive the state machine. Returns what is to be raised.

        If this is cancelled, that is a stop. If it is cancelled again, it ends at once.
        """
        if self._driven:
            raise RuntimeError("can be run once only")
        if sys.is_finalizing():  # Python 3.11 would wait for its threads without end
            raise RuntimeError("no thread begins any more, as the interpreter ends")
        if not callable(job) or inspect.isgeneratorfunction(job) or inspect.isasyncgenfunction(job):
            raise TypeError("the job must be a function, and no generator function")
        self._driven, self.job = True, job
        return self._drive_on(*begin)

    async def _drive_on(self, *begin: Any) -> BaseException | None:
        self._loop = asyncio.get_running_loop()
        cancelled: asyncio.CancelledError | None = None
        put, machine = self._events.put_nowait, self.machine
        put(begin)
        try:
            while not self._ended:
                # look each second: timers stand while suspended
                rest = min(machine.wakeup() - machine.clock(), 1)
                timer = self._loop.call_later(rest, put, ("",))
                try:
                    event = await self._events.get()
                except asyncio.CancelledError as again:
                    # a cancel scope of anyio cancels again and again, with the same message
                    if cancelled and (not again.args or again.args != cancelled.args):
                        raise
                    cancelled, event = again, ("stop",)
                timer.cancel()
                if event == ("abandon",):
                    return None
                self.look()
                for kind, *args in machine.step(machine.clock(), *event):
                    getattr(self, "_act_" + kind)(*args)
            error = await self._conclude(*self._ended)
        finally:
            self._abandon()
        if cancelled:
            raise cancelled
        return self._raised or error

    def _act_end(self, error: LeaderElectionError | None) -> None:
        self._ended = (error,)

    async def _conclude(self, error: LeaderElectionError | None) -> LeaderElectionError | None:
        """Say in words what is wrong, and wait a moment for what still runs."""
        with suppress(Exception):
            if error and error.kind == "pooler":
                async with asyncio.timeout(self.machine.limit):
                    for _ in range(10):  # it can run in the session that it ends, as can another
                        with suppress(OperationalError):
                            await self.once(*self.machine.statement("expel"))
                            break
            elif error and error.kind == "extension":
                schema, base = await self.once(DIAGNOSE)
                if schema is None:
                    error.args = (MISSING.format(base),)
                elif schema != self.options.schema:
                    error.args = (ELSEWHERE.format(schema),)
        for _ in range(2):
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=1)
                for task in late:
                    task.cancel()
        return error

    def _abandon(self) -> None:
        """Leave nothing behind, also if the state machine has not come to its end."""
        self.machine.ended()
        self._act_close()
        for task in list(self._tasks):
            task.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Connections

    async def once(self, sql: str, *args: Any) -> list[Any]:
        """Ask one statement on a connection of its own."""
        async with asyncio.timeout(self.machine.limit):
            link = await Link.open(self.options.connect, self.beside)
            try:
                return await link.ask(sql, *args)
            finally:
                await link.close(keep=not link.asking)

    def _act_ask(self, serial: int, kind: str, *args: Any) -> None:
        statement = () if kind == "open" else self.machine.statement(kind, *args)
        self._asking = self._spawn(self._ask_server(serial, statement))

    async def _ask_server(self, serial: int, statement: Statement) -> None:
        link, self._link, opens = self._link, None, self.machine.opens
        row, keep, task = [], False, asyncio.current_task()
        assert task
        try:
            if not link:
                forks = Link.forks
                link = await Link.open(self.options.connect, self.beside)
                if task.cancelling():  # and connect has caught that
                    raise asyncio.CancelledError
                if opens and forks != Link.forks:  # whose child would keep the session alive
                    raise LeaderElectionError("broken", "forked while the connection was opened")
                if opens:  # else a pooler may share the server connection
                    row = await link.ask(SETTINGS, f"leader_election: {self.options.election}")
            self.put("begun", serial)
            if statement:
                row = await link.ask(*statement)
            self.put("answer", serial, *row)
            keep = True
        except BaseException as error:
            self.put("failed", serial, LeaderElectionError._of(error))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            keep = opens and link is not None and not link.asking
        if link and keep and not task.cancelling() and (opens or not link.pooled):
            self._link = link
            link.watch(lambda: self.put("broken") if opens else self._drop())
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
        if self.options.on_error:
            self._spawn(self._tell(self.options.on_error, error))
        else:
            raised = error.__cause__ if error.kind in ("job", "callback", "task") else None
            what = "election %s: %s", self.options.election, error
            self._spawn(self._log(logging.ERROR, *what, exc_info=raised))

    async def _tell(self, on_error: Callable[[Any], Any], error: LeaderElectionError) -> None:
        try:
            async with self._telling:
                await self.beside(on_error, error)
        except (Exception, GeneratorExit) as failed:
            await self._log(logging.ERROR, "on_error failed; its error: %s", error, exc_info=failed)

    async def _log(self, level: int, *what: Any, exc_info: Any = None) -> None:
        """Log in a thread, as a handler may block the loop otherwise."""
        log = partial(self.options.logger.log, level, *what, exc_info=exc_info)
        with suppress(Exception):
            async with self._logging:
                try:
                    call = start(log)
                except RuntimeError:  # no thread can begin, and nobody else tells that
                    log()
                else:
                    await asyncio.wrap_future(call)

    def _begin(self, function: Callable[..., Any] | None, *args: Any) -> None:
        self._number = self._calls = self._calls + 1
        self._call(self._number, *((bool,) if function is None else (function, *args)))

    def _call(self, number: int, function: Callable[..., Any], *args: Any) -> None:
        def returned(call: asyncio.Future[Any]) -> None:
            # it was cancelled before it has begun, or in the function
            error = asyncio.CancelledError() if call.cancelled() else call.result()
            if isinstance(error, asyncio.CancelledError) and number == self._told:
                error, self.cut = None, True
            elif error is not None and not isinstance(error, FAILURES):
                self._raised, error = error, None
                self._put(("stop",))
            self._put(("returned", error), number)

        self._calling = self._spawn(raised_by(function, *args))
        self._calling.add_done_callback(returned)

    def _act_elected(self, term: BaseTerm, _: str) -> None:
        what = "elected in %s, with token %d", term.election, term.token
        self._spawn(self._log(logging.INFO, *what))
        self._begin(self.options.on_elected, term)

    def _act_job(self, term: BaseTerm, _: str) -> None:
        self._begin(self.job, term)

    def _act_ousted(self, term: BaseTerm, reason: str) -> None:
        self._spawn(self._log(logging.INFO, "the term in %s is over: %s", term.election, reason))
        self._begin(self.options.on_ousted, term, reason)

    def _act_cancel(self) -> None:
        self._told = self._number
        self._calling.cancel()

    # What a follower tells

    async def now(self) -> Leader | None:
        """Return the present leader, or None."""
        try:
            _, *found = await self.once(*self.machine.statement("observe"))
        except Exception as error:
            kind: Kind = "timeout" if isinstance(error, TimeoutError) else "broken"
            failed = LeaderElectionError._of(error, kind)
            raise await self._conclude(permanent(failed) or failed) or failed from error
        return Leader(*found) if found[0] is not None else None

    def _act_told(self, *leader: Any) -> None:
        self.job(Leader(*leader) if leader[0] is not None else None)


class Driven:
    """What electors and followers have."""

    _drives: type[Driver] = Driver
    _driver: Driver

    def stop(self) -> None:
        """Let it end. Does not wait. May be called by any thread and signal handler.

        A second call, and one after the end, does nothing.
        """
        self._driver.put("stop")

    @property
    def state(self) -> State:
        """Either waiting, leading, stopping, paused or stopped."""
        return self._driver.machine.state

    @property
    def health(self) -> Health:
        """Either waiting, leading, in doubt or stopped. The first two are healthy."""
        return self._driver.machine.health

    @property
    def errors(self) -> int:
        """How many errors were reported."""
        return self._driver.machine.errors


class BaseElector(Driven, Generic[T]):
    """Campaigns for an election, and runs a job while it leads."""

    def __init__(
        self,
        connect: Connect,
        election: str,
        *,
        identity: str | None = None,
        schema: str | None = None,
        seats: int | None = None,
        ttl: Length | None = None,
        heartbeat: Length | None = None,
        stop_timeout: Length = 10,
        logger: logging.Logger = LOGGER,
        on_elected: Callable[[T], object] | None = None,
        on_ousted: Callable[[T, Reason], object] | None = None,
        on_error: Callable[[LeaderElectionError], object] | None = None,
    ) -> None:
        """Make an elector. Opens no connection.

        A length of time is a number of seconds, or a ``timedelta``.

        connect -- a function that opens a connection, see ``Connect``
        election -- the name of the election, of 1 to 255 bytes in UTF-8
        identity -- tells the candidates apart, in views, logs and warnings; 1 to 255 bytes (default
            the host name, the process ID and four random hexadecimal digits)
        schema -- the schema of the extension (default None: found by ``search_path``)
        seats -- how many may lead, from 1 to 10,000: campaigns for the elections ``election/1``,
            ``election/2`` and so on (default None: for one election)
        ttl -- the length of a lease, from 1 s to one day, and at most ``leader_election.max_ttl``
            of the server (default None: leads in session scope)
        heartbeat -- a length, from 1 s to one day: the job is cancelled if it has not called
            ``heartbeat`` of its term for 2/3 of it (default None: it need not call that)
        stop_timeout -- how long the job may take to stop, and ``on_elected`` and ``on_ousted`` to
            return, before this is reported; from 1 ms to one day (default 10 s)
        logger -- gets elections and the ends of terms, and errors if there is no ``on_error``
            (default the logger ``leader_election``)
        on_elected -- is called with the term before the job starts
        on_ousted -- is called with the term, and why it has ended, after the job has stopped
        on_error -- is called with each error that is reported

        Raises ``ValueError`` if an option is out of its range, and ``TypeError`` if it has a wrong
        type.
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        self._driver = self._drives(Machine(Options(**options)))

    @property
    def terms(self) -> int:
        """In how many terms this was elected."""
        return self._driver.machine.terms

    @property
    def confirmations(self) -> int:
        """How often the server has confirmed that this leads."""
        return self._driver.machine.confirmations


class BaseFollower(Driven):
    """Gives the present leader, or None, and then each change, until ``stop``."""

    def __init__(
        self,
        connect: Connect,
        election: str,
        *,
        schema: str | None = None,
        logger: logging.Logger = LOGGER,
        on_error: Callable[[LeaderElectionError], object] | None = None,
    ) -> None:
        """Make a follower. Opens no connection before the iteration.

        connect -- a function that opens a connection, which the follower keeps, see ``Connect``
        election -- the name of the election, of 1 to 255 bytes in UTF-8
        schema -- the schema of the extension (default None: found by ``search_path``)
        logger -- gets errors if there is no ``on_error`` (default the logger ``leader_election``)
        on_error -- is called with each error that is reported

        Raises ``ValueError`` if a name is too long or empty, and ``TypeError`` if an option has a
        wrong type. The iteration raises ``PermanentError``.
        """
        options: dict[str, Any] = {"schema": schema, "logger": logger, "on_error": on_error}
        self._driver = self._drives(FollowMachine(Options(connect, election, **options)))
