"""Calls of one purpose under different keys: the second is refused, or made when a person has said so."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.journal.entry import (
    ApprovalRequested,
    EffectInDoubt,
    Entry,
    from_row,
)
from outlast.store.change import RunKey
from outlast.testing import Simulation
from outlast.worker.worker import WorkerOptions

WINDOW = timedelta(minutes=4)
ONCE = outlast.RetryPolicy(maximum_attempts=1)
paid: Counter[str] = Counter()
plan: list[str] = []
go = outlast.Signal("go", str)


class NoSuchAccountError(Exception):
    """Proves that nothing happened."""


async def act(to: str, amount: int, call_id: str) -> str:
    step = plan.pop(0) if plan else ""
    if step == "refuse":
        raise NoSuchAccountError("no")
    if step == "slow":
        await asyncio.sleep(60)
    paid[f"{to} {amount} {call_id}"] += 1
    if step == "lose":
        raise OSError("the answer was lost")
    return call_id


Same = outlast.SameAs("to", "amount")
Asked = outlast.SameAs("to", "amount", role="boss", expires_in=WINDOW)
IDEMPOTENT: dict[str, Any] = {
    "idempotent": True,
    "retry": ONCE,
    "not_applied": (NoSuchAccountError,),
}


@outlast.effect(same_as=Same, **IDEMPOTENT)
async def pay(to: str, amount: int, call_id: str) -> str:
    return await act(to, amount, call_id)


@outlast.effect(same_as=Same, start_to_close_timeout=timedelta(seconds=90))
async def pay_unsafe(to: str, amount: int, call_id: str) -> str:
    return await act(to, amount, call_id)


@outlast.effect(same_as=Asked, **IDEMPOTENT)
async def pay_asked(to: str, amount: int, call_id: str) -> str:
    return await act(to, amount, call_id)


@outlast.effect(same_as=outlast.SameAs("to", "amount", within=WINDOW), **IDEMPOTENT)
async def pay_within(to: str, amount: int, call_id: str) -> str:
    return await act(to, amount, call_id)


@outlast.effect(same_as=Same, repeats=True, **IDEMPOTENT)
async def pay_repeats(to: str, amount: int, call_id: str) -> str:
    return await act(to, amount, call_id)


async def told(call: Awaitable[str]) -> str:
    """Return the result, or the name of the error and what it says of the first call."""
    try:
        return await call
    except outlast.SamePurposeError as error:
        return f"{error.first}: {error.state}"
    except (OSError, NoSuchAccountError, outlast.OutlastError) as error:
        return type(error).__name__


@outlast.workflow
async def one_after_another() -> list[str]:
    return [
        await told(pay("X", 10, "1")),
        await told(pay("X", 10, "2")),
        await told(pay("X", 11, "3")),
        await told(pay("Y", 10, "4")),
        await told(pay("X", 10, "1")),
    ]


@outlast.workflow
async def at_once() -> list[str]:
    return list(
        await asyncio.gather(
            *[told(pay("X", 10, one)) for one in ("1", "2", "1")],
            told(pay("Y", 10, "3")),
        )
    )


@outlast.workflow
async def beside_a_doubt() -> str:
    first = asyncio.create_task(told(pay_unsafe("X", 10, "1")))
    await outlast.receive(go)
    second = await told(pay_unsafe("X", 10, "2"))
    return f"{second}; {await first}"


@outlast.workflow
async def minutes_apart() -> list[str]:
    said = [await told(pay_within("X", 10, "1"))]
    for number in range(2, 5):
        await outlast.sleep(3 * 60)
        said.append(await told(pay_within("X", 10, f"{number}")))
    return said


@outlast.workflow
async def repeated() -> list[str]:
    return [await told(pay_repeats("X", 10, "1")), await told(pay_repeats("X", 10, "1"))]


@outlast.workflow
async def approved_before() -> list[str]:
    said = [await told(pay("X", 10, "1"))]
    second = pay("X", 10, "2")
    await outlast.approval("again", covers=[second], role="boss", expires_in=WINDOW)
    said.append(await told(second))
    return [*said, await told(pay("X", 10, "2")), await told(pay("X", 10, "3"))]


@outlast.workflow
async def approved_by_pattern() -> list[str]:
    covers = [pay.where(to="X"), pay.where(to="X")]
    await outlast.approval("all", covers=covers, role="boss", expires_in=WINDOW)
    return [await told(pay("X", 10, "1")), await told(pay("X", 10, "2"))]


@outlast.workflow
async def asking() -> list[str]:
    said = [await told(pay_asked("X", 10, "1"))]
    said += await asyncio.gather(
        told(pay_asked("X", 10, "2")), told(pay_asked("X", 10, "2")), told(pay_asked("Y", 7, "3"))
    )
    return said


@outlast.workflow
async def given_up() -> list[str]:
    said = [await told(pay_asked("X", 10, "1"))]
    try:
        async with asyncio.timeout(60):
            await pay_asked("X", 10, "2")
    except TimeoutError:
        said.append("nobody said")
    return said


CODE = [
    *(pay, pay_unsafe, pay_asked, pay_within, pay_repeats),
    *(one_after_another, at_once, beside_a_doubt, minutes_apart, repeated),
    *(approved_before, approved_by_pattern, asking, given_up),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    paid.clear()
    plan.clear()


def run(call: Any, scenario: Callable[[Simulation], Awaitable[None]] | None = None) -> Any:
    """Return the result of a run `r`, with what somebody does meanwhile."""

    async def main(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(call, id="r")
        if scenario is not None:
            await scenario(sim)
        await sim.closed("r")
        return await handle.result()

    options = WorkerOptions(library="simulated")
    return Simulation(CODE, options=options, longest=timedelta(days=1)).run(main)


async def entries(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]


async def decide(sim: Simulation, *, yes: bool) -> dict[str, Any]:
    """Decide the one request that there is, and return what was asked."""
    while not (asked := await sim.client.approvals.list()):
        await asyncio.sleep(1)
    (one,) = asked
    decision = sim.client.approvals.approve if yes else sim.client.approvals.deny
    await decision("r", one.approval_id, seen_sha256=one.subject_sha256, reason="so be it")
    (requested,) = [one for one in await entries(sim) if isinstance(one, ApprovalRequested)]
    return json.loads(bytes(requested.subject))


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [
        ("", "r:1: done", "RepeatedEffectError"),
        ("lose", "r:1: failed, and may have happened", "1"),
        ("refuse", "2", "r:2: done"),
    ],
)
def test_a_second_call_of_one_purpose_is_refused(first: str, second: str, again: str) -> None:
    """While the first may have happened; one that did not is in nobody's way, and an equal call is none of a second purpose."""
    plan.append(first)
    said = run(one_after_another())
    assert said[1:] == [second, "3", "4", again]
    assert paid["X 10 2"] == (first == "refuse")


def test_calls_at_once_are_one() -> None:
    """The first is in flight: another one is refused, an equal one takes its outcome."""
    assert run(at_once()) == ["1", "r.1:1: in flight", "1", "3"]
    assert paid == {"X 10 1": 1, "Y 10 3": 1}


def test_a_call_beside_a_doubt_is_refused_and_says_so() -> None:
    """Nobody knows whether the first one happened."""
    plan.append("lose")

    async def scenario(sim: Simulation) -> None:
        handle = sim.client.handle("r")
        while not any(isinstance(one, EffectInDoubt) for one in await entries(sim)):
            await asyncio.sleep(1)
        await handle.send(go, "go on")
        await asyncio.sleep(10)
        await handle.resolve("r.1:1", applied="1", reason="it stands on the statement")

    assert run(beside_a_doubt(), scenario) == "r.1:1: in doubt; 1"
    assert paid == {"X 10 1": 1}


def test_a_window_counts_from_the_end_of_the_last_call() -> None:
    """Three quarters of it later is too soon, one and a half times is not; and what was made then has a window of its own."""
    assert run(minutes_apart()) == ["1", "r:1: done", "3", "r:5: done"]


def test_equal_calls_that_may_be_repeated_have_one_purpose_too() -> None:
    """`same_as` wins over `repeats`: what is meant twice is for a person to say."""
    assert run(repeated()) == ["1", "r:1: done"]


def test_a_yes_to_exactly_the_second_call_lets_it_pass_once() -> None:
    """What was approved was seen; a third call was not."""

    async def scenario(sim: Simulation) -> None:
        await decide(sim, yes=True)

    said = run(approved_before(), scenario)
    assert said[:2] == ["1", "2"]
    assert said[2:] == ["RepeatedEffectError", "r:3: done"]


def test_a_yes_to_a_pattern_says_nothing_about_second_calls() -> None:
    """Who approves all calls to one account has not seen that there are two of one purpose."""

    async def scenario(sim: Simulation) -> None:
        await decide(sim, yes=True)

    assert run(approved_by_pattern(), scenario) == ["1", "r:2: done"]


@pytest.mark.parametrize("first", ["", "lose"])
def test_a_person_is_asked_once_about_exactly_that_call(first: str) -> None:
    """What is shown names the first call and its state; equal calls wait for one answer, and others need no approval."""
    plan.append(first)
    shown: list[Any] = []

    async def scenario(sim: Simulation) -> None:
        shown.append(await decide(sim, yes=True))

    said = run(asking(), scenario)
    assert said == ["OSError" if first else "1", "2", "2", "3"]
    assert paid == {"X 10 1": 1, "X 10 2": 1, "Y 7 3": 1}
    subject, (cover,) = shown[0]["subject"], shown[0]["covers"]
    assert subject == {
        "same_purpose_as": "r:1",
        "state": "failed, and may have happened" if first else "done",
        "arguments": {"to": "X", "amount": 10, "call_id": "1"},
        "same": ["to", "amount"],
    }
    assert cover["kind"] == "call"
    assert cover["arguments"] == {"to": "X", "amount": 10, "call_id": "2"}


def test_a_no_is_told_to_all_that_wait_for_it() -> None:
    """Nothing is made, and each call has the error."""

    async def scenario(sim: Simulation) -> None:
        await decide(sim, yes=False)

    assert run(asking(), scenario) == ["1", *["ApprovalDeniedError"] * 2, "3"]
    assert "X 10 2" not in paid


def test_without_an_answer_it_expires() -> None:
    """As every approval does."""
    assert run(asking()) == ["1", *["ApprovalExpiredError"] * 2, "3"]
    assert "X 10 2" not in paid


def test_who_gives_up_takes_the_question_back() -> None:
    """Nobody is asked about what nobody waits for."""

    async def scenario(sim: Simulation) -> None:
        await sim.closed("r")
        assert await sim.client.approvals.list() == []

    assert run(given_up(), scenario) == ["1", "nobody said"]
    assert paid == {"X 10 1": 1}
