"""The worker of the acceptance test: ``worker.py WAY ELECTION IDENTITY``.

WAY is ``session``, ``heartbeat`` or ``lease``; for asyncio, set ``FLAVOUR=asyncio``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import psycopg

from leader_election import AsyncElector, AsyncTerm, Elector, Term

WAY, ELECTION, IDENTITY = sys.argv[1:4]
DSN = os.environ["DATABASE_URL"]
OPTIONS: dict[str, Any] = {"session": {}, "heartbeat": {"heartbeat": 5}, "lease": {"ttl": 3}}[WAY]


def say(event: str, detail: object) -> None:
    """Print what has happened."""
    line = " ".join(str(detail).split())
    sys.stdout.write(f"{time.time():.3f} {IDENTITY} {event} {line}\n")
    sys.stdout.flush()


def job(term: Term) -> None:
    """Work in steps of 100 ms, in a thread."""
    say("elected", term.token)
    try:
        while term.is_leading() and not term.wait(0.1):
            term.heartbeat()
    finally:
        say("ousted", term.token)


async def async_job(term: AsyncTerm) -> None:
    """Work in steps of 100 ms, in a task."""
    say("elected", term.token)
    try:
        while term.is_leading():
            await asyncio.sleep(0.1)
            term.heartbeat()
    finally:
        say("ousted", term.token)


def connect() -> psycopg.Connection[Any]:
    """Open a connection."""
    return psycopg.connect(DSN, connect_timeout=5)


def async_connect() -> Any:
    """Open a connection."""
    return psycopg.AsyncConnection.connect(DSN, connect_timeout=5)


async def async_main() -> None:
    """Run with asyncio."""
    elector = AsyncElector(
        async_connect,
        ELECTION,
        identity=IDENTITY,
        on_error=lambda error: say("error", error),
        **OPTIONS,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, elector.stop)
    await elector.run(async_job)


def main() -> None:
    """Run with threads."""
    elector = Elector(
        connect, ELECTION, identity=IDENTITY, on_error=lambda error: say("error", error), **OPTIONS
    )
    signal.signal(signal.SIGTERM, lambda *_: elector.stop())
    elector.run(job)


if __name__ == "__main__":
    if os.environ.get("FLAVOUR") == "asyncio":
        asyncio.run(async_main())
    else:
        main()
