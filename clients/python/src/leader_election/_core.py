"""The state machine of an elector, which knows neither driver nor threads nor event loop.

Its coroutines await only what a ``Runtime`` offers. With asyncio, the event loop drives them. With
threads, all that they await blocks, so that they never suspend, and ``drive`` runs them to the end.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import inf
from typing import Any, Generic, Literal, Protocol, TypeVar

T = TypeVar("T")

SHARED_SESSION = "LE005"  # SQLSTATE: this session leads under another identity
T_co = TypeVar("T_co", covariant=True)
TermT = TypeVar("TermT", bound="Term")

#: Why a term has ended, as the ousted callback is told.
Reason = Literal["resigned", "job returned", "job failed", "lost", "in doubt"]
#: The states of an elector.
State = Literal["waiting", "leading", "stopping", "paused", "stopped"]
#: A length of time; a number is one of seconds.
Duration = float | timedelta
Row = Sequence[str | None]
Statement = tuple[str, Row]
Stoppable = Literal["never", "before sending", "at any time"]

log = logging.getLogger("leader_election")
_numbers = itertools.count(random.SystemRandom().getrandbits(16))


class LeaderElectionError(Exception):
    """The base of this library's own errors."""


class LeadershipLost(LeaderElectionError):  # noqa: N818 - says what has happened
    """Leadership was lost or is in doubt, and the job has been cancelled."""

    def __init__(self, message: str, reason: Reason = "lost") -> None:
        super().__init__(message)
        #: Either ``"lost"`` or ``"in doubt"``.
        self.reason: Reason = reason


class JobNotStopped(LeaderElectionError):  # noqa: N818 - likewise
    """The job has not stopped within the stop timeout. The elector waits on."""


class PoolerError(LeaderElectionError):
    """A pooler shares server connections between clients: lead by a lease there."""


class Stopped(Exception):  # noqa: N818 - is none
    """The elector was asked to stop. Never leaves the library."""


class Link(Protocol):
    """A connection to the server, on which at most one statement is on its way."""

    #: The driver's connection.
    connection: Any
    #: Does the connection go back to a pool?
    pooled: bool

    def send(self, sql: str, args: Sequence[str | None]) -> None:
        """Begin to send a statement. Never waits."""

    def poll(self) -> Row | None:
        """Return the answer if it has arrived: a row, the tag of a command, or an empty row.

        Raises an error if the statement failed, or the connection has ended.
        """

    def fileno(self) -> int:
        """Return the socket."""

    def sending(self) -> bool:
        """Return whether a part of the statement has yet to be sent."""

    def hang_up(self) -> None:
        """Shut the socket down. Never waits."""

    async def release(self) -> None:
        """Return the connection to its pool."""

    async def close(self) -> None:
        """Close the connection. Never waits for the server."""


class Handle(Protocol[T_co]):
    """What runs beside the state machine, which is woken when that has ended."""

    @property
    def done(self) -> bool:
        """Return whether it has ended."""

    def result(self) -> T_co:
        """Return the result, or raise the error. Raises ``Stopped`` for one that was cancelled."""

    def cancel(self) -> None:
        """Cancel it if that is possible. Never waits."""

    def abandon(self) -> None:
        """Cancel a connection that is being opened, and close it if it opens nevertheless."""


class Runtime(Protocol):
    """What threads and asyncio do differently."""

    def now(self) -> float:
        """Return the seconds of a clock that goes on while the machine is suspended."""

    def random(self) -> float:
        """Return a number between 0 and 1."""

    def wake(self) -> None:
        """Let ``wait`` return. May be called from any thread, and by a signal handler."""

    async def wait(self, until: float, link: Link | None) -> None:
        """Wait for the time, for ``wake``, or for the link's socket."""

    async def connect(self) -> Link:
        """Open a connection."""

    async def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function of the user's."""

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Handle[T]:
        """Run a coroutine beside the state machine."""


def now() -> float:
    """Return the seconds of a clock that goes on while the machine is suspended."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of which all that it awaits blocks."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("the coroutine awaits something that does not block")


class Term:
    """A term of leadership, as the job is given it."""

    def __init__(self, election: str, token: int, now: Callable[[], float]) -> None:
        #: The election's name; the seat's name if the elector campaigns for seats.
        self.election = election
        #: The fencing token, which grows from term to term.
        self.token = token
        self._now = now
        self._valid_until = -inf
        self._cancelled = False
        self._beats = 0
        self._watchers: list[Callable[[], None]] = []
        self._report: Callable[[Exception], None] = lambda error: None

    def heartbeat(self) -> None:
        """Tell that the job has made progress. Sends nothing by itself, and never fails."""
        self._beats += 1

    def is_leading(self) -> bool:
        """Return whether the job may go on: it was not told to stop, and the term is confirmed.

        Looks at the clock only, and sends nothing. Ask before each step that matters.
        """
        return not self._cancelled and self._is_valid()

    def _is_valid(self) -> bool:
        return self._now() < self._valid_until

    def _cancel(self) -> None:
        self._cancelled = True
        for watcher in self._watchers:
            watcher()

    def _end(self) -> None:
        self._valid_until = -inf
        self._cancel()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(election={self.election!r}, token={self.token})"


@dataclass(frozen=True)
class Leader:
    """A leader, as the server knows it."""

    #: The name of the election.
    election: str
    #: What tells the leader apart from other candidates.
    identity: str | None
    #: The fencing token of the term.
    token: int
    #: When the term began.
    since: datetime
    #: Either ``session``, ``transaction`` or ``lease``.
    scope: str
    #: What the leader has published, for example its address.
    value: str | None


def seconds(value: Duration) -> float:
    """Return a duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def check_name(what: str, name: str, suffix: str = "") -> None:
    """Raise an error if the server would refuse the name or identity."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {type(name).__name__}")
    if not 1 <= len((name + suffix).encode()) <= 255 or not name or "\0" in name:
        raise ValueError(f"{what} must have 1 to 255 bytes, none of them zero")


def check_election(name: str, suffix: str = "") -> None:
    """Raise an error if the server would refuse the name of an election."""
    check_name("election", name, suffix)
    if name.lstrip("+-").isdecimal() or (name.startswith("{") and name.endswith("}")):
        raise ValueError("election must neither be a number nor be enclosed in braces")


@dataclass(frozen=True)
class Options:
    """The options of an elector, the timers that follow from them, and its statements."""

    election: str
    identity: str
    seats: int | None
    heartbeat: float | None
    ttl: float | None
    renew_on_heartbeat: bool
    stop_timeout: float

    @classmethod
    def checked(
        cls,
        election: str,
        identity: str | None,
        seats: int | None,
        heartbeat: Duration | None,
        ttl: Duration | None,
        renew_on_heartbeat: bool,
        stop_timeout: Duration,
    ) -> Options:
        """Return the options, or raise an error if they are wrong."""
        if seats is not None and not (type(seats) is int and 1 <= seats <= 10_000):
            raise ValueError("seats must be an integer from 1 to 10000")
        check_election(election, f"/{seats}" if seats else "")
        if identity is None:
            number = next(_numbers) & 0xFFFF  # random, and another one in each elector
            identity = f"{socket.gethostname()}:{os.getpid()}:{number:04x}"
        check_name("identity", identity)
        beat = None if heartbeat is None else seconds(heartbeat)
        lease = None if ttl is None else seconds(ttl)
        for name, value in ("heartbeat", beat), ("ttl", lease):
            if value is not None and not 1 <= value <= 86_400:
                raise ValueError(f"{name} must be from one second to one day")
        if beat and lease:
            raise ValueError("a lease has no heartbeat: use renew_on_heartbeat")
        if renew_on_heartbeat and not lease:
            raise ValueError("renew_on_heartbeat needs a ttl")
        if not 0 < seconds(stop_timeout) < inf:
            raise ValueError("stop_timeout must be positive")
        patience = seconds(stop_timeout)
        return cls(election, identity, seats, beat, lease, renew_on_heartbeat, patience)

    @property
    def limit(self) -> float:
        """The deadline of an answer, and of opening a connection."""
        return min(5.0, (self.ttl or self.heartbeat or inf) / 3)

    @property
    def interval(self) -> float:
        """The time from one question to the next."""
        return self.ttl / 3 if self.ttl else min(1.0, (self.heartbeat or inf) / 3)

    @property
    def retry(self) -> float:
        """The time from a failed renewal to the next."""
        return min(1.0, (self.ttl or inf) / 10)

    @property
    def validity(self) -> float:
        """How long a confirmation holds."""
        return self.ttl * 2 / 3 if self.ttl else 6.0

    @property
    def round(self) -> float:
        """How long the server lets a bid wait."""
        return 0.0 if self.ttl else 300.0

    def bid(self, token: int | None) -> Statement:
        """Return the bid, with the token of the last lease if that could not be resigned."""
        if self.ttl and not self.seats:
            args = (self.election, interval(self.ttl), self.identity, text(token))
            return "SELECT le_lease($1, $2, identity => $3, token => $4)", args
        names, seats = ("le_seats($1, $6)", (text(self.seats),)) if self.seats else ("$1", ())
        sql = (
            f"CALL le_campaign({names}, timeout => $2, identity => $3, ttl => $4, heartbeat => $5)"
        )
        terms = (interval(self.round), self.identity, interval(self.ttl), interval(self.heartbeat))
        return sql, (self.election, *terms, *seats)

    def confirm(self, term: Term, beats: bool) -> Statement:
        """Return the question whether the term runs; with beats, it prolongs the term."""
        if self.ttl:
            return "SELECT le_renew($1, $2)", (term.election, str(term.token))
        if self.heartbeat and beats:
            return "SELECT le_heartbeat($1), pg_backend_pid()", (term.election,)
        sql = "SELECT le_am_leader($1, identity => $2), pg_backend_pid()"
        return sql, (term.election, self.identity)

    def resign(self, term: Term) -> Statement:
        """Return the resignation."""
        if self.ttl:
            return "SELECT le_resign($1, $2)", (term.election, str(term.token))
        return "SELECT le_resign($1, identity => $2)", (term.election, self.identity)


def interval(value: float | None) -> str | None:
    """Return seconds as the server reads an interval."""
    return None if value is None else f"{value:.3f} s"


def text(value: int | None) -> str | None:
    """Return an integer as the server reads it."""
    return None if value is None else str(value)


class Question:
    """A statement on its way: opens a connection if need be, sends, and has a deadline."""

    def __init__(self, asker: Asker, statement: Statement, wait: float = 0) -> None:
        self._asker = asker
        self._statement, self._wait = statement, wait
        self._opening = asker.runtime.spawn(asker.runtime.connect()) if not asker.link else None
        self.asked = asker.runtime.now()
        self.deadline = self.asked + asker.limit
        self.sent = False
        self.beats: int | None = None

    @property
    def link(self) -> Link | None:
        """The connection, once it is open."""
        return self._asker.link

    async def poll(self) -> Row | None:
        """Take the next step. Returns the answer once it is there."""
        asker, now = self._asker, self._asker.runtime.now()
        if self._opening is not None:
            if not self._opening.done:
                if now >= self.deadline:
                    raise TimeoutError(f"no connection within {asker.limit:.3g} s")
                return None
            opening, self._opening = self._opening, None
            asker.link = opening.result()
        assert asker.link is not None
        if not self.sent:
            self.asked, self.deadline = now, now + asker.limit + self._wait
            self.sent = True
            asker.link.send(*self._statement)
        row = asker.link.poll()
        if row is not None:
            if asker.link.pooled and not asker.holds:
                await asker.release()
        elif now >= self.deadline:
            raise TimeoutError(f"no answer within {asker.limit + self._wait:.3g} s")
        return row

    async def drop(self) -> None:
        """Forget the statement, and close its connection."""
        if self._opening is not None:
            opening, self._opening = self._opening, None
            opening.abandon()
            if opening.done:  # in the nick of time
                try:
                    await opening.result().close()
                except Exception:
                    log.debug("a connection that was given up has failed", exc_info=True)
        await self._asker.drop()


class Asker:
    """Asks the server, on a connection that it opens when there is none."""

    def __init__(self, runtime: Runtime, limit: float = 5.0) -> None:
        self.runtime = runtime
        self.limit = limit
        self.link: Link | None = None
        #: Keep a pool's connection from one statement to the next.
        self.holds = False
        self.stopping = False
        self._failures = 0

    def stop(self) -> None:
        """Ask to stop. May be called from any thread, and by a signal handler."""
        self.stopping = True
        self.runtime.wake()

    async def wait(self, until: float, link: Link | None = None) -> None:
        """Wait for the time, the link, or an event."""
        await self.runtime.wait(until, link)

    async def ask(
        self, sql: str, *args: str | None, wait: float = 0, stop: Stoppable = "never"
    ) -> Row:
        """Return the answer. Raises ``Stopped`` if asked to stop where that is allowed."""
        return await self.answer(Question(self, (sql, args), wait), stop)

    async def answer(self, question: Question, stop: Stoppable = "never") -> Row:
        """Wait for the answer, with the statement cancelled and its connection closed on error."""
        try:
            while True:
                if (
                    self.stopping
                    and stop != "never"
                    and not (question.sent and stop == "before sending")
                ):
                    raise Stopped
                row = await question.poll()
                if row is not None:
                    return row
                await self.wait(question.deadline, question.link)
        except Stopped:
            if question.sent:
                await self.cancel()
            await question.drop()
            raise
        except BaseException:
            await question.drop()
            raise

    async def cancel(self) -> None:
        """Let the server cancel the statement. By default, the end of the connection does that."""

    async def release(self) -> None:
        """Let a pool have its connection back."""
        link, self.link = self.link, None
        if link is not None:
            await link.release()

    async def drop(self) -> None:
        """Close the connection."""
        link, self.link = self.link, None
        if link is not None:
            await link.close()

    async def pause(self, length: float) -> None:
        """Wait for that long, or to be asked to stop."""
        until = self.runtime.now() + length
        while not self.stopping and self.runtime.now() < until:
            await self.wait(until)

    def backoff(self) -> float:
        """Return the pause after one more error in a row."""
        self._failures += 1
        longest = min(15.0, 0.5 * 2.0 ** min(self._failures - 1, 10))
        return longest * (0.5 + self.runtime.random() / 2)


class _Tenure(Generic[TermT]):
    """What the elector knows of its present term."""

    def __init__(self, term: TermT, asked: float, options: Options) -> None:
        self.term = term
        self.options = options
        self.question: Question | None = None
        #: Whether the connection still waits for an answer to a question that was given up.
        self.unanswered = False
        #: What has ended leadership, or put it in doubt.
        self.end: Exception | None = None
        #: Why the job was told to stop.
        self.reason: Reason | None = None
        #: When a job that has not stopped is to be reported.
        self.report_at = inf
        self._beaten_until = inf
        self._beats = 0
        self.confirm(asked, 0)

    def confirm(self, asked: float, beats: int | None) -> None:
        """Count a confirmation from when it was asked for."""
        self.due = asked + self.options.interval
        self.question = None
        if beats is not None:
            self._beats = beats
            if self.options.heartbeat:
                self._beaten_until = asked + self.options.heartbeat * 2 / 3
        self.term._valid_until = min(asked + self.options.validity, self._beaten_until)

    def new_beats(self) -> int | None:
        """Return how often the job has called heartbeat, or None if not since the last one."""
        beats = self.term._beats
        return beats if beats != self._beats else None

    def wakeup(self) -> float:
        """Return when to look again."""
        if self.end is not None:
            return self.report_at
        question = self.due if self.question is None else self.question.deadline
        return min(self.report_at, question, self.term._valid_until)


class Machine(Asker, Generic[TermT]):
    """The elector's state machine."""

    def __init__(
        self,
        runtime: Runtime,
        options: Options,
        term_class: Callable[[str, int, Callable[[], float]], TermT],
        job: Callable[[TermT], Any],
        on_elected: Callable[[TermT], Any] | None,
        on_ousted: Callable[[TermT, Reason], Any] | None,
        on_error: Callable[[Exception], Any] | None,
    ) -> None:
        for what, function in (
            ("job", job),
            ("on_elected", on_elected or print),
            ("on_ousted", on_ousted or print),
            ("on_error", on_error or print),
        ):
            if not callable(function):
                raise TypeError(f"{what} must be callable")
        super().__init__(runtime, options.limit)
        self.options = options
        self.state: State = "paused"
        self._term_class = term_class
        self._job = job
        self._on_elected, self._on_ousted = on_elected, on_ousted
        self._on_error = on_error or self._log
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._calling: Handle[None] | None = None
        self._token: int | None = None
        self._checked = False
        self._backend: str | None = None

    async def run(self) -> None:
        """Campaign and lead until asked to stop. Raises ``PoolerError``."""
        try:
            while not self.stopping:
                self.state = "waiting"
                try:
                    pause = await self._campaign()
                except Stopped:
                    break
                except PoolerError:
                    raise
                except Exception as error:
                    await self.drop()
                    self.report(error)
                    pause = self.backoff()
                self.state = "paused"
                await self.pause(pause)
        finally:
            await self.drop()
            await self._settle()
            self.state = "stopped"

    async def _campaign(self) -> float:
        """Bid, and lead if elected. Returns the pause before the next bid."""
        options = self.options
        if not options.ttl and not self._checked:
            await self._look_for_pooler()
        if not options.ttl and self._backend is None:
            (self._backend,) = await self.ask("SELECT pg_backend_pid()", stop="at any time")
        stop: Stoppable = "before sending" if options.ttl else "at any time"
        while True:
            try:
                question = Question(self, options.bid(self._token), options.round)
                row = await self.answer(question, stop)
            except Exception as error:
                if getattr(error, "sqlstate", "") == SHARED_SESSION:
                    raise PoolerError("another candidate leads on this connection") from error
                raise
            self._failures = 0
            if row[0] is not None:
                break
            if options.ttl:
                self._token = None
                self.state = "waiting"
                await self.pause(question.asked + options.ttl / 3 - self.runtime.now())
                if self.stopping:
                    raise Stopped
        name = row[1] if options.seats else options.election
        term = self._term_class(name or "", int(row[0]), self.runtime.now)
        if not options.ttl:
            question = await self._confirm_election(term)
        return await self._lead(_Tenure(term, question.asked, options))

    async def _look_for_pooler(self) -> None:
        """Open two connections, and raise ``PoolerError`` if they are one to the server."""
        (backend,) = await self.ask("SELECT pg_backend_pid()", stop="at any time")
        first, self.link = self.link, None
        if first is None:  # it is back in its pool
            raise TypeError("session scope needs a connection of its own, not one of a pool")
        try:
            (second,) = await self.ask("SELECT pg_backend_pid()", stop="at any time")
            if second == backend:
                raise PoolerError("two connections share a server connection")
        except BaseException:
            await first.close()
            raise
        finally:
            await self.drop()
        self.link, self._backend, self._checked = first, backend, True

    async def drop(self) -> None:
        """Close the connection, and forget its backend."""
        self._backend = None
        await super().drop()

    async def cancel(self) -> None:
        """Cancel the bid through another connection, or the server would notice seconds later.

        libpq's own way waits for the server before version 17, with Python's lock held.
        """
        helper = Asker(self.runtime, self.limit)
        try:
            if self._backend is not None:
                await helper.ask("SELECT pg_cancel_backend($1)", self._backend)
        except Exception:
            log.debug("the bid could not be cancelled", exc_info=True)
        finally:
            await helper.drop()

    def _check_backend(self, backend: str | None) -> None:
        if self._backend not in (None, backend):
            raise PoolerError("the connection has changed its server connection")
        self._backend = backend

    async def _confirm_election(self, term: TermT) -> Question:
        """Ask for the first confirmation in session scope, and return the question."""
        question = Question(self, self.options.confirm(term, beats=True))
        row = await self.answer(question)
        try:
            self._check_backend(row[1])
            if row[0] != "t":
                raise LeadershipLost(f"{term!r} was over before it was confirmed")
        except PoolerError:
            await self._leave_nothing(term)
            raise
        return question

    async def _lead(self, tenure: _Tenure[TermT]) -> float:
        """Run the job for as long as the term lasts. Returns the pause before the next bid."""
        term = tenure.term
        term._report = self.report
        elected = term._is_valid() and not self.stopping
        if elected:
            self.state = "leading"
            self._notify(self._on_elected, term)
        job: Handle[None] | None = None
        while job is None or not job.done:
            await self._watch(tenure)
            if self.stopping:
                tenure.reason = tenure.reason or "resigned"
            if tenure.reason is not None:
                if job is None:
                    break
                self._stop_job(job, tenure)
            elif job is None and self._calling is None and not self._calls:
                job = self.runtime.spawn(self.runtime.call(self._job, term))
            idle = None if self.options.ttl or tenure.end else self.link
            link = tenure.question.link if tenure.question is not None else idle
            try:
                await self.wait(tenure.wakeup(), link)
            except Exception as error:  # such as no thread can be started: the job must not run on
                await self._note_end(tenure, error)
        if self.stopping:
            tenure.reason = tenure.reason or "resigned"
        if job is not None:
            try:
                job.result()
            except Stopped:
                pass
            except Exception as error:
                self.report(error)
                tenure.reason = tenure.reason or "job failed"
            except BaseException as error:  # such as SystemExit, which ends a thread only
                failure = LeaderElectionError(f"the job of {term!r} has raised {error!r}")
                failure.__cause__ = error
                self.report(failure)
                tenure.reason = tenure.reason or "job failed"
        reason = tenure.reason or "job returned"
        self.state = "stopping"
        await self._resign(tenure)
        if elected:
            self._notify(self._on_ousted, term, reason)
        await self._settle()
        if isinstance(tenure.end, PoolerError):
            raise tenure.end
        return 0.5 + self.runtime.random() / 2 if reason == "job returned" else self.backoff()

    def _stop_job(self, job: Handle[None], tenure: _Tenure[TermT]) -> None:
        now = self.runtime.now()
        if self.state == "leading":
            self.state = "stopping"
            tenure.report_at = now + self.options.stop_timeout
            tenure.term._cancel()
            job.cancel()
        elif now >= tenure.report_at:
            tenure.report_at = inf
            self.report(JobNotStopped(f"the job of {tenure.term!r} has not stopped"))

    async def _watch(self, tenure: _Tenure[TermT]) -> None:
        """Confirm leadership when that is due, and note its end."""
        if tenure.end is not None:
            return
        try:
            await self._confirm(tenure)
        except Exception as error:
            await self._note_end(tenure, error)

    async def _note_end(self, tenure: _Tenure[TermT], error: Exception) -> None:
        if tenure.question is not None:
            if self.options.ttl:
                await tenure.question.drop()
            else:  # to close the connection now would give leadership up under the job
                tenure.unanswered = True
            tenure.question = None
        if tenure.end is None:
            tenure.end = error
            tenure.reason = tenure.reason or getattr(error, "reason", "lost")
            tenure.term._end()
            if not isinstance(error, PoolerError):
                self.report(error)

    async def _confirm(self, tenure: _Tenure[TermT]) -> None:
        """Take the next step of confirming leadership. Raises an error at its end."""
        term, options, now = tenure.term, self.options, self.runtime.now()
        if not term._is_valid():
            raise LeadershipLost(f"{term!r} is in doubt", "in doubt")
        row: Row | None = None
        try:
            if tenure.question is None and now >= tenure.due:
                self._question(tenure)
            if tenure.question is not None:
                row = await tenure.question.poll()
            elif not options.ttl and self.link is not None:
                row = self.link.poll()  # nothing was asked: raises an error, or returns None
        except Exception as error:
            if not options.ttl:
                raise LeadershipLost(f"{term!r} has ended: {error}") from error
            if tenure.question is not None:
                await tenure.question.drop()
            tenure.question, tenure.due = None, now + options.retry
            self.report(error)
        if row is None or tenure.question is None:
            return
        if not options.ttl:
            self._check_backend(row[1])
        if row[0] != "t":
            raise LeadershipLost(f"{term!r} has ended, says the server")
        tenure.confirm(tenure.question.asked, tenure.question.beats)

    def _question(self, tenure: _Tenure[TermT]) -> None:
        """Ask for a confirmation, unless that has to wait for the job's heartbeat."""
        beats = tenure.new_beats()
        if self.options.renew_on_heartbeat and beats is None:
            tenure.due = self.runtime.now() + self.options.retry
            return
        statement = self.options.confirm(tenure.term, beats is not None)
        tenure.question = Question(self, statement)
        tenure.question.beats = beats

    async def _resign(self, tenure: _Tenure[TermT]) -> None:
        """Resign, unless leadership is lost, and close the connection."""
        term, end = tenure.term, tenure.end
        term._end()
        self._token = None
        if isinstance(end, PoolerError):
            await self._leave_nothing(term)
        elif (end is None or getattr(end, "reason", "") == "in doubt") and not tenure.unanswered:
            try:
                if tenure.question is not None:
                    await self.answer(tenure.question)
            except Exception as error:
                self.report(error)
            try:
                if self.options.ttl or self.link is not None:
                    await self.answer(Question(self, self.options.resign(term)))
            except Exception as error:
                self.report(error)
                self._token = term.token if self.options.ttl else None
        await self.drop()

    async def _leave_nothing(self, term: TermT) -> None:
        """Resign on whichever server connection the pooler gives."""
        for _ in range(10):
            try:
                (resigned,) = await self.answer(Question(self, self.options.resign(term)))
            except Exception:
                log.debug("could not resign", exc_info=True)
                return
            if resigned == "t":
                return

    async def wait(self, until: float, link: Link | None = None) -> None:
        """Wait, and call the callbacks meanwhile, one after the other."""
        self._pump()
        await super().wait(until, link)
        self._pump()

    def _pump(self) -> None:
        if self._calling is not None and self._calling.done:
            self._calling = None
        if self._calling is None and self._calls:
            self._calling = self.runtime.spawn(self._deliver(*self._calls.popleft()))

    async def _deliver(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            await self.runtime.call(callback, *args)
        except Exception as error:
            if callback == self._on_error:
                log.exception("the error callback has failed")
            else:
                self.report(error)

    async def _settle(self) -> None:
        """Wait until all callbacks have returned."""
        while self._calling is not None or self._calls:
            await self.wait(inf)

    def _notify(self, callback: Callable[..., Any] | None, *args: Any) -> None:
        if callback is not None:
            self._calls.append((callback, args))

    def report(self, error: Exception) -> None:
        """Report an error. May be called from any thread."""
        self._notify(self._on_error, error)
        self.runtime.wake()

    def _log(self, error: Exception) -> None:
        message = "election %s, %s: %s"
        log.error(message, self.options.election, self.options.identity, error or repr(error))


async def leader(asker: Asker, election: str) -> Leader | None:
    """Return the leader."""
    fields = "identity, token, extract(epoch FROM since), scope, value"
    row = await asker.ask(f"SELECT {fields} FROM le_leader($1)", election, stop="at any time")
    if not row or row[1] is None:
        return None
    return Leader(election, row[0], int(row[1]), moment(row[2] or "0"), row[3] or "", row[4])


def moment(epoch: str) -> datetime:
    """Return a time that the server gave in seconds."""
    start = datetime(1970, 1, 1, tzinfo=timezone.utc)
    return start + timedelta(microseconds=round(float(epoch) * 1e6))


async def follow(
    asker: Asker, election: str, report: Callable[[Exception], Any]
) -> AsyncIterator[Leader | None]:
    """Yield the present leader and then each change, until asked to stop."""
    observe = "CALL le_observe($1, $2, timeout => '30 s')"
    told: Leader | str | None = "nothing"
    version: str | None = None
    try:
        while not asker.stopping:
            try:
                args = (election, version)
                version, token, *_ = await asker.ask(observe, *args, wait=30, stop="at any time")
                vacant = token is None
                now = None if vacant else await leader(asker, election)
                asker._failures = 0
            except Stopped:
                return
            except Exception as error:
                report(error)
                await asker.pause(asker.backoff())
                version = None
                continue
            if now != told and (vacant or now is not None):
                told = now
                yield now
    finally:
        await asker.drop()


async def every(
    asker: Asker, length: float, task: Callable[[Any, datetime], Any], term: Term
) -> None:
    """Run the task once for each point in time, in a transaction of ``le_once``."""
    asker.holds = True

    def ended() -> None:
        asker.stop()
        link = asker.link
        if link is not None and not term._is_valid():
            link.hang_up()  # its transaction cannot commit

    term._watchers.append(ended)
    if term._cancelled:  # before it could call this
        ended()
    ask, name = asker.ask, term.election
    due_sql = "SELECT extract(epoch FROM date_bin($1, clock_timestamp(), '2000-01-01 00:00+00'))"
    seen: str | None = None
    try:
        while not asker.stopping:
            term.heartbeat()
            try:
                (due,) = await ask(due_sql, interval(length), stop="at any time")
                if due != seen:
                    await ask("BEGIN")
                    once = "SELECT le_once($1, to_timestamp($2), $3)"
                    (first,) = await ask(once, name, due, str(term.token))
                    if first == "t" and asker.link is not None:
                        await asker.runtime.call(task, asker.link.connection, moment(due or ""))
                    if await ask("COMMIT") != ("COMMIT",):
                        raise LeaderElectionError(f"the task of {moment(due or '')} has failed")
                    seen = due
                    term.heartbeat()
                if asker.link is not None and asker.link.pooled:
                    await asker.release()
            except Stopped:
                return
            except Exception as error:
                term._report(error)
                await asker.drop()
            await asker.pause(1)
    finally:
        await asker.drop()
