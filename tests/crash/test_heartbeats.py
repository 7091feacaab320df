"""What a body says of itself, and to whom it hands itself out, outlives SIGKILL: real processes on one file."""

from __future__ import annotations

import json
import signal

import crash_flow
import pytest
from crash_bench import Bench, check_journal, until

pytestmark = pytest.mark.slow


def tokens(bench: Bench) -> list[str]:
    """Return the tokens that were handed out, in all processes."""
    return [one["token"] for one in bench.received("render")]


@pytest.mark.parametrize("which", [1, 3])
def test_the_next_attempt_goes_on_from_the_details_that_were_kept(bench: Bench, which: int) -> None:
    """Killed after the n-th write of details: the next process finds exactly those, with the same number of the attempt."""
    bench.start(crash_flow.crawling("x", 80, 0), "x")
    first = bench.worker("--at", f"progress:crawl#{which}", "--side", "after")
    assert bench.finish(first) == -signal.SIGKILL, bench.words()
    left = bench.left_behind("x")
    assert left is not None
    (operation,) = left.operations
    kept = json.loads(operation.progress)
    # 0.4 s lie between two writes: some twenty beats of 0.02 s, and no less than a few on a busy machine.
    assert kept == 1 if which == 1 else kept > 2 * (which - 1)
    bench.worker()
    assert bench.result("x") == [kept, 80]
    assert [(one["number"], one["first"]) for one in bench.received("crawl")] == [
        (1, None),
        (1, kept),
    ]
    check_journal(bench.rows("x"))


def test_a_kill_in_the_middle_of_the_body_loses_what_was_said_since(bench: Bench) -> None:
    """The throttle has held back what came after the last write; what was written is there."""
    bench.start(crash_flow.crawling("x", 80, 60), "x")
    first = bench.worker()
    assert bench.finish(first) == -signal.SIGKILL, bench.words()
    left = bench.left_behind("x")
    assert left is not None
    kept = json.loads(left.operations[0].progress)
    assert 1 <= kept <= 60
    bench.worker()
    assert bench.result("x") == [kept, 80]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_step_that_was_handed_out_is_completed_while_nobody_works(
    bench: Bench, side: str
) -> None:
    """Killed around the write that says so: only before it the body runs again, with the same token; the answer counts either way."""
    bench.start(crash_flow.film("x"), "x")
    first = bench.worker("--at", "handed_out:render", "--side", side)
    assert bench.finish(first) == -signal.SIGKILL, bench.words()
    if side == "before":
        bench.worker()
        until(lambda: len(tokens(bench)) == 2, "the body ran again")
    token = tokens(bench)[0]
    bench.ask(lambda client: client.complete(token, 240, id="delivery-1"))
    if side == "after":
        bench.worker()
    assert bench.result("x") == 240
    assert set(tokens(bench)) == {token}
    assert len(tokens(bench)) == (2 if side == "before" else 1)
    check_journal(bench.rows("x"))
