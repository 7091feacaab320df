"""Attempts of effects that end in a worker which has lost the run: what they came to is told to the run, and never dropped."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import (
    AlarmRaised,
    Completed,
    EffectCompleted,
    EffectInDoubt,
    Entry,
    from_row,
)
from outlast.store.change import PutMessage, RunHead, RunKey, Status, WorkerId
from outlast.testing import Faults, SimulatedWorker, Simulation
from outlast.worker.worker import WorkerOptions

SECONDS = timedelta(seconds=1)
TIMEOUT = timedelta(seconds=200)
SETTLE = timedelta(seconds=2)
lasts: list[float] = []
"""How many seconds the attempts take in turn; 1 when there is none left."""
ends: list[object] = []
"""What the attempts come to in turn: an exception, or a value; the amount when there is none left."""
workers: list[SimulatedWorker] = []
made: list[str] = []
"""`began` and `ended`, of all attempts in order."""


async def undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, as a driver does that cannot be cancelled."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue


async def act(amount: int) -> int:
    """Make an attempt that nothing stops."""
    seconds, end = lasts.pop(0) if lasts else 1.0, ends.pop(0) if ends else amount
    made.append("began")
    await undisturbed(asyncio.sleep(seconds))
    made.append("ended")
    if isinstance(end, Exception):
        raise end
    return end


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def neither(amount: int) -> int:
    return await act(amount)


@outlast.effect(start_to_close_timeout=10 * SECONDS, settle=SETTLE)
async def hasty(amount: int) -> int:
    return await act(amount)


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT)
async def idempotent(amount: int) -> int:
    return await act(amount)


@outlast.effect(start_to_close_timeout=10 * SECONDS, settle=SETTLE)
def threaded(amount: int) -> int:
    made.append("began")
    workers[0].threads.busy(100)
    made.append("ended")
    return amount


EFFECTS = {one.name: one for one in (neither, hasty, idempotent, threaded)}


@outlast.workflow
async def pay(which: str, amount: int) -> int:
    return await EFFECTS[which](amount)


@outlast.workflow
async def pay_and_wait(which: str, amount: int) -> int:
    paid = await EFFECTS[which](amount)
    await outlast.sleep(1000)
    return paid


CODE = [*EFFECTS.values(), pay, pay_and_wait]


@pytest.fixture(autouse=True)
def _clean() -> None:
    for one in (lasts, ends, made, workers):
        one.clear()


def silence(worker: SimulatedWorker) -> None:
    """Let no heartbeat of a worker through, and no look for work; its commits go on."""

    def renew(_: WorkerId) -> bool:
        raise StoreUnavailableError("no heartbeat", hint="this is a test")

    async def claim(*_: object, **__: object) -> None:
        await asyncio.sleep(30)
        raise StoreUnavailableError("no look", hint="this is a test")

    worker.store.renew, worker.store.claim = renew, claim


async def start_worker(sim: Simulation, name: str) -> SimulatedWorker:
    workers.append(await sim.start_worker(name, options=WorkerOptions(library="simulated")))
    return workers[-1]


async def lost(sim: Simulation, which: str, workflow: Any = pay) -> SimulatedWorker:
    """Start the run `r`, and take it from its first worker in the middle of an attempt; return the second one."""
    first = await start_worker(sim, "first")
    await sim.client.start(workflow(which, 5), id="r")
    while not made:
        await asyncio.sleep(0.1)
    silence(first)
    second = await start_worker(sim, "second")
    await sim.until("r", lambda head: head.owner == second.worker.id)
    return second


async def journal(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]


def of_kind(entries: list[Entry], kind: type[Any]) -> list[Any]:
    return [one for one in entries if isinstance(one, kind)]


def told(alarm: AlarmRaised) -> dict[str, Any]:
    return json.loads(bytes(alarm.detail))


def over(head: RunHead) -> bool:
    return head.status.closed or head.status is Status.BLOCKED


def test_what_a_lost_attempt_returned_settles_a_doubt() -> None:
    """The run was blocked for an operator, and goes on by itself."""
    lasts.append(100)

    async def scenario(sim: Simulation) -> tuple[Status, int, list[Entry]]:
        await lost(sim, "hasty")
        blocked = (await sim.until("r", over)).status
        await sim.closed("r")
        return blocked, await sim.client.handle("r").result(), await journal(sim)

    blocked, result, entries = Simulation(CODE).run(scenario)
    (completed,) = of_kind(entries, EffectCompleted)
    assert (blocked, result) == (Status.BLOCKED, 5)
    assert completed.source == "late"
    assert completed.by.startswith("first-")
    assert "attempt 1 returned after its worker had lost the run" in completed.reason
    assert len(of_kind(entries, EffectInDoubt)) == 1
    assert not of_kind(entries, AlarmRaised)
    assert made == ["began", "ended"]


def test_what_a_lost_attempt_returned_comes_before_a_doubt() -> None:
    """While the next owner stands by until the attempt can no longer act, its end is the outcome."""
    lasts.append(100)

    async def scenario(sim: Simulation) -> tuple[int, list[Entry]]:
        await lost(sim, "neither")
        await sim.closed("r")
        return await sim.client.handle("r").result(), await journal(sim)

    result, entries = Simulation(CODE).run(scenario)
    assert result == 5
    assert not of_kind(entries, EffectInDoubt)
    assert [one.source for one in of_kind(entries, EffectCompleted)] == ["late"]


def test_what_is_attempted_anew_is_not_interrupted() -> None:
    """The first outcome in the journal stands; the other attempt ends by itself, before the run does, and is an alarm."""
    lasts.extend([60, 100])
    ends.extend([5, 6])

    async def scenario(sim: Simulation) -> tuple[int, list[Entry]]:
        await lost(sim, "idempotent")
        await sim.closed("r")
        return await sim.client.handle("r").result(), await journal(sim)

    result, entries = Simulation(CODE).run(scenario)
    kinds = [type(one) for one in entries]
    (alarm,) = of_kind(entries, AlarmRaised)
    assert (result, made) == (5, ["began", "began", "ended", "ended"])
    assert kinds.index(EffectCompleted) < kinds.index(AlarmRaised) < kinds.index(Completed)
    assert alarm.what == "late_outcome"
    assert told(alarm)["outcome"]["value"] == 6


def test_what_comes_after_an_outcome_is_an_alarm() -> None:
    """An operator said what became of it, and the attempt says something else."""
    lasts.append(100)

    async def scenario(sim: Simulation) -> list[Entry]:
        await lost(sim, "hasty", pay_and_wait)
        await sim.until("r", over)
        await sim.client.handle("r").resolve("r:1", applied=9, reason="it is on the statement")
        await asyncio.sleep(200)
        return await journal(sim)

    entries = Simulation(CODE).run(scenario)
    (completed,), (alarm,) = of_kind(entries, EffectCompleted), of_kind(entries, AlarmRaised)
    outcome = told(alarm)["outcome"]
    assert (bytes(completed.value), completed.source) == (b"9", "operator")
    assert (alarm.what, outcome["value"], outcome["source"]) == ("late_outcome", 5, "late")


def test_a_lie_about_the_attempt_that_returned_is_an_alarm_beside_its_outcome() -> None:
    """It was cleared and attempted again, with an end that nobody knows; then the first attempt turns out to have happened."""
    lasts.extend([100, 1])
    ends.extend([5, OSError("the answer was lost")])

    async def scenario(sim: Simulation) -> tuple[int, list[Entry]]:
        await lost(sim, "hasty")
        await sim.until("r", over)
        await sim.client.handle("r").resolve("r:1", not_applied=True, reason="not on the list")
        await sim.closed("r")
        return await sim.client.handle("r").result(), await journal(sim)

    result, entries = Simulation(CODE).run(scenario)
    (alarm,) = of_kind(entries, AlarmRaised)
    assert (result, alarm.what) == (5, "contradicted")
    assert len(of_kind(entries, EffectInDoubt)) == 2


def test_an_attempt_after_the_clearing_contradicts_nobody() -> None:
    """Whoever cleared the doubt spoke of the attempts before."""
    ends.append(OSError("the answer was lost"))
    lasts.extend([1, 100])

    async def scenario(sim: Simulation) -> list[Entry]:
        first = await start_worker(sim, "first")
        handle = await sim.client.start(pay("hasty", 5), id="r")
        await sim.until("r", over)
        await handle.resolve("r:1", not_applied=True, reason="not on the list")
        while made.count("began") < 2:
            await asyncio.sleep(0.1)
        silence(first)
        await start_worker(sim, "second")
        await sim.closed("r")
        return await journal(sim)

    entries = Simulation(CODE).run(scenario)
    assert [one.source for one in of_kind(entries, EffectCompleted)] == ["late"]
    assert not of_kind(entries, AlarmRaised)


def test_a_late_error_proves_nothing() -> None:
    """It is kept for whoever looks the effect up, and the doubt stands."""
    lasts.append(100)
    ends.append(ConnectionError("cut off"))

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        await lost(sim, "hasty")
        await asyncio.sleep(300)
        return (await sim.client.handle("r").status()).status, await journal(sim)

    status, entries = Simulation(CODE).run(scenario)
    (alarm,) = of_kind(entries, AlarmRaised)
    assert (status, alarm.what) == (Status.BLOCKED, "late_failure")
    assert "cut off" in told(alarm)["why"]


def test_another_run_under_the_id_is_not_meant(caplog: pytest.LogCaptureFixture) -> None:
    """The same operation of the next generation is another effect; what the old attempt did is in the log only."""
    lasts.extend([100, 300])
    ends.extend([5, 7])

    async def scenario(sim: Simulation) -> tuple[int, list[Entry]]:
        await lost(sim, "hasty")
        await sim.client.handle("r").terminate("start it anew")
        again = await sim.client.start(pay("neither", 5), id="r", if_closed="restart")
        await asyncio.sleep(150)
        lasts.clear()
        return (await again.status()).generation, await journal(sim)

    with caplog.at_level(logging.ERROR, logger="outlast.worker"):
        generation, entries = Simulation(CODE).run(scenario)
    assert generation == 2
    assert not of_kind(entries, EffectCompleted)
    assert not of_kind(entries, AlarmRaised)
    assert "could not be put into the run's inbox" in caplog.text


def test_a_thread_that_returns_after_its_worker_has_stopped_is_told_of() -> None:
    """It cannot be stopped, so the run is not given back; the next owner finds what it came to in the inbox."""

    async def scenario(sim: Simulation) -> list[Entry]:
        first = await start_worker(sim, "first")
        await sim.client.start(pay("threaded", 5), id="r")
        while not made:
            await asyncio.sleep(0.1)
        await first.worker.stop(SECONDS)
        await start_worker(sim, "second")
        await sim.closed("r")
        return await journal(sim)

    entries = Simulation(CODE).run(scenario)
    assert [one.source for one in of_kind(entries, EffectCompleted)] == ["late"]
    assert made == ["began", "ended"]


def test_a_result_that_was_not_written_in_time_is_not_lost() -> None:
    """The attempt returned while the worker was cut off from the store; its commit is fenced, and the value goes into the inbox."""
    lasts.append(5)

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        first = await start_worker(sim, "first")
        await sim.client.start(pay("hasty", 5), id="r")
        while not made:
            await asyncio.sleep(0.1)
        first.store.faults = Faults(down=True)
        await start_worker(sim, "second")
        blocked = (await sim.until("r", over)).status
        first.store.faults = Faults()
        await sim.closed("r")
        return blocked, await journal(sim)

    blocked, entries = Simulation(CODE).run(scenario)
    assert blocked is Status.BLOCKED
    assert [one.source for one in of_kind(entries, EffectCompleted)] == ["late"]
    assert made == ["began", "ended"]


@pytest.mark.parametrize(("outage", "arrives"), [(10, True), (300, False)])
def test_a_store_that_is_away_is_tried_again_for_a_while(
    outage: float, arrives: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A short outage costs nothing; after a long one the log says what somebody has to look up."""
    lasts.append(100)

    async def scenario(sim: Simulation) -> list[Entry]:
        first = await start_worker(sim, "first")
        await sim.client.start(pay("hasty", 5), id="r")
        while not made:
            await asyncio.sleep(0.1)
        silence(first)
        await start_worker(sim, "second")
        await sim.until("r", over)
        first.store.faults = Faults(down=True)
        while "ended" not in made:
            await asyncio.sleep(0.1)
        await asyncio.sleep(outage)
        first.store.faults = Faults()
        await asyncio.sleep(60)
        return await journal(sim)

    with caplog.at_level(logging.ERROR, logger="outlast.worker"):
        entries = Simulation(CODE).run(scenario)
    assert bool(of_kind(entries, EffectCompleted)) is arrives
    assert ("the store is away" in caplog.text) is not arrives


def test_each_deposit_has_an_id_of_its_own() -> None:
    """Sent again after a lost answer it is the same message; it is bound to the generation."""
    lasts.append(100)
    put: list[PutMessage] = []

    async def scenario(sim: Simulation) -> list[Entry]:
        first = await start_worker(sim, "first")
        await sim.client.start(pay("hasty", 5), id="r")
        while not made:
            await asyncio.sleep(0.1)
        silence(first)
        commit, is_lost = first.store.commit, [True, True]

        async def lose_answers(changes: Any) -> Any:
            found = [one for one in changes if isinstance(one, PutMessage)]
            verdicts = await commit(changes)
            put.extend(found)
            if found and is_lost and is_lost.pop():
                raise StoreUnavailableError("the answer was lost", hint="this is a test")
            return verdicts

        first.store.commit = lose_answers
        await start_worker(sim, "second")
        await sim.closed("r")
        await asyncio.sleep(60)
        return await journal(sim)

    entries = Simulation(CODE).run(scenario)
    assert len(put) == 3
    assert {one.message.message_id for one in put} == {put[0].message.message_id}
    assert put[0].message.message_id.startswith("late/1/r:1/1/first-")
    assert put[0].generation == 1
    assert len(of_kind(entries, EffectCompleted)) == 1
    assert not of_kind(entries, AlarmRaised)
