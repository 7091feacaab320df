"""Disturbances strike whom they are meant for, at the moment that they name, once."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import outlast
from outlast.testing import Simulation
from outlast.testing.simulation.disturb import Disturber
from outlast.testing.simulation.scenario import Disturbance, Plan, Scenario
from outlast.testing.simulation.shape import Nap

MINUTE = timedelta(minutes=1)


@outlast.step
async def quick() -> int:
    return 1


@outlast.effect(idempotent=True)
async def deed() -> int:
    return 2


@outlast.workflow
async def both() -> int:
    return await quick() + await deed()


def disturbed(*disturbances: Disturbance) -> tuple[list[str], int, list[str]]:
    """Run a workflow while it is disturbed; return who was killed, how many workers there were, and the trace."""
    scenario = Scenario(0, (Plan(Nap(0)),), disturbances)

    async def play(sim: Simulation) -> list[str]:
        disturber = Disturber(sim, scenario)
        await disturber.replace()
        disturbing = sim.spawn(disturber.disturb())
        await asyncio.sleep(0.1)
        await sim.client.start(both(), id="r")
        assert await sim.client.handle("r", both).result() == 3
        await disturbing
        await asyncio.sleep(30)
        return [one.process.name for one in sim.workers if one.process.dead]

    sim = Simulation([both, quick, deed])
    dead = sim.run(play)
    return dead, len(sim.workers), sim.trace


@pytest.mark.parametrize("verb", ["commit", "claim", "load", "attempt", "intent", "outcome"])
def test_a_kill_at_a_verb_waits_for_it_and_strikes_once(verb: str) -> None:
    """The worker dies there and not before, another one takes its place, and the run ends well."""
    dead, workers, _ = disturbed(Disturbance("kill", 0.0, 0, 1.0, verb, "after"))
    if verb == "attempt":
        dead, workers, _ = disturbed(Disturbance("kill", 0.0, 0, 1.0, verb))
    assert (dead, workers) == (["w1"], 2)


def test_a_kill_before_a_commit_leaves_nothing_of_it_and_one_after_leaves_it_whole() -> None:
    """The moment decides whether the first change of the run was written by the one who died."""

    def first_commit(moment: str) -> str:
        _, _, trace = disturbed(Disturbance("kill", 0.0, 0, 1.0, "commit", moment))
        return next(line for line in trace if "commit RunChange" in line).split()[1]

    assert (first_commit("before"), first_commit("after")) == ("w2", "w1")


def test_a_verb_that_never_comes_harms_nobody() -> None:
    """What waits for its verb is dropped at the end."""
    assert disturbed(Disturbance("kill", 0.0, 0, 1.0, "request"))[:2] == ([], 1)


def test_a_timed_disturbance_strikes_at_its_time() -> None:
    """Without a verb nothing is waited for."""
    dead, workers, _ = disturbed(Disturbance("kill", 0.05, 0, 1.0))
    assert (dead, workers) == (["w1"], 2)


def test_the_clock_of_the_store_is_set_by_that_much() -> None:
    """Forth and back, three times the seconds; time itself goes on as before."""
    for harm, seconds in (("forth", 30), ("back", -30)):
        sim = Simulation([both, quick, deed])
        scenario = Scenario(0, (Plan(Nap(0)),), (Disturbance(harm, 1.0, 0, 10.0),))

        async def play(sim: Simulation, scenario: Scenario = scenario) -> float:
            disturber = Disturber(sim, scenario)
            await disturber.replace()
            wall, since = sim.clock.now(), sim.clock.monotonic()
            await disturber.disturb()
            passed = sim.clock.monotonic() - since
            return (sim.clock.now() - wall).total_seconds() - passed

        assert sim.run(play) == pytest.approx(seconds)
