"""Due times: a wall clock that was wrong for a moment neither freezes a timer nor cuts one short."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from outlast.journal.entry import OperationId
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
