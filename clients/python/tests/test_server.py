"""The conformance list's lines S01 to S10, against a real server.

They need DATABASE_URL (direct), and some of them POOLER_URL (PgBouncer in transaction mode).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import pytest

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

import leader_election  # noqa: E402
from leader_election import Elector, PoolerError, _core, aio  # noqa: E402
from leader_election._psycopg import PsycopgLink  # noqa: E402

DIRECT = os.environ.get("DATABASE_URL", "")
POOLER = os.environ.get("POOLER_URL", "")
needs_server = pytest.mark.skipif(not DIRECT, reason="DATABASE_URL is not set")
needs_pooler = pytest.mark.skipif(not (DIRECT and POOLER), reason="POOLER_URL is not set")
pytestmark = [pytest.mark.server, needs_server]

# A lease of 6 s, whose validity is 4 s, and which is renewed each 2 s: it outlives a pause of the
# machine of 2 s. A heartbeat likewise.
TTL = 6

THREADS, ASYNCIO = "threads", "asyncio"
both = pytest.mark.parametrize("flavour", [THREADS, ASYNCIO])


@pytest.fixture
def election() -> str:
    """A name that is unique."""
    return f"python {uuid.uuid4()}"


@pytest.fixture
def db() -> Iterator[Any]:
    """A connection of the test's own."""
    with psycopg.connect(DIRECT, autocommit=True) as conn:
        yield conn


def until(condition: Callable[[], Any], seconds: float = 10) -> Any:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("has not come true")


class Program:
    """An elector of either flavour, in a thread of its own, with a job that works."""

    def __init__(
        self, flavour: str, election: str, dsn: str = DIRECT, hang: bool = False, **options: Any
    ) -> None:
        self.terms: list[Any] = []
        self.ended: list[tuple[float, str]] = []
        self.errors: list[Exception] = []
        self.failure: BaseException | None = None
        self.hang = hang
        self.working = 0
        self.left: Any = None
        self.stalled = False
        self.ready = threading.Event()
        self.flavour = flavour
        options.setdefault("on_error", self.errors.append)
        options["on_ousted"] = lambda term, reason: self.ended.append((time.monotonic(), reason))
        connect = options.pop("connect", None)
        job = options.pop("job", None)
        self.elector: Any
        if flavour == THREADS:
            connect = connect or (lambda: psycopg.connect(dsn))
            self.elector = Elector(connect, election, job or self._job, **options)
        else:
            connect = connect or (lambda: psycopg.AsyncConnection.connect(dsn))
            self.elector = aio.AsyncElector(connect, election, job or self._async_job, **options)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            if self.flavour == THREADS:
                self.elector.run()
            else:
                asyncio.run(self._async_run())
        except BaseException as error:
            self.failure = error

    async def _async_run(self) -> None:
        try:
            await self.elector.run()
        finally:
            self.left = asyncio.all_tasks() - {asyncio.current_task()}

    def _job(self, term: Any) -> None:
        self.terms.append(term)
        self.working += 1
        try:
            while not term.wait(0.05):
                if not self.hang:
                    term.heartbeat()
        finally:
            self.working -= 1

    async def _async_job(self, term: Any) -> None:
        self.terms.append(term)
        self.working += 1
        try:
            while True:
                await asyncio.sleep(0.05)
                if not self.hang:
                    term.heartbeat()
        finally:
            self.working -= 1

    def stop(self, seconds: float = 10) -> None:
        """Stop, and check that nothing is left behind."""
        self.elector.stop()
        self.join(seconds)

    def join(self, seconds: float = 10) -> None:
        """Wait for the end."""
        self.thread.join(seconds)
        assert not self.thread.is_alive()
        assert self.elector.state == "stopped"
        assert not self.left
        if self.flavour == THREADS and not self.stalled:
            assert not [t for t in self.elector._runtime._threads if t.thread.is_alive()]


def leads(db: Any, election: str) -> Any:
    """Return identity and scope of the leader."""
    return db.execute("SELECT identity, scope FROM le_leader(%s)", (election,)).fetchone()


def until_renewed(db: Any, election: str, times: int) -> None:
    """Wait until the lease has been renewed so often."""
    renewals = "SELECT FROM le_leader(%s) WHERE renewals >= %s"
    until(lambda: db.execute(renewals, (election, times)).fetchall(), 30)


@both
def test_s01_session_scope(flavour: str, election: str, db: Any) -> None:
    program = Program(flavour, election, identity="one")
    until(lambda: program.working)
    assert leads(db, election) == ("one", "session")
    time.sleep(2.5)  # some confirmations
    assert program.working and program.terms[0].is_leading()
    program.stop()
    assert leads(db, election) is None
    assert [reason for _, reason in program.ended] == ["resigned"]
    assert not program.errors


@both
def test_s02_lease(flavour: str, election: str, db: Any) -> None:
    program = Program(flavour, election, ttl=TTL, identity="one")
    until(lambda: program.working)
    assert leads(db, election) == ("one", "lease")
    until_renewed(db, election, 3)
    assert len(program.terms) == 1
    program.stop()
    assert leads(db, election) is None
    assert not program.errors


@both
def test_s03_heartbeat(flavour: str, election: str, db: Any) -> None:
    first = Program(flavour, election, heartbeat=TTL, identity="one")
    until(lambda: first.working)
    second = Program(flavour, election, heartbeat=TTL, identity="two")
    time.sleep(TTL)
    assert first.working and not second.working
    first.hang = True
    assert first.working
    overlap = until(lambda: second.working and (first.working, leads(db, election)), 20)
    assert overlap == (0, ("two", "session"))
    first.stop()
    second.stop()


@both
@pytest.mark.parametrize("how", ["pg_terminate_backend", "le_depose"])
def test_s04_job_is_cancelled_at_once(flavour: str, how: str, election: str, db: Any) -> None:
    program = Program(flavour, election)
    took = [9.9]
    # before the next question, a second after the one before; a busy machine may be late, but
    # not each time
    while min(took) > 0.5 and len(took) < 6:
        until(lambda: program.working)
        time.sleep(0.3)
        began = time.monotonic()
        if how == "le_depose":
            db.execute("SELECT le_depose(%s)", (election,))
        else:
            db.execute("SELECT pg_terminate_backend(pid) FROM le_leader(%s)", (election,))
        until(lambda: len(program.ended) == len(took))
        took.append(program.ended[-1][0] - began)
    assert min(took) < 0.5
    assert {reason for _, reason in program.ended} == {"lost"}
    assert len(program.errors) == len(program.ended)
    until(lambda: len(program.terms) == len(took))
    program.stop()


def test_s05_another_identity_on_the_connection(election: str, db: Any) -> None:
    db.execute("SELECT le_try_become_leader(%s, identity => 'other')", (election,))
    link: Any = _core.drive(PsycopgLink.open(db))
    link.send("CALL le_campaign($1, timeout => '9 s', identity => $2)", (election, "one"))
    with pytest.raises(psycopg.Error, match="which this session leads") as error:
        until(link.poll)
    assert error.value.sqlstate == "LE005"
    link.send("SELECT le_no_such_function()", ())
    with pytest.raises(psycopg.errors.UndefinedFunction):
        until(link.poll)
    link.send("SELECT le_lease($1, $2)", (election, "1 ms"))
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        until(link.poll)
    link.send("SELECT le_assert_leader($1, 1)", (election,))
    with pytest.raises(psycopg.Error) as error:
        until(link.poll)
    assert error.value.sqlstate == "LE001"


@both
@needs_pooler
def test_s05_pooler(flavour: str, election: str, db: Any) -> None:
    program = Program(flavour, election, dsn=POOLER)
    until(lambda: not program.thread.is_alive())
    program.join()
    assert isinstance(program.failure, PoolerError)
    assert not program.terms
    assert leads(db, election) is None

    lease = Program(flavour, election, dsn=POOLER, ttl=TTL)
    other = Program(flavour, election, dsn=POOLER, ttl=TTL)
    until(lambda: lease.working or other.working)
    until_renewed(db, election, 6)
    assert lease.working + other.working == 1
    assert len(lease.terms) + len(other.terms) == 1
    lease.stop()
    until(lambda: other.working)
    other.stop()
    assert not lease.errors and not other.errors


def test_s06_leader_and_follow(election: str, db: Any) -> None:
    seen: list[Any] = []
    follower = leader_election.follow(lambda: psycopg.connect(DIRECT), election)

    def follow() -> None:
        for leader in follower:
            seen.append(leader)

    thread = threading.Thread(target=follow)
    thread.start()
    until(lambda: seen == [None])
    assert leader_election.leader(lambda: psycopg.connect(DIRECT), election) is None
    db.execute("SELECT le_try_become_leader(%s, identity => 'one')", (election,))
    until(lambda: len(seen) == 2)
    leader: Any = leader_election.leader(lambda: psycopg.connect(DIRECT), election)
    assert leader == seen[1]
    row = db.execute("SELECT token, since FROM le_leader(%s)", (election,)).fetchone()
    assert (leader.token, leader.since) == row
    assert (leader.election, leader.identity, leader.scope) == (election, "one", "session")
    db.execute("SELECT le_proclaim(%s, 'host:1')", (election,))
    until(lambda: seen[-1].value == "host:1")
    db.execute("SELECT le_resign(%s)", (election,))
    until(lambda: seen[-1] is None)
    db.execute("SELECT le_lease(%s, '9 s', identity => 'two')", (election,))
    until(lambda: seen[-1] and seen[-1].identity == "two" and seen[-1].scope == "lease")
    follower.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert len(seen) in (5, 6)
    row = db.execute("SELECT le_resign(%s, %s)", (election, seen[-1].token)).fetchone()
    assert row == (True,)


def test_s06_leader_and_follow_with_asyncio(election: str, db: Any) -> None:
    def connect() -> Any:
        return psycopg.AsyncConnection.connect(DIRECT)

    async def main() -> None:
        changes = aio.follow(connect, election)
        assert await changes.__anext__() is None
        db.execute("SELECT le_try_become_leader(%s, identity => 'one')", (election,))
        leader: Any = await changes.__anext__()
        assert leader.identity == "one"
        assert leader == await aio.leader(connect, election)
        db.execute("SELECT le_proclaim(%s, 'host:1')", (election,))
        leader = await changes.__anext__()
        assert leader.value == "host:1"
        db.execute("SELECT le_resign(%s)", (election,))
        assert await changes.__anext__() is None
        waiting = asyncio.ensure_future(changes.__anext__())
        await asyncio.sleep(0.3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await changes.aclose()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    observers = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%le_observe%%'"
    until(lambda: db.execute(observers + " AND pid <> pg_backend_pid()").fetchone() == (0,))


def test_s06_follow_reconnects(election: str, db: Any) -> None:
    errors: list[Exception] = []
    pids: list[int] = []

    def connect() -> Any:
        conn = psycopg.connect(DIRECT)
        pids.append(conn.info.backend_pid)
        return conn

    follower = leader_election.follow(connect, election, on_error=errors.append)
    assert next(follower) is None
    threading.Timer(0.3, db.execute, ["SELECT pg_terminate_backend(%s)", [pids[0]]]).start()
    threading.Timer(1.5, lambda: psycopg.connect(DIRECT)).start()
    timer = threading.Timer(
        1.5, lambda: db.execute("SELECT le_try_become_leader(%s, identity => 'one')", (election,))
    )
    timer.start()
    leader = next(follower)
    assert leader and leader.identity == "one"
    assert len(errors) == 1 and len(pids) == 2
    follower.stop()
    assert list(follower) == []


@both
@pytest.mark.parametrize("ttl", [None, TTL])
def test_s07_every(flavour: str, ttl: float | None, election: str, db: Any) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS python_done (election text, due timestamptz, who text)")
    insert = "INSERT INTO python_done VALUES (%s, %s, %s)"
    failed: list[datetime] = []

    def make(who: str) -> Program:
        if flavour == THREADS:

            def task(conn: Any, due: datetime) -> None:
                conn.execute(insert, (election, due, who))
                if not failed:
                    failed.append(due)
                    raise RuntimeError("the first time fails")

            job: Any = leader_election.every(lambda: psycopg.connect(DIRECT), 1, task)
        else:

            async def async_task(conn: Any, due: datetime) -> None:
                await conn.execute(insert, (election, due, who))
                if not failed:
                    failed.append(due)
                    raise RuntimeError("the first time fails")

            job = aio.every(lambda: psycopg.AsyncConnection.connect(DIRECT), 1, async_task)
        return Program(flavour, election, job=job, ttl=ttl, identity=who)

    programs = [make("one"), make("two")]
    times = "SELECT who FROM python_done WHERE election = %s GROUP BY who HAVING count(*) >= 3"
    (row,) = until(lambda: db.execute(times, (election,)).fetchall(), 30)
    first, second = programs if row[0] == "one" else programs[::-1]
    first.stop()
    until(lambda: len(db.execute(times, (election,)).fetchall()) == 2, 30)
    second.stop()
    done = db.execute("SELECT due, who FROM python_done WHERE election = %s", (election,))
    rows = done.fetchall()
    dues = [due for due, _ in rows]
    assert len(dues) == len(set(dues)) >= 6
    assert {who for _, who in rows} == {"one", "two"}
    assert all(due.microsecond == 0 for due in dues)
    errors = first.errors + second.errors
    assert [str(error) for error in errors] == ["the first time fails"]
    last = db.execute("SELECT due FROM le_once_done WHERE name = %s", (election,))
    assert last.fetchone() == (max(dues),)


@both
def test_s07_task_that_hangs_ends_with_leadership(flavour: str, election: str, db: Any) -> None:
    began = threading.Event()

    def task(conn: Any, due: datetime) -> None:
        began.set()
        conn.execute("SELECT pg_sleep(60)")

    async def async_task(conn: Any, due: datetime) -> None:
        began.set()
        await conn.execute("SELECT pg_sleep(60)")

    job: Any = leader_election.every(lambda: psycopg.connect(DIRECT), 1, task)
    if flavour == ASYNCIO:
        job = aio.every(lambda: psycopg.AsyncConnection.connect(DIRECT), 1, async_task)
    program = Program(flavour, election, job=job)
    assert began.wait(10)
    time.sleep(0.2)
    db.execute("SELECT le_depose(%s)", (election,))
    until(lambda: program.ended, 10)  # the task goes on for 60 s
    assert program.ended[0][1] == "lost"
    program.stop()


@both
@pytest.mark.parametrize("options", [{}, {"ttl": TTL}])
def test_s08_seats(flavour: str, options: dict[str, Any], election: str, db: Any) -> None:
    programs = [Program(flavour, election, seats=2, **options) for _ in range(3)]
    until(lambda: sum(p.working for p in programs) == 2)
    time.sleep(1)
    assert sum(p.working for p in programs) == 2
    leading = [p for p in programs if p.working]
    (waiting,) = (p for p in programs if not p.working)
    assert {p.terms[0].election for p in leading} == {f"{election}/1", f"{election}/2"}
    leading[0].stop()
    until(lambda: waiting.working)
    assert waiting.terms[0].election == leading[0].terms[0].election
    for program in programs[:]:
        program.stop()
    assert not [e for p in programs for e in p.errors]


@both
@pytest.mark.parametrize("options", [{}, {"ttl": TTL}])
def test_s09_stop_while_waiting(
    flavour: str, options: dict[str, Any], election: str, db: Any
) -> None:
    db.execute("SELECT le_try_become_leader(%s, identity => 'other')", (election,))
    candidates = "SELECT identity FROM le_candidates WHERE name = %s"
    program = Program(flavour, election, identity="one", **options)
    if not options:
        until(lambda: db.execute(candidates, (election,)).fetchall() == [("one",)])
    time.sleep(0.5)
    assert program.elector.state == "waiting"
    began = time.monotonic()
    program.stop()
    assert time.monotonic() - began < 4  # the deadline of an answer is 5 s
    until(lambda: db.execute(candidates, (election,)).fetchall() == [])
    assert not program.terms and not program.errors


# S10: each way to connect that README.md names


@both
def test_s10_psycopg_connect(flavour: str, election: str, db: Any) -> None:
    program = Program(flavour, election, identity="one")
    until(lambda: program.working)
    program.stop()
    assert not program.errors


def test_s10_settings_of_the_user_do_not_matter(election: str, db: Any) -> None:
    from psycopg.rows import dict_row

    def connect() -> Any:
        return psycopg.connect(DIRECT, row_factory=dict_row, cursor_factory=psycopg.ClientCursor)

    program = Program(THREADS, election + " ä€", connect=connect, identity="ö")
    until(lambda: program.working)
    assert leads(db, election + " ä€") == ("ö", "session")
    program.stop()
    assert not program.errors


def test_s10_connection_in_a_transaction_is_refused(election: str) -> None:
    def connect() -> Any:
        conn = psycopg.connect(DIRECT)
        conn.execute("SELECT 1")
        return conn

    program = Program(THREADS, election, connect=connect)
    until(lambda: program.errors)
    assert "in a transaction" in str(program.errors[0])
    program.stop()
    assert not program.terms


@needs_pooler
@pytest.mark.parametrize("url", ["DATABASE_URL", "POOLER_URL"])
def test_s10_psycopg_pool(url: str, election: str, db: Any) -> None:
    psycopg_pool = pytest.importorskip("psycopg_pool")
    with psycopg_pool.ConnectionPool(os.environ[url], min_size=1, max_size=2) as pool:
        program = Program(THREADS, election, connect=pool.connection, ttl=TTL)
        until(lambda: program.working)
        until_renewed(db, election, 1)
        with pool.connection() as conn, pool.connection():  # both are free
            assert not conn.autocommit  # and as they were
        assert len(program.terms) == 1
        program.stop()
        assert not program.errors
        assert leads(db, election) is None


@needs_pooler
@pytest.mark.parametrize("url", ["DATABASE_URL", "POOLER_URL"])
def test_s10_psycopg_pool_with_asyncio(url: str, election: str) -> None:
    psycopg_pool = pytest.importorskip("psycopg_pool")
    terms: list[Any] = []
    errors: list[Exception] = []

    async def job(term: Any) -> None:
        terms.append(term)
        await asyncio.sleep(100)

    async def main() -> None:
        pool = psycopg_pool.AsyncConnectionPool(os.environ[url], min_size=1, open=False)
        async with pool:
            connect = pool.connection
            elector = aio.AsyncElector(connect, election, job, ttl=TTL, on_error=errors.append)
            running = asyncio.ensure_future(elector.run())
            await asyncio.sleep(TTL)
            assert len(terms) == 1 and terms[0].is_leading()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await aio.leader(connect, election) is None
        assert not errors

    asyncio.run(main())


def test_s10_pool_is_refused_in_session_scope(election: str) -> None:
    psycopg_pool = pytest.importorskip("psycopg_pool")
    with psycopg_pool.ConnectionPool(DIRECT, min_size=1) as pool:
        program = Program(THREADS, election, connect=pool.connection)
        until(lambda: program.errors)
        assert isinstance(program.errors[0], TypeError)
        program.stop()


@pytest.mark.parametrize("options", [{}, {"ttl": TTL}])
def test_s10_sqlalchemy(options: dict[str, Any], election: str, db: Any) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(DIRECT.replace("postgres://", "postgresql+psycopg://"))

    def connect() -> Any:
        pooled = engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()  # takes it out of the pool
        return connection

    program = Program(THREADS, election, connect=connect, identity="one", **options)
    until(lambda: program.working)
    assert leads(db, election)[0] == "one"
    time.sleep(TTL / 2)
    assert program.working
    program.stop()
    assert not program.errors
    assert engine.pool.checkedout() == 0
    engine.dispose()


@pytest.mark.parametrize("options", [{}, {"ttl": TTL}])
def test_s10_sqlalchemy_with_asyncio(options: dict[str, Any], election: str, db: Any) -> None:
    pytest.importorskip("sqlalchemy.ext.asyncio")
    from sqlalchemy.ext.asyncio import create_async_engine

    terms: list[Any] = []
    errors: list[Exception] = []

    async def job(term: Any) -> None:
        terms.append(term)
        await asyncio.sleep(100)

    async def main() -> None:
        engine = create_async_engine(DIRECT.replace("postgres://", "postgresql+psycopg://"))

        async def connect() -> Any:
            pooled = await engine.raw_connection()
            connection = pooled.driver_connection
            pooled.detach()  # takes it out of the pool
            return connection

        elector = aio.AsyncElector(connect, election, job, on_error=errors.append, **options)
        asyncio.get_running_loop().call_later(TTL / 2, elector.stop)
        await elector.run()
        await engine.dispose()

    asyncio.run(main())
    assert len(terms) == 1 and not errors


@pytest.fixture(scope="session")
def django_connection() -> Any:
    """Django, set up for the database."""
    pytest.importorskip("django")
    from django.conf import settings

    info = psycopg.conninfo.conninfo_to_dict(DIRECT)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": info["dbname"],
        "USER": info.get("user", ""),
        "PASSWORD": info.get("password", ""),
        "HOST": info.get("host", ""),
        "PORT": info.get("port", ""),
    }
    settings.configure(DATABASES={"default": database})
    import django

    django.setup()
    from django.db import connection

    return connection


@pytest.mark.parametrize("options", [{}, {"ttl": TTL}])
def test_s10_django(django_connection: Any, options: Any, election: str, db: Any) -> None:
    def connect() -> Any:
        return django_connection.get_new_connection(django_connection.get_connection_params())

    program = Program(THREADS, election, connect=connect, identity="one", **options)
    until(lambda: program.working)
    assert leads(db, election)[0] == "one"
    program.stop()
    assert not program.errors


# beyond the list: what the issue of deadlines and ends is


@contextmanager
def stalled_proxy() -> Iterator[tuple[str, Callable[[], None]]]:
    """A proxy that can be told to accept and to forward nothing from then on."""
    script = (
        "import socket,sys,threading\n"
        "s=socket.create_server(('127.0.0.1',0))\n"
        "print(s.getsockname()[1],flush=True)\n"
        "def pump(a,b):\n"
        "    try:\n"
        "        while d:=a.recv(65536): b.sendall(d)\n"
        "    except OSError: pass\n"
        "    for x in (a,b):\n"
        "        try: x.shutdown(2)\n"
        "        except OSError: pass\n"
        "while True:\n"
        "    c,_=s.accept()\n"
        "    u=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "    for p in ((c,u),(u,c)): threading.Thread(target=pump,args=p,daemon=True).start()\n"
    )
    info = psycopg.conninfo.conninfo_to_dict(DIRECT)
    target = [str(info.get("host", "127.0.0.1")), str(info.get("port", 5432))]
    command = [sys.executable, "-c", script, *target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout
        port = int(proxy.stdout.readline())
        info |= {"host": "127.0.0.1", "port": port, "connect_timeout": 2, "sslmode": "disable"}
        try:
            yield (
                psycopg.conninfo.make_conninfo(**info),
                lambda: proxy.send_signal(signal.SIGSTOP),
            )
        finally:
            proxy.kill()


@both
@pytest.mark.parametrize("options", [{}, {"heartbeat": TTL}, {"ttl": TTL}])
def test_deadlines_behind_a_stalled_proxy(flavour: str, options: Any, election: str) -> None:
    with stalled_proxy() as (dsn, stall):
        program = Program(flavour, election, dsn=dsn, **options)
        until(lambda: program.working)
        time.sleep(0.5)
        stall()
        began = time.monotonic()
        until(lambda: not program.working)
        longest = 6.0 if not options else TTL * 2 / 3
        assert time.monotonic() - began < longest + TTL / 3  # so before another is elected
        assert not program.terms[0].is_leading()
        until(lambda: program.errors)
        time.sleep(2)
        program.stalled = True  # a thread in which a connection is being opened is given up
        program.stop(12)
        until(lambda: not [t for t in threading.enumerate() if t.name == "leader_election"])


@both
def test_stop_while_waiting_behind_a_stalled_proxy(flavour: str, election: str, db: Any) -> None:
    db.execute("SELECT le_try_become_leader(%s, identity => 'other')", (election,))
    with stalled_proxy() as (dsn, stall):
        program = Program(flavour, election, dsn=dsn)
        time.sleep(1)
        assert program.elector.state == "waiting"
        stall()
        began = time.monotonic()
        program.stalled = True  # a thread in which a connection is being opened is given up
        program.stop(12)
        assert time.monotonic() - began < 9  # 5 s for an answer


def test_keyboard_interrupt_stops_and_resigns(election: str, db: Any) -> None:
    script = f"""
import psycopg, time
from leader_election import Elector
def job(term):
    print("elected", flush=True)
    term.wait()
    print("stopped", flush=True)
Elector(lambda: psycopg.connect({DIRECT!r}), {election!r}, job).run()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout and program.stderr
        assert program.stdout.readline() == "elected\n"
        assert leads(db, election)
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "stopped\n"
        assert "KeyboardInterrupt" in program.stderr.read()
    assert leads(db, election) is None


def test_library_holds_no_socket_after_run(election: str) -> None:
    def sockets() -> int:
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        return count

    if not hasattr(socket, "AF_UNIX") or not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    gc.collect()  # the connections of earlier tests
    before = sockets()
    choices: list[dict[str, Any]] = [{}, {"ttl": TTL}]
    for options in choices:
        program = Program(THREADS, election, **options)
        until(lambda program=program: program.working)  # type: ignore[misc]
        program.stop()
    assert sockets() <= before
