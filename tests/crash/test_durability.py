"""What each durability mode may lose on SIGKILL, and what none may: real processes on one file, step bodies counted."""

from __future__ import annotations

import signal

import crash_flow
import pytest
from crash_bench import Bench, check_journal

from outlast.journal.entry import Durability

pytestmark = pytest.mark.slow

MODES: tuple[Durability, ...] = ("sync", "async", "exit")
STEPS = 8


def outcomes(bench: Bench) -> int:
    """Return how many outcomes of steps the dead process has left."""
    return sum(one.row.kind == "step_completed" for one in bench.rows("x"))


def killed(bench: Bench, mode: Durability, at: str, side: str) -> int:
    """Let a process be killed there, and return how many outcomes it has left."""
    bench.start(crash_flow.counted("x", STEPS), "x", durability=mode)
    assert bench.finish(bench.worker("--at", at, "--side", side)) == -signal.SIGKILL, bench.words()
    return outcomes(bench)


def come_to_an_end(bench: Bench) -> None:
    """Let another process go on; the run comes to what it would have come to, and has paid once."""
    bench.worker()
    (key, last) = bench.result("x")
    assert last == str(STEPS)
    assert {one["key"] for one in bench.received("pay")} == {key}
    check_journal(bench.rows("x"))


@pytest.mark.parametrize("after", [1, 4, STEPS])
@pytest.mark.parametrize("mode", MODES)
def test_a_kill_costs_the_outcomes_that_were_not_written(
    bench: Bench, mode: Durability, after: int
) -> None:
    """`sync` repeats the step whose end nobody knew; `async` those on their way too; `exit` all of them."""
    left = killed(bench, mode, f"step:count#{after}", "after")
    kept = {"sync": {after - 1}, "async": set(range(after)), "exit": {0}}
    assert left in kept[mode]
    come_to_an_end(bench)
    assert len(bench.received("count")) == STEPS + 1 + after - left
    assert len(bench.received("pay")) == 1


@pytest.mark.parametrize("mode", MODES)
def test_an_effect_that_may_have_happened_has_all_before_it_in_the_journal(
    bench: Bench, mode: Durability
) -> None:
    """Killed after it acted: no step before it is done again, so that it is asked for again with the same key."""
    assert killed(bench, mode, "effect:pay", "after") == STEPS
    come_to_an_end(bench)
    assert len(bench.received("count")) == STEPS + 1
    assert len(bench.received("pay")) == 2


@pytest.mark.parametrize("side", ["before", "after"])
def test_an_intent_and_all_before_it_are_one_write(bench: Bench, side: str) -> None:
    """Killed before it nothing is there, after it everything."""
    left = killed(bench, "exit", "effect_intended:pay", side)
    assert left == (STEPS if side == "after" else 0)
    come_to_an_end(bench)
    assert len(bench.received("count")) == 2 * STEPS + 1 - left
