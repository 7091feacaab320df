"""The demo agent, killed with SIGKILL before and after each of its writes and calls, reaches what it would have reached.

Git, the forge double and the processes are real. See `kill_point` for how many points are tried.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from crash_bench import Bench, until
from kill_point import ALL, SEED, SOAK, Life, Play, Point, amount_in, chosen, recoveries

from outlast.demo.stage import Play as Piece
from outlast.demo.stage import Stage
from outlast.store.change import Status

RUN_ID = "fix"
FIRST_LIFE = (
    # The first process writes who is local.
    *("PutControl", "register", "start"),
    *("step:plan", "step_completed:plan"),
    *("step:prepare_patch", "step_completed:prepare_patch"),
    *("approval_requested", "decide", "approval_decided"),
    *("effect_intended:push_branch", "effect:push_branch", "effect_completed:push_branch"),
    "effect_intended:open_pull_request",
    *("effect:open_pull_request", "effect_completed:open_pull_request"),
    *("step:record_outcome", "step_completed:record_outcome"),
    *("completed", "retire"),
)
"""Every write and call of an undisturbed run, in order."""

CREATED = Point("after", "effect:open_pull_request", 1)
"""The pull request was created, and its own process has not learned of it."""

SECOND_LIFE = (
    *("register", "start", "claim"),
    *("probe:open_pull_request", "effect_completed:open_pull_request"),
    *("step:record_outcome", "step_completed:record_outcome"),
    *("completed", "retire"),
)
"""Every write and call of the worker that comes after one that was killed there. Its start finds the run."""


@contextlib.contextmanager
def demo_in(directory: Path):
    """Repository, forge, and workers for the agent; to be killed by nobody but us."""
    with Stage.build(directory, Piece(kill=False)) as stage:
        with Bench.opened(directory, stage.setting.environment()) as bench:
            yield stage, Play(bench, "demo", RUN_ID)


@pytest.fixture
def demo(tmp_path: Path):
    """One of them."""
    with demo_in(tmp_path) as found:
        yield found


def check(stage: Stage, play: Play) -> None:
    """One pull request, asked for once; nothing that was recorded happened again, or changed."""
    after = play.check()
    assert after.head.status is Status.COMPLETED
    assert after.head.owner is None
    assert after.operations == ()
    assert [one["state"] for one in stage.forge.pulls()] == ["open"]
    assert stage.forge.create_requests() == 1
    assert stage.setting.record.exists()
    ran = Counter(one["body"] for one in stage.setting.bodies() if one["event"] == "began")
    assert set(ran) - {"find_pull_request"} == {
        "plan", "prepare_patch", "push_branch", "open_pull_request", "record_outcome"
    }  # fmt: skip
    # A kill costs at most the one body that was under way.
    assert sum(
        max(0, count - 1) for body, count in ran.items() if body != "find_pull_request"
    ) < len(play.lives)


def test_undisturbed_run_makes_these_writes_and_calls(demo: tuple[Stage, Play]) -> None:
    """The points at which to kill are all there are."""
    stage, play = demo
    play.finish()
    assert play.events() == list(FIRST_LIFE)
    check(stage, play)
    assert stage.setting.bodies()[-1]["body"] == "record_outcome"


@pytest.mark.parametrize("point", chosen(FIRST_LIFE, 8))
def test_killed_once(demo: tuple[Stage, Play], point: Point) -> None:
    """Killed at any write or call, the agent opens one pull request all the same."""
    stage, play = demo
    play.kill_at(point)
    play.finish()
    check(stage, play)


@pytest.mark.parametrize("point", chosen(SECOND_LIFE, 2))
def test_killed_again_while_recovering(demo: tuple[Stage, Play], point: Point) -> None:
    """A worker that recovers the pull request of a killed one may be killed at any write or call itself."""
    stage, play = demo
    play.kill_at(CREATED)
    assert [one["state"] for one in stage.forge.pulls()] == ["open"]
    play.kill_at(point)
    play.finish()
    check(stage, play)


@pytest.mark.parametrize("number", range(24 if ALL else 3))
def test_killed_at_any_moment(demo: tuple[Stage, Play], number: int) -> None:
    """Killed from outside at a moment that no write marks, inside a transaction or a request, it is no different."""
    stage, play = demo
    process = play.bench.launch("--play")
    until(lambda: play.bench.writes(process.pid), "the worker begins")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=random.Random(f"{SEED} {number}").uniform(0.0, 0.5))
    process.kill()
    assert play.bench.finish(process) in {0, -signal.SIGKILL}, play.bench.words()
    left = play.bench.left_behind(RUN_ID)
    print(f"killed with {len(left.rows) if left else 0} entries in the journal")
    play.lives.append(Life(process.pid, None, left))
    play.finish()
    check(stage, play)


def test_the_probe_is_asked_only_when_it_must_be(demo: tuple[Stage, Play]) -> None:
    """A kill after the create and before its record leads to a probe; the journal says so."""
    stage, play = demo
    play.kill_at(CREATED)
    second = play.finish()
    assert sorted(play.events()) == sorted(SECOND_LIFE)
    check(stage, play)
    (opened,) = [
        one.row
        for one in play.bench.rows(RUN_ID)
        if (one.row.kind, one.row.name) == ("effect_completed", "open_pull_request")
    ]
    assert b'"source":"probe"' in bytes(opened.body)
    tally = [(one["body"], one["pid"]) for one in stage.setting.bodies() if one["event"] == "began"]
    assert tally.count(("find_pull_request", second.pid)) == 1
    assert ("open_pull_request", second.pid) not in tally


@pytest.mark.parametrize("amount", ["ALL", "full", "0", " all"])
def test_an_amount_that_is_not_known_is_refused(amount: str) -> None:
    """Who asked for all, and misspelt it, does not get a part."""
    with pytest.raises(ValueError, match=f"OUTLAST_CRASH={amount} says nothing"):
        amount_in({"OUTLAST_CRASH": amount})
    known = [{}, *({"OUTLAST_CRASH": one} for one in ("", "all", "soak"))]
    assert [amount_in(one) for one in known] == ["", "", "all", "soak"]


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="the full product is for OUTLAST_CRASH=soak")
@pytest.mark.parametrize("point", chosen(FIRST_LIFE, 8))
def test_killed_twice_at_every_pair_of_points(tmp_path: Path, point: Point) -> None:
    """Killed at this point; and again at every point of the recovery from it."""
    with demo_in(tmp_path / "counting") as (_, counting):
        points = list(recoveries(counting, point))
    for number, second in enumerate(points):
        with demo_in(tmp_path / str(number)) as (stage, play):
            play.kill_at(point)
            play.kill_at(second)
            play.finish()
            check(stage, play)
