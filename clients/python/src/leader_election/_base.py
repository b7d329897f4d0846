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
        """Make an elector. Opens no connection.

        A length of time is a number of seconds, or a ``timedelta``.

        connect -- a function that opens a connection, see ``Connect``
        election -- the name of the election, of 1 to 255 bytes in UTF-8
        identity -- tells the candidates apart, in views, logs and warnings; 1 to 255 bytes (default
            the host name, the process ID and four random hexadecimal digits)
        schema -- the schema of the extension (default None: found by ``search_path``)
        seats -- how many may lead, from 1 to 10,000: campaigns for the elections ``election/1``,
            ``election/2`` and so on (default None: for one election)
        ttl -- the length of a lease, from 1 s to one day, and at most ``leader_election.max_ttl``
            of the server (default None: leads in session scope)
        heartbeat -- a length, from 1 s to one day: the job is cancelled if it has not called
            ``heartbeat`` of its term for 2/3 of it (default None: it need not call that)
        stop_timeout -- how long the job may take to stop, and ``on_elected`` and ``on_ousted`` to
            return, before this is reported; from 1 ms to one day (default 10 s)
        logger -- gets elections and the ends of terms, and errors if there is no ``on_error``
            (default the logger ``leader_election``)
        on_elected -- is called with the term before the job starts
        on_ousted -- is called with the term, and why it has ended, after the job has stopped
        on_error -- is called with each error that is reported

        Raises ``ValueError`` if an option is out of its range, and ``TypeError`` if it has a wrong
        type.
        """
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
        """Make a follower. Opens no connection before the iteration.

        connect -- a function that opens a connection, which the follower keeps, see ``Connect``
        election -- the name of the election, of 1 to 255 bytes in UTF-8
        schema -- the schema of the extension (default None: found by ``search_path``)
        logger -- gets errors if there is no ``on_error`` (default the logger ``leader_election``)
        on_error -- is called with each error that is reported

        Raises ``ValueError`` if a name is too long or empty, and ``TypeError`` if an option has a
        wrong type. The iteration raises ``PermanentError``.
        """
        options: dict[str, Any] = {"schema": schema, "logger": logger, "on_error": on_error}
        self._driver = self._drives(FollowMachine(Options(connect, election, **options)))
