"""Electors of either flavour, in threads of their own, with jobs that work."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from leader_election import AsyncElector, Elector, LeaderElectionError
from leader_election._psycopg import Link

DIRECT, POOLER = (os.environ.get(name, "") for name in ("DATABASE_URL", "POOLER_URL"))


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "has not come true"
        time.sleep(0.02)
    return value


class Server:
    """A server that grants a lease, and a link to it."""

    pooled = asking = renews = False

    def __init__(self, monkeypatch: Any) -> None:
        open_really = Link.open

        async def opened(connect: Any, *rest: Any) -> Any:
            return await open_really(connect, *rest) if connect == self.real else self

        self.asked: list[str] = []
        self.real: Any = None
        self.closed = 0
        monkeypatch.setattr("leader_election._run.Link.open", opened)

    async def ask(self, sql: str, *_: Any) -> list[Any]:
        self.asked.append(sql)
        if "le_lease" not in sql and not self.renews:
            raise LeaderElectionError("broken", "no")
        return [7] if "le_lease" in sql else [True]

    def watch(self, *_: Any) -> None:
        pass

    def close(self, keep: bool = False) -> Any:
        self.closed += 1
        return asyncio.sleep(0)


class Program:
    """An elector, in a thread of its own, with a job that works."""

    def __init__(self, flavour: str, election: str, dsn: str = DIRECT, **options: Any) -> None:
        self.terms: list[Any] = []
        self.ended: list[tuple[float, str]] = []
        self.errors: list[Any] = []
        self.failure: Any = None
        self.working, self.hangs = 0, False
        job = options.pop("job", None)
        threads = flavour == "threads"
        open_one: Any = psycopg.connect if threads else psycopg.AsyncConnection.connect
        connect = options.pop("connect", lambda: open_one(dsn))
        options["on_ousted"] = lambda _, reason: self.ended.append((time.monotonic(), reason))
        options = {"on_error": self.errors.append, **options}
        self.elector: Any = (Elector if threads else AsyncElector)(connect, election, **options)
        work: Any = self.work if threads else self.work_in_task
        run = self.elector.run if threads else self.run_in_task
        self.thread = threading.Thread(target=self.run, args=[run, job or work], daemon=True)
        self.thread.start()

    def run(self, run: Callable[[Any], Any], job: Any) -> None:
        try:
            run(job)
        except BaseException as error:
            self.failure = error

    def run_in_task(self, job: Any) -> None:
        async def main() -> None:
            try:
                await self.elector.run(job)
            finally:
                assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())

    def work(self, term: Any) -> None:
        self.terms.append(term)
        self.working += 1
        while not term.wait(0.05):
            if not self.hangs:
                term.heartbeat()
        self.working -= 1

    async def work_in_task(self, term: Any) -> None:
        self.terms.append(term)
        self.working += 1
        try:
            while True:
                await asyncio.sleep(0.05)
                if not self.hangs:
                    term.heartbeat()
        finally:
            self.working -= 1

    def stop(self, seconds: float = 10) -> None:
        """Stop, and wait for the end."""
        self.elector.stop()
        self.join(seconds)

    def join(self, seconds: float = 10) -> None:
        """Wait for the end."""
        self.thread.join(seconds)
        assert not self.thread.is_alive()
        assert (self.elector.state, self.elector.health) == ("stopped", "stopped")


@pytest.fixture
def election() -> str:
    """A name that is unique."""
    return f"python {uuid.uuid4()}"


@pytest.fixture(params=["threads", "asyncio"])
def flavour(request: pytest.FixtureRequest) -> Any:
    """Either flavour."""
    return request.param


@pytest.fixture
def begin(flavour: str, election: str) -> Iterator[Callable[..., Program]]:
    """Begin programs, and stop them at the end."""
    programs = []

    def begin(**options: Any) -> Program:
        programs.append(Program(flavour, election, **options))
        return programs[-1]

    yield begin
    for program in programs:
        program.stop()


@pytest.fixture
def db() -> Iterator[Any]:
    """A connection of the test's own."""
    with psycopg.connect(DIRECT, autocommit=True) as conn:
        yield conn
