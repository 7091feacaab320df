"""Attempts: how each ends, and what becomes of bodies that do not end in time."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
import random
from datetime import timedelta

import pytest

import outlast
from outlast.testing import SimulatedClock, SimulatedLoop, SimulatedThreads, Simulation
from outlast.worker.executor import Executor, Raised, Returned
from outlast.workflows.attempt import Attempt

threads = SimulatedThreads(random.Random(1))
sims: list[Simulation] = []


@outlast.step(
    start_to_close_timeout=timedelta(seconds=0.2), retry=outlast.RetryPolicy(maximum_attempts=2)
)
def stubborn() -> int:
    number = outlast.attempt().number
    if number == 1:
        sims[-1].workers[0].threads.busy(1.5)
    return number


@outlast.workflow
async def use_stubborn() -> int:
    result = await stubborn()
    await outlast.sleep(5)
    return result


@outlast.step
async def unstorable() -> dict[str, str]:
    return {"a": "\ud800"}


@outlast.step
async def cancelled_inside() -> int:
    raise asyncio.CancelledError("by the body itself")


@outlast.step
def plain(number: int) -> int:
    return number + 1


ATTEMPT = Attempt("default", "r", "r:1", "s", 1, "")


def attempt(step: object, arguments: bytes = b"{}") -> object:
    """Make one attempt of a step."""

    async def main() -> object:
        return await Executor(threads).attempt(step, arguments, ATTEMPT)

    return SimulatedLoop(SimulatedClock()).run_until_complete(main())


def test_a_late_thread_is_logged_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Attempt 1 ignores its timeout; only attempt 2's result is stored (case 10)."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        return await worker.client.run(use_stubborn(), id="r")

    sims.append(Simulation([stubborn, use_stubborn]))
    with caplog.at_level(logging.WARNING, "outlast.worker"):
        assert sims[-1].run(scenario) == 2
    assert any(
        "attempt 1 of stubborn returned after its time" in one.message for one in caplog.records
    )


def test_what_cannot_be_stored_is_hopeless() -> None:
    """Another attempt would end the same way; the failure names the place in the value."""
    ending = attempt(unstorable)
    assert isinstance(ending, Raised)
    assert ending.hopeless
    assert "a" in ending.failure.message


def test_a_body_that_cancels_itself_has_failed() -> None:
    """Only a cancel from outside ends the attempt without an ending."""
    ending = attempt(cancelled_inside)
    assert isinstance(ending, Raised)
    assert (
        ending.failure.type == "asyncio.exceptions.CancelledError"
        or "Cancelled" in ending.failure.type
    )


def test_a_synchronous_body_returns() -> None:
    """It runs in a thread."""
    assert attempt(plain, b'{"number": 2}') == Returned(b"3")


def test_arguments_that_no_longer_decode_are_hopeless() -> None:
    """And nothing has happened."""
    ending = attempt(plain, b'{"number": "two"}')
    assert isinstance(ending, Raised)
    assert (ending.hopeless, ending.not_applied) == (True, True)
