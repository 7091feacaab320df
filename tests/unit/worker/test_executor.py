"""Attempts: how each ends, and what becomes of bodies that do not end in time."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest

import outlast
from outlast.effects.intent import Unknown
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


async def exit_async() -> int:
    sys.exit(3)


def exit_sync() -> int:
    sys.exit(3)


def stop_iteration() -> int:
    raise StopIteration


async def cancel_itself() -> int:
    raise asyncio.CancelledError


async def interrupt() -> int:
    raise KeyboardInterrupt


@outlast.step(start_to_close_timeout=timedelta(seconds=1))
def quick() -> int:
    ran.append(1)
    return 7


raised: list[Exception] = []


@outlast.step
async def raising() -> None:
    raise raised[-1]


ran: list[int] = []
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
    (late,) = [one.message for one in caplog.records if "after its time" in one.message]
    assert "attempt 1 of stubborn" in late


def test_what_cannot_be_stored_is_hopeless() -> None:
    """Another attempt would end the same way; the failure names the place in the value."""
    ending = attempt(unstorable)
    assert isinstance(ending, Raised)
    assert ending.hopeless
    assert "a" in ending.failure.message


def test_an_error_of_the_code_is_hopeless_in_a_group_too() -> None:
    """A task group around it does not make it worth another attempt, however many there are; other groups stay worth one."""
    wrong: Exception = outlast.DefinitionError("a mistake")
    lost: Exception = OSError("the answer was lost")
    for _ in range(2_000):
        wrong, lost = ExceptionGroup("", [OSError(), wrong]), ExceptionGroup("", [lost])
    for error, hopeless in ((wrong, True), (lost, False)):
        raised.append(error)
        ending = attempt(raising)
        assert isinstance(ending, Raised)
        assert ending.hopeless is hopeless


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


@pytest.mark.parametrize(
    ("body", "error"),
    [(exit_async, "SystemExit"), (exit_sync, "SystemExit"), (stop_iteration, "StopIteration")],
)
def test_what_means_something_to_a_loop_is_a_failure(body: Callable[[], int], error: str) -> None:
    """`sys.exit()` in a body ends its attempt, not the process; `StopIteration` does not get lost on its way."""
    ending = attempt(outlast.step(body))
    assert isinstance(ending, Raised)
    assert ending.failure.type == error


@pytest.mark.parametrize("body", [exit_async, exit_sync, cancel_itself])
def test_what_a_probe_raises_is_no_answer(body: Callable[[], int]) -> None:
    """Whatever it is: the worker goes on, and asks again."""

    @outlast.effect(probe=body, start_to_close_timeout=timedelta(seconds=1))
    async def act() -> int:
        return 1

    async def main() -> object:
        return await Executor(threads).probe(act, b"{}", ATTEMPT)

    answer = SimulatedLoop(SimulatedClock()).run_until_complete(main())
    assert isinstance(answer, Unknown)
    assert "the probe raised" in answer.why


def test_an_interrupt_ends_the_process() -> None:
    """Whoever presses Ctrl-C while a body runs means the process."""
    with pytest.raises(KeyboardInterrupt):
        attempt(outlast.step(interrupt))


def test_the_time_of_an_attempt_begins_with_its_body() -> None:
    """Waiting for a free thread is no part of it."""
    crowded = SimulatedThreads(random.Random(1))
    crowded.crowded = 60

    async def main() -> object:
        return await Executor(crowded).attempt(quick, b"{}", ATTEMPT)

    assert SimulatedLoop(SimulatedClock()).run_until_complete(main()) == Returned(b"7")


def test_a_body_that_is_cancelled_before_it_begins_never_runs() -> None:
    """Although its thread comes free later."""
    crowded = SimulatedThreads(random.Random(1))
    crowded.crowded = 60
    ran.clear()

    async def main() -> bool:
        executor = Executor(crowded)
        attempt = asyncio.ensure_future(executor.attempt(quick, b"{}", ATTEMPT))
        await asyncio.sleep(1)
        attempt.cancel()
        await asyncio.sleep(100)
        return attempt.cancelled()

    assert SimulatedLoop(SimulatedClock()).run_until_complete(main())
    assert ran == []


@pytest.mark.parametrize("sync", [False, True])
def test_a_body_that_may_not_begin_never_runs(sync: bool) -> None:
    """It is asked for where the body would run, at the last moment."""
    allowed = [True]
    crowded = SimulatedThreads(random.Random(1))
    crowded.crowded = 60
    ran.clear()

    async def body() -> int:
        return quick.function()

    def check() -> None:
        if not allowed[0]:
            raise LookupError("not ours")

    async def main() -> object:
        step = quick if sync else outlast.step(body)
        trying = asyncio.ensure_future(Executor(crowded).attempt(step, b"{}", ATTEMPT, check))
        await asyncio.sleep(0)
        allowed[0] = False
        return (await asyncio.gather(trying, return_exceptions=True))[0]

    answer = SimulatedLoop(SimulatedClock()).run_until_complete(main())
    assert isinstance(answer, LookupError)
    assert ran == []
