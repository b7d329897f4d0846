"""Leader election with threads: psycopg's ``Connection``."""

import _thread
import asyncio
import inspect
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

from ._elector import Machine
from ._errors import tried
from ._follow import FollowMachine, Leader
from ._options import Connect, Length, Options, seconds
from ._run import FAILURES, BaseElector, BaseFollower, Driver, in_thread, plainly, start
from ._term import Term


def block(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in an event loop of its own."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(coroutine)


class ThreadDriver(Driver):
    """Drives a state machine in a thread, and calls functions of the user in others."""

    beside = staticmethod(in_thread)


class ElectorDriver(ThreadDriver):
    """Drives a state machine in a thread, and calls job and callbacks where ``run`` is called.

    The thread of ``run`` may be interrupted anywhere, by what a signal handler raises. So it looks
    at what is wanted, may miss the bell, and may tell twice that a call has returned.
    """

    new_term = Term

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wanted: tuple[Any, ...] = (0, bool)  # the number of a call, and what to call
        self._serving, self._driving = threading.Lock(), threading.Lock()
        self._over = False
        self._failure: BaseException | None = None

    def run(self, job: Callable[[Any], Any], *begin: Any) -> bool:
        """Call what is to be called, until the state machine has ended."""
        if inspect.iscoroutinefunction(job):
            raise TypeError("the job is a coroutine function: use AsyncElector")
        driving = self.drive(job, *begin)
        with self._serving:  # whose end no exception can skip
            return self._serve(driving)

    def look(self) -> None:
        """If ``run`` has ended before its time, stop, and call nothing any more."""
        if not self._serving.locked():
            if not self.machine._stopping:
                self._put(("stop",))
            if self._number:
                self._put(("returned", None), self._number)

    def _drive(self, driving: Coroutine[Any, Any, Any]) -> None:
        if self._driving.acquire(blocking=False):  # else another thread does
            try:
                self._failure = block(driving)
            except BaseException as error:
                self._failure = error
                self.machine.ended()  # also if the loop could not go on to its end
            self._over = True
            self._bell.put(None)

    def _serve(self, driving: Coroutine[Any, Any, Any]) -> bool:
        done, told, process, raised = 0, 0, os.getpid(), list[BaseException]()
        while not self._over and (self._driving.locked() or not raised):
            # a child has returned from the job, or no stack is left to tell anything: see look
            if os.getpid() != process or len(raised) > 99:
                break
            try:
                if not self._driving.locked():
                    # in a thread, as no exception of a signal handler comes there
                    _thread.start_new_thread(start, (self._drive, driving))
                if told < len(raised):
                    told += 1
                    self.put("abandon" if told > 1 else "stop")
                    if done:
                        self.put("returned", None, call=done)
                number, function, *args = self._wanted
                if number == done:
                    with suppress(queue.Empty):
                        self._bell.get(timeout=1)  # on Windows, nothing interrupts this
                    continue
                done, error = number, None
                try:
                    plainly(function, *args)
                except FAILURES as failure:
                    if os.getpid() != process:  # nothing reports what has failed in a child
                        raise
                    error = failure
                self.put("returned", error, call=number)
            except BaseException as error:  # of the job, or of a signal handler
                raised.append(error)
        return tried(raised[0] if raised else self._failure)

    def _call(self, *call: Any) -> None:
        self._wanted = call
        self._bell.put(None)

    def _act_cancel(self) -> None:  # the job looks at its term
        pass


class Elector(BaseElector[Term]):
    """Campaigns for an election, and runs a job while it leads."""

    _drives = ElectorDriver
    _driver: ElectorDriver

    def run(self, job: Callable[[Term], object]) -> None:
        """Campaign, and run the job in each term, in this thread, until ``stop``.

        What a signal handler raises, such as KeyboardInterrupt, is raised in the job: then this
        resigns, and raises it. If another one follows, it leaves at once. What the job raises is
        reported, if it is an ``Exception``, and else raised.

        Raises ``PermanentError`` if something must be configured differently, ``TypeError`` if the
        job is a coroutine or generator function, and ``RuntimeError`` if called again.
        """
        self._driver.run(job, "run")

    def try_run(self, job: Callable[[Term], object], wait: Length = 0) -> bool:
        """Run the job once, if elected within a time. Returns whether it ran.

        Waits until elected, for that time, for the end of the job, and for the resignation.

        Raises what the job raises, ``LostError`` if leadership was lost before the job had ended,
        and the last error if the last attempt failed. Can be called once, instead of ``run``, and
        raises ``TypeError`` and ``RuntimeError`` as that does.
        """
        return self._driver.run(job, "try", seconds(wait))


class Follower(BaseFollower):
    """Gives the present leader, or None, and then each change, until ``stop``."""

    _drives = ThreadDriver

    def __iter__(self) -> Iterator[Leader | None]:
        """Return an iterator, which waits for each change.

        It raises ``PermanentError``, and ``RuntimeError`` if it is the second one.
        """
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        driving = start(block, self._driver.drive(told.put, "run"))
        driving.add_done_callback(told.put)
        try:
            yield from iter(told.get, driving)
            tried(driving.result())
        finally:
            self.stop()


def leader(connect: Connect, election: str, *, schema: str | None = None) -> Leader | None:
    """Return the present leader, or None. Opens a connection for this, and closes it.

    Raises ``LeaderElectionError``, at the latest after 5 s without an answer. It is a
    ``PermanentError`` if something must be configured differently.
    """
    driver = ThreadDriver(FollowMachine(Options(connect, election, schema=schema)))
    found: Leader | None = start(lambda: block(driver.now())).result()
    return found


follow = Follower
