"""Run the cases of clients/conformance on the state machines."""

from __future__ import annotations

import os
import re
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leader_election._elector import Machine
from leader_election._errors import LeaderElectionError
from leader_election._every import EPOCH, due
from leader_election._follow import FollowMachine
from leader_election._options import Options

CASES = Path(__file__).parents[2] / "conformance" / "cases.txt"
SHOWN = ["job", "cancel", "ousted", "error", "end", "told", "refused"]
WORDS = {"none": None, "true": True, "false": False, "empty": ""}


def read() -> dict[str, list[str]]:
    """Return the lines of each case that the runner reads."""
    cases = {}
    for case in re.split(r"^== ", CASES.read_text(), flags=re.MULTILINE)[1:]:
        name, *lines = case.split("\n\n")[0].splitlines()
        cases[name] = lines[next(i for i, line in enumerate(lines) if line[:6] == "given ") :]
    return cases


def value(word: str) -> Any:
    """Return a word of a case as a value."""
    if word in WORDS:
        return WORDS[word]
    if word[0] == '"':
        return word[1:-1].replace("\\0", "\0")
    if word[1:2] == "*":
        return word[0] * int(word[2:])
    number = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", word)
    return word if not number else float(word) if number[1] else int(word)


class World:
    """The clock, the server and the program of one case."""

    def __init__(self) -> None:
        self.time, self.token, self.draw = 0.0, 6, 1.0
        self.hold, self.starve, self.show = set[str](), set[str](), set(SHOWN)
        self.out: deque[tuple[float, str]] = deque()
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.asked = self.given_up = 0  # the statement that waits for the case's answer
        self.machine: Any = None

    def given(self, kind: str, *rest: str) -> None:
        """Make what is tested, and let it run."""
        if kind in ("every", "schedule"):
            period, _, shift = rest[0].partition("+")
            self.schedule: Any = int(period)
            if shift:
                zero, length = EPOCH + timedelta(0, int(shift)), timedelta(0, int(period))
                self.schedule = lambda last: zero + ((last - zero) // length + 1) * length
            self.last = EPOCH + timedelta(0, float(rest[2]))
            return
        options = {"election": "e", **dict(zip(rest[::2], map(value, rest[1::2]), strict=True))}
        once = options.pop("once", None)
        try:
            machine = FollowMachine if kind == "follow" else Machine
            self.machine = machine(Options(print, **options))
        except ValueError as error:
            self.out.append((0.0, f"refused {str(error).split()[0]}"))
            return
        self.machine.clock, self.machine.draw = lambda: self.time, lambda: self.draw
        self.step(*(("run",) if once is None else ("try", once)))

    def step(self, *event: Any) -> None:
        """Let the machine take a step, and then all that follows from it at once."""
        self.inbox.append(event)
        while self.inbox:
            for kind, *args in self.machine.step(self.time, *self.inbox.popleft()):
                self.act(kind, *args)

    def act(self, kind: str, *args: Any) -> None:
        """Show an action, and answer it unless the case does."""
        shown = kind
        if kind == "ask":
            serial, kind, *args = args  # type: ignore[assignment]
            shown = "confirm" if kind == "beat" else kind
            if shown not in self.starve:
                self.inbox.append(("begun", serial))
            if shown in self.hold | self.starve:
                self.asked = serial
            else:
                self.inbox.append(("answer", serial, *self.usual(kind)))
            args = tuple(arg for arg in args if arg is not None)
        elif kind == "close" and self.asked:
            self.given_up, self.asked = self.asked, 0
        elif kind in ("elected", "job", "ousted"):
            term, reason = args
            args = (reason,) if kind == "ousted" else (term.token,)
            if kind == "job" and self.machine.options.seats:
                args += (term.election,)
        elif kind in ("error", "end"):
            error = args[-1]
            name = error and (error.sqlstate if error.kind == "server" else error.kind)
            args = (name,) if error else ()
        returns = "job" if kind == "cancel" else kind
        if kind in ("elected", "ousted", "cancel") and returns not in self.hold:
            self.inbox.append(("returned",))
        if shown in self.show | self.hold | self.starve:
            words = ("none" if arg is None else str(arg) for arg in args)
            self.out.append((self.time, " ".join([kind, *words])))

    def usual(self, statement: str) -> tuple[Any, ...]:
        """Return the usual answer to a statement."""
        if statement == "bid":
            self.token += 1
            return (self.token, "e/2") if self.machine.options.seats else (self.token,)
        return (
            (11,) if statement == "open" else (True, 11)[: 1 + (statement in ("confirm", "beat"))]
        )

    def advance(self, until: float, inclusive: bool) -> None:
        """Let time pass."""
        while self.machine and (wakeup := max(self.machine.wakeup(), self.time)) <= until:
            if wakeup == until and not inclusive:
                break
            self.time = wakeup
            self.step()
        self.time = max(self.time, until)

    def arrive(self, kind: str, *rest: str) -> None:
        """Let something arrive."""
        if kind in ("answer", "fails", "late"):
            serial = self.given_up if kind == "late" else self.asked
            assert serial, "no statement waits for an answer"
            self.asked = self.asked if kind == "late" else 0
            if kind == "fails":
                error = LeaderElectionError("server", "", rest[0], " ".join(rest[2:]))
                self.step("failed", serial, error)
            else:
                self.step("answer", serial, *map(value, rest[kind == "late" :]))
        elif kind == "broken":
            self.asked = 0
            self.step("broken")
        elif kind == "asleep":
            self.time = float(rest[1])
        elif kind == "heartbeat":
            self.machine.term.heartbeat()
            self.step()
        elif kind == "stop":
            self.step("stop")
        else:
            assert kind == self.machine._phase
            self.step("returned", *([RuntimeError("fails")] if rest == ("fails",) else []))

    def check(self, what: str, *rest: str) -> None:
        """Check what a case says of a state."""
        if what == "due":
            found, self.last = due(self.schedule, self.last, EPOCH + timedelta(0, self.time))
            assert (found and (found - EPOCH).total_seconds()) == value(rest[0]), found
        elif what in ("leading", "not"):
            term = self.machine.term
            assert (term is not None and term.is_leading()) == (what == "leading")
        else:
            found = getattr(self.machine, what)
            assert str(found) == " ".join(rest), found

    def line(self, time: float, mark: str, *words: str) -> None:
        """Follow a line of the case."""
        self.advance(time, inclusive=mark == ">")
        if mark == ">":
            assert self.out, "nothing has followed"
            assert self.out.popleft() == (time, " ".join(words))
        else:
            assert not self.out, f"this has followed: {self.out[0]}"
            (self.arrive if mark == "<" else self.check)(*words)


@pytest.mark.parametrize("name", list(read()))
def test_case(name: str) -> None:
    world, case = World(), [line.split() for line in read()[name]]
    settings = [words for words in case if not words[0][0].isdigit()]
    for word, *rest in settings[1:]:
        if word == "random":
            world.draw = float(rest[0])
        else:
            getattr(world, word).update(rest)
    world.given(*settings[0][1:])
    for time, *words in case[len(settings) :]:
        try:
            world.line(float(time), *words)
        except AssertionError as error:
            raise AssertionError(f"{time} {' '.join(words)}\n    {error}") from None
    assert not world.out, f"this has followed at the end: {list(world.out)}"
    if report := os.environ.get("CONFORMANCE_REPORT"):
        with open(report, "a") as file:
            print(f"case {name}: passed", file=file)
