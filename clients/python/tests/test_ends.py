"""Each way in which a function of the user can end, and in which the program can."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Server, until
from psycopg import OperationalError
from psycopg.pq import TransactionStatus

import leader_election
from leader_election import (
    AsyncElector,
    Elector,
    LeaderElectionError,
    LostError,
    PermanentError,
    Term,
    aio,
)


class NoText(Exception):  # noqa: N818
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NoAttribute(Exception):  # noqa: N818
    """An exception that looks for its attributes in an answer, as those of some clients do."""

    def __getattr__(self, name: str) -> Any:
        return {"code": 5}[name]


class OfAsyncpg(Exception):  # noqa: N818
    """An exception with an SQLSTATE, but without psycopg's ``diag``."""

    sqlstate = "40001"


class Empty(Exception):  # noqa: N818
    """An exception that looks false."""

    def __bool__(self) -> bool:
        return False


class Other(BaseException):
    """An exception that is not an error, as test frameworks and greenlets have them."""


FAILURES: list[BaseException] = [
    ValueError("value"),
    StopIteration("value"),
    StopAsyncIteration(),
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    concurrent.futures.InvalidStateError(),
    TimeoutError(),
    GeneratorExit(),
    ExceptionGroup("group", [ValueError(), StopIteration()]),
    NoAttribute("value"),
    NoText(),
    OfAsyncpg("could not serialize access"),
    Empty(),
    LostError("over", "the term is over"),
]
RAISED = [
    SystemExit(3),
    KeyboardInterrupt(),
    Other(),
    BaseExceptionGroup("group", [KeyboardInterrupt()]),
]
failures = pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
raised = pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
places = pytest.mark.parametrize("place", ["job", "on_elected", "on_ousted"])


class World:
    """An elector that leads by a lease of a server that grants it, with short pauses."""

    flavours: tuple[Any, Any] = (AsyncElector, Elector)

    def __init__(self, flavour: str, monkeypatch: Any) -> None:
        self.server = Server(monkeypatch)
        self.server.renews = True
        monkeypatch.setattr("leader_election._elector.Machine.draw", lambda _: -0.98)
        self.threads = flavour == "threads"
        self.errors: list[Any] = []
        self.called: list[str] = []
        self.failure: Any = None

    def function(self, name: str, act: Callable[[int], object]) -> Any:
        """Return a function of the user, or a coroutine function, that does something."""

        def plain(*args: Any) -> Any:
            self.called.append(f"{name} {args[1]}" if name == "on_ousted" else name)
            return act(sum(called.startswith(name) for called in self.called))

        async def coroutine(*args: Any) -> Any:
            return plain(*args)

        return plain if self.threads else coroutine

    def run(self, connect: Any = print, **acts: Callable[[int], object]) -> None:
        """Run the elector to its end, with functions that do these things."""
        acts = {"job": bool, "on_elected": bool, "on_ousted": bool} | acts
        given = {name: self.function(name, act) for name, act in acts.items()}
        job, flavour = given.pop("job"), self.flavours[self.threads]
        given = {"on_error": self.errors.append} | given
        self.elector: Any = flavour(connect, "e", ttl=5, **given)
        self.call(self.elector.run, job)

    def call(self, run: Any, *args: Any) -> None:
        """Call a function in a thread of its own, until it ends."""

        def program() -> None:
            try:
                running = run(*args)
                self.result = running if self.threads else asyncio.run(running)
            except BaseException as error:
                self.failure = error

        thread = threading.Thread(target=program, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), (self.called, self.errors[:3])
        assert (self.elector.state, self.elector.health) == ("stopped", "stopped")
        until(lambda: threading.active_count() == 1, 5)

    def resigned(self) -> bool:
        return any("le_resign" in sql for sql in self.server.asked)


@pytest.fixture
def world(flavour: str, monkeypatch: Any) -> World:
    return World(flavour, monkeypatch)


def throw(error: BaseException) -> Any:
    raise error


@failures
@places
def test_failure(place: str, error: BaseException, world: World) -> None:
    def job(number: int) -> None:
        if place == "job" and number == 1:
            throw(error)
        if number == 2:
            world.elector.stop()

    def first(number: int) -> object:
        return number > 1 or throw(error)

    world.run(job=job, **({} if place == "job" else {place: first}))
    assert world.failure is None and world.resigned()
    [reported] = world.errors
    assert reported.kind == ("job" if place == "job" else "callback")
    cause = reported.__cause__
    assert type(cause) is type(error) or isinstance(cause.__cause__, StopIteration)
    end = "job failed" if place == "job" else "job returned"
    term = ["on_elected", "job", f"on_ousted {end}"]
    assert world.called == [*term, "on_elected", "job", "on_ousted resigned"]


@failures
def test_failure_of_the_error_callback(error: BaseException, world: World) -> None:
    def job(number: int) -> None:
        if number == 3:
            world.elector.stop()
        raise ValueError

    world.run(job=job, on_error=lambda _: throw(error))
    assert world.failure is None and world.called.count("on_error") == 3 == world.elector.errors


@failures
def test_failure_to_connect(error: BaseException, world: World) -> None:
    def connect(number: int) -> None:
        if number == 3:
            world.elector.stop()
        throw(error)

    function = world.server.real = world.function("connect", connect)
    world.run(function)
    assert world.failure is None and world.called == ["connect"] * 3
    wanted = "40001" if isinstance(error, OfAsyncpg) else ""
    assert [e.sqlstate for e in world.errors] == [wanted] * 3


def test_connect_that_catches_its_cancellation(monkeypatch: Any) -> None:
    world = World("asyncio", monkeypatch)

    async def opened(*_: Any) -> Any:
        world.elector.stop()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        return world.server

    monkeypatch.setattr("leader_election._run.Link.open", opened)
    world.run()
    assert world.failure is None
    assert not world.server.asked and world.server.closed


def test_expelling_has_one_deadline(monkeypatch: Any) -> None:
    world = World("asyncio", monkeypatch)
    answers = [[11], [7], [True, 12]]  # which another session has given

    async def opened(*_: Any) -> Any:
        if not answers:
            await asyncio.sleep(0.4)
            throw(OperationalError("refused"))
        return world.server

    async def ask(*_: Any) -> Any:
        return answers.pop(0)

    monkeypatch.setattr(world.server, "ask", ask)
    monkeypatch.setattr("leader_election._run.Link.open", opened)
    world.elector = AsyncElector(print, "e", heartbeat=3)
    begun = time.monotonic()
    world.call(world.elector.run, bool)
    assert world.failure.kind == "pooler" and time.monotonic() - begun < 3


@raised
@places
def test_raised(place: str, error: BaseException, world: World) -> None:
    world.run(**{place: lambda number: number > 1 or throw(error)})
    assert world.failure is error and not world.errors and world.resigned()
    assert [called for called in world.called if place != "job" or called == "job"][:1] in (
        ["job"],
        ["on_elected"],
    )
    assert world.called.count("job") == (place != "on_elected")
    assert world.called[-1].startswith("on_ousted")


@raised
def test_raised_beside_threads(error: BaseException, monkeypatch: Any) -> None:
    world = World("threads", monkeypatch)

    def job(number: int) -> None:
        if number == 2:
            world.elector.stop()
        raise ValueError

    world.run(job=job, on_error=lambda _: throw(error))
    assert world.failure is None and world.called.count("on_error") == 2


def test_generator_function_in_every(world: World) -> None:
    def task(*_: Any) -> Any:
        yield

    def on_error(error: Any) -> None:
        world.errors.append(error)
        world.elector.stop()

    make: Any = leader_election.every if world.threads else aio.every
    job = make(SyncConnection if world.threads else AsyncConnection, 1, task)
    world.elector = world.flavours[world.threads](print, "e", ttl=5, on_error=on_error)
    world.call(world.elector.run, job)
    assert "generator" in str(world.errors[0]) and world.errors[0].kind == "task"


@raised
def test_raised_by_connect_of_threads(error: BaseException, monkeypatch: Any) -> None:
    world = World("threads", monkeypatch)

    def connect(number: int) -> None:
        if number == 2:
            world.elector.stop()
        throw(error)

    function = world.server.real = world.function("connect", connect)
    world.run(function)
    assert world.failure is None and len(world.errors) == 2
    assert type(error).__name__ in str(world.errors[0])


def test_exit_within_a_group_of_tasks(monkeypatch: Any) -> None:
    world = World("asyncio", monkeypatch)

    async def leave() -> None:
        sys.exit(3)

    async def job(_: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())

    world.elector = AsyncElector(print, "e", ttl=5, on_error=world.errors.append)
    world.call(world.elector.run, job)  # which ends though a task of the group ends the loop
    assert isinstance(world.failure, SystemExit) and world.resigned()


def test_coroutine_functions_given_to_threads(monkeypatch: Any) -> None:
    async def job(_: Any) -> None:
        pass

    elector = Elector(print, "e", ttl=5)
    for run in elector.run, elector.try_run:
        with pytest.raises(TypeError, match="AsyncElector"):
            run(job)
    world = World("threads", monkeypatch)

    def hidden(number: int) -> Any:
        if number == 1:
            return job(None)
        return world.elector.stop()

    world.run(job=hidden, on_elected=lambda number: job(None) if number == 1 else None)
    assert [error.kind for error in world.errors] == ["callback", "job"]
    assert all("coroutine" in str(error) for error in world.errors)


def test_generator_that_a_function_returns(world: World) -> None:
    def generator(number: int) -> Any:
        if number == 1:
            return (page for page in "ab")
        return world.elector.stop()

    world.run(job=generator, on_elected=lambda number: generator(1) if number == 1 else None)
    assert [error.kind for error in world.errors] == ["callback", "job"]
    assert all("generator" in str(error) for error in world.errors)


@pytest.mark.parametrize("tells", [True, False], ids=["on_error", "logger"])
def test_errors_while_no_thread_can_begin(tells: bool, monkeypatch: Any) -> None:
    logged: list[str] = []
    begun: list[Any] = []
    begin = threading.Thread.start

    def log(_: int, what: str, *args: Any, **__: Any) -> None:
        logged.append(what % args)
        elector.stop()

    def limited(thread: threading.Thread) -> None:
        if begun:  # the elector's own
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    logger = logging.getLogger("limited")
    monkeypatch.setattr(logger, "log", log)
    elector = Elector(print, "e", ttl=5, logger=logger, on_error=print if tells else None)
    timer = threading.Timer(5, elector.stop)
    timer.start()
    monkeypatch.setattr(threading.Thread, "start", limited)
    elector.run(print)
    timer.cancel()
    wanted = "on_error failed; its error:" if tells else "election e:"
    assert logged == [f"{wanted} can't start new thread"]


def test_logger_that_fails_by_a_runtime_error(world: World, monkeypatch: Any) -> None:
    logged: list[threading.Thread] = []

    def log(*_: Any, **__: Any) -> None:
        logged.append(threading.current_thread())
        raise RuntimeError("Session is closed")

    monkeypatch.setattr(logging.getLogger("leader_election"), "log", log)
    world.run(job=lambda _: world.elector.stop())
    assert len(set(logged)) == len(logged) == 2  # elected, and the end of the term


def test_no_function_is_no_job(world: World) -> None:
    async def pages(_: Any) -> Any:
        yield 1

    for wrong in None, (page for page in "ab"), lambda _: (yield), pages:
        world.elector = World.flavours[world.threads](print, "e", ttl=5)
        world.call(world.elector.run, wrong)
        assert isinstance(world.failure, TypeError) and not world.server.asked


def test_a_job_that_looks_false(world: World) -> None:
    class Tasks(list[Any]):
        __call__ = world.function("job", lambda _: world.elector.stop())

    world.elector = World.flavours[world.threads](print, "e", ttl=5)
    world.call(world.elector.run, Tasks())
    assert world.called == ["job"] and world.failure is None


def test_a_loop_that_breaks_tells_the_job(monkeypatch: Any) -> None:
    world = World("threads", monkeypatch)
    told: list[bool] = []

    def job(term: Term) -> None:
        world.elector._driver._loop._selector.close()  # as closing all files does
        told.append(term.wait(5))

    world.elector = Elector(print, "e", ttl=60)
    world.call(world.elector.run, job)
    assert told == [True] and isinstance(world.failure, Exception)


@failures
def test_try_run_raises_what_the_job_raises(error: BaseException, world: World) -> None:
    job, flavour = world.function("job", lambda _: throw(error)), World.flavours[world.threads]
    world.elector = flavour(print, "e", ttl=5, on_error=world.errors.append)
    world.call(world.elector.try_run, job)
    assert type(world.failure) is type(error) or isinstance(world.failure.__cause__, StopIteration)
    assert world.resigned() and not world.errors


def test_errors_go_from_process_to_process() -> None:
    for kind in LeaderElectionError, LostError, PermanentError:
        error = pickle.loads(pickle.dumps(kind("pooler", "a text", "LE005", "a hint")))
        assert type(error) is kind and str(error) == "a text"
        assert (error.kind, error.sqlstate, error.hint) == ("pooler", "LE005", "a hint")


def test_no_thread_can_be_started(monkeypatch: Any) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    world = World("threads", monkeypatch)
    world.elector = Elector(print, "e", ttl=5)
    monkeypatch.setattr("leader_election._threads._thread.start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="start new thread"):
        world.elector.run(bool)
    assert world.elector.state == "stopped"


def test_run_inside_of_a_running_loop(monkeypatch: Any) -> None:
    Server(monkeypatch).renews = True
    terms: list[Any] = []

    async def main() -> bool:
        return Elector(print, "e", ttl=5).try_run(terms.append)

    assert asyncio.run(main()) is True and len(terms) == 1


def test_a_job_that_a_stop_has_cancelled_has_not_run_to_its_end(monkeypatch: Any) -> None:
    Server(monkeypatch).renews = True

    async def main() -> None:
        elector = AsyncElector(print, "e", ttl=5)

        async def job(term: Any) -> None:
            elector.stop()
            await asyncio.sleep(60)

        with pytest.raises(asyncio.CancelledError):
            await elector.try_run(job)

    asyncio.run(main())


def test_runs_once(monkeypatch: Any) -> None:
    Server(monkeypatch).renews = True
    elector = Elector(print, "e", ttl=5)
    assert elector.try_run(bool)
    for run in elector.run, elector.try_run:
        with pytest.raises(RuntimeError, match="once only"):
            run(bool)


def test_a_second_run_does_not_replace_the_job(world: World) -> None:
    def job(number: int) -> None:
        if number == 1:
            again = world.elector.run(other)
            if not world.threads:  # the error comes when it is awaited
                again.send(None)
        if number == 3:
            world.elector.stop()

    other = world.function("other", bool)
    world.run(job=job)
    assert [error.kind for error in world.errors] == ["job"]
    assert "once only" in str(world.errors[0])
    assert world.called.count("job") == 3 and "other" not in world.called


class SyncConnection:
    """A connection for ``every``, which is also its transactions and cursors."""

    prepare_threshold: int | None = 5
    transaction_status = TransactionStatus.IDLE

    def __init__(self) -> None:
        self.info, self.now = self, 0
        self.row: tuple[int, ...] = (True, 0)
        self.first = False

    def cursor(self, **_: Any) -> Any:
        return self

    transaction: Any = cursor

    def execute(self, sql: str, *_: Any) -> Any:
        self.now += 5
        self.transaction_status = TransactionStatus.INTRANS
        self.first ^= "once(" in sql  # and not again
        self.row = (self.first, 0) if "once(" in sql else (self.now, 0)
        self.row = self.row[1:] if sql.endswith("SELECT pg_catalog.txid_current()") else self.row
        return self

    def fetchone(self) -> Any:
        return self.row

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.transaction_status, self.first = TransactionStatus.IDLE, False


class AsyncConnection(SyncConnection):
    """A connection for asyncio."""

    async def execute(self, sql: str, *parameters: Any) -> Any:
        return super().execute(sql, *parameters)

    async def fetchone(self) -> Any:
        return self.row

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.__exit__()


@pytest.mark.parametrize("place", ["connect", "schedule", "task"])
@failures
def test_failure_in_every(place: str, error: BaseException, world: World, monkeypatch: Any) -> None:
    async def sleep(_: float) -> None:
        await asyncio.tasks.sleep(0.001)

    wait = Term.wait
    called: list[str] = []
    connection = (SyncConnection if world.threads else AsyncConnection)()

    def act(name: str, value: Any = None) -> Any:
        called.append(name)
        if called.count(name) == 1 and name == place:
            raise error
        if name == "task":
            world.elector.stop()
        return value

    monkeypatch.setattr("leader_election._every.asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(Term, "wait", lambda term, _: wait(term, 0.001))
    make = leader_election.every if world.threads else aio.every
    job: Any = make(
        lambda: act("connect", connection),
        lambda last: act("schedule", last + timedelta(seconds=5)),
        lambda *_: act("task"),
    )
    world.elector = world.flavours[world.threads](print, "e", ttl=5, on_error=world.errors.append)
    world.call(world.elector.run, job)
    assert world.failure is None and called[-1] == "task" and called.count(place) > 1
    assert [error.kind for error in world.errors] == [
        "task" if isinstance(error, Exception) else "job"
    ]
    assert world.elector.terms == 1 + (not isinstance(error, Exception))


@raised
def test_raised_in_every(error: BaseException, world: World) -> None:
    def task(*_: Any) -> None:
        raise error

    make: Any = leader_election.every if world.threads else aio.every
    job = make(SyncConnection if world.threads else AsyncConnection, 1, task)
    world.elector = world.flavours[world.threads](print, "e", ttl=5, on_error=world.errors.append)
    world.call(world.elector.run, job)
    assert world.failure is error and world.resigned() and not world.errors


def test_every_of_the_wrong_flavour(monkeypatch: Any) -> None:
    world = World("threads", monkeypatch)

    async def task(*_: Any) -> None:
        await asyncio.sleep(0)

    def on_error(error: Any) -> None:
        world.errors.append(error)
        world.elector.stop()

    job = leader_election.every(SyncConnection, 1, task)
    world.elector = Elector(print, "e", ttl=5, on_error=on_error)
    world.call(world.elector.run, job)
    assert "asyncio" in str(world.errors[0])
