"""A parent and its children in one process that is killed with SIGKILL before and after each of its writes and calls, the relay's too.

See `kill_point` for how many points are tried.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import apsw
import kill_flow
import pytest
from crash_bench import PATIENCE_SECONDS, Bench, check_rows
from kill_point import SOAK, Play, Point, chosen, points_of, recoveries

from outlast.journal.entry import Started, from_row
from outlast.store.change import Status

pytestmark = pytest.mark.slow

FAMILY = (
    # Who is local, which the first process writes.
    "PutControl",
    *("register", "start", "step:read", "step_completed:read"),
    # A child through a handle: requested, started, cleared and told in one; consumed.
    *("child_requested:waits_for_ever", "start", "ClearOutbox", "child_started"),
    # A child that is awaited: nobody is told of its start.
    *("child_requested:booked", "start", "ClearOutbox"),
    *("step:read", "step_completed:read"),
    *("effect_intended:book", "effect:book", "effect_completed:book"),
    *("step:read", "step_completed:read", "completed"),
    # Its end is told, and cleared.
    *("PutMessage", "ClearOutbox", "run_ended"),
    *("step:read", "step_completed:read", "completed"),
    # The other child ends with its parent, and its own watch finds nobody who waits.
    *("Terminate", "ClearOutbox", "PutMessage", "ClearOutbox", "retire"),
)
"""Every write and call of an undisturbed process, in about this order: runs and relay write side by side."""


@pytest.fixture(autouse=True)
def _receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_CRASH_DIRECTORY", str(tmp_path))


def family(bench: Bench) -> Play:
    """Return the play of the parent."""
    return Play(bench, "family", kill_flow.RUN_ID)


def left_over(bench: Bench) -> dict[str, list[object]]:
    """Return the rows of the tables that are empty when all runs have ended."""
    connection = apsw.Connection(str(bench.file))
    try:
        tables = ("outbox", "watch", "operation")
        return {
            table: found
            for table in tables
            if (found := list(connection.execute(f"SELECT * FROM {table}")))
        }
    finally:
        connection.close()


def sweep(bench: Bench) -> None:
    """Let a worker see to what a killed one has left in the outboxes, if anything."""
    if not left_over(bench):
        return
    process = bench.worker()
    until = time.monotonic() + PATIENCE_SECONDS
    while left_over(bench) and time.monotonic() < until:
        time.sleep(0.1)
    process.terminate()
    assert bench.finish(process) == 0


def check(play: Play) -> None:
    """The undisturbed results; what the parent was told is in its journal once; nothing lies about."""
    bench = play.bench
    sweep(bench)
    after = play.check()
    assert bench.result(play.run_id) == "1 1 book x 2 2"
    told = Counter((one.row.kind, one.row.operation) for one in after.rows)
    assert set(told.values()) == {1}, told
    assert [one.row.kind for one in after.rows if one.row.kind.startswith(("child", "run"))] == [
        *("child_requested", "child_started", "child_requested", "run_ended")
    ]
    assert [one["body"] for one in bench.received() if one["body"] == "book"] == ["book"]
    for run_id, status in (
        (kill_flow.CHILD_ID, Status.COMPLETED),
        (kill_flow.LEFT_ID, Status.TERMINATED),
    ):
        image = bench.image(run_id)
        assert image is not None
        assert (image.head.status, image.head.generation) == (status, 1)
        check_rows(image.rows)
        started = from_row(image.rows[0].row)
        assert isinstance(started, Started)
        assert started.parent.run_id == play.run_id
    assert left_over(bench) == {}


def test_an_undisturbed_family_makes_these_writes_and_calls(bench: Bench) -> None:
    """The points at which to kill are all there are."""
    play = family(bench)
    play.finish()
    made = Counter(one for event in play.events() for one in event.split())
    # The process ends with the parent: it may have given the other child back before that is ended.
    made.pop("head:ready", None)
    assert made == Counter(FAMILY)
    check(play)


@pytest.mark.parametrize("point", chosen(FAMILY, 4))
def test_killed_once(bench: Bench, point: Point) -> None:
    """Killed at any write or call of any run, or of the relay: the undisturbed result, everything once."""
    play = family(bench)
    play.kill_at(point)
    play.finish()
    check(play)


@pytest.mark.parametrize("point", chosen(("start", "ClearOutbox", "PutMessage", "run_ended"), 1))
def test_killed_again_while_recovering(bench: Bench, point: Point) -> None:
    """The process that finds a child on its way is killed as well."""
    play = family(bench)
    play.kill_at(Point("after", "child_requested:booked", 1))
    play.kill_at(point)
    play.finish()
    check(play)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="the full product is for OUTLAST_CRASH=soak")
@pytest.mark.parametrize("point", [pytest.param(one, id=str(one)) for one in points_of(FAMILY)])
def test_killed_twice_at_every_pair_of_points(tmp_path: Path, point: Point) -> None:
    """Killed at this point; and again at every point of the recovery from it."""
    (tmp_path / "counting").mkdir()
    with Bench.opened(tmp_path / "counting") as bench:
        points = list(recoveries(family(bench), point))
    for number, second in enumerate(points):
        (tmp_path / str(number)).mkdir()
        with Bench.opened(tmp_path / str(number)) as bench:
            play = family(bench)
            play.kill_at(point)
            play.kill_at(second)
            play.finish()
            check(play)
