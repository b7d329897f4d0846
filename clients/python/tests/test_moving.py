"""A fleet moves over from an advisory lock to the library: old and new copies at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "moving-over"
COPIES = ("old.py", "library.py") * 2
KEY = "31"

pytestmark = pytest.mark.skipif(
    not os.environ.get("DATABASE_URL") or not EXAMPLE.exists(), reason="no server, or no examples"
)


def test_never_two_leaders(tmp_path: Path) -> None:
    """The leader is stopped or killed again and again: both kinds lead, never two at a time."""
    log = tmp_path / "log"
    running: dict[str, subprocess.Popen[bytes]] = {}
    killed: dict[str, float] = {}

    def start(file: str) -> None:
        identity = f"{file}-{len(killed) + len(running)}"
        with log.open("ab") as output:
            command = [sys.executable, str(EXAMPLE / file), KEY, identity]
            running[identity] = subprocess.Popen(command, stdout=output)

    def lines() -> list[list[str]]:
        return [line.split(maxsplit=3) for line in log.read_text().splitlines() if line]

    def leader() -> str | None:
        last = [line for line in lines() if line[2] in ("elected", "ousted") and line[1] in running]
        return last[-1][1] if last and last[-1][2] == "elected" else None

    try:
        for file in COPIES:
            start(file)
        for number in range(60):
            deadline = time.monotonic() + 20
            while (leads := leader()) is None:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            time.sleep(random.uniform(0.1, 0.7))
            process = running.pop(leads)
            killed[leads] = time.time()
            process.send_signal((signal.SIGTERM, signal.SIGKILL)[number % 2])
            process.wait(10)
            if number > 8 and {name.rpartition("-")[0] for name in killed} == set(COPIES):
                break
            start(leads.rpartition("-")[0])
    finally:
        for process in running.values():
            process.kill()
            process.wait()

    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    for when, identity, event, _ in lines():
        {"elected": began, "ousted": ended}.get(event, {})[identity] = float(when)
    for first, second in pairwise(sorted(began, key=began.__getitem__)):
        over = ended.get(first, killed.get(first, float("inf")))
        assert over <= began[second], f"{first} and {second} lead"
    assert {identity.rpartition("-")[0] for identity in began} == set(COPIES)
