"""A worker that stood still past its lease (SIGSTOP) changes nothing when it goes on: no commit, no effect. It tells what it knows."""

from __future__ import annotations

import signal

import crash_flow
import pytest
from crash_bench import Bench, check_journal, go_on, is_stopped, until

from outlast.store.change import Status

pytestmark = pytest.mark.slow

LEASE = ("--lease", "2", "--poll", "60")
"""Short; and no look for work that would notice the lapse before the run itself does."""


def take_over(bench: Bench, call, at: str, side: str, *more: str):
    """Stop the first worker at a moment, let a second one finish the run, and return both processes."""
    first = bench.worker(*LEASE, "--at", at, "--side", side, "--strike", "STOP", *more)
    bench.start(call, "x")
    until(lambda: is_stopped(first), "the first worker stops")
    second = bench.worker()
    bench.result("x")
    return first, second


def wake(bench: Bench, first) -> None:
    """Let the first worker go on, until it has let go of everything and begun a new life."""
    assert not bench.worker_id(first)
    go_on(first)
    until(lambda: bench.worker_id(first), "the first worker begins a new life")


def check_unchanged(bench: Bench, first, second) -> None:
    """What the first worker does after its stop changes neither store nor world; then it works again."""
    image, received = bench.image("x"), bench.received()
    assert image is not None
    assert image.head.status is Status.COMPLETED
    check_journal(image.rows)
    wake(bench, first)
    assert bench.image("x") == image
    assert bench.received() == received
    second.send_signal(signal.SIGTERM)
    assert bench.finish(second) == 0
    bench.start(crash_flow.purchase("y"), "y")
    bench.result("y")
    assert {one["pid"] for one in bench.received(label="y")} == {first.pid}
    check_journal(bench.rows("y"))
    assert bench.image("x") == image
    bench.check_intact()


@pytest.mark.parametrize("deaf", [(), ("--deaf",)], ids=["told by the store", "by its own clock"])
@pytest.mark.parametrize("effect", ["pay", "order"])
def test_between_intent_and_call(bench: Bench, effect: str, deaf: tuple[str, ...]) -> None:
    """Stopped after the intent was recorded and before the effect was called, it never calls it."""
    call = crash_flow.purchase("x")
    first, second = take_over(bench, call, f"effect_intended:{effect}", "after", *deaf)
    assert [one["pid"] for one in bench.received(effect)] == [second.pid]
    before = bench.verdicts(first.pid)
    check_unchanged(bench, first, second)
    assert bench.received(effect, "x") == bench.received(effect, "x")[:1]
    assert "Fenced" not in before


@pytest.mark.parametrize(
    "write",
    [
        "step_completed:count",
        "effect_intended:pay",
        "effect_completed:pay",
        "effect_intended:order",
        "effect_completed:order",
        "completed",
    ],
)
def test_with_a_commit_on_its_way(bench: Bench, write: str) -> None:
    """Stopped with a commit in its hands, it is fenced."""
    first, second = take_over(bench, crash_flow.purchase("x"), write, "before")
    assert "Fenced" not in bench.verdicts(first.pid)
    check_unchanged(bench, first, second)
    assert bench.verdicts(first.pid).count("Fenced") == 1
    # The receiver that can be asked was called once; the one that knows keys may be called again, with the same key.
    assert len(bench.received("order", "x")) == 1
    assert len({one["key"] for one in bench.received("pay", "x")}) == 1


def test_inside_a_body(bench: Bench) -> None:
    """Stopped in the middle of a step, it drops the step's result, and does not go on to the effect behind it."""
    first = bench.worker(*LEASE)
    bench.start(crash_flow.frozen("x"), "x")
    until(lambda: is_stopped(first), "the first worker stops")
    second = bench.worker()
    assert bench.result("x") == second.pid
    assert [one["pid"] for one in bench.received("freeze")] == [first.pid, second.pid]
    check_unchanged(bench, first, second)
    assert [one["pid"] for one in bench.received("pay", "x")] == [second.pid]


def test_inside_an_effect(bench: Bench) -> None:
    """Stopped in the middle of an effect that nobody may repeat, it tells what that returned: the run is in doubt until then."""
    first = bench.worker(*LEASE)
    bench.start(crash_flow.pledged("x"), "x")
    until(lambda: is_stopped(first), "the first worker stops")
    # A run in doubt is an operator's when it leaves memory, which is soon here.
    bench.worker("--idle", "0.3")

    def in_doubt() -> bool:
        image = bench.image("x")
        return image is not None and image.head.status is Status.BLOCKED

    until(in_doubt, "the run is in doubt")
    go_on(first)
    assert bench.result("x") == first.pid
    assert [one["pid"] for one in bench.received("pledge")] == [first.pid]
    rows = bench.rows("x")
    check_journal(rows)
    kinds = [one.row.kind for one in rows]
    assert kinds[-4:] == ["effect_intended", "effect_in_doubt", "effect_completed", "completed"]
    assert b'"late"' in rows[-2].row.body
    bench.check_intact()


def test_between_two_attempts(bench: Bench) -> None:
    """Stopped before an attempt that came due meanwhile, it does not make it: its own clock says that its lease is over."""
    first = bench.worker(*LEASE, "--deaf")
    bench.start(crash_flow.retried("x"), "x")
    until(lambda: is_stopped(first), "the first worker stops")
    second = bench.worker()
    bench.result("x")
    assert [one["pid"] for one in bench.received("refused_once")] == [first.pid, second.pid]
    check_unchanged(bench, first, second)


def test_stopped_and_continued_within_its_lease(bench: Bench) -> None:
    """A stop shorter than the lease costs nothing: the same life goes on."""
    first = bench.worker(
        "--lease", "15", "--at", "effect_intended:pay", "--side", "after", "--strike", "STOP"
    )
    life = bench.worker_id(first)
    bench.start(crash_flow.purchase("x"), "x")
    until(lambda: is_stopped(first), "the worker stops")
    go_on(first)
    bench.result("x")
    assert bench.worker_id(first) == life
    assert len(bench.received("pay")) == len(bench.received("order")) == 1
