"""The tests T1 to T6 of clients/README.md, and what else needs no server."""

from __future__ import annotations

import asyncio
import inspect
import logging
import operator
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args
from zoneinfo import ZoneInfo

import psycopg
import pytest
from conftest import Program, Server, until
from croniter import croniter

import leader_election
from leader_election import AsyncElector, AsyncTerm, Elector, Kind, Term, aio
from leader_election._elector import Machine
from leader_election._every import due, in_zone
from leader_election._options import Options

async_connect = psycopg.AsyncConnection.connect


@pytest.mark.parametrize("elector", [Elector, AsyncElector])
def test_t1_wrong_options_are_refused(elector: Any) -> None:
    for options in {"ttl": 0.5}, {"seats": 0}, {"identity": ""}, {"heartbeat": float("nan")}:
        with pytest.raises(ValueError, match=next(iter(options))):
            elector(print, "e", **options)
    ill = {"connect": "postgresql://", "no": 1, "election": 5, "ttl": "15", "stop_timeout": None}
    for wrong in ({name: value} for name, value in ill.items()):
        with pytest.raises(TypeError):
            elector(**({"connect": print, "election": "e"} | wrong))
    with pytest.raises(ValueError, match="ttl"):
        elector(print, "e", ttl=timedelta(milliseconds=900))
    options = elector(print, "e", ttl=timedelta(minutes=1), heartbeat=5)._driver.options
    assert (options.ttl, options.heartbeat) == (60, 5)
    text: Any = "60"
    for every in leader_election.every, aio.every:
        for length in (0.5, 0, -60, float("nan")):
            with pytest.raises(ValueError, match="schedule"):
                every(print, length, print)
        with pytest.raises(TypeError):
            every(print, text, print)
        with pytest.raises(ValueError, match="zone"):
            every(print, 60, print, zone=UTC)


def test_what_is_no_exception_is_not_reported() -> None:
    text: Any = "text"
    with pytest.raises(TypeError):
        Term(Elector(print, "e")._driver.machine, "e", 7).report(text)


def test_public_names() -> None:
    names = "confirmations errors health run state stop terms try_run"
    for elector in Elector(print, "e"), AsyncElector(print, "e"):
        assert [name for name in dir(elector) if name[0] != "_"] == names.split()
    names = "cancelled election guard guard_sql heartbeat is_leading once once_sql proclaim report"
    for term, more in (AsyncTerm(None, "e", 7), []), (Term(None, "e", 7), ["wait"]):
        assert [name for name in dir(term) if name[0] != "_"] == [*names.split(), "token", *more]
    error = {*dir(leader_election.LostError("over", "text"))} - {*dir(Exception())}
    assert {name for name in error if name[0] != "_"} == {"kind", "sqlstate", "hint"}


ATTRIBUTES = {"Term": "election token", "LeaderElectionError": "kind sqlstate hint"}
ATTRIBUTES |= {"AsyncTerm": "election token", "Leader": "token identity value"}


@pytest.mark.parametrize("name", [*leader_election.__all__, "aio.AsyncFollower"])
def test_public_names_are_documented(name: str) -> None:
    public = operator.attrgetter(name)(leader_election)
    assert not inspect.isfunction(public) or public.__doc__
    for owner in public.__mro__ if inspect.isclass(public) else ():
        if owner.__module__.startswith("leader_election"):
            called = {"__iter__", "__aiter__"} & {*vars(owner)}
            names = [*called, *(name for name in vars(owner) if name[0] != "_")]
            assert not [name for name in names if not getattr(owner, name).__doc__]
    for attribute in ATTRIBUTES.get(name, "").split():
        assert re.search(rf"^ *.*\b{attribute}\b.* -- ", str(public.__doc__), re.M), attribute


def test_leader_can_get_more_attributes() -> None:
    leader = leader_election.Leader(7, "one", None)
    assert pickle.loads(pickle.dumps(leader)) == leader and leader in {leader}
    assert not isinstance(leader, tuple)  # which a program could unpack
    with pytest.raises(AttributeError):
        leader.value = "two"  # type: ignore[misc]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_term_is_over_in_a_forked_child() -> None:
    term = Term(Machine(Options(print, "e")), "e", 7)
    term._confirmed_until = float("inf")
    if not (child := os.fork()):
        begun = time.monotonic()
        told = term.wait(5) and term.cancelled and not term.is_leading()
        os._exit(0 if told and time.monotonic() - begun < 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not term.cancelled and term.is_leading()


@pytest.mark.parametrize("length", [0.05, timedelta(milliseconds=50)])
def test_lengths_of_waits(length: Any) -> None:
    term, begun = Term(None, "e", 7), time.monotonic()
    assert not term.wait(length) and time.monotonic() - begun > 0.04
    term._tell()
    assert term.wait(timedelta(days=1)) and term.wait()


@pytest.mark.parametrize("kind", get_args(Kind))
def test_readme_tells_each_kind(kind: str) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert re.search(rf"^\| [^|]*`{kind}`.* \|$", readme, re.M)


def test_t2_identities_differ() -> None:
    assert len({Elector(print, "e")._driver.options.name for _ in range(100)}) == 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_t2_identities_differ_after_a_fork() -> None:
    default, chosen = Elector(print, "e"), Elector(print, "e", identity="i")
    names = default._driver.options, chosen._driver.options
    made, (reading, writing) = names[0].name, os.pipe()
    child = os.fork()
    if not child:
        try:
            for elector in default, chosen:
                elector.stop()
                elector.run(print)
            os.write(writing, "\n".join(each.name for each in names).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as pipe:
        other, same = pipe.read().split("\n")
    assert f":{child}:" in other and made == names[0].name and same == "i"
    default.stop()
    default.run(print)
    assert names[0].name == made


def test_t3_clock_goes_on_during_a_suspension() -> None:
    now = Elector(print, "e")._driver.machine.clock()
    assert now == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), 1)


@pytest.mark.parametrize("hangs", [True, False])
def test_t4_error_callback(
    flavour: str, begin: Any, hangs: bool, monkeypatch: Any, caplog: Any
) -> None:
    called, release = [], threading.Event()

    def on_error(error: Any) -> Any:
        called.append(error)
        if not hangs:
            raise RuntimeError("fails")
        return asyncio.sleep(100) if flavour == "asyncio" else release.wait()

    Server(monkeypatch)
    program = begin(ttl=1.5, on_error=on_error)
    until(lambda: program.working and called)
    assert until(lambda: program.ended)[0][1] == "in doubt"
    program.stop()
    assert (len(called) == 1) == hangs and program.failure is None
    assert (f"on_error failed; its error: {called[0]}" in caplog.text) != hangs
    release.set()


@pytest.mark.parametrize("hangs", [True, False])
def test_t4_logger(flavour: str, begin: Any, hangs: bool, monkeypatch: Any) -> None:
    logged, release = [], threading.Event()

    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            logged.append(record.getMessage())
            if record.levelno == logging.INFO:
                return True
            if not hangs:
                raise RuntimeError("fails")
            return release.wait(10)

    logger = logging.Logger("any")
    logger.addHandler(Handler())
    Server(monkeypatch)
    program = begin(ttl=1.5, on_error=None, logger=logger)
    until(lambda: program.working and len(logged) > 1)
    assert until(lambda: program.ended)[0][1] == "in doubt"
    program.stop(6)
    assert "elected" in logged[0] and (len(logged) == 2) == hangs and program.failure is None
    release.set()


@pytest.mark.parametrize("options", [{}, {"ttl": 5}])
def test_t5_stop_before_run(options: Any, flavour: str, election: str) -> None:
    opened: list[int] = []
    elector: Any = {"threads": Elector, "asyncio": AsyncElector}[flavour](
        lambda: opened.append(1), election, **options
    )
    elector.stop()
    if flavour == "threads":
        elector.run(print)
        follower = leader_election.follow(lambda: opened.append(1), election)
        follower.stop()
        assert list(follower) == []
    else:
        asyncio.run(elector.run(asyncio.sleep))
    assert not opened and (elector.state, elector.errors) == ("stopped", 0)


@pytest.mark.parametrize("pooled", [False, True])
def test_connection_that_opens_too_late_is_closed(pooled: bool, election: str) -> None:
    release, seen = threading.Event(), list[str]()

    class Opened:
        def __init__(self) -> None:
            release.wait(20)
            self.pgconn = seen

        def close(self) -> None:
            seen.append("closed")

    @contextmanager
    def pool() -> Iterator[Any]:
        try:
            yield Opened()
        finally:
            seen.append("left")

    program = Program("threads", election, connect=pool if pooled else Opened, ttl=1.5)
    until(lambda: program.errors)
    program.stop()
    assert program.errors[0].kind == "no-connection" and not seen
    release.set()
    until(lambda: set(seen) == {"left" if pooled else "closed"})


def test_cancelled_with_all_tasks(election: str, monkeypatch: Any) -> None:
    server = Server(monkeypatch)
    server.renews = True

    async def main() -> None:
        leads = asyncio.Event()
        elector = AsyncElector(print, election, ttl=5, on_elected=lambda _: leads.set())
        main.running = asyncio.create_task(elector.run(lambda _: asyncio.sleep(100)))  # type: ignore[attr-defined]
        await leads.wait()

    asyncio.run(main())  # cancels what still runs
    assert main.running.cancelled()  # type: ignore[attr-defined]
    assert "le_resign" in server.asked[-1] and server.closed


def test_cancelled_twice(election: str, monkeypatch: Any) -> None:
    server = Server(monkeypatch)
    server.renews = True
    terms = []

    async def job(term: Any) -> None:
        terms.append(term)
        while True:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                if len(terms) > 2:
                    raise
                terms.append(term)

    async def main() -> None:
        elector = AsyncElector(print, election, ttl=5)
        running = asyncio.create_task(elector.run(job))
        for count in (1, 2):
            while len(terms) < count:
                await asyncio.sleep(0.01)
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 9)
        assert terms[0].cancelled and server.closed and elector.health == "stopped"
        assert "le_resign" not in server.asked[-1]  # the job may still run
        terms.append(None)

    asyncio.run(main())


def test_cancelled_again_by_a_cancel_scope(election: str, monkeypatch: Any) -> None:
    server = Server(monkeypatch)
    server.renews = True
    ended = []

    async def job(_: Any) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.2)
            ended.append("tidied")

    async def main() -> None:
        elector = AsyncElector(print, election, ttl=5, on_ousted=lambda _, why: ended.append(why))
        running = asyncio.create_task(elector.run(job))
        while elector.state != "leading":
            await asyncio.sleep(0.01)
        while not running.done():
            running.cancel("of a scope")
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError, match="of a scope"):
            await running

    asyncio.run(main())
    assert ended == ["tidied", "resigned"] and "le_resign" in server.asked[-1]


def test_follower_is_iterated_once(flavour: str, monkeypatch: Any) -> None:
    told, open_gate = [], threading.Event()

    class Observed(Server):
        async def ask(self, sql: str, *_: Any) -> list[Any]:
            self.asked.append(sql)
            while len(self.asked) > 2 and not open_gate.is_set():
                await asyncio.sleep(0.01)
            return [1, len(self.asked), "i", None]

    Observed(monkeypatch)
    follow: Any = leader_election.follow if flavour == "threads" else aio.follow
    follower = follow(print, "e")

    async def iterate_in_task() -> None:
        async for leader in follower:
            told.append(leader)

    def iterate() -> None:
        for leader in follower if flavour == "threads" else [asyncio.run(iterate_in_task())]:
            told.append(leader)

    first = threading.Thread(target=iterate)
    first.start()
    until(lambda: told)
    with pytest.raises(RuntimeError, match="once only"):
        iterate()
    open_gate.set()
    until(lambda: len(told) > 5)  # the first one goes on
    follower.stop()
    first.join(10)
    assert not first.is_alive()


def test_health_is_asked_by_another_thread_while_a_term_ends() -> None:
    class Ending(Machine):
        @property
        def term(self) -> Any:
            return self.seen.pop()

        @term.setter
        def term(self, _: Any) -> None:
            self.seen = [None, AsyncTerm(self, "e", 7)]

    elector = Ending(Options(print, "e"))
    elector._phase = "job"
    assert elector.health == "in doubt"


def test_every_that_hangs_is_given_up(election: str, monkeypatch: Any) -> None:
    Server(monkeypatch).renews = True
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"host=127.0.0.1 port={silent.getsockname()[1]}"
        job: Any = aio.every(lambda: async_connect(dsn), 1, print)
        program = Program("asyncio", election, ttl=5, job=job, connect=print)
        connection, _ = silent.accept()
        program.stop()
        connection.close()


ENDS = """
from leader_election import Elector, follow
class Ending:
    def __del__(self):
        for end in Elector(print, "e").try_run, lambda _: list(follow(print, "e")):
            try:
                end(print)
            except RuntimeError as error:
                print(error)
ending = Ending()"""


def test_nothing_hangs_when_the_interpreter_ends() -> None:
    command = [sys.executable, "-c", ENDS]
    program = subprocess.run(command, capture_output=True, text=True, timeout=9, check=True)
    assert program.stdout.count("interpreter") == 2 and not program.stderr


def test_schedule_across_the_end_of_summer_time() -> None:
    def each_half_hour(last: datetime) -> datetime:
        following = last.astimezone(UTC) + timedelta(minutes=30)
        return following.astimezone(ZoneInfo("Europe/Berlin"))

    began = datetime(2026, 10, 24, 22, tzinfo=UTC)  # the clock is set back at 1:00 UTC
    late, _ = due(each_half_hour, began, began + timedelta(hours=6))
    assert late == began + timedelta(hours=6)


@pytest.mark.parametrize(
    ("zone", "cron", "began", "wanted"),
    [
        # twice: the first one; left out: when the clocks are put forward
        ("Europe/Berlin", "30 2 * * *", "2026-10-24 12:00", ["10-25 00:30", "10-26 01:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25 00:45", ["10-26 01:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25 01:15", ["10-26 01:30"]),
        ("Europe/Berlin", "30 2 * * *", "2027-03-27 12:00", ["03-28 01:00", "03-29 00:30"]),
        ("Europe/Berlin", "30 2,3 * * *", "2027-03-28 00:00", ["03-28 01:00", "03-28 01:30"]),
        ("Europe/Berlin", "0 3 * * *", "2027-03-28 00:00", ["03-28 01:00", "03-29 01:00"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00", ["10-03 15:30", "10-04 15:15"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2027-04-03 12:00", ["04-03 14:45", "04-04 15:15"]),
        ("Asia/Tokyo", "30 2 * * *", "2026-10-25 00:00", ["10-25 17:30", "10-26 17:30"]),
    ],
)
def test_t6_schedule_in_a_zone(zone: str, cron: str, began: str, wanted: list[str]) -> None:
    def following(last: datetime) -> datetime:
        assert last.tzinfo == UTC
        found: datetime = croniter(cron, last).get_next(datetime)
        return found

    schedule: Any = in_zone(following, ZoneInfo(zone))
    last, found = datetime.fromisoformat(began + "+00:00"), []
    for _ in wanted:
        last = schedule(last)
        found.append(f"{last.astimezone(UTC):%m-%d %H:%M}")
        assert (last.second, last.microsecond) == (0, 0)
    assert found == wanted


def test_t6_schedule_in_a_zone_that_ends_or_stands() -> None:
    zone = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 10, 25, 1, tzinfo=UTC)
    ended: Any = in_zone(lambda _: None, zone)
    assert due(ended, now, now + timedelta(days=1)) == (None, now)
    with pytest.raises(ValueError, match="later"):
        due(in_zone(lambda last: last, zone), now, now)
