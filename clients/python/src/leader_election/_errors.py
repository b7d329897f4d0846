"""The errors of the library."""

from contextlib import suppress
from typing import Any, Literal

Lasting = Literal["extension", "privilege", "argument", "pooler"]
Passing = Literal["server", "broken", "timeout", "no-connection", "lost", "in doubt", "over"]
#: What kind of error a ``LeaderElectionError`` is.
Kind = Literal[Lasting, Passing, "job", "slow job", "task", "callback", "denied"]

CAUSES: dict[str, Kind] = dict.fromkeys(("42883", "42P01", "3F000"), "extension")
CAUSES |= {"42501": "privilege", "LE005": "pooler"}
POOLED = (
    "session scope needs a connection of its own, and a pooler shares this one: "
    "set a ttl, to lead by a lease"
)


class LeaderElectionError(Exception):
    """An error. Its kind is ``server`` if it has an SQLSTATE of the server's.

    kind -- what kind of error it is, see ``Kind``
    sqlstate, hint -- of the error that the server has reported, or ""

    Its ``__cause__`` is the exception of the job or the driver, or None.
    """

    def __init__(
        self, kind: Kind, message: str, sqlstate: str = "", hint: str = "", cause: Any = None
    ) -> None:
        """Make an error.

        kind -- what kind of error it is
        message -- the text
        sqlstate, hint -- of the error that the server has reported (default "": none)
        cause -- the exception that has caused it (default None)
        """
        super().__init__(message)
        self.kind: Kind = kind  # else a checker may infer str
        self.sqlstate = sqlstate
        self.hint = hint
        if cause is not None:  # None would hide an exception that is being handled
            self.__cause__ = cause

    def __reduce__(self) -> Any:  # to go to another process
        return type(self), (self.kind, str(self), self.sqlstate, self.hint)

    @classmethod
    def _of(cls, error: Any, kind: Kind = "broken") -> "LeaderElectionError":
        """Return an error that another one has caused."""
        if kind == "broken" and isinstance(error, LeaderElectionError):
            return error
        text, state, hint = type(error).__name__, "", ""
        with suppress(Exception):  # which an exception of the user can raise
            text = (isinstance(error, Exception) and str(error)) or repr(error)
            state = getattr(error, "sqlstate", None) or ""
            hint = getattr(getattr(error, "diag", None), "message_hint", None) or ""
        return cls("server" if state and kind == "broken" else kind, text, state, hint, error)


class LostError(LeaderElectionError):
    """Leadership is lost, or in doubt."""


class PermanentError(LeaderElectionError):
    """It goes on until something is configured differently, and ends ``run``.

    Its kind is ``extension``, ``privilege``, ``argument`` or ``pooler``.
    """


def permanent(error: LeaderElectionError) -> PermanentError | None:
    """Return the permanent error that an error of a bid is, or None."""
    cause = CAUSES.get(error.sqlstate, "argument" if error.sqlstate[:2] in ("22", "42") else None)
    if not cause:
        return None
    message = POOLED if cause == "pooler" else str(error)
    return PermanentError(cause, message, error.sqlstate, error.hint, error.__cause__)


def tried(error: BaseException | None) -> bool:
    """Return whether the job of ``try_run`` has run, or raise what it or the elector has raised."""
    kind = error.kind if isinstance(error, LeaderElectionError) else ""
    if error is not None and kind != "denied":
        raise error.__cause__ if kind == "job" and error.__cause__ is not None else error
    return error is None
