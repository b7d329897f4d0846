"""What mypy finds in programs that use the library. Nothing of this runs."""

from __future__ import annotations

from datetime import timedelta

import leader_election
from leader_election import AsyncTerm, Elector, Kind, LeaderElectionError, Reason, Term, aio


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
