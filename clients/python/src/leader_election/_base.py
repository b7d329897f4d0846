"""What the electors and followers of both flavours have."""

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ._elector import Machine
from ._errors import LeaderElectionError
from ._follow import FollowMachine
from ._options import LOGGER, Connect, Health, Length, Options, Reason, State
from ._run import Driver
from ._term import BaseTerm

T = TypeVar("T", bound=BaseTerm)


class Driven:
    """What electors and followers have."""

    _drives: type[Driver] = Driver
    _driver: Driver

    def stop(self) -> None:
        """Let it end. Does not wait. May be called by any thread and signal handler."""
        self._driver.put("stop")

    @property
    def state(self) -> State:
        """Either waiting, leading, stopping, paused or stopped."""
        return self._driver.machine.state

    @property
    def health(self) -> Health:
        """Either waiting, leading, in doubt or stopped. The first two are healthy."""
        return self._driver.machine.health

    @property
    def errors(self) -> int:
        """How many errors were reported."""
        return self._driver.machine.errors


class BaseElector(Driven, Generic[T]):
    """Campaigns for an election, and runs a job while it leads."""

    def __init__(
        self,
        connect: Connect,
        election: str,
        *,
        identity: str | None = None,
        schema: str | None = None,
        seats: int | None = None,
        ttl: Length | None = None,
        heartbeat: Length | None = None,
        stop_timeout: Length = 10,
        logger: logging.Logger = LOGGER,
        on_elected: Callable[[T], object] | None = None,
        on_ousted: Callable[[T, Reason], object] | None = None,
        on_error: Callable[[LeaderElectionError], object] | None = None,
    ) -> None:
        options = {name: value for name, value in locals().items() if name != "self"}
        self._driver = self._drives(Machine(Options(**options)))

    @property
    def identity(self) -> str:
        """The name that tells this elector apart."""
        return self._driver.options.name

    @property
    def terms(self) -> int:
        """In how many terms this was elected."""
        return self._driver.machine.terms

    @property
    def confirmations(self) -> int:
        """How often the server has confirmed that this leads."""
        return self._driver.machine.confirmations


class BaseFollower(Driven):
    """Gives the present leader, or None, and then each change, until ``stop``."""

    def __init__(
        self,
        connect: Connect,
        election: str,
        *,
        schema: str | None = None,
        logger: logging.Logger = LOGGER,
        on_error: Callable[[LeaderElectionError], object] | None = None,
    ) -> None:
        options: dict[str, Any] = {"schema": schema, "logger": logger, "on_error": on_error}
        self._driver = self._drives(FollowMachine(Options(connect, election, **options)))
