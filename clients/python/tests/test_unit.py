"""The conformance list's lines U01 to U24, on a simulated clock and server."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from simulation import HANG, Entry, SqlError, World

from leader_election import Elector, JobNotStopped, LeadershipLost, PoolerError

NAN = float("nan")


def near(value: float) -> Any:
    """Compare times: what is simulated takes a few hundredths of a second."""
    return pytest.approx(value, abs=0.06)


def test_u01_job_starts_after_the_first_confirmation(world: World) -> None:
    world.server.latency = 0.5
    world.run(stop_at=10)
    (elected,) = world.times("bid")
    (confirmed,) = world.times("am_leader")[:1]
    assert confirmed == near(elected + 0.5)
    assert world.times("start") == [near(confirmed + 0.5)]


def test_u01_no_job_without_confirmation(world: World) -> None:
    world.server.always["am_leader"] = "f"
    world.run(stop_at=10)
    assert not world.times("start")
    assert not world.times("elected")
    assert isinstance(world.details("error")[0], LeadershipLost)


def test_u01_heartbeat_confirms_the_election(world: World) -> None:
    world.run(stop_at=5, heartbeat=6)
    assert world.order("bid", "heartbeat", "start")[:3] == ["bid", "heartbeat", "start"]


def test_u02_job_is_cancelled_when_the_validity_has_passed(world: World) -> None:
    world.server.once["renew"] = ["t", "t"]
    world.server.always["renew"] = HANG
    world.server.always["resign"] = HANG
    world.run(ttl=9, stop_at=20)
    answered = world.times("renew")[1]
    assert world.times("end")[0] == near(answered + 6)
    assert world.details("ousted")[0] == "in doubt"


def test_u02_validity_counts_from_before_the_question(world: World) -> None:
    world.server.latency = 2.5
    world.server.once["renew"] = ["t"]
    world.server.always["renew"] = HANG
    world.server.always["resign"] = HANG
    world.run(ttl=9, stop_at=14)
    assert world.times("end")[0] == near(world.times("renew")[0] + 6)


def test_u02_bid_for_a_lease_counts_from_before_it_was_sent(world: World) -> None:
    world.server.latency = 2.5
    world.server.always["renew"] = HANG
    world.server.always["resign"] = HANG
    world.run(ttl=9, stop_at=9)
    assert world.times("end")[0] == near(world.times("bid")[0] + 6)


def test_u02_answer_that_comes_too_late_does_not_revive(world: World) -> None:
    world.server.latency = 2.9
    world.server.always["renew"] = SqlError("no")
    world.run(ttl=9, stop_at=20)
    assert world.details("ousted")[0] == "in doubt"


def test_u02_no_answer_in_session_scope(world: World) -> None:
    world.server.once["am_leader"] = ["t", "t", "t"]
    world.server.always["am_leader"] = HANG
    world.run(stop_at=9)
    answered = world.times("am_leader")[2]
    assert answered + 5 <= world.times("end")[0] <= answered + 6.01
    assert world.details("ousted")[0] in ("lost", "in doubt")


def test_u02_unanswered_question_is_not_given_up_under_the_job(world: World) -> None:
    world.server.once["am_leader"] = ["t", "t"]
    world.server.always["am_leader"] = HANG
    world.run(world.stubborn(12), stop_at=20)
    ended = world.times("end")[0]
    assert ended == near(12)
    assert not [time for time in world.times("close") if 1 < time < ended - 0.01]


@pytest.mark.parametrize("options", [{}, {"heartbeat": 6}, {"ttl": 3}])
def test_u03_false_cancels_at_once(world: World, options: dict[str, Any]) -> None:
    world.at(4.5, lambda: world.server.always.update(am_leader="f", heartbeat="f", renew="f"))
    world.run(stop_at=7, **options)
    asked = [e.time for e in world.log if e.what in ("am_leader", "heartbeat", "renew")]
    assert world.times("end")[0] == near(min(t for t in asked if t > 4.5))
    assert world.details("ousted")[0] == "lost"
    assert isinstance(world.details("error")[0], LeadershipLost)
    assert not [t for t in world.times("resign") if t < world.times("ousted")[0]]


def test_u04_end_of_the_connection_cancels_at_once(world: World) -> None:
    world.at(4.5, lambda: world.links[0].end())
    world.run(stop_at=5.4)
    assert world.times("end")[0] == near(4.5)
    assert world.details("ousted")[0] == "lost"
    assert len(world.times("error")) == 1


def test_u05_renewals_are_tried_again(world: World) -> None:
    errors = [SqlError("one"), SqlError("two")]
    world.server.once["renew"] = ["t", *errors]
    world.run(ttl=9, stop_at=20)
    renewals = world.times("renew")
    assert renewals[:4] == [near(3), near(6), near(6.9), near(7.8)]
    assert world.details("error") == errors
    assert world.times("end") == [near(20)]


def test_u05_connection_that_cannot_be_opened_is_tried_again(world: World) -> None:
    world.pooled = True
    world.at(1, lambda: world.refused.extend([SqlError("full"), SqlError("still")]))
    world.run(ttl=9, stop_at=20)
    assert len(world.times("error")) == 2
    assert world.times("end") == [near(20)]


def test_u06_job_without_heartbeat_is_cancelled(world: World) -> None:
    world.run(world.hung, heartbeat=9, stop_at=9)
    assert world.times("end")[0] == near(world.times("heartbeat")[0] + 6)
    assert len(world.times("am_leader")) >= 5
    assert world.details("ousted")[0] == "in doubt"
    assert world.times("resign")[0] == near(world.times("end")[0])


def test_u07_heartbeat_is_sent_for_the_job_only(world: World) -> None:
    async def job(term: Any) -> None:
        world.note("start")
        await world.sleep(1.5, term)
        term.heartbeat()
        term.heartbeat()
        await world.sleep(100, term)

    world.run(job, heartbeat=9, stop_at=7)
    first, second = world.times("heartbeat")
    assert (first, second) == (near(0), near(2))
    assert world.times("am_leader") == [near(t) for t in (1, 3, 4, 5, 6)]


def test_u07_jobs_that_work_go_on(world: World) -> None:
    world.run(heartbeat=3, stop_at=30)
    assert world.times("end") == [near(30)]


def test_u08_renew_on_heartbeat(world: World) -> None:
    world.run(world.hung, ttl=9, renew_on_heartbeat=True, stop_at=8)
    assert world.times("end")[0] == near(6)
    assert not world.times("renew")
    assert world.details("ousted")[0] == "in doubt"


def test_u08_job_that_works_keeps_its_lease(world: World) -> None:
    world.server.once["renew"] = ["t", SqlError("no")]
    world.run(ttl=9, renew_on_heartbeat=True, stop_at=30)
    assert world.times("end") == [near(30)]
    world.log.clear()


def test_u08_each_renewal_needs_a_heartbeat(world: World) -> None:
    async def job(term: Any) -> None:
        term.heartbeat()
        await world.hung(term)

    world.run(job, ttl=9, renew_on_heartbeat=True, stop_at=12)
    assert world.times("renew") == [near(3)]
    assert world.times("end")[0] == near(9)


@pytest.mark.parametrize("options", [{}, {"ttl": 3}])
def test_u09_no_campaign_before_the_job_has_stopped(world: World, options: Any) -> None:
    world.at(4.5, lambda: world.server.once.update(am_leader=["f"], renew=["f"]))
    world.run(world.stubborn(50), stop_at=90, stop_timeout=5, **options)
    events = world.order("bid", "start", "end")
    assert events[:5] == ["bid", "start", "end", "bid", "start"]
    assert world.times("end")[0] == near(50)


def test_u09_failure_of_the_runtime_stops_the_job(world: World) -> None:
    failure = OSError("no file descriptor is left")

    def fail() -> None:
        runtime: Any = world.elector._runtime
        wait = runtime.wait

        async def once(until: float, link: Any) -> None:
            runtime.wait = wait
            raise failure

        runtime.wait = once

    world.at(4.5, fail)
    world.run(world.stubborn(9), stop_at=20)
    assert failure in world.details("error")
    events = world.order("bid", "start", "end", "ousted")
    assert events[:5] == ["bid", "start", "end", "ousted", "bid"]


def test_u10_job_that_does_not_stop_is_reported_once(world: World) -> None:
    world.run(world.stubborn(50), stop_at=10, stop_timeout=timedelta(seconds=7))
    (error,) = world.details("error")
    assert isinstance(error, JobNotStopped)
    assert world.times("error") == [near(17)]


@pytest.mark.parametrize("options", [{}, {"ttl": 9}])
def test_u11_stop_while_leading(world: World, options: Any) -> None:
    world.run(world.stubborn(20), stop_at=5, stop_timeout=30, **options)
    events = world.order("stop", "end", "resign", "close", "returned")
    assert events[-5:] == ["stop", "end", "resign", "close", "returned"]
    confirmations = world.times("renew" if options else "am_leader")
    assert max(confirmations) > 14
    assert world.times("returned") == [near(20)]
    assert world.details("ousted") == ["resigned"]
    assert not world.times("error")


def test_u11_stop_cancels_the_job(world: World) -> None:
    world.run(stop_at=5)
    assert world.times("end") == [near(5)]
    assert world.times("resign") == [near(5)]
    assert world.times("returned") == [near(5)]


def test_u11_stop_while_an_answer_is_on_its_way(world: World) -> None:
    world.server.latency = 0.9
    world.run(stop_at=5.5)
    assert world.times("end") == [near(5.5)]
    assert world.order("resign", "close", "returned")[-3:] == ["resign", "close", "returned"]


def test_u12_stop_while_waiting(world: World) -> None:
    world.server.always["bid"] = HANG
    world.run(stop_at=10)
    events = world.order("stop", "cancel", "close", "returned")
    assert events[-5:] == ["stop", "cancel", "close", "close", "returned"]
    assert world.details("cancel")[0][1] == "1"  # the process ID of the connection that bids
    assert world.times("returned") == [near(10)]
    assert not world.times("error")


def test_u12_stop_while_waiting_and_no_connection_is_to_be_had(world: World) -> None:
    world.server.always["bid"] = HANG
    world.at(5, lambda: world.refused.append(HANG))
    world.run(stop_at=10)
    assert world.times("returned") == [near(15)]
    assert not world.times("error")


def test_u12_stop_while_a_bid_for_a_lease_is_on_its_way(world: World) -> None:
    world.server.latency = 1
    world.run(ttl=9, stop_at=0.5)
    assert world.order("bid", "start", "resign") == ["bid", "resign"]
    assert not world.times("elected")
    assert world.times("returned") == [near(2)]


@pytest.mark.parametrize("options", [{}, {"ttl": 9}])
def test_u12_stop_while_a_connection_is_being_opened(world: World, options: Any) -> None:
    world.refused = [HANG]
    world.run(stop_at=2, **options)
    assert world.times("returned") == [near(2)]


def test_u13_stop_while_paused(world: World) -> None:
    world.refused = [SqlError("no") for _ in range(20)]
    world.run(stop_at=20)
    assert world.times("returned") == [near(20)]
    assert world.times("connect")[-1] < 19


@pytest.mark.parametrize(("random", "pause"), [(0.0, 0.5), (1.0, 1.0)])
@pytest.mark.parametrize("options", [{}, {"ttl": 9}])
def test_u14_job_that_returns(world: World, options: Any, random: float, pause: float) -> None:
    world.random = random
    world.run(world.stubborn(2), stop_at=4, **options)
    assert world.order("start", "end", "resign", "ousted", "bid", "start") == [
        *("bid", "start", "end", "resign", "ousted"),
        *("bid", "start", "end", "resign", "ousted"),
    ]
    assert world.details("ousted")[0] == "job returned"
    assert world.times("bid")[1] - world.times("resign")[0] == near(pause)
    assert not world.times("error")


@pytest.mark.parametrize("options", [{}, {"ttl": 9}])
def test_u15_job_that_fails(world: World, options: Any) -> None:
    failure = RuntimeError("broken")

    async def job(term: Any) -> None:
        await world.sleep(2, term)
        raise failure

    world.run(job, stop_at=4, **options)
    assert world.details("error")[0] is failure
    assert world.details("ousted")[0] == "job failed"
    assert world.order("resign", "ousted", "bid")[:4] == ["bid", "resign", "ousted", "bid"]
    assert world.order("error", "ousted")[:2] == ["error", "ousted"]
    assert world.times("bid")[1] - world.times("resign")[0] == near(0.5)
    assert world.times("error") == [near(2)]


@pytest.mark.parametrize("random", [0.0, 1.0])
def test_u16_pauses_grow(world: World, random: float) -> None:
    world.random = random
    errors = [SqlError(f"no {i}") for i in range(8)]
    world.refused = list(errors)
    world.at(150, lambda: world.refused.append(SqlError("later")))
    world.at(150, lambda: world.links[0].end())
    world.run(stop_at=160)
    assert world.details("error")[:8] == errors
    times = world.times("connect")
    gaps = [round(b - a, 2) for a, b in itertools.pairwise(times)][:8]
    factor = 0.5 + random / 2
    assert gaps == [near(factor * gap) for gap in (0.5, 1, 2, 4, 8, 15, 15, 15)]
    after = [t for t in times if t > 149]
    assert after[0] == near(150 + factor * 0.5)  # lost; the bid that was answered starts anew
    assert after[1] == near(after[0] + factor * 1)


def test_u16_bid_that_is_denied_starts_anew(world: World) -> None:
    world.server.once["bid"] = [SqlError("1"), SqlError("2"), None, SqlError("3")]
    world.run(ttl=9, stop_at=20)
    bids = world.times("bid")
    gaps = [b - a for a, b in itertools.pairwise(bids)]
    assert gaps == [near(0.5), near(1), near(3), near(0.5)]


def test_u17_lease_that_could_not_be_resigned(world: World) -> None:
    world.server.once["resign"] = [SqlError("no")]
    world.run(world.stubborn(2), ttl=9, stop_at=8)
    tokens = [bid[4] for bid in world.details("bid")]
    assert tokens[:3] == [None, "100", None]


def test_u17_lease_that_was_lost(world: World) -> None:
    world.server.once["renew"] = ["f"]
    world.run(ttl=9, stop_at=8)
    assert [bid[4] for bid in world.details("bid")] == [None, None]


def test_u18_two_connections_with_one_process_id(world: World) -> None:
    world.server.pid = 7
    with pytest.raises(PoolerError):
        world.run()
    assert not world.times("bid")


@pytest.mark.parametrize("options", [{}, {"heartbeat": 9}])
def test_u18_process_id_that_changes(world: World, options: Any) -> None:
    world.at(4.5, lambda: setattr(world.server, "pid", 77))
    with pytest.raises(PoolerError):
        world.run(world.stubborn(8), **options)
    assert world.order("end", "resign", "returned") == ["end", "resign", "returned"]
    assert world.details("ousted") == ["lost"]


def test_u18_process_id_that_changes_before_the_first_confirmation(world: World) -> None:
    world.server.latency = 0.5
    world.at(1.2, lambda: setattr(world.server, "pid", 77))
    with pytest.raises(PoolerError):
        world.run()
    assert not world.times("start")
    assert world.times("resign")


def test_u18_another_identity_on_the_connection(world: World) -> None:
    message = "cannot wait to lead election x, which this session leads already"
    world.server.always["bid"] = SqlError(message, "LE005")
    with pytest.raises(PoolerError):
        world.run()


def test_u18_other_errors_do_not_end_it(world: World) -> None:
    world.server.once["bid"] = [SqlError("made by another version", "55000")]
    world.run(stop_at=5)
    assert len(world.times("start")) == 1


def test_u19_is_leading_is_false_after_a_stop(world: World) -> None:
    terms: list[Any] = []
    seen: list[bool] = []
    world.at(4, lambda: seen.append(terms[0].is_leading()))
    world.at(6, lambda: seen.append(terms[0].is_leading()))
    world.run(world.stubborn(10), stop_at=5, on_elected=terms.append)
    assert seen == [True, False]


def test_u19_is_leading_looks_at_the_clock(world: World) -> None:
    seen: list[tuple[float, bool]] = []

    async def job(term: Any) -> None:
        asked = world.times("renew")
        await world.sleep(4, term)
        seen.append((world.time, term.is_leading()))
        asked = [t for t in world.times("renew") if t <= world.time - 1000]
        now = world.time
        world.time = 1000 + asked[-1] + 5.99  # no timer has run
        seen.append((world.time, term.is_leading()))
        world.time = 1000 + asked[-1] + 6
        seen.append((world.time, term.is_leading()))
        world.time = now

    world.run(job, ttl=9, stop_at=4.2)
    assert [leads for _, leads in seen] == [True, True, False]


def test_u19_is_leading_is_false_after_the_term(world: World) -> None:
    terms: list[Any] = []
    world.run(stop_at=3, on_elected=terms.append)
    assert not terms[0].is_leading()


def test_u20_callbacks_in_order(world: World) -> None:
    failure = RuntimeError("broken")

    async def job(term: Any) -> None:
        world.note("start")
        await world.sleep(1, term)
        raise failure

    world.run(job, stop_at=1.3)
    events = world.order("elected", "start", "error", "ousted", "returned")
    assert events == ["elected", "start", "error", "ousted", "returned"]


def test_u20_callbacks_that_fail(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*args: Any) -> None:
        world.note("called", args)
        raise RuntimeError(f"callback {len(args)}")

    errors: list[Exception] = []
    world.run(stop_at=3, on_elected=fail, on_ousted=fail, on_error=errors.append)
    assert [str(error) for error in errors] == ["callback 1", "callback 2"]
    assert len(world.times("called")) == 2
    assert world.times("end") == [near(3)]

    again = World(world.flavour)
    again.refused = [SqlError("no")]
    again.run(stop_at=3, on_error=fail)
    assert again.times("end") == [near(3)]
    assert "the error callback has failed" in caplog.text
    again.close()


def test_u20_callback_that_blocks_does_not_keep_the_job_from_being_cancelled(world: World) -> None:
    async def block(error: Exception) -> None:
        await world.sleep(30)

    def block_thread(error: Exception) -> None:
        world.at(30, lambda: None)
        until = world.time + 30
        world.park(lambda: world.time >= until)

    world.server.always["renew"] = SqlError("no")
    world.run(ttl=9, stop_at=10, on_error=block if world.flavour == "asyncio" else block_thread)
    assert world.times("end")[0] == near(6)


def test_u20_errors_are_logged_by_default(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.refused = [SqlError("the server is full")]
    world.run(stop_at=3, on_error=None)
    assert "the server is full" in caplog.text


@pytest.mark.parametrize("options", [{}, {"ttl": 9}, {"heartbeat": 9}])
def test_u21_seats(world: World, options: Any) -> None:
    world.server.name = "x/2"
    world.run(seats=3, stop_at=5, **options)
    assert world.details("start")[0].election == "x/2"
    statements = [e for e in world.log if e.what in ("am_leader", "heartbeat", "renew", "resign")]
    assert {entry.detail[1] for entry in statements} == {"x/2"}
    (bid,) = world.details("bid")
    assert "le_campaign(le_seats($1, $6)" in bid[0]
    assert bid[1:] == (
        "x",
        "0.000 s" if "ttl" in options else "300.000 s",
        world.elector.identity,
        "9.000 s" if "ttl" in options else None,
        "9.000 s" if "heartbeat" in options else None,
        "3",
    )


@pytest.mark.parametrize(
    "options",
    [
        {"election": ""},
        {"election": "x" * 256},
        {"election": "a\0b"},
        {"election": "ä" * 128},
        {"election": "-42"},
        {"election": "{x}"},
        {"election": None},
        {"election": "x" * 254, "seats": 2},
        {"identity": ""},
        {"identity": "x" * 256},
        {"seats": 0},
        {"seats": 10_001},
        {"seats": 1.5},
        {"heartbeat": 0.9},
        {"heartbeat": NAN},
        {"ttl": 0},
        {"ttl": timedelta(milliseconds=999)},
        {"ttl": float("inf")},
        {"ttl": 3, "heartbeat": 3},
        {"renew_on_heartbeat": True},
        {"stop_timeout": 0},
        {"stop_timeout": NAN},
        {"job": None},
        {"connect": "postgres://"},
        {"on_error": 1},
    ],
)
def test_u22_bad_arguments(world: World, options: dict[str, Any]) -> None:
    arguments = {"connect": lambda: None, "election": "x", "job": lambda term: None, **options}
    with pytest.raises((TypeError, ValueError)):
        type(world.make())(**arguments)


def test_u23_null_is_bid_again_without_a_pause(world: World) -> None:
    world.server.once["bid"] = [None, None]
    world.run(stop_at=3)
    assert world.times("bid") == [near(0.02), near(0.03), near(0.04)]
    assert len(world.times("connect")) == 2
    assert not world.times("error")


def test_u24_default_identities_differ(world: World) -> None:
    identities = [world.make().identity for _ in range(100)]
    assert len(set(identities)) == 100
    host, pid, digits = identities[0].rsplit(":", 2)
    assert host and int(pid) > 0 and len(digits) == 4 and int(digits, 16) >= 0


def test_states(world: World) -> None:
    states: list[Entry] = []

    def look() -> None:
        world.note(world.elector.state)
        if world.time < 1012:
            world.at(0.25, look)

    world.at(0.3, look)
    world.refused = [SqlError("no")]
    world.server.latency = 0.3
    world.run(world.stubborn(5), stop_at=4)
    assert not states
    seen = [e.what for e in world.log if e.what in ("waiting", "leading", "stopping", "paused")]
    assert list(dict.fromkeys(seen)) == ["paused", "waiting", "leading", "stopping"]


def test_elector_runs_once(world: World) -> None:
    world.run(stop_at=1)
    if world.flavour == "threads":
        with pytest.raises(RuntimeError):
            world.elector.run()


def test_term_of_threads_wakes_the_job() -> None:
    from leader_election import Term

    term = Term("x", 1, time.monotonic)
    assert not term.wait(0.001)
    assert not term.cancelled
    threading.Timer(0.01, term._cancel).start()
    assert term.wait(10)
    assert term.cancelled


def test_no_driver_is_needed_to_make_an_elector() -> None:
    assert Elector(lambda: None, "x", lambda term: None).state == "paused"  # type: ignore[arg-type, return-value]
