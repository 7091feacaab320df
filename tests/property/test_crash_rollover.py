"""A rolling workflow is killed at each of its points: every message is heard once and in order, every effect happens once."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import Client
from outlast.effects.key import idempotency_key, namespace
from outlast.journal.canonical import payload_sha256
from outlast.testing import Receiver, Trial, Workload, every_crash, undisturbed
from outlast.testing.crash import crashed

pytestmark = pytest.mark.slow

number = outlast.Signal("a number to be added", int)
receiver = Receiver()


@outlast.step
async def look(n: int) -> int:
    await asyncio.sleep(0.1)
    return n


@outlast.effect(idempotent=True)
async def keep(sum_so_far: int) -> int:
    await asyncio.sleep(0.1)
    return receiver.apply_once(outlast.idempotency_key(), sum_so_far)


@outlast.effect(start_to_close_timeout=timedelta(seconds=5))
async def note(sum_so_far: int) -> None:
    receiver.apply(outlast.idempotency_key())


@outlast.workflow
async def adds(left: int, seen: list[int]) -> list[int]:
    """Take two numbers a generation, of which more have come, and keep their sum."""
    for _ in range(2):
        seen.append(await outlast.receive(number))
    await look(len(seen))
    await keep(sum(seen))
    if left > 1:
        outlast.continue_as_new(adds(left - 1, seen))
    return seen


@outlast.workflow
async def patched_adds(left: int, seen: list[int]) -> list[int]:
    """The same, with a patch in each generation and an effect that nothing makes repeatable."""
    seen.append(await outlast.receive(number))
    if outlast.patched("keep-too"):
        await keep(sum(seen))
    await note(sum(seen))
    if left > 1:
        outlast.continue_as_new(patched_adds(left - 1, seen))
    outlast.deprecate_patch("no-more-notes")
    return seen


GENERATIONS = 3


async def send_all(client: Client) -> None:
    """Send every number twice under its id, some at once and some later."""
    handle: Any = client.handle("run")
    for n in range(2 * GENERATIONS):
        for _ in range(2):
            try:
                await handle.send(number, n, id=str(n))
            except outlast.RunConflictError:
                return
        if n % 3 == 2:
            await asyncio.sleep(0.2)


def keys(effect: str, sums: list[int]) -> Counter[str]:
    """Return the key of each generation's effect."""
    return Counter(
        idempotency_key(
            namespace("default", "run", generation), effect, payload_sha256({"sum_so_far": value})
        )
        for generation, value in enumerate(sums, 1)
    )


def check(trial: Trial[list[int]]) -> None:
    assert trial.result == list(range(2 * GENERATIONS)), trial
    assert trial.changes == keys("keep", [1, 6, 15]), trial


WORK = Workload(
    lambda: adds(GENERATIONS, []),
    receiver=receiver,
    meanwhile=send_all,
    definitions=[look, keep, adds],
)


def test_it_goes_on_from_every_crash() -> None:
    """Before, during and after each commit and call, the roll-over's own among them."""
    whole = undisturbed(WORK)
    check(whole)
    trials = list(every_crash(WORK))
    assert len(trials) == len(whole.lives[0].points) > 40
    for trial in trials:
        check(trial)


@pytest.mark.parametrize("seed", range(2))
def test_it_goes_on_from_two_crashes(seed: int) -> None:
    """The one that comes after is killed too, at some of its points."""
    trials = list(every_crash(WORK, seed=seed))[seed::11]
    for trial in trials:
        is_over = len(trial.lives) == len(trial.points)
        for point in () if is_over else trial.lives[-1].points[seed::5]:
            check(crashed(WORK, *trial.points, point, seed=seed))


def test_a_patched_one_goes_on_from_every_crash() -> None:
    """Its markers are written before anything leaves the run: whatever is lost, it goes one way in a generation."""
    work = Workload(
        lambda: patched_adds(GENERATIONS, []),
        receiver=receiver,
        meanwhile=send_all,
        resolve=receiver.find,
        definitions=[keep, note, patched_adds],
    )
    for trial in [undisturbed(work), *every_crash(work)]:
        assert trial.result == list(range(GENERATIONS)), trial
        assert trial.changes == keys("keep", [0, 1, 3]) + keys("note", [0, 1, 3]), trial
