"""Whole systems from seeds whose runs roll over: each part of a shape in a generation of its own.

OUTLAST_ROLL_SEEDS=10000 pytest tests/simulation/test_rolls.py      more of them
"""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace
from mutation import Break, broken

from outlast.store import judge
from outlast.testing.simulation.scenario import Plan, Scenario
from outlast.testing.simulation.search import search
from outlast.testing.simulation.shape import Several, Shape, Work
from outlast.worker import pilot, rollover

CHUNK = 50
SEEDS = int(os.environ.get("OUTLAST_ROLL_SEEDS", "100"))
SOAK_SEEDS = int(os.environ.get("OUTLAST_SOAK_SEEDS", "100000")) // 10


def parts_of(shape: Shape) -> tuple[Shape, ...]:
    """Return what has a generation of its own."""
    parts = shape.parts if isinstance(shape, Several) else (shape,)
    return (*parts, Work(3))


def rolling(scenario: Scenario) -> Scenario:
    """Return the scenario with runs that roll over after each part."""

    def plan_of(plan: Plan) -> Plan:
        return replace(plan, shape=Several("rolls", parts_of(plan.shape)))

    return replace(scenario, plans=tuple(plan_of(one) for one in scenario.plans))


def look_at(first: int, count: int) -> None:
    """Play so many seeds from the first one; one that fails is made small and printed."""
    finding = search(range(first, first + count), prepare=rolling)
    if finding is not None:
        pytest.fail(str(finding), pytrace=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_the_invariants_across_roll_overs(first: int) -> None:
    """Messages, effects, approvals, cancels and the deaths of workers meet roll-overs: all invariants hold after every event."""
    look_at(first, min(CHUNK, SEEDS - first))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + SOAK_SEEDS, 1000))
def test_many_more_seeds_keep_them_across_roll_overs(first: int) -> None:
    """The same for a tenth as many others as a soak plays without roll-overs."""
    look_at(first, min(1000, 1_000_000 + SOAK_SEEDS - first))


MUTANTS = {
    "what was delivered is carried over": (
        50,
        Break(rollover, "carried", "for one in machine.unhandled()", "for one in ()"),
    ),
    "what is unread stays unread": (
        300,
        Break(
            judge,
            "_receiving",
            "run.state.head.incarnation",
            "run.state.head.generation",
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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.without_always_replay("what the simulator sees by itself is the question")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_roll_over_is_found(name: str) -> None:
    """Each line that keeps a promise of roll-overs is missed by some seed."""
    seeds, mutant = MUTANTS[name]
    with broken(mutant):
        assert search(range(seeds), prepare=rolling, small=False) is not None
