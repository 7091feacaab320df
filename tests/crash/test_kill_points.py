"""The demo agent, killed with SIGKILL before and after each of its store writes, reaches what it would have reached.

Git, the forge double and the processes are real. `OUTLAST_CRASH=all` runs every point; otherwise a part is chosen by
`OUTLAST_CRASH_SEED`, which each chosen test prints.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import zlib
from collections import Counter
from pathlib import Path

import pytest
from crash_bench import Bench, check_journal, settled, until

from outlast.demo.stage import Play, Stage
from outlast.store.change import Status
from outlast.store.protocol import RunImage

RUN_ID = "fix"
FIRST_LIFE = (
    "register",
    "start",
    "step_completed:plan",
    "step_completed:prepare_patch",
    "approval_requested",
    "decide",
    "approval_decided",
    "effect_intended:push_branch",
    "effect_completed:push_branch",
    "effect_intended:open_pull_request",
    "effect_completed:open_pull_request",
    "step_completed:record_outcome",
    "completed",
    "retire",
)
"""Every store write of an undisturbed run, in order."""

CREATED = FIRST_LIFE.index("effect_completed:open_pull_request") + 1
"""Before this write the pull request was created, and nobody has recorded it."""

SECOND_LIFE = (
    "register",
    "claim",
    "effect_completed:open_pull_request",
    "step_completed:record_outcome",
    "completed",
    "retire",
)
"""Every store write of the worker that comes after one that was killed there."""

ALL = os.environ.get("OUTLAST_CRASH") == "all"
SEED = int(os.environ.get("OUTLAST_CRASH_SEED") or 0) or zlib.crc32(
    # All processes of one test run must choose the same points.
    os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())).encode()
)


def _points(names: tuple[str, ...]) -> list[tuple[int, str]]:
    # Before a claim is after the write that came before it.
    return [
        (number, side)
        for number, name in enumerate(names, start=1)
        for side in ("before", "after")
        if (name, side) != ("claim", "before")
    ]


def _chosen(names: tuple[str, ...], count: int) -> list[object]:
    points = _points(names)
    if not ALL:
        points = sorted(random.Random(SEED).sample(points, count))
    return [pytest.param(n, side, id=f"{side}-{n:02}-{names[n - 1]}") for n, side in points]


@pytest.fixture
def stage(tmp_path: Path):
    """Repository and forge."""
    with Stage.build(tmp_path, Play(kill=False)) as stage:
        yield stage


@pytest.fixture
def bench(tmp_path: Path, stage: Stage):
    """Workers for the agent."""
    print(f"OUTLAST_CRASH_SEED={SEED}")
    with Bench.opened(tmp_path, stage.setting.environment()) as bench:
        yield bench


def kill_at(bench: Bench, number: int, side: str, names: tuple[str, ...]) -> RunImage | None:
    """Play until killed there, and return what was left behind."""
    process = bench.launch("--play", "--at", str(number), "--side", side)
    assert bench.finish(process) == -signal.SIGKILL, bench.words()
    assert bench.writes(process.pid) == list(names[:number])
    return bench.left_behind(RUN_ID)


def finish(bench: Bench) -> int:
    """Play to the end with a new worker, and return its process id."""
    process = bench.launch("--play")
    assert bench.finish(process) == 0, bench.words()
    return process.pid


def check(bench: Bench, stage: Stage, lives: list[tuple[int, RunImage | None]]) -> None:
    """One pull request, asked for once; nothing that was recorded happened again, or changed.

    Args:
        lives: Each process that came after a killed one, with what it found.
    """
    after = bench.image(RUN_ID)
    assert after is not None
    assert after.head.status is Status.COMPLETED
    assert after.head.owner is None
    assert after.operations == ()
    check_journal(after.rows)
    bench.check_intact()
    assert [one["state"] for one in stage.forge.pulls()] == ["open"]
    assert stage.forge.create_requests() == 1
    assert stage.setting.record.exists()
    tally = [one for one in stage.setting.bodies() if one["event"] == "began"]
    for pid, found in lives:
        rows = found.rows if found else ()
        assert after.rows[: len(rows)] == rows
        again = {one["body"] for one in tally if one["pid"] == pid} & settled(rows)
        assert not again, f"recorded, and run again: {again}"
    ran = Counter(one["body"] for one in tally)
    assert set(ran) - {"find_pull_request"} == {
        "plan", "prepare_patch", "push_branch", "open_pull_request", "record_outcome"
    }  # fmt: skip
    # A kill costs at most the one body that was under way.
    assert sum(
        max(0, count - 1) for body, count in ran.items() if body != "find_pull_request"
    ) <= len(lives)


def test_undisturbed_run_makes_these_writes(bench: Bench, stage: Stage) -> None:
    """The points at which to kill are all there are."""
    pid = finish(bench)
    assert bench.writes(pid) == list(FIRST_LIFE)
    check(bench, stage, [])
    assert stage.setting.bodies()[-1]["body"] == "record_outcome"


@pytest.mark.parametrize(("number", "side"), _chosen(FIRST_LIFE, 8))
def test_killed_once(bench: Bench, stage: Stage, number: int, side: str) -> None:
    """Killed at any write, the agent opens one pull request all the same."""
    left = kill_at(bench, number, side, FIRST_LIFE)
    check(bench, stage, [(finish(bench), left)])


@pytest.mark.parametrize(("number", "side"), _chosen(SECOND_LIFE, 2))
def test_killed_again_while_recovering(bench: Bench, stage: Stage, number: int, side: str) -> None:
    """A worker that recovers the pull request of a killed one may be killed at any write itself."""
    first = kill_at(bench, CREATED, "before", FIRST_LIFE)
    assert [one["state"] for one in stage.forge.pulls()] == ["open"]
    process = bench.launch("--play", "--attach", "--at", str(number), "--side", side)
    assert bench.finish(process) == -signal.SIGKILL, bench.words()
    assert bench.writes(process.pid) == list(SECOND_LIFE[:number])
    second = bench.left_behind(RUN_ID)
    check(bench, stage, [(process.pid, first), (finish(bench), second)])


@pytest.mark.parametrize("number", range(24 if ALL else 3))
def test_killed_at_any_moment(bench: Bench, stage: Stage, number: int) -> None:
    """Killed from outside at a moment that no write marks, inside a transaction or a request, it is no different."""
    process = bench.launch("--play")
    until(lambda: bench.writes(process.pid), "the worker begins")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=random.Random(f"{SEED} {number}").uniform(0.0, 0.5))
    process.kill()
    assert bench.finish(process) in {0, -signal.SIGKILL}, bench.words()
    left = bench.left_behind(RUN_ID)
    print(f"killed with {len(left.rows) if left else 0} entries in the journal")
    check(bench, stage, [(finish(bench), left)])


def test_the_probe_is_asked_only_when_it_must_be(bench: Bench, stage: Stage) -> None:
    """A kill after the create and before its record leads to a probe; the journal says so."""
    left = kill_at(bench, CREATED, "before", FIRST_LIFE)
    pid = finish(bench)
    check(bench, stage, [(pid, left)])
    after = bench.rows(RUN_ID)
    (opened,) = [
        one.row
        for one in after
        if (one.row.kind, one.row.name) == ("effect_completed", "open_pull_request")
    ]
    assert b'"source":"probe"' in bytes(opened.body)
    tally = [(one["body"], one["pid"]) for one in stage.setting.bodies() if one["event"] == "began"]
    assert tally.count(("find_pull_request", pid)) == 1
    assert ("open_pull_request", pid) not in tally
