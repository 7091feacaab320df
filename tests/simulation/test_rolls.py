"""Whole systems from seeds whose runs roll over: each part of a shape in a generation of its own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from mutation import Break, broken

from outlast.store.memory import MemoryStore
from outlast.testing.simulation.scenario import Plan, Scenario
from outlast.testing.simulation.search import search
from outlast.testing.simulation.shape import Several, Shape, Work
from outlast.worker import pilot, rollover

CHUNK, SEEDS = 100, 200


def parts_of(shape: Shape) -> tuple[Shape, ...]:
    """Return what has a generation of its own."""
    parts = shape.parts if isinstance(shape, Several) else (shape,)
    return (*parts, Work(3))


def rolling(scenario: Scenario) -> Scenario:
    """Return the scenario with runs that roll over after each part."""

    def plan_of(plan: Plan) -> Plan:
        return replace(plan, shape=Several("rolls", parts_of(plan.shape)))

    return replace(scenario, plans=tuple(plan_of(one) for one in scenario.plans))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_the_invariants_across_roll_overs(first: int) -> None:
    """Messages, effects, approvals, cancels and the deaths of workers meet roll-overs: all invariants hold after every event."""
    finding = search(range(first, first + CHUNK), prepare=rolling)
    if finding is not None:
        pytest.fail(str(finding), pytrace=False)


MUTANTS = {
    "what was delivered is carried over": (
        50,
        Break(rollover, "carried", "for one in machine.unhandled()", "for one in ()"),
    ),
    "what is unread stays unread": (
        300,
        Break(
            MemoryStore,
            "_unconsumed",
            "item.generation == run.head.incarnation",
            "item.generation == run.head.generation",
        ),
    ),
    "keys of a generation are its own": (
        50,
        Break(
            pilot,
            "rolling_over",
            "namespace=namespace(run.tenant, run.run_id, generation + 1),",
            "namespace=started.namespace,",
        ),
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.without_always_replay("what the simulator sees by itself is the question")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_roll_over_is_found(name: str) -> None:
    """Each line that keeps a promise of roll-overs is missed by some seed."""
    seeds, mutant = MUTANTS[name]
    with broken(mutant):
        assert search(range(seeds), prepare=rolling, small=False) is not None
