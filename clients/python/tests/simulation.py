"""A simulated world for electors: clock, server and connections, without waiting.

A ``World`` runs an elector with threads or with asyncio. The clock stands while anything runs, and
jumps to the next event when all wait. Jobs are coroutine functions of the term for both flavours.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import re
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import leader_election
from leader_election import _core, aio, threads

HANG: Any = "never answered"
KINDS = {
    "bid": r"le_campaign|le_lease",
    "am_leader": "le_am_leader",
    "heartbeat": "le_heartbeat",
    "renew": "le_renew",
    "resign": "le_resign",
    "cancel": "pg_cancel_backend",
    "pid": "^SELECT pg_backend_pid",
}
Job = Callable[[Any], Coroutine[Any, Any, None]]


class Endless(BaseException):
    """The simulation does not come to an end."""


class SqlError(Exception):
    """An error as the driver raises it."""

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


@dataclass
class Entry:
    """What has happened, and when."""

    time: float
    what: str
    detail: Any = None


@dataclass
class Server:
    """Answers each kind of statement: next from ``once``, then from ``always``, else as usual."""

    latency: float = 0.01
    once: dict[str, list[Any]] = field(default_factory=dict)
    always: dict[str, Any] = field(default_factory=dict)
    pid: int | None = None
    name: str | None = None
    _tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(100))

    def answer(self, kind: str, pid: int) -> Any:
        """Return a row, an error to be raised, or ``HANG``."""
        if self.once.get(kind):
            answer = self.once[kind].pop(0)
        elif kind in self.always:
            answer = self.always[kind]
        elif kind == "bid":
            answer = str(next(self._tokens))
        else:
            answer = "t"
        if answer is HANG or isinstance(answer, BaseException):
            return answer
        if kind == "bid":
            return (answer, self.name)
        if kind == "pid":
            return (str(pid),)
        return (answer, str(pid))


class SimLink:
    """A connection to the simulated server, with a socket that becomes readable."""

    connection = None

    def __init__(self, world: World, pid: int, pooled: bool) -> None:
        self.world, self.pid, self.pooled = world, pid, pooled
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.ended = self.closed = self.pending = False
        self.answer: Any = None

    def send(self, sql: str, args: Any) -> None:
        assert not self.closed and not self.pending, "one statement at a time"
        kind = next(kind for kind, pattern in KINDS.items() if re.search(pattern, sql))
        self.world.note(kind, (sql, *args))
        self.pending, self.answer = True, None
        answer = self.world.server.answer(kind, self.world.server.pid or self.pid)
        if answer is not HANG:
            self.world.at(self.world.server.latency, lambda: self.arrive(answer))

    def arrive(self, answer: Any) -> None:
        """Let the answer arrive."""
        if not self.closed:
            self.answer = answer
            self.theirs.send(b"!")

    def end(self) -> None:
        """End the connection, as a server does that ends."""
        self.ended = True
        self.theirs.send(b"!")

    def poll(self) -> Any:
        assert not self.closed
        with contextlib.suppress(BlockingIOError):
            self.ours.recv(100)
        if self.ended:
            raise SqlError("the connection has ended")
        if not self.pending or self.answer is None:
            return None
        self.pending = False
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def fileno(self) -> int:
        return self.ours.fileno()

    def sending(self) -> bool:
        return False

    def hang_up(self) -> None:
        self.ended = True

    async def release(self) -> None:
        self.closed = True
        self.world.note("release", self.pid)
        self.world.links.remove(self)

    async def close(self) -> None:
        self.closed = True
        self.world.note("close", self.pid)
        self.world.links.remove(self)
        self.ours.close()
        self.theirs.close()


class World:
    """The clock, the server, the log, and the elector."""

    def __init__(self, flavour: str) -> None:
        self.flavour = flavour
        self.time = 1000.0
        self.random = 1.0
        self.pooled = False
        self.hanging = 0
        self._steps = 0
        self.server = Server()
        self.links: list[SimLink] = []
        self.log: list[Entry] = []
        self.refused: list[Any] = []
        self.elector: Any = None
        self._pids = itertools.count(1)
        self._loop = SimLoop(self) if flavour == "asyncio" else None
        self._events: list[tuple[float, int, Callable[[], Any]]] = []
        self._serial = itertools.count()
        self._condition = threading.Condition()
        self._running = 0
        self._parked: list[tuple[Callable[[], bool], threading.Event]] = []

    # what tests use

    def note(self, what: str, detail: Any = None) -> None:
        """Log what happens."""
        self.log.append(Entry(round(self.time - 1000, 6), what, detail))

    def times(self, what: str) -> list[float]:
        """Return when it has happened."""
        return [entry.time for entry in self.log if entry.what == what]

    def details(self, what: str) -> list[Any]:
        """Return the details of each time that it has happened."""
        return [entry.detail for entry in self.log if entry.what == what]

    def order(self, *whats: str) -> list[str]:
        """Return the sequence of these events."""
        return [entry.what for entry in self.log if entry.what in whats]

    def at(self, delay: float, action: Callable[[], Any]) -> None:
        """Let something happen."""
        if self._loop is not None:
            self._loop.call_later(delay, action)
        else:
            with self._condition:
                event = (self.time + delay, next(self._serial), action)
                heapq.heappush(self._events, event)

    async def sleep(self, seconds: float, term: Any = None) -> None:
        """Let the job sleep. Raises CancelledError in a job that is to stop, unless stubborn."""
        if self._loop is not None:
            if term is not None:
                await asyncio.sleep(seconds)
                return
            until = self.time + seconds
            while self.time < until:
                try:
                    await asyncio.sleep(until - self.time)
                except asyncio.CancelledError:
                    self.note("cancelled")
            return
        until = self.time + seconds
        self.at(seconds, lambda: None)
        self.park(lambda: self.time >= until or (term is not None and term.cancelled))
        if term is not None and term.cancelled:
            raise asyncio.CancelledError

    async def steady(self, term: Any) -> None:
        """Work until cancelled, with a heartbeat each 0.1 s."""
        self.note("start", term)
        try:
            while True:
                await self.sleep(0.1, term)
                term.heartbeat()
        finally:
            self.note("end", term)

    async def hung(self, term: Any) -> None:
        """Work until cancelled, without a heartbeat."""
        self.note("start", term)
        try:
            await self.sleep(1000, term)
        finally:
            self.note("end", term)

    def stubborn(self, seconds: float) -> Job:
        """Return a job that takes its time, whether cancelled or not."""

        async def job(term: Any) -> None:
            self.note("start", term)
            await self.sleep(seconds)
            self.note("end", term)

        return job

    def make(self, job: Job | None = None, **options: Any) -> Any:
        """Return an elector in this world."""
        job = job or self.steady
        options.setdefault("on_elected", lambda term: self.note("elected", term))
        options.setdefault("on_ousted", lambda term, reason: self.note("ousted", reason))
        options.setdefault("on_error", lambda error: self.note("error", error))
        if self._loop is not None:
            runtime: Any = type("Bound", (AsyncRuntime,), {"world": self})
            elector = type("SimElector", (aio.AsyncElector,), {"_runtime_class": runtime})
            return elector(lambda: None, "x", job, **options)

        def thread_job(term: Any) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                _core.drive(job(term))

        runtime = type("Bound", (ThreadRuntime,), {"world": self})
        elector = type("SimElector", (threads.Elector,), {"_runtime_class": runtime})
        return elector(lambda: None, "x", thread_job, **options)

    def run(self, job: Job | None = None, stop_at: float = 60, **options: Any) -> None:
        """Run an elector, and stop it at that time."""
        self.elector = self.make(job, **options)

        def stop() -> None:
            self.note("stop")
            self.elector.stop()

        self.at(stop_at, stop)
        before = set(threading.enumerate())
        try:
            if self._loop is not None:
                self._loop.run_until_complete(self._run())
            else:
                self.elector.run()
        finally:
            self.note("returned")
            assert self.elector.state == "stopped"
            assert self.links == [], "a connection was left behind"
            left = len(set(threading.enumerate()) - before)
            assert left <= self.hanging, "a thread was left behind"

    async def _run(self) -> None:
        try:
            await self.elector.run()
        finally:
            assert len(asyncio.all_tasks()) == 1, "a task was left behind"

    def close(self) -> None:
        """Close the event loop, and let the connections open that were given up."""
        if self._loop is not None:
            self._loop.close()
        for _, event in self._parked:
            self.enter()
            event.set()
        with self._condition:
            assert self._condition.wait_for(lambda: self._running == 0, 10)
        assert self.links == [], "a connection that was given up has stayed open"

    # what the runtimes use

    async def connect(self) -> Any:
        """Open a connection: raises an error, or hangs, if the test says so."""
        self.note("connect")
        refused = self.refused.pop(0) if self.refused else None
        if refused is HANG:
            self.hanging += self._loop is None  # a thread cannot be cancelled, and is given up
            await self.sleep(1000, leader_election.Term("", 0, lambda: 0.0))
        elif refused is not None:
            raise refused
        link = SimLink(self, next(self._pids), self.pooled)
        self.links.append(link)
        return link

    def step(self) -> None:
        """Count a step of the simulation, to end one that does not end."""
        self._steps += 1
        if self._steps > 20_000:
            raise Endless

    def enter(self) -> None:
        """Count a thread that runs."""
        with self._condition:
            self._running += 1

    def leave(self) -> None:
        """Count a thread that has ended."""
        with self._condition:
            self._running -= 1
            self._condition.notify_all()

    def park(self, ready: Callable[[], bool]) -> None:
        """Let a thread wait, in simulated time."""
        event = threading.Event()
        with self._condition:
            self._parked.append((ready, event))
        self.leave()
        event.wait()

    def _unpark(self) -> None:
        for entry in list(self._parked):
            ready, event = entry
            if ready():
                self._parked.remove(entry)
                self._running += 1
                event.set()

    def select(self, selector: selectors.BaseSelector, seconds: float) -> None:
        """Wait in simulated time for one of the sockets."""
        deadline = self.time + seconds
        while True:
            self.step()
            with self._condition:
                self._unpark()
                assert self._condition.wait_for(lambda: self._running == 0, 10), "a thread hangs"
            if selector.select(0) or self.time >= deadline:
                return
            if self._events and self._events[0][0] <= deadline:
                time, _, action = heapq.heappop(self._events)
                self.time = max(self.time, time)
                action()
            else:
                self.time = deadline


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the world's."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__(SimSelector(world))

    def time(self) -> float:
        return self._world.time


class SimSelector(selectors.SelectSelector):
    """Lets the time pass at once if there is nothing to do."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> Any:
        self._world.step()
        events = super().select(0)
        if not events:
            assert timeout is not None, "all wait forever"
            self._world.time += max(0.0, timeout)
        return events


class AsyncRuntime(aio.Runtime):
    """asyncio in the world."""

    world: World

    def now(self) -> float:
        return self.world.time

    def random(self) -> float:
        return self.world.random

    async def connect(self) -> Any:
        return await self.world.connect()


class SimThread(threads._Thread[Any]):
    """A thread that the world counts."""

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            world: World = self._runtime.world  # type: ignore[attr-defined]
            world.leave()


class ThreadRuntime(threads.Runtime):
    """Threads in the world."""

    world: World

    def now(self) -> float:
        return self.world.time

    def random(self) -> float:
        return self.world.random

    async def connect(self) -> Any:
        return await self.world.connect()

    def spawn(self, coroutine: Any) -> Any:
        self.world.enter()
        thread = SimThread(self, coroutine)
        self._threads.append(thread)
        return thread

    def _select(self, selector: selectors.BaseSelector, seconds: float) -> None:
        self.world.select(selector, seconds)
