"""The state machine of a follower. It is pure, as that of an elector is."""

from dataclasses import dataclass
from typing import Any

from ._elector import Ask, Machine
from ._options import Statement


@dataclass(frozen=True)
class Leader:
    """A leader, as the server knows it.

    token -- the fencing token of its term
    identity -- under which it leads
    value -- what it has published, or None
    """

    token: int
    identity: str
    value: str | None


class FollowMachine(Machine):
    """Observes instead of bidding. Tells the present leader, or none, and then each change."""

    _version: Any = None
    _told: Any = ()

    def statement(self, kind: str, version: Any = None) -> Statement:
        """Return a statement and its parameters."""
        le, terms = self.options.prefix, "version => $2::bigint, timeout => '30 s'"
        return f"CALL {le}le_observe($1::text, {terms})", self.options.election, version

    def _bid(self) -> None:
        self._send("observe", self._version, limit=self.limit + 30)

    def _answer_open(self, ask: Ask, *_: Any) -> None:
        self._version = None
        self._bid()

    def _answer_observe(self, ask: Ask, version: Any, *leader: Any) -> None:
        self._failures, self._version = 0, version
        if leader != self._told:
            self._told = leader
            self._do("told", *leader)
        self._bid()
