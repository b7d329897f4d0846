"""The state machine of an elector.

It is pure: ``step`` gets the time and what has happened, and returns what is to be done. The cases
of clients/conformance run on it. ``_session`` and ``_lease`` have what the two ways to lead do
differently.
"""

import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from ._errors import POOLED, Kind, LeaderElectionError, LostError, PermanentError, permanent
from ._lease import Lease
from ._options import Health, Options, State, Statement
from ._session import Session
from ._term import BaseTerm

LASTING = 60.0  # a term of this length shows that the job works
STATES: dict[str, State] = {"campaign": "waiting", "confirming": "waiting"}
STATES |= {"paused": "paused", "stopped": "stopped"}
CALLS = {"elected": "job", "job": "ousted", "ousted": "leaving"}  # in a term, and what follows each


def clock() -> float:
    """Return the seconds of a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


@dataclass
class Ask:
    """A statement on its way."""

    serial: int
    kind: str
    asked: float
    deadline: float
    begun: bool = False


class Machine:
    """The state machine of an elector."""

    clock: Callable[[], float] = staticmethod(clock)
    draw: Callable[[], float] = staticmethod(random.random)
    new_term: type[BaseTerm] = BaseTerm
    driver: Any = None
    terms = confirmations = errors = 0
    _phase, _now, _until, _serial, _failures, _crashes = "stopped", 0.0, inf, 0, 0, 0
    _stopping = _told_not_yet = False
    _ask: Ask | None = None
    _token: int | None = None
    _pid: Any = None
    _once, _last_bid = False, inf  # whether to run the job once, and until when to campaign
    _result: LeaderElectionError | None = None  # of that

    def __init__(self, options: Options) -> None:
        self.options, ttl = options, options.ttl
        self.way = Lease(ttl) if ttl else Session(options)
        self.opens, self.limit = not ttl, self.way.limit
        self._forget_term()

    def _forget_term(self) -> None:
        self.term: Any = None
        self._over: LeaderElectionError | None = None
        self._reason, self._due, self._report_at, self._began = "", inf, inf, inf
        self._refused, self._carried, self._carrying = False, 0, 0

    def step(self, now: float, event: str = "", *args: Any) -> list[tuple[Any, ...]]:
        """Let time pass, and note an event. Returns the actions."""
        self._out: list[tuple[Any, ...]] = []
        self._now = now
        self._pass_time()
        if event:
            getattr(self, "_on_" + event)(*args)
            self._pass_time()
        return self._out

    def wakeup(self) -> float:
        """Return when ``step`` is to be called although nothing has happened."""
        return min(when for when, _ in self._timers())

    def _timers(self) -> Iterator[tuple[float, Callable[[], None]]]:
        yield self.term._valid_until() if self._holds() else inf, self._doubt
        yield self._ask.deadline if self._ask else inf, self._give_up
        yield self._report_at, self._report_slow
        yield self._until, self._on_run
        yield self._due if self._holds() and not self._ask else inf, self._confirm

    def _pass_time(self) -> None:
        for when, due in self._timers():  # each is looked at after the one before was done
            if self._now >= when:
                due()
        if self._phase == "leaving":
            self._leave()

    def _do(self, *action: Any) -> None:
        self._out.append(action)

    @property
    def state(self) -> State:
        """Either waiting, leading, stopping, paused or stopped."""
        leads = self._phase in ("elected", "job") and not self._reason
        return "leading" if leads else STATES.get(self._phase, "stopping")

    @property
    def health(self) -> Health:
        """Either waiting, leading, in doubt or stopped. The first two are healthy."""
        if self._phase == "stopped":
            return "stopped"
        if self._failures or self._over:
            return "in doubt"
        if not (term := self.term) or self._phase == "confirming":
            return "waiting"
        return "leading" if self.clock() < term._valid_until() else "in doubt"

    # Statements

    def statement(self, kind: str, arg: Any = None) -> Statement:
        """Return a statement and its parameters."""
        o, term = self.options, self.term
        name, token = (term.election, term.token) if term else (o.election, arg)
        return self.way.statements(o, name, token)[kind]

    def _send(self, kind: str, *args: Any, limit: float = 0) -> None:
        self._serial += 1
        self._ask = Ask(self._serial, kind, self._now, self._now + (limit or self.limit))
        self._do("ask", self._serial, kind, *args)

    def _on_begun(self, serial: int) -> None:
        if self._ask and self._ask.serial == serial:
            self._ask.begun = True

    def _on_answer(self, serial: int, *row: Any, error: LeaderElectionError | None = None) -> None:
        ask = self._ask
        if ask is None or ask.serial != serial:
            return  # it was given up
        self._ask = None
        if error:
            self._fail(ask, error)
        else:
            getattr(self, "_answer_" + ask.kind)(ask, *row)

    def _on_failed(self, serial: int, error: LeaderElectionError) -> None:
        self._on_answer(serial, error=error)

    def _on_broken(self) -> None:
        error = LeaderElectionError("broken", "the connection has ended")
        self._on_failed(self._ask.serial, error) if self._ask else self._connection_lost(error)

    def _give_up(self) -> None:
        if ask := self._ask:
            kind: Kind = "timeout" if ask.begun else "no-connection"
            what = "answer" if ask.begun else "connection from the pool or server"
            text = f"no {what} within {ask.deadline - ask.asked:.3g} s"
            self._on_failed(ask.serial, LeaderElectionError(kind, text))

    def _close(self) -> None:
        self._ask = None
        self._do("close")

    def _fail(self, ask: Ask, error: LeaderElectionError) -> None:
        self._refused |= ask.begun and error.sqlstate == "42501"
        if ask.kind in ("open", "bid", "observe") or self._phase == "confirming":
            self._fail_attempt(ask, error)
        elif ask.kind == "resign" or (self.opens and self._phase == "leaving"):
            self._on_report(error)
            token = None if self.opens or self._refused else self.term.token
            self._finish()
            self._token = token
        elif self.opens:
            self._connection_lost(error)
        elif not self._over:
            self._on_report(error)
            self._close()
            self._due = self._now + self.way.retry

    # The campaign

    def _on_try(self, wait: float) -> None:
        self._once, self._last_bid = True, self._now + wait
        self._result = LeaderElectionError("denied", "another one leads")
        self._on_run()

    def _on_run(self) -> None:
        self._phase, self._until = "campaign", inf
        if self._stopping:
            self._end()
        elif self.opens:
            self._send("open")
        else:
            self._bid()

    def _bid(self) -> None:
        longest = 1.0 if self._failures else self.way.round
        self.way.wait = min(self.way.round, longest, max(0.0, self._last_bid - self._now))
        self._send("bid", self._token, limit=self.limit + self.way.wait)

    def _answer_open(self, ask: Ask, pid: Any, *_: Any) -> None:
        self._pid = pid
        self._bid()

    def _answer_bid(self, ask: Ask, token: int | None, name: str | None = None) -> None:
        self._failures, self._told_not_yet, self._token = 0, False, None
        if token is not None:
            self.term = self.new_term(self, name or self.options.election, token)
            if self.opens:
                self._phase = "confirming"
                self._send("beat" if self.options.heartbeat else "confirm")
            else:
                self.term._last_beat, length = ask.asked, self.options.heartbeat or inf
                self.term._beat_length = length * 2 / 3
                self._confirmed(ask)
                self._lead()
        elif self._stopping or self._now >= self._last_bid:
            self._finish()
        elif self.opens:
            self._bid()
        else:
            self._until = min(ask.asked + self.way.between, self._last_bid)

    def _lead(self) -> None:
        if self._now >= self.term._valid_until() and not self._over:
            self._doubt()
        if self._over or self._stopping:
            self._phase = "leaving"
        else:
            self._phase, self._began = "elected", self._now
            self._report_at = self._now + self.options.stop_timeout
            self.terms += 1
            self._do("elected", self.term, "")

    def _fail_attempt(self, ask: Ask, error: LeaderElectionError) -> None:
        self._forget_term()
        self._close()
        not_yet = error.sqlstate == "LE003"
        judged = ask.begun and ask.kind in ("bid", "observe")
        if judged and error.sqlstate == "42501" and self._token is not None:
            self._token = None  # of a role that was replaced
        elif judged and not self._stopping and (ends := permanent(error)):
            return self._end(ends)
        if self._now >= self._last_bid and not self._stopping:
            return self._end(error)
        if not (not_yet and self._told_not_yet):
            self._on_report(error)
        if self._stopping:
            return self._end()
        self._told_not_yet = not_yet
        named = re.search(r"(\d+) ms", error.hint) if not_yet else None
        return self._pause(int(named[1]) / 1000 if named else self._backoff(15, self._failures))

    def _on_report(self, error: LeaderElectionError) -> None:
        self.errors += 1
        self._do("error", error)

    def _pause(self, length: float) -> None:
        self._phase, self._until = "paused", min(self._now + length, self._last_bid)

    def _backoff(self, most: float, before: int) -> float:
        self._failures += 1
        return min(most, 0.5 * 2.0 ** min(before, 10)) * (0.5 + self.draw() / 2)

    def _end(self, error: LeaderElectionError | None = None) -> None:
        self._phase, self._until = "stopped", inf
        self._do("end", error or self._result)

    def ended(self) -> None:
        """Note that nothing drives this any more."""
        self._phase = "stopped"
        if self.term:
            self.term._tell()

    # The term

    def _holds(self) -> bool:
        return self._phase in CALLS and not self._over

    def _confirm(self) -> None:
        beat = self.opens and self.options.heartbeat and self.term._beats != self._carried
        self._carrying = self.term._beats
        self._send("beat" if beat else "confirm", limit=self.way.patience)

    def _answer_confirm(self, ask: Ask, leads: bool, pid: Any = None) -> None:
        if self._over:
            return
        if self.opens and pid != self._pid:
            self._lose(PermanentError("pooler", POOLED))
        elif leads:
            self._confirmed(ask)
        else:
            self._lose(LostError("lost", f"leadership of {self.term.election} is lost"))
        if self._phase == "confirming":
            self._lead()

    _answer_beat = _answer_confirm

    def _confirmed(self, ask: Ask) -> None:
        self.confirmations += 1
        self._due = ask.asked + self.way.interval
        self.term._confirmed_until = ask.asked + self.way.validity
        if ask.kind == "beat" and self.options.heartbeat:
            self._carried = self._carrying
            self.term._beaten_until = ask.asked + self.options.heartbeat * 2 / 3

    def _on_returned(self, error: BaseException | None = None) -> None:
        """Go on after a callback or the job has returned, or failed."""
        returned, self._phase = self._phase, CALLS[self._phase]
        kind: Kind = "job" if returned == "job" else "callback"
        if error is not None and returned == "job" and self._once and not self._over:
            self._result = LeaderElectionError._of(error, kind)
        elif error is not None:
            self._on_report(LeaderElectionError._of(error, kind))
        if returned == "job":
            self._cancel("job returned" if error is None else "job failed")
        if self._phase == "job" and self._reason:
            self._phase = "ousted"
        if self._phase == "job":
            self._result = None
        self._report_at = self._now + self.options.stop_timeout if self._phase == "ousted" else inf
        if self._phase != "leaving":
            self._do(self._phase, self.term, self._reason)

    def _report_slow(self) -> None:
        self._report_at, is_job = inf, self._phase == "job"
        what = "the job has not stopped" if is_job else f"{self._phase} has not returned"
        text = f"{what} within {self.options.stop_timeout:g} s"
        self._on_report(LeaderElectionError("slow job" if is_job else "callback", text))

    # The end of a term

    def _on_stop(self) -> None:
        waits = self._phase in ("campaign", "confirming", "paused") and not self._stopping
        self._stopping = True
        if self._phase in CALLS:
            self._cancel("resigned")
        elif waits and (self.opens or not self._ask):
            self._close()
            self._end()

    def _doubt(self) -> None:
        self._lose(LostError("in doubt", f"leadership of {self.term.election} is in doubt"))

    def _connection_lost(self, error: LeaderElectionError) -> None:
        if self._holds():
            text = f"leadership of {self.term.election} is lost: {error}"
            self._lose(LostError("lost", text, error.sqlstate, error.hint, error.__cause__))
        elif self._over and self._over.kind == "in doubt":
            self._over = error

    def _lose(self, error: LeaderElectionError) -> None:
        self._over = error
        if self._once and (self._phase == "job" or not self._reason):
            self._result = error
        elif error.kind != "pooler":
            self._on_report(error)
        if not self.opens and self._ask:
            self._close()
        self._cancel("in doubt" if error.kind == "in doubt" else "lost")

    def _cancel(self, reason: str) -> None:
        if not self._reason:
            self._reason = reason
            self.term._tell()
            if reason == "job returned" or self._now >= self._began + LASTING:
                self._crashes = 0
            if self._phase == "job":
                self._report_at = self._now + self.options.stop_timeout
                self._do("cancel")

    def _leave(self) -> None:
        asking = self._ask and self._ask.kind != "resign"
        if self._over and (self._over.kind != "in doubt" or asking):
            self._finish()
        elif not self._ask:
            self._send("resign")

    def _answer_resign(self, ask: Ask, *_: Any) -> None:
        yields = self._over and not self.opens
        self._finish()
        if yields:  # to those that bid at this interval
            self._until += self.way.between

    def _finish(self) -> None:
        reason, over = self._reason, self._over
        self._forget_term()
        self._close()
        if self._stopping or self._once or isinstance(over, PermanentError):
            self._end(over if isinstance(over, PermanentError) else None)
        elif reason == "job returned":
            self._pause(0.5 + self.draw() / 2)
        elif reason == "job failed":
            self._crashes += 1
            self._pause(self._backoff(60, self._crashes - 1))
        else:
            self._pause(self._backoff(15, self._failures))
