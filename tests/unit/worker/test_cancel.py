"""Cancelling a run: what it reaches and when, what is shielded, and what a second cancel does."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import outlast
from outlast.journal.entry import (
    Cancelled,
    CancelRequested,
    Completed,
    EffectCompleted,
    EffectIntended,
    Entry,
    StepCompleted,
    from_row,
)
from outlast.store.change import RunKey, Status
from outlast.testing import Receiver, Simulation

RUN = RunKey("default", "r")
seen: list[str] = []
"""What bodies saw, in order."""
receiver = Receiver()
never = outlast.Signal("never", int)


@outlast.step
async def slow(name: str) -> str:
    try:
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        seen.append(f"{name} cancelled")
        raise
    seen.append(name)
    return name


@outlast.step
async def quick(name: str) -> str:
    seen.append(name)
    return name


@outlast.effect(idempotent=True)
async def pay(name: str) -> str:
    await asyncio.sleep(10)
    return str(receiver.apply_once(outlast.idempotency_key(), name))


async def _step() -> str:
    return await slow("a")


async def _steps_at_once() -> str:
    return "".join(await asyncio.gather(slow("a"), slow("b")))


async def _step_in_a_group() -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(slow("a"))
    return task.result()


async def _step_with_a_limit() -> str:
    async with asyncio.timeout(3600):
        return await slow("a")


async def _step_in_a_task() -> str:
    return await asyncio.create_task(_step())


WORK = {"step": _step, "steps at once": _steps_at_once, "group": _step_in_a_group}
WORK |= {"timeout": _step_with_a_limit, "task": _step_in_a_task}


@outlast.workflow
async def work(kind: str) -> str:
    return await WORK[kind]()


@outlast.workflow
async def shielded() -> str:
    """Wait for a step that goes on although the run is cancelled."""
    task = asyncio.create_task(slow("shielded"))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await quick("clean up")
        return f"done already: {task.done()}, then {await task}"
    return "never"


@outlast.workflow
async def shielded_and_left() -> str:
    """End while a shielded step still runs."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.shield(slow("shielded"))
    return "left"


@outlast.workflow
async def shielded_inside() -> str:
    """Shield a part of several steps; a second cancel reaches only who waits for it."""

    async def part() -> str:
        return await quick("one") + await slow("two")

    task = asyncio.create_task(part())
    for _ in range(2):
        with contextlib.suppress(asyncio.CancelledError):
            return await asyncio.shield(task)
    return await task


@outlast.workflow
async def cleans_up(with_effect: bool) -> str:
    try:
        await outlast.receive(never)
    finally:
        try:
            await (pay("clean up") if with_effect else slow("clean up"))
        except asyncio.CancelledError:
            await quick("after the second cancel")
            raise
    return "never"


CODE = [slow, quick, pay, work, shielded, shielded_and_left, shielded_inside, cleans_up]


@pytest.fixture(autouse=True)
def _clean() -> None:
    seen.clear()
    receiver.forget()


async def entries_of(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


def cancelled(call: Any, *after: float) -> tuple[Status, list[Entry]]:
    """Cancel a run so many seconds after its start, and again after the next ones; return how it ended."""

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(call, id="r")
        for seconds in after:
            await asyncio.sleep(seconds)
            await handle.cancel()
        status = (await sim.closed("r")).status
        await asyncio.sleep(60)
        return status, await entries_of(sim)

    return Simulation(CODE).run(scenario)


@pytest.mark.parametrize("kind", WORK)
def test_a_cancel_reaches_async_steps_at_once(kind: str) -> None:
    """Their bodies are cancelled as soon as the cancel is in the journal, wherever the workflow waits for them."""

    async def scenario(sim: Simulation) -> tuple[float, Status]:
        await sim.start_worker()
        handle = await sim.client.start(work(kind), id="r")
        await asyncio.sleep(2)
        since = sim.clock.monotonic()
        await handle.cancel()
        while not seen:
            await asyncio.sleep(0.01)
        took = sim.clock.monotonic() - since
        return took, (await sim.closed("r")).status

    took, status = Simulation(CODE).run(scenario)
    assert took < 0.1
    assert status is Status.CANCELLED
    assert seen == (["a cancelled", "b cancelled"] if "once" in kind else ["a cancelled"])


def test_what_is_shielded_goes_on_beside_the_clean_up() -> None:
    """The wait ends at once, the step does not; its outcome is there for whoever waits for it again."""
    status, entries = cancelled(shielded(), 2)
    assert status is Status.COMPLETED
    assert isinstance(entries[-1], Completed)
    assert bytes(entries[-1].value) == b'"done already: False, then shielded"'
    assert seen == ["clean up", "shielded"]


def test_what_is_shielded_ends_with_the_run() -> None:
    """A run that ends waits for nothing that nobody waits for: the step is given up then."""
    status, entries = cancelled(shielded_and_left(), 2)
    assert status is Status.COMPLETED
    assert seen == ["shielded cancelled"]
    assert not any(isinstance(one, StepCompleted) for one in entries)


def test_a_second_cancel_does_not_reach_what_is_shielded() -> None:
    """Each cancel ends one wait for it."""
    status, entries = cancelled(shielded_inside(), 2, 2)
    assert status is Status.COMPLETED
    assert seen == ["one", "two"]
    assert sum(isinstance(one, CancelRequested) for one in entries) == 2


@pytest.mark.parametrize("gap", [0, 3], ids=["at one moment", "later"])
def test_a_second_cancel_cancels_the_clean_up(gap: float) -> None:
    """Wherever that waits; what cleans up after it runs too, and both cancels are in the journal."""
    status, entries = cancelled(cleans_up(False), 2, gap)
    assert status is Status.CANCELLED
    assert seen[-1:] == ["after the second cancel"]
    assert seen[:-1] == ["clean up cancelled"] or not gap
    assert sum(isinstance(one, CancelRequested) for one in entries) == 2


def test_an_effect_of_the_clean_up_is_settled_before_the_second_cancel_is_raised() -> None:
    """What was intended is never interrupted, by how many ever."""
    status, entries = cancelled(cleans_up(True), 2, 2, 2)
    assert status is Status.CANCELLED
    assert seen == ["after the second cancel"]
    assert [type(one) for one in entries[2:]] == [
        *(CancelRequested, EffectIntended, CancelRequested, CancelRequested),
        *(EffectCompleted, StepCompleted, Cancelled),
    ]
    assert receiver.total == 1
