"""A storm of signals: ``storm.py DSN ELECTION SECONDS SEED``.

Runs one elector after the other, in session scope and by a lease, while signals come at random
moments, whose handler raises an exception: one, or one after the other each few milliseconds.
``run`` must raise such an exception, and soon after there must be neither a leader nor a thread.
Prints how often it has run.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

import psycopg

from leader_election import Elector

DSN, ELECTION, SECONDS, SEED = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
TTL = 2


class Interrupted(BaseException):
    """What a handler raises, besides others."""


class TooLongError(RuntimeError):
    """What the handler of a timeout raises. A job that it hits has failed, and another begins."""


RAISED = (Interrupted, TooLongError, SystemExit, KeyboardInterrupt)


def storm(
    draw: random.Random, election: str, way: Any, again: float, raised: type[BaseException]
) -> str:
    """Run an elector, and raise an exception in it. Returns where it was hit."""
    where = ["?"]

    def hit(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, again)
        where[0] = elector.state
        raise raised

    def job(term: Any) -> None:
        while not term.wait(0.005):
            pass

    def callback(*_: Any) -> None:
        time.sleep(0.005)

    elector = Elector(
        lambda: psycopg.connect(DSN),
        election,
        on_elected=callback,
        on_ousted=callback,
        on_error=lambda _: None,
        **way,
    )
    signal.signal(signal.SIGALRM, hit)
    try:
        signal.setitimer(signal.ITIMER_REAL, 10 ** draw.uniform(-3.3, -0.3))
        elector.run(job)
        raise AssertionError("run has returned")
    except RAISED:
        pass
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return where[0]


def main() -> None:
    """Let the storm blow."""
    faulthandler.dump_traceback_later(SECONDS + 20, exit=True)  # if run hangs
    draw, hits, end = random.Random(SEED), Counter[str](), time.monotonic() + SECONDS
    sessions, longest = psycopg.connect(DSN, autocommit=True), 0.0
    while time.monotonic() < end:
        way: Any = draw.choice([{}, {"ttl": TTL}])
        again = draw.choice([0.003, 0.02, *[1] * (10 if way else 3)])
        raised, election = draw.choice(RAISED), f"{ELECTION} {hits.total()}"
        try:
            hits[storm(draw, election, way, again, raised)] += 1
        except RAISED:  # it came while the handler was taken off
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        began = time.monotonic()
        # a lease that was abandoned, as the second signal demands, is not resigned
        patience = 2 * TTL if way and again < 1 else 1.5
        while (
            sessions.execute("SELECT FROM le_leader(%s)", [election]).fetchall()
            or threading.active_count() > 1
        ):
            assert time.monotonic() < began + patience, (way, again, raised, threading.enumerate())
            time.sleep(0.002)
        if again == 1:
            longest = max(longest, time.monotonic() - began)
    print(f"{hits.total()} runs {dict(hits)}, gone {longest:.3f} s after the first signal")


main()
