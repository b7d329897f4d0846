"""``guard``, ``once`` and ``proclaim`` by all that they take, of the real libraries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import django.conf
import pg8000.dbapi
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
from conftest import DIRECT, Program, until
from psycopg import rows
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa

from leader_election._elector import Machine
from leader_election._options import Options
from leader_election._term import Term

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not DIRECT, reason="DATABASE_URL is not set"),
]
KINDS: dict[str, Callable[[], Any]] = {}
ASYNC: dict[str, Callable[[], Any]] = {}
WHERE = conninfo_to_dict(DIRECT)
NAMES = ["plain", "it's", "%s %d %%", "a:b :x ?", "$1 \\' \n ö", '"}{']


def kind(function: Any) -> Any:
    """Let a kind of transaction be tested. What it gives rolls back if an exception comes."""
    KINDS[function.__name__] = contextmanager(function)
    return function


def async_kind(function: Any) -> Any:
    """Let a kind of transaction for asyncio be tested."""
    ASYNC[function.__name__] = asynccontextmanager(function)
    return function


def engine(driver: str) -> Any:
    """Return an engine of SQLAlchemy that keeps no connection."""
    url = f"postgresql+{driver}://{DIRECT.split('//')[1]}"
    make: Any = sa.create_async_engine if driver == "asyncpg" else sqlalchemy.create_engine
    return make(url, poolclass=sqlalchemy.NullPool)


def open_pg8000() -> Any:
    """Open a connection of pg8000."""
    names = "user", "host", "dbname", "port"
    user, host, base, port = (str(WHERE[name]) for name in names)
    return pg8000.dbapi.connect(user, host, base, int(port))


@kind
def psycopg_connection() -> Any:
    with psycopg.connect(DIRECT) as connection:
        yield connection


@kind
def psycopg_connection_of_dicts() -> Any:
    with psycopg.connect(DIRECT, row_factory=rows.dict_row) as connection:
        yield connection


@kind
def psycopg_connection_with_client_cursor() -> Any:
    with psycopg.connect(DIRECT, cursor_factory=psycopg.ClientCursor) as connection:
        yield connection


@kind
def psycopg_cursor_of_scalars() -> Any:
    with psycopg.connect(DIRECT) as connection:
        yield connection.cursor(row_factory=rows.scalar_row)


@kind
def psycopg_cursor_of_named_tuples() -> Any:
    with psycopg.connect(DIRECT) as connection:
        yield connection.cursor(row_factory=rows.namedtuple_row)


@kind
def psycopg2_connection() -> Any:
    with psycopg2.connect(DIRECT) as connection:
        yield connection
    connection.close()


@kind
def psycopg_block_on_autocommit() -> Any:
    with psycopg.connect(DIRECT, autocommit=True) as connection, connection.transaction():
        yield connection


@kind
def psycopg_pipeline_on_autocommit() -> Any:
    with psycopg.connect(DIRECT, autocommit=True) as one, one.pipeline(), one.transaction():
        yield one


@kind
def psycopg2_cursor_of_dicts() -> Any:
    with psycopg2.connect(DIRECT) as connection:
        yield connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor)
    connection.close()


@kind
def pg8000_connection() -> Any:
    connection = open_pg8000()
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()


def django_connection() -> Any:
    if not django.conf.settings.configured:
        names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
        database = {name: WHERE[key] for name, key in names.items()}
        engine = {"ENGINE": "django.db.backends.postgresql", **database}
        django.conf.settings.configure(DATABASES={"default": engine})
    from django.db import connection, transaction

    with transaction.atomic():
        yield connection
    connection.close()


kind(django_connection)


@kind
def django_cursor() -> Any:
    with contextmanager(django_connection)() as connection, connection.cursor() as cursor:
        yield cursor


@kind
def sqlalchemy_connection() -> Any:
    with engine("psycopg").begin() as connection:
        yield connection


@kind
def sqlalchemy_session() -> Any:
    with orm.Session(engine("psycopg")) as session, session.begin():
        yield session


@kind
def sqlalchemy_scoped_session() -> Any:
    session = orm.scoped_session(orm.sessionmaker(engine("psycopg")))
    with session.begin():
        yield session
    session.remove()


@kind
def sqlalchemy_session_on_psycopg2() -> Any:
    with orm.Session(engine("psycopg2")) as session, session.begin():
        yield session


@kind
def sqlalchemy_session_on_pg8000() -> Any:
    with orm.Session(engine("pg8000")) as session, session.begin():
        yield session


@async_kind
async def psycopg_async_connection() -> Any:
    async with await psycopg.AsyncConnection.connect(DIRECT) as connection:
        yield connection


@async_kind
async def psycopg_async_cursor_of_dicts() -> Any:
    async with await psycopg.AsyncConnection.connect(DIRECT) as connection:
        yield connection.cursor(row_factory=rows.dict_row)


@async_kind
async def asyncpg_connection() -> Any:
    connection = await asyncpg.connect(DIRECT)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@async_kind
async def asyncpg_connection_of_pool() -> Any:
    async with asyncpg.create_pool(DIRECT, min_size=1) as pool:  # noqa: SIM117
        async with pool.acquire() as connection, connection.transaction():
            yield connection


@async_kind
async def sqlalchemy_async_connection() -> Any:
    async with engine("asyncpg").begin() as connection:
        yield connection


@async_kind
async def sqlalchemy_async_session() -> Any:
    async with sa.AsyncSession(engine("asyncpg")) as session, session.begin():
        yield session


@async_kind
async def sqlalchemy_async_session_on_psycopg() -> Any:
    made = sa.create_async_engine(f"postgresql+psycopg://{DIRECT.split('//')[1]}")
    async with sa.AsyncSession(made) as session, session.begin():
        yield session
    await made.dispose()


class Roll(Exception):  # noqa: N818
    """Lets a transaction roll back."""


def in_transaction(name: str, call: Callable[[Any], Any], roll: bool = False) -> Any:
    """Return what a function returns that is called in a transaction."""
    result: Any = None

    def sync() -> None:
        nonlocal result
        with KINDS[name]() as transaction:
            result = call(transaction)
            if roll:
                raise Roll

    async def main() -> None:
        nonlocal result
        async with ASYNC[name]() as transaction:
            result = await call(transaction)
            if roll:
                raise Roll

    with suppress(Roll):
        sync() if name in KINDS else asyncio.run(main())
    return result


@pytest.mark.parametrize("name", [*KINDS, *ASYNC])
@pytest.mark.parametrize("schema", [None, "own"])
def test_once_and_guard(name: str, schema: str | None, election: str, db: Any) -> None:
    where = "SELECT pronamespace::regnamespace::text FROM pg_proc WHERE proname = 'le_once'"
    [own] = db.execute(where).fetchone()
    program = Program("threads", election, schema=schema and own, ttl=9)
    term, due = until(lambda: program.terms)[0], datetime.now(UTC) - timedelta(seconds=60)
    later = due + timedelta(seconds=5)
    assert in_transaction(name, lambda tx: term.once(tx, due)) is True
    assert in_transaction(name, lambda tx: term.once(tx, due)) is False
    assert in_transaction(name, lambda tx: term.once(tx, later), roll=True) is True
    assert in_transaction(name, lambda tx: term.once(tx, later)) is True
    assert in_transaction(name, lambda tx: term.once(tx, due)) is False
    done = db.execute("SELECT due FROM le_once_done WHERE name = %s", (election,)).fetchone()
    assert done == (later,)
    assert in_transaction(name, term.guard) is None
    for text in "host:1", None:
        assert in_transaction(name, lambda tx: term.proclaim(tx, text)) is None  # noqa: B023
        assert db.execute("SELECT value FROM le_leader(%s)", (election,)).fetchone() == (text,)
    program.stop()
    for call in term.guard, lambda tx: term.once(tx, later), lambda tx: term.proclaim(tx, "late"):
        with pytest.raises(Exception, match=r"does not lead|no longer leads|LE001|is over"):
            in_transaction(name, call)


def by_itself() -> Iterator[Any]:
    """Give connections that commit each statement by themselves."""
    with psycopg.connect(DIRECT, autocommit=True) as one:
        yield from (one, one.cursor())
    other: Any = psycopg2.connect(DIRECT)
    other.autocommit = True
    yield from (other, other.cursor())
    other.close()
    other = open_pg8000()
    other.autocommit = True
    yield other
    other.close()
    with contextmanager(django_connection)():
        pass
    from django.db import connection

    yield connection
    with connection.cursor() as cursor:
        yield cursor
    connection.close()
    for driver in "psycopg", "psycopg2", "pg8000":
        whole = engine(driver).execution_options(isolation_level="AUTOCOMMIT")
        with whole.connect() as one, orm.Session(whole) as session:
            yield from (one, session)
    made = sqlalchemy.create_engine(f"postgresql+psycopg://{DIRECT.split('//')[1]}")
    with made.connect() as one:
        yield one.execution_options(isolation_level="AUTOCOMMIT")
    made.dispose()


async def by_itself_for_asyncio() -> AsyncIterator[Any]:
    """Give connections for asyncio that commit each statement by themselves."""
    async with await psycopg.AsyncConnection.connect(DIRECT, autocommit=True) as one:
        yield one
        yield one.cursor()
    other = await asyncpg.connect(DIRECT)
    yield other
    await other.close()
    async with asyncpg.create_pool(DIRECT, min_size=1) as pool:
        yield pool
    whole = engine("asyncpg").execution_options(isolation_level="AUTOCOMMIT")
    async with whole.connect() as connection, sa.AsyncSession(whole) as session:
        yield connection
        yield session


def test_s11_a_connection_that_commits_each_statement_is_refused(election: str, db: Any) -> None:
    program, due = Program("threads", election, ttl=9), datetime.now(UTC)
    term = until(lambda: program.terms)[0]
    for one in by_itself():
        with pytest.raises(ValueError, match="transaction"):
            term.guard(one)
        with pytest.raises(ValueError, match="transaction"):
            term.once(one, due)

    async def main() -> None:
        async for one in by_itself_for_asyncio():
            with pytest.raises(ValueError, match="transaction"):
                await term.guard(one)
            with pytest.raises(ValueError, match="transaction"):
                await term.once(one, due)

    asyncio.run(main())
    assert not db.execute("SELECT FROM le_once_done WHERE name = %s", (election,)).fetchall()
    with db.transaction():
        assert term.once(db, due)
    program.stop()


TEXTS: dict[str, Callable[[Any, str], Any]] = {
    "psycopg_connection": lambda tx, sql: tx.execute(sql).fetchone()[0],
    "django_cursor": lambda tx, sql: tx.execute(sql).fetchone()[0],
    "sqlalchemy_session": lambda tx, sql: tx.execute(sqlalchemy.text(sql)).scalar(),
    "asyncpg_connection": lambda tx, sql: tx.fetchval(sql),
}


@pytest.mark.parametrize("name", TEXTS)
def test_whole_statements(name: str, election: str, db: Any) -> None:
    for count, text in enumerate(NAMES):
        evil = f"{election} {text}"
        program = Program("threads", evil, ttl=9)
        term, due = until(lambda program=program: program.terms)[0], datetime.now(UTC)  # type: ignore[misc]
        for expected in True, False:
            run = TEXTS[name]
            found = in_transaction(name, lambda tx: run(tx, term.once_sql(due)))  # noqa: B023
            assert found is expected
        in_transaction(name, lambda tx: run(tx, term.guard_sql()))  # noqa: B023
        row = db.execute("SELECT due FROM le_once_done WHERE name = %s", (evil,)).fetchone()
        assert row == (due,), count
        program.stop()


def test_a_due_time_needs_a_time_zone() -> None:
    term = Term(Machine(Options(print, "e")), "e", 7)
    for call in lambda due: term.once(psycopg, due), term.once_sql:  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="time zone"):
            call(datetime(2026, 1, 1))
    assert term.once_sql(datetime(2026, 1, 1, tzinfo=UTC)) == (
        "SELECT le_once('e', to_timestamp(1767225600.0), 7)"
    )
    assert term.guard_sql() == "SELECT le_assert_leader('e', 7)"
