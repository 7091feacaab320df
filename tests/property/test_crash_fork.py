"""A family that failed is retried, and its workers are killed at each of their points: every effect happens once, and all of it ends."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import outlast
from outlast.client import Client
from outlast.testing import Receiver, Trial, Workload, every_crash, undisturbed

pytestmark = pytest.mark.slow

part = outlast.Signal("part", int)
over = outlast.Signal("over", str)
receiver = Receiver()
down: set[str] = set()
"""Names of what fails."""


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
async def look(name: str) -> str:
    await asyncio.sleep(0.1)
    if name in down:
        raise OSError(f"{name} is down")
    return name


@outlast.effect(idempotent=True)
async def pay(name: str) -> str:
    receiver.apply_once(outlast.idempotency_key(), name)
    return f"paid {name}"


@outlast.workflow
async def leaf(name: str) -> str:
    paid = await pay(name)
    return f"{paid}, {await look(name)}"


@outlast.workflow
async def branch(name: str) -> str:
    """Hear two numbers, have a child that fails, and pay."""
    first = await outlast.receive(part)
    inner = await outlast.run_child(leaf(f"{name}-leaf"))
    return f"{first + await outlast.receive(part)}, {inner}, {await pay(name)}"


@outlast.workflow
async def family() -> list[str]:
    """Have a child that ends well, one that fails, and messages to both it and the run that waits."""
    good = await outlast.run_child(leaf("good"), id="good")
    child = await outlast.start_child(branch("branch"))
    for number in (1, 2):
        await child.send(part, number)
    result = await child.result()
    await outlast.run_handle("run").send(over, f"{good}; {result}")
    return [good, result, await pay("family")]


@outlast.workflow
async def waits() -> str:
    return await outlast.receive(over)


async def retry_it(client: Client) -> None:
    """Let a family fail, and retry it; as a client that nobody kills."""
    run: Any = await client.start(family(), id="f")
    with contextlib.suppress(outlast.WorkflowFailedError):
        await run.result()
    down.clear()
    retry = await run.retry(reason="it is up again")
    ended.append(await retry.result())


ended: list[Any] = []
RESULT = "paid good, good; 3, paid branch-leaf, branch-leaf, paid branch"
DONE = {"good", "branch-leaf", "branch", "family"}


def begin() -> None:
    down.update({"branch-leaf"})
    ended.clear()


def check(trial: Trial[str]) -> None:
    assert trial.result == RESULT, trial
    said = {one for end in ended for one in end}
    assert said <= {RESULT.split("; ")[0], RESULT.split("; ")[1], "paid family"}, trial
    assert set(trial.changes.values()) == {1}, trial
    assert len(trial.changes) in (len(DONE) - 1, len(DONE)), trial


WORK = Workload(
    waits,
    receiver=receiver,
    meanwhile=retry_it,
    definitions=[look, pay, leaf, branch, family, waits],
    reset=begin,
)


def test_a_family_is_retried_through_every_crash() -> None:
    """Before, during and after each commit and call, those of the relay among them."""
    whole = undisturbed(WORK)
    check(whole)
    trials = list(every_crash(WORK))
    assert len(trials) == len(whole.lives[0].points) > 60
    for trial in trials:
        check(trial)
