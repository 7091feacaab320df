"""Failed attempts are counted durably; an attempt that a crash cut off is not counted."""

from __future__ import annotations

import signal

import crash_flow
import pytest
from crash_bench import Bench, check_journal

import outlast
from outlast.effects.key import idempotency_key
from outlast.journal.canonical import payload_sha256

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("kind", ["step", "effect"])


def run_killed(
    bench: Bench,
    kind: str,
    *,
    good_from: int,
    killed_at: int = 0,
    at: str = "",
    side: str = "after",
) -> int:
    """Run until the first worker is killed, and return its process id."""
    bench.start(crash_flow.patient("x", kind, good_from, killed_at), "x")
    first = bench.worker("--at", at, "--side", side)
    assert bench.finish(first) == -signal.SIGKILL, bench.words()
    return first.pid


def numbers(bench: Bench) -> list[int]:
    """Return the numbers of the attempts whose body ran."""
    return [one["number"] for one in bench.received("fail")]


@KINDS
def test_goes_on_with_attempt_five_at_its_due_time(bench: Bench, kind: str) -> None:
    """After four recorded failures of six, a new worker makes attempt 5, and not before it is due."""
    first = run_killed(bench, kind, good_from=5, at=f"failure:flaky_{kind}#4")
    left = bench.left_behind("x")
    assert left is not None
    (operation,) = left.operations
    assert operation.failures == 4
    assert operation.due_at is not None
    second = bench.worker()
    assert bench.result("x") == 5
    assert numbers(bench) == [1, 2, 3, 4, 5]
    assert [one["pid"] for one in bench.received("fail")] == [first] * 4 + [second.pid]
    late = bench.received("fail")[-1]["at"] - operation.due_at.timestamp()
    assert 0 <= late < 5
    # 0.1 s doubled three times: the gap grew with the failures.
    assert operation.due_at.timestamp() - bench.received("fail")[3]["at"] >= 0.8
    check_journal(bench.rows("x"))
    image = bench.image("x")
    assert image is not None
    assert image.operations == ()


@KINDS
def test_gives_up_after_six(bench: Bench, kind: str) -> None:
    """Two of six attempts are left after four failures and a kill."""
    run_killed(bench, kind, good_from=99, at=f"failure:flaky_{kind}#4")
    bench.worker()
    with pytest.raises(outlast.WorkflowFailedError, match="attempt 6 fails"):
        bench.result("x")
    assert numbers(bench) == [1, 2, 3, 4, 5, 6]


@KINDS
def test_failure_that_was_not_recorded_is_not_counted(bench: Bench, kind: str) -> None:
    """Killed before the fourth failure was recorded, attempt 4 is made again."""
    run_killed(bench, kind, good_from=5, at=f"failure:flaky_{kind}#4", side="before")
    bench.worker()
    assert bench.result("x") == 5
    assert numbers(bench) == [1, 2, 3, 4, 4, 5]


@KINDS
def test_attempt_cut_off_by_a_kill_is_not_counted(bench: Bench, kind: str) -> None:
    """Killed in the middle of attempt 3, attempt 3 is made again, with the same key."""
    run_killed(bench, kind, good_from=99, killed_at=3)
    bench.worker()
    with pytest.raises(outlast.WorkflowFailedError):
        bench.result("x")
    assert numbers(bench) == [1, 2, 3, 3, 4, 5, 6]
    payload = payload_sha256({"label": "x", "good_from": 99, "killed_at": 3})
    key = idempotency_key("x", "flaky_effect", payload) if kind == "effect" else ""
    assert {one["key"] for one in bench.received("fail")} == {key}
