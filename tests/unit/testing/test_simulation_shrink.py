"""Making a failing scenario small: what is returned always fails, and has no part left that the failure does not need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.testing.fault import Faults
from outlast.testing.simulation.scenario import Disturbance, Plan, Scenario, Sending, draw
from outlast.testing.simulation.shape import Act, Hear, Limit, Several, Shape, Tidy, Work, nodes
from outlast.testing.simulation.shrink import MOST_TRIES, shrink
from outlast.testing.simulation.world import Fates


def acts(scenario: Scenario) -> list[Shape]:
    """Return all effects in it."""
    return [
        node
        for plan in scenario.plans
        for _, node in nodes(plan.shape)
        if isinstance(node, Act) and node.declared == "never"
    ]


BIG = Scenario(
    seed=1,
    plans=(
        Plan(Several("seq", (Work(3, 2, 1.0), Work(4)))),
        Plan(
            Limit(9.0, Tidy(Several("gather", (Work(1), Act("never", thread=True), Hear(2))))),
            start=2.0,
            starters=2,
            sendings=(Sending(2, 1), Sending(2, 2)),
            cancel=3.0,
        ),
    ),
    disturbances=(
        Disturbance("kill", 1.0, verb="commit"),
        Disturbance("freeze", 2.0, 1, 9.0, "attempt"),
    ),
    faults=Faults(latency=0.3, lost_answer=0.3),
    fates=Fates(lost=0.2, late=0.2),
    workers=3,
    thread_delay=1.0,
)


def test_what_the_failure_does_not_need_is_left_out() -> None:
    """One effect and one freeze that matter: everything else goes, down to the fields."""

    def fails(scenario: Scenario) -> bool:
        return bool(acts(scenario)) and any(one.harm == "freeze" for one in scenario.disturbances)

    small = shrink(BIG, fails)
    assert small.plans == (Plan(Act("never", thread=True)),)
    assert small.disturbances == (Disturbance("freeze", 2.0),)
    assert (small.faults, small.fates, small.workers) == (Faults(), Fates(), 1)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_returned_fails(seed: int) -> None:
    """Whatever the reason is, and however odd: the result was played and failed."""
    scenario = draw(seed)
    reasons: list[Callable[[Scenario], bool]] = [
        lambda one: len(one.to_json()) % 3 == len(scenario.to_json()) % 3,
        lambda one: one.workers == scenario.workers,
        lambda one: one.plans[0].sendings == scenario.plans[0].sendings,
    ]
    for fails in reasons:
        assert fails(shrink(scenario, fails))


def test_it_gives_up_in_time() -> None:
    """A scenario is played so often at most, whatever is found."""
    played: list[Scenario] = []

    def fails(scenario: Scenario) -> bool:
        played.append(scenario)
        return len(played) % 7 == 0

    shrink(BIG, fails)
    assert len(played) <= MOST_TRIES


def test_a_failure_that_needs_everything_is_left_as_it_is() -> None:
    """Nothing smaller fails."""
    assert shrink(BIG, lambda one: one == BIG) == BIG
