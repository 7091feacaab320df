"""The outside of a simulation: its books count what was really done, and say so when that was once too often."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.testing import SimulatedClock, SimulatedLoop
from outlast.testing.simulation.forked import Forks
from outlast.testing.simulation.world import (
    SETTLE,
    TIMEOUT,
    Declared,
    DeclinedError,
    Done,
    Fates,
    World,
    answer,
)
from outlast.workflows.attempt import Attempt, current_attempt

LIMIT_SECONDS = (TIMEOUT + SETTLE).total_seconds()

T = TypeVar("T")


class Bench:
    """A world, what it complains of, and how to ask it for something."""

    def __init__(self, fates: Fates | None = None) -> None:
        self.violations: list[int] = []
        self.world = World(
            fates or Fates(),
            random.Random("world"),
            lambda invariant, _what: self.violations.append(invariant),
            Forks({}),
        )

    @property
    def changes(self) -> dict[str, list[str]]:
        """Under which keys each purpose was carried out."""
        return {purpose: [one.key for one in done] for purpose, done in self.world.changes.items()}

    def ask(self, declared: Declared, key: str, purpose: str = "p") -> str:
        """Ask for something, as a synchronous effect does."""
        return attempting(lambda: self.world.request_blocking(declared, purpose), key)

    def find(self, purpose: str = "p") -> object:
        """Ask what became of it, as a probe does."""
        return attempting(lambda: self.world.find(purpose), "k")


def attempting(act: Callable[[], T], key: str) -> T:
    """Do something as the body of an effect."""
    token = current_attempt.set(Attempt("default", "r", "r:1", "e", 1, key))
    try:
        return act()
    finally:
        current_attempt.reset(token)


def test_an_idempotent_receiver_does_equal_keys_once() -> None:
    """Under the same key it answers as before; under another it does it again, which is once too often."""
    bench = Bench()
    assert bench.ask("idempotent", "k") == bench.ask("idempotent", "k") == answer("p")
    assert bench.changes == {"p": ["k"]}
    assert bench.violations == []
    bench.ask("idempotent", "other")
    assert bench.violations == [3]


@pytest.mark.parametrize(("declared", "invariant"), [("probed", 3), ("never", 4)])
def test_a_receiver_that_knows_no_keys_does_everything(declared: Declared, invariant: int) -> None:
    """The second time is a violation, whatever the key."""
    bench = Bench()
    bench.ask(declared, "k")
    bench.ask(declared, "k")
    assert (bench.violations, bench.changes) == ([invariant], {"p": ["k", "k"]})


def test_what_is_to_be_done_twice_is_done_once_under_each_key() -> None:
    """A purpose with a star stands for two calls, each with a key of its own; a third one is too often."""
    bench = Bench()
    bench.ask("never", "k", "p*")
    bench.ask("never", "k#2", "p*")
    assert bench.violations == []
    assert bench.world.was_done("p*", Done("k#2", "r"))
    assert not bench.world.was_done("p*", Done("k#3", "r"))
    bench.ask("never", "k#3", "p*")
    assert bench.violations == [4]
    twice = Bench()
    twice.ask("probed", "k", "p*")
    twice.ask("probed", "k", "p*")
    assert twice.violations == [3]


@pytest.mark.parametrize(
    ("fates", "error", "done"),
    [
        (Fates(declined=1.0), DeclinedError, False),
        (Fates(lost=1.0), ConnectionError, False),
        (Fates(dropped=1.0), ConnectionError, True),
    ],
)
def test_an_answer_that_is_lost_says_nothing_about_the_deed(
    fates: Fates, error: type[Exception], done: bool
) -> None:
    """Declined and lost requests change nothing; a lost answer leaves the change in the books."""
    bench = Bench(fates)
    with pytest.raises(error):
        bench.ask("never", "k")
    assert ("p" in bench.changes) is done


def test_a_probe_tells_the_truth_or_nothing() -> None:
    """It never says that something did not happen which did, nor the other way round."""
    bench = Bench()
    assert bench.find() == NotApplied()
    bench.ask("probed", "k")
    assert bench.find() == Applied(answer("p"))
    bench.world.fates = Fates(unsure=1.0)
    answers: list[object] = []
    for _ in range(20):
        try:
            answers.append(bench.find())
        except ConnectionError:
            answers.append(None)
    assert {type(one) for one in answers} == {Unknown, type(None)}


@pytest.mark.parametrize("patience", [1.0, 4.0])
def test_what_is_on_the_wire_arrives_although_its_sender_gave_up(patience: float) -> None:
    """Within timeout plus settle of its start under assumption A, and later only where that is broken on purpose."""
    clock = SimulatedClock()
    loop = SimulatedLoop(clock)
    bench = Bench(Fates(late=1.0, patience=patience))
    late: list[float] = []

    async def main() -> None:
        for number in range(40):
            purpose, since = f"p{number}", clock.monotonic()
            current_attempt.set(Attempt("default", "r", "r:1", "e", 1, "k"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(bench.world.request("never", purpose), 0.001)
            while purpose not in bench.changes:
                await asyncio.sleep(0.01)
            late.append(clock.monotonic() - since)

    loop.run_until_complete(main())
    assert (max(late) <= LIMIT_SECONDS + 0.1) is (patience == 1.0)
    assert max(late) > LIMIT_SECONDS / 2


def test_a_slow_deed_keeps_its_thread_until_after_it_was_done() -> None:
    """The thread returns no sooner than the deed, and the deed is done under assumption A, also when nobody waits."""
    loop = SimulatedLoop(SimulatedClock())
    kept: list[float] = []

    async def main() -> None:
        for number in range(20):
            bench = Bench(Fates(late=1.0))
            bench.world.keep_thread = kept.append
            assert bench.ask("never", "k", f"p{number}") == answer(f"p{number}")
            assert not bench.changes
            await asyncio.sleep(min(kept[-1], LIMIT_SECONDS))
            assert list(bench.changes) == [f"p{number}"]

    loop.run_until_complete(main())
    assert max(kept) > LIMIT_SECONDS
