"""What mypy finds in programs that use the library. Nothing of this runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import psycopg
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import leader_election
from leader_election import AsyncTerm, Elector, Kind, LeaderElectionError, Reason, Term, aio

DUE = datetime(2026, 1, 1, tzinfo=UTC)


def elected(term: Term) -> None:
    """A right callback."""


def ousted(term: Term, reason: Reason) -> str:
    """Another one, whose result is ignored."""
    if reason == "lsot":  # type: ignore[comparison-overlap]
        return "a word that does not exist"
    return reason


def wrong_reason(term: Term, reason: int) -> None:
    """A callback of another type."""


def wrong_error(error: str) -> None:
    """A callback of another type."""


def wrong_flavour(term: AsyncTerm) -> None:
    """A callback of the other flavour."""


def failed(error: LeaderElectionError) -> Kind:
    """A right callback, whose result is ignored."""
    if error.kind == "no connection":  # type: ignore[comparison-overlap]
        return "timeout"
    return error.kind


def electors() -> None:
    """Wrong options, and right ones."""
    Elector(print, "e", on_elected=elected, on_ousted=ousted, on_error=failed)
    Elector(print, "e", ttl=timedelta(seconds=15), heartbeat=5, stop_timeout=0.5)
    Elector(print, "e", on_ousted=wrong_reason)  # type: ignore[arg-type]
    Elector(print, "e", on_error=wrong_error)  # type: ignore[arg-type]
    Elector(print, "e", on_elected=wrong_flavour)  # type: ignore[arg-type]
    Elector(print, "e", ttl="15 s")  # type: ignore[arg-type]
    elector = Elector(print, "e")
    elector.run(wrong_flavour)  # type: ignore[arg-type]
    if elector.state == "lost":  # type: ignore[comparison-overlap]
        elector.stop()


def transactions(
    term: Term,
    connection: psycopg.Connection[tuple[object, ...]],
    session: Session,
    other: asyncpg.Connection,
) -> bool:
    """Each of these is a transaction."""
    term.guard(other)
    term.guard(connection.cursor())
    term.proclaim(session, None)
    return term.once(connection, DUE) and term.once(session, DUE)


async def async_transactions(
    term: AsyncTerm,
    connection: psycopg.AsyncConnection[tuple[object, ...]],
    session: AsyncSession,
) -> bool:
    """Each of these must be awaited."""
    await term.guard(connection)
    await term.proclaim(session, "host:1")
    wrong: bool = term.once(session, DUE)  # type: ignore[assignment]
    return wrong or await term.once(connection, DUE) or await term.once(session, DUE)


def begin(
    connect: leader_election.Connect,
    length: leader_election.Length,
    schedule: leader_election.Schedule,
    task: leader_election.Task,
) -> leader_election.Follower:
    """Annotate what a program hands on."""
    elector = Elector(connect, "e", ttl=length)
    elector.run(leader_election.every(connect, schedule, task))
    return leader_election.follow(connect, "e")


async def async_begin(
    connect: aio.Connect, length: aio.Length, schedule: aio.Schedule, task: aio.Task
) -> aio.AsyncFollower:
    """Do the same with asyncio."""
    await aio.AsyncElector(connect, "e").try_run(aio.every(connect, schedule, task), length)
    leader: aio.Leader | None = await aio.leader(connect, "e")
    return aio.follow(connect, leader.identity if leader else "e")


def waits(term: Term) -> bool:
    """Sleep for right lengths of time, and a wrong one."""
    term.wait("1 s")  # type: ignore[arg-type]
    return term.wait() or term.wait(0.5) or term.wait(timedelta(seconds=1))


def wrong_transactions(term: Term) -> None:
    """None of these is a transaction."""
    term.guard("dsn")  # type: ignore[call-overload]
    term.once(5, DUE)  # type: ignore[call-overload]
    term.proclaim("host:1")  # type: ignore[call-overload]
