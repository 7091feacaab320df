"""A run killed with SIGKILL before and after each of its writes and calls, while it does two things in a saga and undoes them.

The receiver never takes two requests for one. See `kill_point` for how many points are tried.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import kill_flow
import pytest
from crash_bench import Bench
from kill_point import Play, Point, chosen

from outlast.store.change import Status

EVENTS = (
    # The first process writes who is local.
    *("PutControl", "register", "start"),
    *("effect_intended:rent", "effect:rent", "effect_completed:rent"),
    *("effect_intended:buy", "effect:buy", "effect_completed:buy"),
    *("saga_aborted", "effect_intended:refund", "effect:refund", "effect_completed:refund"),
    *("effect_intended:give_back", "effect:give_back", "effect_completed:give_back"),
    *("saga_ended", "step:read", "step_completed:read", "completed", "retire"),
)
"""Every write and call of an undisturbed run, in order. That the saga has ended is written before a step begins: nobody is kept from terminating the run meanwhile."""

HAPPENS = ["rent", "buy", "refund", "give_back"]
WITH_KEYS = {"rent", "give_back"}
"""Their receiver is said to know keys: after a death they are asked for again."""

SECOND_LIVES = {
    Point("after", "effect:refund", 1): (
        *("register", "start", "claim", "probe:refund", "effect_completed:refund"),
        *("effect_intended:give_back", "effect:give_back", "effect_completed:give_back"),
        *("saga_ended", "step:read", "step_completed:read", "completed", "retire"),
    ),
    Point("after", "effect:give_back", 1): (
        *("register", "start", "claim"),
        *("attempt:give_back", "effect:give_back", "effect_completed:give_back"),
        *("saga_ended", "step:read", "step_completed:read", "completed", "retire"),
    ),
}
"""Where the first process dies in the middle of the undoing; and every write and call of the second one then."""


@pytest.fixture(autouse=True)
def _receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_CRASH_DIRECTORY", str(tmp_path))


@pytest.fixture
def play(bench: Bench) -> Play:
    """Return a run that is to be played."""
    return Play(bench, "toured", kill_flow.RUN_ID)


def check(play: Play) -> None:
    """The undisturbed end and journal; each was done once, then undone once, newest first, and each under one key of its own."""
    after = play.check()
    assert after.head.status is Status.COMPLETED
    assert after.operations == ()
    assert play.bench.result(play.run_id) == "closed 1"
    found = Counter(":".join(filter(None, (one.row.kind, one.row.name))) for one in after.rows)
    entries = [one for one in EVENTS if one.startswith(("effect_", "saga_", "step_completed"))]
    assert found == Counter([*entries, "started:toured", *["taken"] * found["taken"], "completed"])
    received = play.bench.received()
    first = dict.fromkeys(one["body"] for one in received)
    assert list(first) == HAPPENS
    deaths = sum(1 for one in play.lives if one.left is not None) - 1
    keys: set[str] = set()
    for body in HAPPENS:
        calls = [one for one in received if one["body"] == body]
        assert len(calls) <= (1 + deaths if body in WITH_KEYS else 1), (body, calls)
        keys |= {one["key"] for one in calls}
    assert len(keys) == len(HAPPENS)


def test_an_undisturbed_saga_makes_these_writes_and_calls(play: Play) -> None:
    """The points at which to kill are all there are."""
    play.finish()
    assert tuple(one for event in play.events() for one in event.split()) == EVENTS
    check(play)


@pytest.mark.parametrize("point", chosen(EVENTS, 4))
def test_a_saga_killed_once(play: Play, point: Point) -> None:
    """Killed at any write or call, what was done is undone once, and what was undone is not done again."""
    play.kill_at(point)
    play.finish()
    check(play)


@pytest.mark.parametrize("first", SECOND_LIVES, ids=str)
def test_a_recovery_in_the_middle_of_the_undoing_makes_these_writes_and_calls(
    play: Play, first: Point
) -> None:
    """It goes on where the journal ends: a probe is asked, a receiver that knows keys is called again."""
    play.kill_at(first)
    play.finish()
    assert Counter(one for event in play.events() for one in event.split()) == Counter(
        SECOND_LIVES[first]
    )
    check(play)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(first, *one.values, id=f"{first}-{one.id}")
        for first, events in SECOND_LIVES.items()
        for one in chosen(events, 1)
    ],
)
def test_a_saga_killed_again_while_it_goes_on_undoing(
    play: Play, first: Point, second: Point
) -> None:
    """A process that finds a compensation with an unknown end may be killed at any write or call itself."""
    play.kill_at(first)
    play.kill_at(second)
    play.finish()
    check(play)
