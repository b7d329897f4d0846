"""The tests S01 to S14 of clients/README.md, and silence, against a real server.

They need DATABASE_URL (direct) and POOLER_URL (PgBouncer in transaction mode).
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from conftest import DIRECT, POOLER, Program, until
from croniter import croniter
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import leader_election
from leader_election import LostError, PermanentError, aio
from leader_election._psycopg import Link
from leader_election._run import in_task

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not (DIRECT and POOLER), reason="DATABASE_URL or POOLER_URL is not set"),
]
STORM = str(Path(__file__).with_name("storm.py"))
# A lease of 6 s, whose validity is 4 s, and which is renewed each 2 s: it outlives a pause of the
# machine of 2 s. A heartbeat likewise.
TTL = 6
ways = pytest.mark.parametrize("options", [{}, {"ttl": TTL}], ids=["session", "lease"])


def connect(dsn: str = DIRECT) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn)


async def async_connect() -> Any:
    return await psycopg.AsyncConnection.connect(DIRECT)


def install(db: Any, schema: str) -> None:
    """Create the extension in a schema, or the SQL edition, if that is tested."""
    if script := os.environ.get("LE_SQL_EDITION"):
        db.execute(re.sub(r"\ble\b", schema, Path(script).read_text(encoding="utf-8")))
    else:
        db.execute(f"CREATE EXTENSION leader_election SCHEMA {schema}")


def leads(db: Any, election: str) -> Any:
    """Return identity and scope of the leader."""
    return db.execute("SELECT identity, scope FROM le_leader(%s)", (election,)).fetchone()


@pytest.mark.parametrize("options", [{}, {"ttl": TTL}, {"heartbeat": TTL}])
def test_s01_s02_elected_and_resigned(options: Any, begin: Any, election: str, db: Any) -> None:
    program = begin(identity="one", **options)
    until(lambda: program.elector.confirmations >= 4, 30)
    assert leads(db, election) == ("one", "lease" if "ttl" in options else "session")
    assert program.working and program.terms[0].is_leading()
    assert program.elector.health == "leading"
    program.stop()
    assert leads(db, election) is None
    assert [reason for _, reason in program.ended] == ["resigned"]
    assert not program.errors and not program.failure


@ways
def test_s03_heartbeat(options: Any, begin: Any) -> None:
    programs = [begin(heartbeat=TTL, **options) for _ in "ab"]
    until(lambda: any(program.working for program in programs))
    time.sleep(TTL)
    hung, other = sorted(programs, key=lambda program: -program.working)
    assert hung.working and not other.working
    hung.hangs = True
    until(lambda: other.working, 30)
    assert not hung.working and [reason for _, reason in hung.ended] == ["in doubt"]


@pytest.mark.parametrize("how", ["le_depose(name)", "pg_terminate_backend(pid)"])
def test_s04_job_is_cancelled_at_once(how: str, begin: Any, election: str, db: Any) -> None:
    program, took = begin(), [9.9]
    # before the next question; a busy machine may be late, but not each time
    while min(took) > 0.5 and len(took) < 6:
        until(lambda: program.working)
        time.sleep(0.3)
        began = time.monotonic()
        db.execute(f"SELECT {how} FROM le_leader(%s)", (election,))
        until(lambda: len(program.ended) == len(took))
        took.append(program.ended[-1][0] - began)
    assert min(took) < 0.5
    assert {reason for _, reason in program.ended} == {"lost"}
    assert len(program.errors) == len(program.ended)


@pytest.mark.parametrize("seats", [None, 2])
def test_s05_pooler(seats: Any, begin: Any, election: str, db: Any) -> None:
    programs = [begin(dsn=POOLER, identity=name, seats=seats) for name in ("one", "two")]
    until(lambda: any(program.working or program.failure for program in programs))
    with ExitStack() as stack:  # take server connections away from them
        while not all(program.failure for program in programs):
            conn = connect(POOLER)
            stack.callback(conn.close)
            with suppress(psycopg.Error):  # an elector ends the session that it has led in
                conn.execute("SELECT 1")
            time.sleep(0.5)
    for program in programs:
        assert isinstance(program.failure, PermanentError)
        assert program.failure.kind == "pooler" and "set a ttl" in str(program.failure)
    leaders = "SELECT FROM le_leaders WHERE starts_with(name, %s)"
    until(lambda: not db.execute(leaders, (election,)).fetchall())


def test_s05_lease_behind_a_pooler(begin: Any, election: str) -> None:
    programs = [begin(dsn=POOLER, ttl=TTL) for _ in "ab"]
    until(lambda: sum(program.elector.confirmations for program in programs) > 4, 30)
    first, second = sorted(programs, key=lambda program: -program.working)
    assert first.working and not second.terms
    first.stop()
    until(lambda: second.working)
    assert not first.errors and not second.errors


def test_s05_settings_do_not_stay_in_a_pooler(
    places: Any, begin: Any, flavour: str, election: str
) -> None:
    due: list[datetime] = []

    async def task(_: Any, time: datetime) -> None:
        due.append(time)

    opened = psycopg.connect if flavour == "threads" else psycopg.AsyncConnection.connect
    every = (leader_election if flavour == "threads" else aio).every
    job: Any = every(
        lambda: opened(places["pooled"]),
        1,
        (lambda _, time: due.append(time)) if flavour == "threads" else task,
    )
    program = begin(dsn=places["pooled"], ttl=TTL, job=job, schema="Le")
    until(lambda: due and program.elector.confirmations > 2)
    shown = "SELECT current_setting('statement_timeout'), current_setting('application_name')"
    with ExitStack() as stack:  # asks each server connection that is not busy
        for _ in range(4):
            conn = stack.enter_context(connect(places["pooled"]))
            conn.cursor().execute("BEGIN")
            timeout, name = conn.execute(shown).fetchone()  # type: ignore[misc]
            assert timeout == "77s" and election not in name
    program.stop()
    assert not program.errors


def test_s06_leader_and_follow(election: str, db: Any) -> None:
    seen: list[Any] = []
    errors: list[Any] = []
    follower = leader_election.follow(connect, election, on_error=errors.append)
    thread = threading.Thread(target=lambda: deque(map(seen.append, follower)), daemon=True)
    thread.start()
    until(lambda: seen == [None])
    assert leader_election.leader(connect, election) is None
    program = Program("threads", election, identity="one")
    leader = until(lambda: seen[-1])
    assert leader == leader_election.leader(connect, election)
    term = until(lambda: program.terms)[0]
    assert (leader.token, leader.identity, leader.value) == (term.token, "one", None)
    term.proclaim(db, "host:1")
    until(lambda: seen[-1].value == "host:1")
    with pytest.raises(leader_election.PermanentError, match="schema") as wrong:
        leader_election.leader(connect, election, schema="nowhere")
    assert wrong.value.kind == "extension"
    assert isinstance(wrong.value.__cause__, psycopg.errors.InvalidSchemaName)
    with pytest.raises(leader_election.LeaderElectionError) as refused:
        leader_election.leader(lambda: psycopg.connect("host=127.0.0.1 port=1"), election)
    assert refused.value.kind == "broken"
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
        term.proclaim(db, "x" * 8193)
    here = "pg_stat_activity WHERE datname = current_database() AND query LIKE %s"
    observers = f"SELECT pg_terminate_backend(pid) FROM {here}"
    db.execute(observers, ("CALL%le_observe%",))
    until(lambda: errors)
    program.stop()
    until(lambda: seen[-1] is None)
    assert [leader and leader.value for leader in seen] == [None, None, "host:1", None]
    with pytest.raises(LostError) as over:
        term.proclaim(db, "host:2")
    assert over.value.kind == "over"
    follower.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_s06_follow_with_asyncio(election: str, db: Any) -> None:
    async def job(term: Any) -> None:
        async with await async_connect() as conn:
            await term.proclaim(conn, "host:1")
        await asyncio.sleep(100)

    async def main() -> None:
        seen, elector = [], aio.AsyncElector(async_connect, election)
        async for leader in (follower := aio.follow(async_connect, election)):
            seen.append(leader and leader.value)
            if len(seen) == 1:
                running = asyncio.create_task(elector.run(job))
            elif leader and leader.value:
                assert leader == await aio.leader(async_connect, election)
                running.cancel()
            elif not leader:
                follower.stop()
        assert seen in ([None, None, "host:1", None], [None, "host:1", None])
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    observers = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s"
    until(lambda: not db.execute(observers, ("CALL%le_observe%",)).fetchall())


def each_second(last: datetime) -> datetime:
    """The schedule of a cron library."""
    following: datetime = croniter("* * * * * *", last).get_next(datetime)
    return following


@pytest.mark.parametrize(
    ("schedule", "zone", "options"),
    [(1, None, {"ttl": TTL}), (each_second, ZoneInfo("Europe/Berlin"), {})],
)
def test_s07_every(
    schedule: Any, zone: Any, options: Any, begin: Any, flavour: str, election: str, db: Any
) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS python_done (election text, due timestamptz, who text)")
    insert = "INSERT INTO python_done VALUES (%s, %s, %s)"
    failed: list[datetime] = []

    def start(who: str) -> Any:
        def failing(due: datetime) -> None:
            if not failed:
                failed.append(due)
                raise RuntimeError("the first time fails")

        def task(conn: Any, due: datetime) -> None:
            conn.execute(insert, (election, due, who))
            failing(due)

        async def async_task(conn: Any, due: datetime) -> None:
            await conn.execute(insert, (election, due, who))
            failing(due)

        job: Any = leader_election.every(connect, schedule, task, zone=zone)
        if flavour == "asyncio":
            job = aio.every(async_connect, schedule, async_task, zone=zone)
        return begin(job=job, identity=who, **options)

    programs = [start("one"), start("two")]
    times = "SELECT who FROM python_done WHERE election = %s GROUP BY who HAVING count(*) >= 3"
    [who] = until(lambda: db.execute(times, (election,)).fetchone(), 30)
    programs[who == "two"].stop()
    until(lambda: len(db.execute(times, (election,)).fetchall()) == 2, 30)
    programs[who == "one"].stop()
    done = db.execute("SELECT due FROM python_done WHERE election = %s", (election,)).fetchall()
    assert len(done) == len(set(done)) >= 6
    assert all(due.microsecond == 0 for (due,) in done)
    errors = programs[0].errors + programs[1].errors
    assert [str(error) for error in errors] == ["the first time fails"]
    last = db.execute("SELECT due FROM le_once_done WHERE name = %s", (election,))
    assert last.fetchone() == max(done)


ENDINGS = ["SELECT 1 / 0", "ROLLBACK", "ROLLBACK AND CHAIN", "COMMIT AND CHAIN"]


@pytest.mark.parametrize("ends", ENDINGS)
def test_task_that_ends_its_transaction(
    ends: str, begin: Any, flavour: str, election: str, db: Any
) -> None:
    due: list[datetime] = []

    def task(conn: Any, time: datetime) -> None:
        due.append(time)
        with suppress(psycopg.Error):
            conn.execute(ends)

    async def async_task(conn: Any, time: datetime) -> None:
        due.append(time)
        with suppress(psycopg.Error):
            await conn.execute(ends)

    job: Any = leader_election.every(connect, timedelta(seconds=1), task)
    if flavour == "asyncio":
        job = aio.every(async_connect, timedelta(seconds=1), async_task)
    program = begin(job=job)
    until(lambda: len(program.errors) > 1)
    assert {error.kind for error in program.errors} == {"task"}
    assert "rolled back" in str(program.errors[0]) and len(due) > 1
    assert program.elector.health == "leading" and program.elector.terms == 1
    done = db.execute("SELECT FROM le_once_done WHERE name = %s", (election,))
    assert bool(done.fetchall()) == (ends == "COMMIT AND CHAIN")


SETTINGS = ["search_path = pg_catalog", "ROLE pg_monitor", "TRANSACTION READ ONLY"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_task_that_changes_settings(setting: str, election: str, db: Any) -> None:
    def task(conn: Any, _: Any) -> None:
        conn.execute("SET " + setting if "READ" in setting else "SET LOCAL " + setting)

    program = Program(
        "threads", election, job=leader_election.every(connect, 1, task), connect=connect
    )
    done = "SELECT FROM le_once_done WHERE name = %s"
    until(lambda: program.errors or db.execute(done, (election,)).fetchall())
    program.stop()
    assert not program.errors


def test_every_with_a_connection_in_a_transaction(election: str, db: Any) -> None:
    def begun() -> Any:
        conn = connect()
        conn.execute("SELECT 1")
        return conn

    program = Program(
        "threads", election, job=leader_election.every(begun, 1, print), connect=connect
    )
    until(lambda: program.errors)
    program.stop()
    assert "begun a transaction" in str(program.errors[0])


def test_every_with_a_pool(election: str, db: Any) -> None:
    due: list[datetime] = []
    db.execute("SELECT le_try_become_leader(%s)", (election,))
    db.execute("SELECT le_once(%s, '0044-03-15 BC')", (election,))
    db.execute("SELECT le_resign(%s)", (election,))
    with ConnectionPool(DIRECT, min_size=1) as pool:
        job = leader_election.every(pool.connection, 1, lambda _, time: due.append(time))
        program = Program("threads", election, job=job)
        until(lambda: len(due) > 1)
        program.stop()
    assert not program.errors


@pytest.mark.parametrize("cursors", [psycopg.ClientCursor, psycopg.RawCursor])
def test_every_with_cursors_of_the_user(cursors: Any, election: str) -> None:
    due: list[datetime] = []
    job = leader_election.every(
        lambda: psycopg.connect(DIRECT, cursor_factory=cursors),
        1,
        lambda _, time: due.append(time),
    )
    program = Program("threads", election + " 100%s ä", job=job)
    until(lambda: due or program.errors)
    program.stop()
    assert due and not program.errors


@ways
def test_s08_seats(options: Any, begin: Any, election: str) -> None:
    programs = [begin(seats=2, **options) for _ in range(3)]
    until(lambda: sum(p.working for p in programs) == 2)
    time.sleep(1)
    one, two, waiting = sorted(programs, key=lambda program: -program.working)
    assert {p.terms[0].election for p in (one, two)} == {f"{election}/1", f"{election}/2"}
    one.stop()
    until(lambda: waiting.working)
    assert waiting.terms[0].election == one.terms[0].election
    assert not [e for p in programs for e in p.errors]


@ways
def test_s09_stop_while_waiting(options: Any, begin: Any, election: str, db: Any) -> None:
    db.execute("SELECT le_try_become_leader(%s, identity => 'other')", (election,))
    candidates = "SELECT FROM le_candidates WHERE name = %s AND waits_for <> 'polling'"
    program = begin(**options)
    until(lambda: options or db.execute(candidates, (election,)).fetchall())
    time.sleep(0.5)
    assert (program.elector.state, program.elector.health) == ("waiting", "waiting")
    program.stop(4)  # the deadline of an answer is 5 s
    until(lambda: not db.execute(candidates, (election,)).fetchall())
    assert not program.terms and not program.errors


@ways
def test_nothing_is_left_behind(options: Any, begin: Any, election: str, db: Any) -> None:
    def left() -> Any:
        backends = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        found = len(db.execute(backends, (election,)).fetchall())
        return found, threading.active_count(), len(os.listdir("/proc/self/fd"))

    before, dsn = left(), make_conninfo(DIRECT, application_name=election)
    programs = [begin(dsn=dsn, **options) for _ in "ab"]
    until(lambda: any(program.working for program in programs))
    until(lambda: all(program.elector.state in ("leading", "waiting") for program in programs))
    time.sleep(0.5)
    for program in sorted(programs, key=lambda program: program.working):
        program.stop()
    # what the test before has left can have ended since
    until(lambda: all(now <= then for now, then in zip(left(), before, strict=True)), 9)


HANGS = """
import signal, sys, time, psycopg, leader_election
def say(*what):
    print(*what, flush=True)
def job(term):
    try:
        say("leads")
        time.sleep(100)
    finally:
        time.sleep(0.3)
        say("job has ended", leader_election.leader(connect, sys.argv[2]) is not None)
def connect():
    return psycopg.connect(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
leader_election.Elector(connect, sys.argv[2], on_ousted=lambda _, reason: say("ousted", reason),
                        **eval(sys.argv[3])).run(job)"""


@ways
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 3), (signal.SIGINT, -2)])
def test_signal_handler_raises_in_the_job(
    number: int, status: int, options: Any, election: str, db: Any
) -> None:
    command = [sys.executable, "-c", HANGS, DIRECT, election, repr(options)]
    with subprocess.Popen(command, stdout=-1, stderr=-1) as program:
        assert program.stdout and program.stdout.readline() == b"leads\n"
        program.send_signal(number)
        output, errors = program.communicate(timeout=15)
    assert output == b"job has ended True\nousted resigned\n"  # in this order
    assert program.returncode == status and (b"KeyboardInterrupt" in errors) == (status < 0)
    assert not leads(db, election)


def test_second_interrupt_ends_at_once(election: str, db: Any) -> None:
    hangs = HANGS.replace("finally:", "except KeyboardInterrupt:").replace("0.3", "100")
    with subprocess.Popen(
        [sys.executable, "-c", hangs, DIRECT, election, "{}"], stdout=-1, stderr=-1
    ) as program:
        assert program.stdout and program.stdout.readline() == b"leads\n"
        program.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(1)
        assert leads(db, election)  # as the job has not stopped
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=15)
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    until(lambda: not leads(db, election))


def test_storm_of_signals(election: str) -> None:
    seconds, seed = os.environ.get("STORM_SECONDS", "12"), str(random.randrange(10**6))
    storm = [sys.executable, STORM, DIRECT, election, seconds, seed]
    result = subprocess.run(storm, capture_output=True, text=True, check=False, timeout=90)
    assert result.returncode == 0 and int(result.stdout.split()[0]) > 9, (seed, result)


FORKS = """
import os, sys, time, psycopg, leader_election
def job(term):
    helper = os.fork()
    if not helper:
        time.sleep(30)
        os._exit(0)
    if os.fork():
        os.write(1, b"%d\\n" % helper)
        term.wait()  # else lets run return in this child
elector = leader_election.Elector(lambda: psycopg.connect(sys.argv[1]), sys.argv[2])
parent = os.getpid()
elector.run(job)
os.write(1, b"parent\\n" if parent == os.getpid() else b"child\\n")"""


@pytest.mark.parametrize("error", [RuntimeError, RecursionError])
def test_error_while_the_end_of_the_job_is_told(error: Any, election: str, db: Any) -> None:
    """Raised by a signal handler once, or by a full stack again and again."""

    def job(term: Any) -> None:
        loop = elector._driver._loop
        tell = loop.call_soon_threadsafe

        def fail(*what: Any) -> Any:
            if threading.current_thread() is not running:
                return tell(*what)
            if error is RuntimeError:
                loop.call_soon_threadsafe = tell
            raise error("no stack")

        loop.call_soon_threadsafe = fail

    elector: Any = leader_election.Elector(connect, election)
    running = threading.current_thread()
    with pytest.raises(error, match="no stack"):
        elector.run(job)
    until(lambda: leads(db, election) is None and elector.state == "stopped")


def test_children_have_no_part_in_the_leadership(election: str, db: Any) -> None:
    command = [sys.executable, "-c", FORKS, DIRECT, election]
    with subprocess.Popen(command, stdout=-1, text=True) as program:
        assert program.stdout
        helper, left = sorted(program.stdout.readline() for _ in "ab")
        try:
            assert left == "child\n" and leads(db, election)
            time.sleep(1.5)
            assert leads(db, election)  # the end of one child has ended no session
            program.kill()
            until(lambda: not leads(db, election), 9)  # though the other one lives
        finally:
            program.kill()
            os.kill(int(helper), signal.SIGKILL)


FAILS = """
import os, sys, psycopg, leader_election
def job(term):
    if child := os.fork():
        os.waitpid(child, 0)
        elector.stop()
    else:
        raise ValueError
elector = leader_election.Elector(lambda: psycopg.connect(sys.argv[1]), sys.argv[2])
parent = os.getpid()
try:
    elector.run(job)
except ValueError:
    os.write(1, b"parent\\n" if parent == os.getpid() else b"child\\n")"""


def test_a_job_that_fails_in_a_child(election: str) -> None:
    command = [sys.executable, "-c", FAILS, DIRECT, election]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    assert result.stdout == "child\n"


OPENS = """
import os, sys, time, psycopg, leader_election
children = []
def connect():
    connection = psycopg.connect(sys.argv[1])
    if not children:
        children.append(os.fork())
        if not children[0]:
            time.sleep(30)
            os._exit(0)
    return connection
def job(term):
    os.write(1, b"%d\\n" % children[0])
    term.wait()
leader_election.Elector(connect, sys.argv[2]).run(job)"""


def test_children_of_an_opening_have_no_part_in_the_leadership(election: str, db: Any) -> None:
    command = [sys.executable, "-c", OPENS, DIRECT, election]
    with subprocess.Popen(command, stdout=-1, text=True) as program:
        assert program.stdout
        child = int(program.stdout.readline())
        try:
            program.kill()
            until(lambda: not leads(db, election), 9)
        finally:
            os.kill(child, signal.SIGKILL)


ENDS = """
import atexit, sys, threading, psycopg, leader_election
elected = threading.Event()
def job(term):
    elected.set()
    term.wait()
elector = leader_election.Elector(lambda: psycopg.connect(sys.argv[1]), sys.argv[2],
                                  **eval(sys.argv[3]))
thread = threading.Thread(target=elector.run, args=[job], daemon=True)
def stop():
    elector.stop()
    thread.join()
    print(elector.state, elector.errors)
if sys.argv[4] == "stop":
    atexit.register(stop)
thread.start()
elected.wait()"""


@ways
@pytest.mark.parametrize("how", ["stop", "leave"])
def test_program_ends_while_a_daemon_thread_leads(
    how: str, options: Any, election: str, db: Any
) -> None:
    command = [sys.executable, "-W", "error", "-c", ENDS, DIRECT, election, repr(options), how]
    program = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert (program.stdout, program.stderr) == ("stopped 0\n" if how == "stop" else "", "")
    if how == "stop" or not options:  # else the lease runs out
        until(lambda: not leads(db, election), 3 if how == "leave" else 0.5)


def test_socket_is_not_closed_while_the_loop_looks_at_it(election: str, monkeypatch: Any) -> None:
    closed: list[int] = []

    class Loop(asyncio.SelectorEventLoop):
        def remove_reader(self, fd: Any) -> bool:
            try:
                os.fstat(fd)
            except OSError:
                closed.append(fd)
            return super().remove_reader(fd)

    async def main() -> None:
        leader = aio.AsyncElector(async_connect, election)
        waiting = aio.AsyncElector(async_connect, election)
        async with asyncio.TaskGroup() as group:
            group.create_task(leader.run(lambda _: asyncio.sleep(100)))
            group.create_task(waiting.run(lambda _: asyncio.sleep(100)))
            await asyncio.sleep(2)
            waiting.stop()  # ends a bid that waits
            leader.stop()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())
    assert not closed


def test_socket_that_has_got_the_number_of_one_that_ended(election: str, db: Any) -> None:
    async def main() -> None:
        leads, opened = asyncio.Event(), []

        async def job(_: Any) -> None:
            leads.set()
            try:
                await asyncio.sleep(100)
            finally:  # the elector has not closed its connection yet
                opened.extend([await asyncio.open_connection("127.0.0.1", port) for _ in "ab"])

        async def echo(reader: Any, writer: Any) -> None:
            writer.write(await reader.read(1))
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        elector = aio.AsyncElector(async_connect, election, on_error=lambda _: None)
        running = asyncio.create_task(elector.run(job))
        await leads.wait()
        db.execute("SELECT pg_terminate_backend(pid) FROM le_leader(%s)", (election,))
        while elector.state != "paused":
            assert not running.done()
            await asyncio.sleep(0.01)
        elector.stop()
        await asyncio.wait_for(running, 10)
        for reader, writer in opened:
            writer.write(b"x")
            assert await asyncio.wait_for(reader.read(1), 5) == b"x"
            writer.close()
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("url", [DIRECT, POOLER], ids=["direct", "pooler"])
def test_s10_psycopg_pool(url: str, election: str, db: Any) -> None:
    with ConnectionPool(url, min_size=1, max_size=1, timeout=9) as pool:
        program = Program("threads", election, connect=pool.connection, ttl=TTL)
        until(lambda: program.elector.confirmations > 1)
        with pool.connection() as conn:  # is free, and as it was
            assert not conn.autocommit
            until(lambda: program.errors)
        assert program.errors[0].kind == "no-connection" and "pool" in str(program.errors[0])
        until(lambda: program.working)
        program.stop()
        assert leads(db, election) is None


def test_s10_psycopg_pool_with_asyncio(election: str) -> None:
    async def main() -> None:
        async with AsyncConnectionPool(POOLER, min_size=1, open=False) as pool:
            elector = aio.AsyncElector(pool.connection, election, ttl=TTL)

            async def job(_: Any) -> None:
                while elector.confirmations < 3:
                    await asyncio.sleep(0.1)
                elector.stop()

            await elector.run(job)
            assert await aio.leader(pool.connection, election) is None
            assert (elector.terms, elector.errors) == (1, 0)

    asyncio.run(main())


def test_s10_pool_that_is_closed(election: str) -> None:
    with ConnectionPool(DIRECT, min_size=1) as pool:
        program = Program("threads", election, connect=pool.connection, ttl=TTL)
        until(lambda: program.elector.confirmations > 1)
    until(lambda: program.ended)
    assert program.ended[0][1] == "in doubt"
    assert "closed" in str(program.errors[0])
    program.stop(3)


def test_s10_connection_in_a_transaction() -> None:
    async def main() -> None:
        with psycopg.connect(DIRECT) as conn:
            link = await Link.open(lambda: conn, in_task)
            assert await link.ask("SELECT 1") == [1]
            conn.execute("SELECT 1")  # which begins a transaction
            with pytest.raises(psycopg.OperationalError, match="in a transaction"):
                await link.ask("SELECT 1")

    asyncio.run(main())


def test_s10_settings_of_the_user_do_not_matter(election: str, db: Any) -> None:
    rows, cursors = psycopg.rows.dict_row, psycopg.ClientCursor
    program = Program(
        "threads",
        election + " ä€",
        connect=lambda: psycopg.connect(DIRECT, row_factory=rows, cursor_factory=cursors),
        identity="ö",
    )
    until(lambda: program.working)
    assert leads(db, election + " ä€") == ("ö", "session")
    program.stop()
    assert not program.errors


def test_s11_guard(begin: Any) -> None:
    program = begin()
    term = until(lambda: program.terms)[0]
    with connect() as conn:
        term.guard(conn)
        term.guard(conn.cursor())
    program.stop()
    with pytest.raises(psycopg.Error) as failure, connect() as conn:
        term.guard(conn)
    assert failure.value.sqlstate == "LE001"


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, str]]:
    """Databases without the extension and with it in a schema, and roles."""
    name = f"python_{uuid.uuid4().hex}"
    bare, schema = (make_conninfo(DIRECT, dbname=name + end) for end in ("_bare", "_schema"))
    role, hasty = make_conninfo(schema, user=f"{name}_role"), make_conninfo(DIRECT, user=name)
    with psycopg.connect(DIRECT, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name} LOGIN SUPERUSER")
        for setting in "statement_timeout", "lock_timeout", "idle_session_timeout":
            conn.execute(f"ALTER ROLE {name} SET {setting} = '1s'")
        conn.execute(f"CREATE ROLE {name}_role LOGIN")
        conn.execute(f"CREATE DATABASE {name}_bare")
        conn.execute(f"CREATE DATABASE {name}_schema")
        with psycopg.connect(schema, autocommit=True) as other:
            other.execute('CREATE SCHEMA "Le"')
            install(other, '"Le"')
        conn.execute(f"ALTER DATABASE {name}_schema SET statement_timeout = '77s'")
        yield {
            "bare": bare,
            "schema": schema,
            "role": role,
            "hasty": hasty,
            "direct": DIRECT,
            "pooled": make_conninfo(POOLER, dbname=f"{name}_schema"),
        }
        conn.execute(f"DROP DATABASE {name}_bare WITH (FORCE)")
        conn.execute(f"DROP DATABASE {name}_schema WITH (FORCE)")
        conn.execute(f"DROP ROLE {name}, {name}_role")


PERMANENT = [
    ("bare", {}, "extension", "not installed in database .*_bare.*: run CREATE EXTENSION"),
    ("bare", {"schema": "le", "ttl": 9}, "extension", "not installed in database"),
    ("schema", {"ttl": 9}, "extension", 'is in schema "+Le"+: set the option schema to it'),
    ("schema", {"schema": "public"}, "extension", 'is in schema "+Le"+: set the option schema'),
    ("role", {"schema": "Le"}, "privilege", "permission denied for schema Le"),
    ("direct", {"ttl": 80_000}, "argument", "(?s)ttl must be .* raise .*max_ttl"),
]


@pytest.mark.parametrize(("place", "options", "kind", "text"), PERMANENT)
def test_s12_permanent_errors(
    places: Any, place: str, options: Any, kind: str, text: str, begin: Any, election: str
) -> None:
    program = begin(dsn=places[place], **options)
    program.join()
    assert isinstance(program.failure, PermanentError) and program.failure.kind == kind
    assert re.search(text, str(program.failure))
    assert not program.errors
    if "ttl" not in options:
        with pytest.raises(PermanentError, match=text):
            next(iter(leader_election.follow(lambda: connect(places[place]), election, **options)))
        with pytest.raises(PermanentError, match=text):
            leader_election.leader(lambda: connect(places[place]), election, **options)


@ways
def test_s12_option_schema(places: Any, options: Any, election: str) -> None:
    def opened() -> Any:
        return connect(places["schema"])

    due: list[datetime] = []
    options = options | {"connect": opened, "schema": "Le"}
    first = Program("threads", election, **options)
    term = until(lambda: first.terms)[0]
    with opened() as conn:
        term.guard(conn)
        term.proclaim(conn, "host:1")
    found = leader_election.leader(opened, election, schema="Le")
    assert found and found.value == "host:1"
    first.stop()
    every = leader_election.every(opened, 1, lambda _, time: due.append(time))
    second = Program("threads", election, job=every, **options)
    until(lambda: due)
    second.stop()
    assert not first.errors and not second.errors


def test_s13_settings_of_the_connection(places: Any, begin: Any, election: str, db: Any) -> None:
    programs = [begin(dsn=places["hasty"]) for _ in "ab"]
    follower = leader_election.follow(lambda: connect(places["hasty"]), election)
    threading.Thread(target=lambda: deque(follower), daemon=True).start()
    until(lambda: any(program.working for program in programs))
    time.sleep(2.5)
    assert sorted(program.elector.state for program in programs) == ["leading", "waiting"]
    names = """SELECT application_name FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE %s"""
    wanted = f"leader_election: {election}"[:63]
    assert db.execute(names, (f"%{election[:30]}%",)).fetchall() == [(wanted,)] * 3
    for program in programs:
        program.stop()
        assert not program.errors
    follower.stop()
    assert not follower.errors
    named = begin(dsn=make_conninfo(DIRECT, application_name="mine"))
    until(lambda: named.working)
    assert db.execute(names, ("mine",)).fetchall() == [("mine",)]


@ways
def test_s14_try_run(options: Any, flavour: str, election: str, db: Any) -> None:
    threaded, ran = flavour == "threads", list[Any]()

    def try_run(wait: float = 0, fails: bool = False) -> tuple[bool, float]:
        def job(term: Any) -> None:
            ran.append(leads(db, election))
            if fails:
                raise ZeroDivisionError

        async def async_job(term: Any) -> None:
            job(term)

        began, opened = time.monotonic(), connect if threaded else async_connect
        elector: Any = (leader_election.Elector if threaded else aio.AsyncElector)(
            opened, election, identity="i", on_error=errors.append, **options
        )
        tried = elector.try_run(job if threaded else async_job, wait)
        result = tried if threaded else asyncio.run(tried)
        return result, time.monotonic() - began

    errors: list[Any] = []
    other = Program("threads", election, **options)
    until(lambda: other.working)
    assert try_run()[0] is False
    denied, took = try_run(1)
    assert denied is False and 1 <= took < 5 and not ran
    timer = threading.Timer(0.5, other.elector.stop)
    timer.start()
    assert try_run(9)[0] is True
    other.join()
    with pytest.raises(ZeroDivisionError):
        try_run(fails=True)
    assert ran == [("i", "lease" if options else "session")] * 2
    assert leads(db, election) is None and not errors
    with pytest.raises(PermanentError):
        leader_election.Elector(connect, election, ttl=80_000).try_run(print)


@pytest.mark.parametrize("as_one", [False, True])
def test_role_that_is_replaced(
    as_one: bool, flavour: str, begin: Any, election: str, db: Any
) -> None:
    app, names = f"app_{uuid.uuid4().hex}", list[str]()
    db.execute(f"CREATE ROLE {app}")

    def replace() -> None:
        names.append(f"v{len(names)}_{app}")
        db.execute(f"CREATE ROLE {names[-1]} LOGIN IN ROLE {app}")
        if as_one:
            db.execute(f"ALTER ROLE {names[-1]} SET role = {app}")

    def opened() -> Any:
        open_one: Any = connect if flavour == "threads" else psycopg.AsyncConnection.connect
        return open_one(make_conninfo(DIRECT, user=names[-1]))

    replace()
    program = begin(ttl=3, connect=opened)
    until(lambda: program.working)
    replace()
    sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
    db.execute(sessions, names[:1])
    confirmed = program.elector.confirmations
    until(lambda: program.elector.confirmations > confirmed + 1, 30)
    states = [error.sqlstate for error in program.errors]
    assert program.elector.terms == (1 if as_one else 2) and ("42501" in states) != as_one
    program.stop()
    db.execute(f"DROP ROLE {', '.join([*names, app])}")


@pytest.mark.parametrize("options", [{}, {"heartbeat": TTL}, {"ttl": TTL}])
def test_silence(options: Any, begin: Any, election: str, db: Any) -> None:
    program = begin(dsn=make_conninfo(DIRECT, application_name=election), **options)
    until(lambda: program.working)
    backends = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
    [pid] = db.execute(backends, (election,)).fetchone()
    os.kill(pid, signal.SIGSTOP)  # the connection stands
    try:
        began = time.monotonic()
        until(lambda: program.errors, 9)
        if "ttl" in options:  # another connection answers
            confirmed = program.elector.confirmations
            until(lambda: program.elector.confirmations > confirmed)
            assert program.working and program.errors[0].kind == "timeout"
        else:
            [(ended, reason)] = until(lambda: program.ended)
            assert ended - began < (TTL * 2 / 3 if options else 6) + 2
            assert reason in ("lost", "in doubt") and not program.terms[0].is_leading()
        program.stop(3)
    finally:
        os.kill(pid, signal.SIGCONT)
