"""Days and hours of a rule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast.errors import PolicyError
from outlast.policy import Policy, Rule, Window

from .conftest import judge

MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)  # of a Monday


def hours_of(window: Window, days: int = 7) -> list[int]:
    """Return the hours from that midnight at which it holds."""
    return [hour for hour in range(24 * days) if window.holds(MIDNIGHT + timedelta(hours=hour))]


def test_hours_and_days() -> None:
    """From the first minute, before the last."""
    assert hours_of(Window("UTC", ("tue",), "08:00-11:00")) == [32, 33, 34]
    assert Window("UTC", hours="08:00-11:00").holds(MIDNIGHT + timedelta(hours=10, minutes=59))
    assert hours_of(Window("UTC")) == list(range(168))


def test_hours_past_midnight_belong_to_the_day_on_which_they_begin() -> None:
    """The night of Sunday is over on Monday morning."""
    assert hours_of(Window("UTC", ("sun",), "22:00-02:00")) == [0, 1, 166, 167]


def test_the_clock_on_the_wall_counts() -> None:
    """With its summer time."""
    office = Window("Europe/Berlin", hours="08:00-09:00")
    assert hours_of(office, 1) == [7]
    assert office.holds(datetime(2026, 7, 6, 6, 30, tzinfo=UTC))


def test_spans_of_days_may_pass_sunday() -> None:
    """They are written out, in the order of the week."""
    assert Window("UTC", ("sat-mon", "mon")).days == ("mon", "sat", "sun")
    assert Window("UTC", ("mon-sun",)) == Window("UTC")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"zone": "Mars/Olympus"}, "no time zone"),
        ({"zone": "../../etc/passwd"}, "no time zone"),
        ({"zone": 5}, "no time zone"),
        ({"zone": "UTC", "hours": "8-18"}, "no hours"),
        ({"zone": "UTC", "hours": "24:00-08:00"}, "no hours"),
        ({"zone": "UTC", "hours": "08:00-24:30"}, "no hours"),
        ({"zone": "UTC", "days": ("monday",)}, "no day"),
        ({"zone": "UTC", "days": (5,)}, "no day"),
        ({"zone": "UTC", "days": "mon"}, "no list"),
    ],
)
def test_times_that_there_are_not(fields: dict[str, Any], words: str) -> None:
    """Are refused, with what to write."""
    with pytest.raises(PolicyError, match=words) as caught:
        Window(**fields)
    assert caught.value.hint


def test_a_rule_holds_in_its_window_alone() -> None:
    """By the time that is handed in."""
    policy = Policy((Rule("deny", "pay", between=Window("UTC", ("sat-sun",))),))
    assert judge(policy, "pay", now=MIDNIGHT).code == "default"
    assert judge(policy, "pay", now=MIDNIGHT - timedelta(hours=1)).code == "rule"
