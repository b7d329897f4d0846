"""The options of an elector, checked as the server would check them."""

import itertools
import logging
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

#: What opens a connection: a function that returns a new one, such as
#: ``lambda: psycopg.connect(dsn)``. By a lease also one that returns a context manager, such as
#: the method ``connection`` of a pool. With asyncio, either may have to be awaited.
Connect = Callable[[], Any]
#: A length of time: a number of seconds, or a timedelta.
Length = float | timedelta
State = Literal["waiting", "leading", "stopping", "paused", "stopped"]
Health = Literal["waiting", "leading", "in doubt", "stopped"]
#: Why a term is over.
Reason = Literal["resigned", "job returned", "job failed", "lost", "in doubt"]
#: The text of a statement, and its parameters.
Statement = tuple[Any, ...]

LOGGER = logging.getLogger("leader_election")
_numbers = itertools.count(random.SystemRandom().getrandbits(16))


def seconds(length: Any) -> Any:
    """Return a length of time as a number of seconds."""
    return length.total_seconds() if isinstance(length, timedelta) else length


@dataclass(eq=False)
class Options:
    """The options. Lengths of time become numbers of seconds."""

    connect: Connect
    election: str
    identity: str | None = None
    schema: str | None = None
    seats: int | None = None
    ttl: Any = None
    heartbeat: Any = None
    stop_timeout: Any = 10
    logger: logging.Logger = LOGGER
    on_elected: Callable[[Any], object] | None = None
    on_ousted: Callable[[Any, Any], object] | None = None
    on_error: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        if not callable(self.connect):
            raise TypeError("connect must be a function that opens a connection")
        suffix = f"/{self.seats}" if self.seats else ""
        for what, most in {"election": 255 - len(suffix), "identity": 255, "schema": 63}.items():
            name = getattr(self, what)
            if name is not None and ("\0" in name or not 1 <= len(name.encode()) <= most):
                raise ValueError(f"{what} must have 1 to {most} bytes, none of them zero")
        if self.election.startswith("{") and self.election.endswith("}"):
            raise ValueError("election must not be enclosed in braces")
        numbers = {"seats": 10_000, "ttl": 86_400, "heartbeat": 86_400, "stop_timeout": 86_400}
        for what, most in numbers.items():
            value, least = seconds(getattr(self, what)), 0.001 if what == "stop_timeout" else 1
            setattr(self, what, value)
            if (value is not None or what == "stop_timeout") and not least <= value <= most:
                raise ValueError(f"{what} must be from {least} to {most}")
        self._host, self._number = socket.gethostname(), next(_numbers) & 0xFFFF

    @property
    def name(self) -> str:
        """The identity, or one that differs in each elector, and in a forked child."""
        return self.identity or f"{self._host}:{os.getpid()}:{self._number:04x}"

    @property
    def prefix(self) -> str:
        """What stands before the name of each function of the extension."""
        return '"' + self.schema.replace('"', '""') + '".' if self.schema else ""
