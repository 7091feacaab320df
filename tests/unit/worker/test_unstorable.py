"""An effect that returned has happened, also when its result cannot be stored: it is in doubt, never failed, never called again."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.journal.entry import EffectFailed, EffectInDoubt, from_row
from outlast.store.change import RunKey, Status
from outlast.testing import Simulation

TIMEOUT = timedelta(seconds=5)
calls: list[str] = []


def not_applied(name: str) -> outlast.NotApplied:
    calls.append("probe")
    return outlast.NotApplied()


async def act(name: str) -> int:
    calls.append(name)
    wrong: Any = "no number"
    return wrong


idempotent = outlast.effect(idempotent=True, name="idempotent")(act)
probed = outlast.effect(probe=not_applied, start_to_close_timeout=TIMEOUT, name="probed")(act)
neither = outlast.effect(start_to_close_timeout=TIMEOUT, name="neither")(act)
EFFECTS = {one.name: one for one in (idempotent, probed, neither)}


@outlast.workflow
async def flow(name: str) -> int:
    return await EFFECTS[name](name)


@pytest.mark.parametrize("name", EFFECTS)
def test_it_is_in_doubt_until_an_operator_gives_the_result(name: str) -> None:
    """One call, no probe, no failure; the reason says that it returned; the operator's result is the run's."""
    calls.clear()

    async def scenario(sim: Simulation) -> tuple[list[Any], int]:
        await sim.start_worker()
        handle = await sim.client.start(flow(name), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        entries = [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]
        await handle.resolve("r:1", applied=7)
        await sim.closed("r")
        return entries, await handle.result()

    entries, result = Simulation([*EFFECTS.values(), flow]).run(scenario)
    (doubt,) = [one for one in entries if isinstance(one, EffectInDoubt)]
    assert "it returned, and the result of effect" in doubt.why
    assert "cannot be stored" in doubt.why
    assert not any(isinstance(one, EffectFailed) for one in entries)
    assert (calls, result) == ([name], 7)
