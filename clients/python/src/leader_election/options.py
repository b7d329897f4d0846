"""The options of an elector, checked as the server would check them."""

import itertools
import logging
import operator
import os
import random
import socket
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

#: What opens a connection: a function that returns a new one, such as
#: ``lambda: psycopg.connect(dsn)``. By a lease also one that returns a context manager, such as
#: the method ``connection`` of a pool. With asyncio, either may have to be awaited.
Connect = Callable[[], Any]
#: The text of a statement, and its parameters.
Statement = tuple[Any, ...]

LOGGER = logging.getLogger("leader_election")
_numbers = itertools.count(random.SystemRandom().getrandbits(16))


class DefaultIdentity(str):
    """An identity that was not chosen: its number is random, and another one in each elector."""

    def __new__(cls) -> "DefaultIdentity":
        text = f"{socket.gethostname()}:{os.getpid()}:{next(_numbers) & 0xFFFF:04x}"
        made = super().__new__(cls, text)
        made.process = os.getpid()
        return made

    process: int


@dataclass(eq=False)
class Options:
    """The options. Lengths of time are numbers of seconds."""

    connect: Connect
    election: str
    _: KW_ONLY
    identity: str = field(default_factory=DefaultIdentity)
    schema: str | None = None
    seats: int | None = None
    ttl: float | None = None
    heartbeat: float | None = None
    stop_timeout: float = 10.0
    logger: logging.Logger = LOGGER
    on_elected: Callable[[Any], Any] | None = None
    on_ousted: Callable[[Any, Any], Any] | None = None
    on_error: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.connect):
            raise TypeError("connect must be a function that opens a connection")
        suffix = f"/{operator.index(self.seats)}" if self.seats else ""
        names = {"election": 255 - len(suffix), "identity": 255, "schema": 63}
        for what, most in names.items():
            name = getattr(self, what)
            if name is not None and ("\0" in name or not 1 <= len(name.encode()) <= most):
                raise ValueError(f"{what} must have 1 to {most} bytes, none of them zero")
        if self.election.startswith("{") and self.election.endswith("}"):
            raise ValueError("election must not be enclosed in braces")
        numbers = {"seats": 10_000, "ttl": 86_400, "heartbeat": 86_400, "stop_timeout": 86_400}
        for what, most in numbers.items():
            value, least = getattr(self, what), 0.001 if what == "stop_timeout" else 1
            if value is not None and not least <= value <= most:
                raise ValueError(f"{what} must be from {least} to {most}")

    @property
    def prefix(self) -> str:
        """What stands before the name of each function of the extension."""
        return '"' + self.schema.replace('"', '""') + '".' if self.schema else ""
