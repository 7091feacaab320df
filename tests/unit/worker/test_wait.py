"""Due times: a wall clock that was wrong for a moment neither freezes a timer nor cuts one short."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from outlast.journal.entry import ApprovalExpired, OperationId, RunTimedOut, Started, TimerFired
from outlast.replay.command import StartTimer
from outlast.worker.wait import Waits

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAR = timedelta(days=3650)
HOUR = timedelta(hours=1)
TIMER = OperationId("r:1")
spans = st.timedeltas(timedelta(0), FAR)


def asked(armed_at: datetime, wait: timedelta) -> StartTimer:
    """Return a timer that was asked for at the run's time `armed_at`."""
    return StartTimer(operation=TIMER, due=armed_at + wait, armed_at=armed_at)


@given(ahead=st.timedeltas(-FAR, FAR), wait=spans)
def test_a_timer_waits_as_long_as_asked(ahead: timedelta, wait: timedelta) -> None:
    """However far the run's time is from the store's: never shorter, and longer only by what the run's time is behind."""
    waits = Waits()
    waits.add_timer(asked(NOW + ahead, wait), NOW)
    assert waits.wake_at() == NOW + wait + min(ahead, timedelta(0))


@given(armed=spans, ahead=spans, wait=spans)
def test_a_timer_armed_before_a_clock_was_ahead_keeps_its_due_time(
    armed: timedelta, ahead: timedelta, wait: timedelta
) -> None:
    """A later entry of the run that is far ahead says nothing about it."""
    waits = Waits()
    waits.recall(msgspec.json.encode({"timers": {TIMER: NOW - ahead}}))
    waits.add_timer(asked(NOW - armed, wait), NOW)
    assert waits.wake_at() == NOW - armed + wait


def test_a_timer_armed_while_the_clock_was_ahead_comes_near_again() -> None:
    """When the clock is right again it waits as long as asked, once."""
    waits = Waits()
    waits.add_timer(asked(NOW + FAR, HOUR), NOW + FAR)
    assert waits.take_due(NOW) == []
    assert waits.wake_at() == NOW + HOUR
    assert waits.take_due(NOW + HOUR / 2) == []
    (fired,) = waits.take_due(NOW + HOUR)
    assert fired.at == NOW + HOUR


def test_a_parked_wait_does_not_begin_anew() -> None:
    """The note of the run says when it is due; one that cannot be read says nothing."""
    waits = Waits()
    waits.add_timer(asked(NOW + FAR, HOUR), NOW)
    again = Waits()
    again.recall(msgspec.json.encode(waits.note()))
    again.add_timer(asked(NOW + FAR, HOUR), NOW + HOUR)
    assert len(again.take_due(NOW + HOUR)) == 1
    lost = Waits()
    lost.recall(b"")
    lost.add_timer(asked(NOW + FAR, HOUR), NOW + HOUR)
    assert lost.wake_at() == NOW + 2 * HOUR


def limited(seconds: float | None) -> Started:
    """Return the first entry of a run that may take so long."""
    return Started("flow", Raw(b"{}"), b"", "r", timeout_seconds=seconds)


@given(ahead=st.timedeltas(-FAR, FAR), wait=st.timedeltas(timedelta(microseconds=1), FAR))
def test_a_run_has_as_long_as_its_start_says(ahead: timedelta, wait: timedelta) -> None:
    """However wrong the clock was when it was started: judged like a timer."""
    waits = Waits()
    waits.add_deadline(limited(wait.total_seconds()), NOW + ahead, NOW)
    due = waits.wake_at()
    assert due is not None
    # Seconds as a float are right to the microsecond for some centuries.
    assert abs(due - (NOW + wait + min(ahead, timedelta(0)))) <= timedelta(microseconds=1)
    assert waits.take_due(due - timedelta(microseconds=1)) == []
    (proposal,) = waits.take_due(due)
    assert isinstance(proposal.entry, RunTimedOut)
    assert proposal.at == due
    assert (waits.wake_at(), waits.next_due()) == (None, None)


def test_a_run_without_a_timeout_waits_for_none() -> None:
    """Nor does one whose workflow has ended; one that lasts for ever overflows nothing."""
    waits = Waits()
    waits.add_deadline(limited(None), NOW, NOW)
    assert waits.wake_at() is None
    waits.add_deadline(limited(60), NOW, NOW)
    waits.forget_deadline()
    assert waits.take_due(NOW + HOUR) == []
    waits.add_deadline(limited(1e300), NOW, NOW)
    assert waits.wake_at() == datetime.max.replace(tzinfo=UTC)


def test_a_parked_run_keeps_what_was_noted_of_its_time() -> None:
    """So that a clock that was ahead costs it its time once, and not at each parking anew."""
    waits = Waits()
    waits.add_deadline(limited(3600), NOW + FAR, NOW)
    again = Waits()
    again.recall(msgspec.json.encode(waits.note()))
    again.add_deadline(limited(3600), NOW + FAR, NOW + HOUR / 2)
    assert again.wake_at() == NOW + HOUR
    assert "deadline" not in Waits().note()


def test_what_is_due_later_than_a_moment_is_left() -> None:
    """While a pause is coming, only what came due before it happens."""
    waits = Waits()
    waits.add_timer(asked(NOW - HOUR, HOUR / 2), NOW)
    waits.add_deadline(limited(3600 * 0.75), NOW - HOUR, NOW)
    (fired,) = waits.take_due(NOW, NOW - HOUR * 0.4)
    assert isinstance(fired.entry, TimerFired)
    (over,) = waits.take_due(NOW)
    assert isinstance(over.entry, RunTimedOut)


def test_what_was_due_and_is_not_written_is_waited_for_again() -> None:
    """A pause that came before it keeps it from happening: timer, request and the run's time are due when the run goes on."""
    waits = Waits()
    waits.add_deadline(limited(3600), NOW, NOW)
    waits.add_timer(asked(NOW, HOUR), NOW)
    waits.add_request(OperationId("r:2"), NOW + HOUR, "a")
    early = StartTimer(operation=OperationId("r:3"), due=NOW, armed_at=NOW)
    waits.add_timer(early, NOW)
    due, later = waits.take_due(NOW + HOUR), NOW + HOUR - timedelta(microseconds=1)
    assert len(due) == 4
    assert waits.wake_at() is None
    (kept,) = waits.take_back(due, later)
    assert kept.entry == TimerFired(OperationId("r:3"))
    assert waits.take_due(NOW + HOUR, later) == []
    assert waits.wake_at() == NOW + HOUR
    again = waits.take_due(NOW + HOUR)
    assert {type(one.entry) for one in again} == {RunTimedOut, TimerFired, ApprovalExpired}
    waits.forget(TIMER)
    (void,) = waits.take_back(again, None)
    assert void.entry == TimerFired(TIMER)
    assert waits.wake_at() == NOW + HOUR
