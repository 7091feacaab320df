"""Random systems whose workers fall silent in the middle of effects that end in their own way, and come back.

OUTLAST_LATE_SEEDS=3000 pytest tests/simulation/test_late.py      more of them

The invariants of the simulation hold after every event; every effect is applied once, whatever its declaration, while a person answers
truthfully; and what an attempt came to in a worker that had lost the run is the outcome, or an alarm.
"""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import (
    AlarmRaised,
    EffectCompleted,
    EffectIntended,
    from_row,
)
from outlast.store.change import RunKey, Status, WorkerId
from outlast.testing import Faults, Receiver, SimulatedWorker, Simulation, WorkerOptions

SEEDS = int(os.environ.get("OUTLAST_LATE_SEEDS", "40"))
FIRST = int(os.environ.get("OUTLAST_FIRST_SEED", "0"))
CHUNK = 20
TIMEOUT, SETTLE = timedelta(seconds=60), timedelta(seconds=2)
RUN = RunKey("default", "r")
receiver = Receiver()
chances: list[random.Random] = []
attempts: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    chances.clear()
    attempts.clear()


async def undisturbed(seconds: float) -> None:
    """Wait as a driver does that cannot be cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(seconds))
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue


async def act(amount: int, change: Callable[[str, int], int]) -> int:
    """Change the world, and return a good while later, or soon after nobody waits any more."""
    key, chance = outlast.idempotency_key(), chances[-1]
    attempts.append(key)
    await undisturbed(chance.uniform(0.1, 3))
    result = change(key, amount)
    try:
        await asyncio.sleep(chance.choice([0.1, 5, 20, 40]))
    except asyncio.CancelledError:
        await undisturbed(chance.uniform(0.1, 1.5))
    if chance.random() < 0.2:
        raise OSError("the answer was lost")
    return result


async def look(amount: int) -> outlast.Applied[int] | outlast.NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT)
async def keyed(amount: int) -> int:
    return await act(amount, receiver.apply_once)


@outlast.effect(probe=look, start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def asked(amount: int) -> int:
    return await act(amount, receiver.apply)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def unsafe(amount: int) -> int:
    return await act(amount, receiver.apply)


EFFECTS = [keyed, asked, unsafe]


@outlast.workflow
async def spend(amounts: list[int]) -> list[int]:
    calls = [EFFECTS[amount % 3](amount) for amount in amounts]
    return list(await asyncio.gather(*calls))


CODE = [*EFFECTS, spend]


async def fall_silent(worker: SimulatedWorker, seconds: float) -> None:
    """Let no heartbeat of a worker through, and no look for work, for so long."""
    renew, claim = worker.store.renew, worker.store.claim

    def no_beat(_: WorkerId) -> bool:
        raise StoreUnavailableError("no heartbeat", hint="this is a test")

    async def no_look(*_: object, **__: object) -> Any:
        await asyncio.sleep(1)
        raise StoreUnavailableError("no look", hint="this is a test")

    worker.store.renew, worker.store.claim = no_beat, no_look
    await asyncio.sleep(seconds)
    worker.store.renew, worker.store.claim = renew, claim


async def disturb(workers: list[SimulatedWorker], chance: random.Random) -> None:
    for _ in range(6):
        await asyncio.sleep(chance.uniform(1, 20))
        await fall_silent(chance.choice(workers), chance.uniform(10, 40))


async def answer(sim: Simulation) -> None:
    """Look each effect in doubt up, and say truthfully what became of it."""
    while True:
        await asyncio.sleep(20)
        for doubt in await sim.client.runs.doubts():
            found = receiver.find(doubt.key)
            said: dict[str, Any] = {"not_applied": True}
            if isinstance(found, outlast.Applied):
                said = {"applied": found.value}
            await sim.client.runs.resolve([doubt], **said, reason="looked it up")


def play(seed: int) -> Counter[str]:
    """Play one system, check it, and return what became of the attempts."""
    chance = random.Random(seed)
    receiver.forget()
    chances.append(chance)
    amounts = [chance.randrange(1, 100) for _ in range(3)]
    amounts = list(dict.fromkeys(amounts))

    async def scenario(sim: Simulation) -> tuple[Status, list[Any]]:
        workers = [
            await sim.start_worker(name, options=WorkerOptions(library="simulated"))
            for name in ("one", "two", "three")
        ]
        others = [
            asyncio.ensure_future(disturb(workers, chance)),
            asyncio.ensure_future(answer(sim)),
        ]
        handle = await sim.client.start(spend(amounts), id="r")
        head = await sim.closed("r")
        assert await handle.result() == amounts
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return head.status, [from_row(one.row) for one in await sim.store.journal(RUN)]

    sim = Simulation(CODE, seed=seed, faults=Faults(latency=0.05), longest=timedelta(hours=3))
    status, entries = sim.run(scenario)
    assert status is Status.COMPLETED
    intents = [one.key for one in entries if isinstance(one, EffectIntended)]
    completed = [one for one in entries if isinstance(one, EffectCompleted)]
    alarms = [one.what for one in entries if isinstance(one, AlarmRaised)]
    assert len(intents) == len(completed) == len(amounts)
    assert {key: receiver.changes[key] for key in intents} == dict.fromkeys(intents, 1)
    assert "contradicted" not in alarms
    return Counter([*(one.source for one in completed), *alarms])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_what_attempts_come_to_elsewhere_is_told_and_nothing_happens_twice(first: int) -> None:
    """Each effect is applied once and has one outcome; some of these came late, and some too late."""
    found: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        try:
            found += play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert found["late"] + found["late_outcome"] + found["late_failure"]
