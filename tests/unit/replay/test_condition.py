"""Conditions: looked at after all messages of a turn, in order, until none fires."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.effects.retry import RetryPolicy
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


work = make_step("work")
pay, tick = make_effect("pay"), make_effect("tick", repeats=True)
go = outlast.Signal("go", int)
stop = outlast.Signal("stop", int)


def test_condition_is_looked_at_after_all_messages_of_a_turn(drive):
    """Three messages of one turn are all handled before the body goes on."""
    carried: list[int] = []

    async def body():
        async def collect():
            while True:
                carried.append(await outlast.receive(go))

        collector = asyncio.create_task(collect())
        await outlast.wait_condition(lambda: bool(carried))
        collector.cancel()
        return list(carried)

    run = drive(body)
    run.deliver(*(run.message("go", n) for n in (1, 2, 3)))
    assert run.result() == [1, 2, 3]


def test_condition_true_at_once_does_not_wait(drive):
    """A condition that holds is no wait at all."""

    async def body():
        await outlast.wait_condition(lambda: True)
        return "on"

    assert drive(body).result() == "on"


def test_condition_times_out_and_is_forgotten(drive):
    """A condition that never holds raises `TimeoutError`, and is not looked at any more."""
    looks: list[int] = []

    async def body():
        with pytest.raises(TimeoutError):
            await outlast.wait_condition(lambda: looks.append(1), timeout=timedelta(seconds=1))
        looks.clear()
        await work(1)
        await work(2)

    run = drive(body)
    run.fire("r:1")
    run.done("r:2", 1)
    assert looks == []
    assert len(run.machine._conditions) == 0


def test_condition_may_give_up_another(drive):
    """A predicate that cancels the next waiter does not break the look."""

    async def body():
        waiting: list[asyncio.Task[None]] = []
        ready = {"yet": False}

        def first() -> bool:
            return ready["yet"] and waiting[1].cancel()

        waiting += [
            asyncio.create_task(outlast.wait_condition(first)),
            asyncio.create_task(outlast.wait_condition(lambda: ready["yet"])),
        ]
        await work(1)
        ready["yet"] = True
        await asyncio.wait(waiting)
        return [task.cancelled() for task in waiting]

    run = drive(body)
    run.done("r:1", 1)
    assert run.result() == [False, True]


def test_conditions_that_make_each_other_true_all_fire(drive):
    """Conditions are looked at until none fires; each in the order in which it was waited for."""
    order: list[str] = []

    async def body():
        state = {"a": False, "b": False}

        async def wait(name: str, then: str):
            await outlast.wait_condition(lambda: state[name])
            order.append(name)
            state[then] = True

        async with asyncio.TaskGroup() as group:
            group.create_task(wait("b", "c"))
            group.create_task(wait("a", "b"))
            await work(1)
            state["a"] = True

    run = drive(body)
    run.done("r:1", 1)
    assert order == ["a", "b"]
    assert isinstance(run.machine.outcome, Completed)


def test_condition_that_raises_raises_where_it_is_waited_for(drive):
    """The error of a predicate belongs to who waits."""

    async def body():
        broken = {"yet": False}
        waiting = asyncio.create_task(
            outlast.wait_condition(lambda: 1 / 0 if broken["yet"] else False)
        )
        await work(1)
        broken["yet"] = True
        await asyncio.wait([waiting])
        return type(waiting.exception()).__name__

    run = drive(body)
    run.done("r:1", 1)
    assert run.result() == "ZeroDivisionError"


def test_intents_of_one_commit_are_not_seen_between(drive):
    """A condition over the time cannot give up an effect between two intents that one commit recorded."""

    async def body():
        due = outlast.now() + timedelta(seconds=1)
        tasks = [asyncio.create_task(pay(n)) for n in (1, 2)]
        await outlast.wait_condition(lambda: outlast.now() > due)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return [task.cancelled() for task in tasks]

    run = drive(body)
    first, second = run.commands()
    run.now += timedelta(seconds=5)
    run.intend(first)
    run.intend(second)
    run.done("r:1", 1)
    run.done("r:2", 1)
    assert run.result() == [False, True]


async def async_condition() -> bool:
    return False


class AsyncLook:
    """What inspection cannot tell from a plain condition."""

    async def __call__(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (async_condition, "is async"),
        (lambda: async_condition(), "is async"),
        (AsyncLook(), "is async"),
        (True, "cannot be called"),
    ],
    ids=["a coroutine function", "a coroutine", "an object", "a value"],
)
def test_what_is_no_condition_is_refused(drive, given, words):
    """What an async one returns is always true, and nobody would wait; the error is the workflow's to catch."""

    async def body():
        try:
            await outlast.wait_condition(given)
        except outlast.DefinitionError as error:
            return [error.message, error.hint]
        return "waited for nothing"

    message, hint = drive(body).result()
    assert words in message
    assert "function" in hint


def test_a_condition_that_turns_out_async_later_is_refused_too(drive):
    """It is looked at again, each time."""

    async def body():
        seen: list[int] = []
        outlast.on_signal(go, seen.append)
        with pytest.raises(outlast.DefinitionError, match="is async"):
            await outlast.wait_condition(lambda: bool(seen) and async_condition())
        return "went on"

    run = drive(body)
    run.deliver(run.message("go", 1))
    assert run.result() == "went on"


@pytest.mark.parametrize("at_once", [False, True])
def test_a_condition_that_runs_out_of_items_can_be_caught(drive, at_once):
    """No future carries a StopIteration; what is raised says which mistake it was, and the run goes on."""

    async def body():
        seen: list[int] = [1] if at_once else []
        outlast.on_signal(go, seen.append)
        try:
            await outlast.wait_condition(
                lambda: bool(seen) and next(one for one in seen if one > 5) > 0
            )
        except RuntimeError as error:
            return str(error)
        return "no error"

    run = drive(body)
    if not at_once:
        run.deliver(run.message("go", 1))
    assert "raised StopIteration; give next() a default" in run.result()


WAITS = {
    "sleep": outlast.sleep,
    "receive": lambda time: outlast.receive(stop, timeout=time),
    "wait_condition": lambda time: outlast.wait_condition(lambda: False, timeout=time),
}


@pytest.mark.parametrize("seconds", [5, 5.0, timedelta(seconds=5)])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_every_wait_takes_a_timedelta_or_seconds(drive, wait, seconds):
    """Alike in all of them."""

    async def body():
        with contextlib.suppress(TimeoutError):
            await wait(seconds)
        return "over"

    run = drive(body)
    timer = run.command()
    assert timer.due - timer.armed_at == timedelta(seconds=5)
    run.fire(timer.operation)
    assert run.result() == "over"


@pytest.mark.parametrize("odd", ["5", b"5", [5], float("nan"), 5j])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_what_is_no_length_of_time_is_refused(drive, wait, odd):
    """The error says what to give, and nothing has begun."""

    async def body():
        with pytest.raises(outlast.DefinitionError, match="is no length of time") as caught:
            await wait(odd)
        return caught.value.hint

    assert "timedelta(hours=1)" in drive(body).result()
