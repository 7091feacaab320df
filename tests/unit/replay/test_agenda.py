"""Changed code under a journal: both sides are shown, and what was only added is no change."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    NonDeterminismError,
)
from outlast.journal.entry import (
    Completed,
)
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step


async def take(n: int) -> int:
    return n


def make_step(name: str, *, raises: tuple[type[BaseException], ...] = ()) -> Step[..., Any]:
    return Step(take, name, AttemptOptions(raises=raises))


def make_effect(
    name: str, *, repeats: bool = False, function: Any = take, version: str = ""
) -> Effect[..., Any]:
    rules = EffectOptions(idempotent=True, repeats=repeats, version=version)
    return Effect(function, name, AttemptOptions(RetryPolicy()), rules)


work, other = make_step("work"), make_step("other")
pay, tick = make_effect("pay"), make_effect("tick", repeats=True)
go = outlast.Signal("go", int)
stop = outlast.Signal("stop", int)


def test_non_determinism_names_both_sides(drive):
    """The error shows the journal's side with its position, the code's side, and what to do."""

    async def old():
        await work(1)
        await other(2)

    async def renamed():
        await work(1)
        await work(2)

    async def another_kind():
        await work(1)
        await outlast.sleep(5)

    async def removed():
        await work(1)
        await outlast.receive(go)

    async def ended():
        await work(1)

    run = drive(old)
    run.done("r:1", 1)
    run.done("r:2", 1)
    for code, asked in (
        (renamed, "step work at r:2"),
        (another_kind, "timer at r:2"),
        (removed, "nothing at r:2; open: nothing"),
        (ended, "nothing at r:2; open: nothing"),
    ):
        with pytest.raises(NonDeterminismError) as caught:
            run.again(code)
        assert "journal entry 3: step other at r:2" in caught.value.message
        assert f"code: {asked}" in caught.value.message
        assert (caught.value.run, caught.value.operation) == ("run-1", "r:2")
        assert "deploy the code" in caught.value.hint


def test_code_that_raised_before_is_told_by_what_it_raised(drive):
    """Not as code that asks for nothing, and no patch is proposed around an exception that nobody meant."""

    async def old():
        await work(1)
        await work(2)
        await other(3)

    async def breaks():
        await work(1)
        raise TypeError("a weight is needed")

    async def breaks_at_once():
        raise TypeError("a weight is needed")

    async def breaks_in_a_group():
        await work(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(breaks_at_once())

    run = drive(old)
    for number in (1, 2):
        run.done(f"r:{number}", number)
    for code in (breaks, breaks_in_a_group):
        with pytest.raises(NonDeterminismError) as caught:
            run.again(code)
        error = caught.value
        assert "TypeError: a weight is needed" in error.raised
        assert "test_agenda.py:" in error.raised
        assert error.asked == f"raised {error.raised}"
        assert "\n  journal entry 3: step work at r:2\n  code: raised " in error.message
        assert error.hint.startswith("mend the code where it raises")


def test_changed_effect_arguments_are_non_determinism(drive):
    """The same effect with another argument, or another parameter, stops the replay and shows both."""

    def body(call: Any):
        async def inner():
            await call(5)

        return inner

    async def pay_text(text: str) -> int:
        return 1

    run = drive(body(pay))
    run.intend(run.command())
    for call, asked in (
        (lambda n: pay(n + 1), '{"n":6}'),
        (lambda n: make_effect("pay", function=pay_text)("x"), '{"text":"x"}'),
    ):
        with pytest.raises(NonDeterminismError) as caught:
            run.again(body(call))
        assert '{"n":5}' in caught.value.message
        assert asked in caught.value.message


def test_a_new_parameter_with_a_default_is_no_change(drive):
    """An effect that gained a parameter with a default goes on under its old intent."""

    async def pay_more(n: int, note: str = "") -> int:
        return n

    def body(effect: Any):
        async def inner():
            return await effect(5)

        return inner

    run = drive(body(pay))
    run.intend(run.command())
    settle = run.command()
    again = run.again(body(make_effect("pay", function=pay_more)))
    assert again.command() == settle
    again.done("r:1", 6)
    assert again.result() == 6


def test_effect_that_the_code_gave_up_is_non_determinism(drive):
    """An intent in the journal for a call that the code cancels first stops the replay."""

    async def old():
        await asyncio.gather(work(1), pay(5))

    async def new():
        paying = asyncio.create_task(work(1)), asyncio.create_task(pay(5))
        await paying[0]
        paying[1].cancel()
        await outlast.receive(go)

    run = drive(old)
    intend = run.commands()[1]
    run.done("r:1", 1)
    run.intend(intend)
    with pytest.raises(NonDeterminismError, match="gave up"):
        run.again(new)


def test_recorded_end_that_the_code_does_not_reach_is_non_determinism(drive):
    """A recorded end of another kind, or one that the code still waits before, stops the replay."""

    async def body():
        await work(1)

    async def failing():
        raise ValueError

    run = drive(body)
    with pytest.raises(NonDeterminismError, match=r"completed.*still waits"):
        run.deliver(Completed(Raw(b"null")))
    with pytest.raises(NonDeterminismError, match=r"completed.*failed"):
        drive(failing).deliver(Completed(Raw(b"null")))
