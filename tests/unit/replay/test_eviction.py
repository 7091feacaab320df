"""Leaving memory: clean-up runs and reaches nothing."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    DefinitionError,
)
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


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


def ask(*covers: Any, **more: Any) -> Any:
    return outlast.approval(
        {"sum": 5}, covers=covers, role="boss", expires_in=timedelta(hours=1), **more
    )


def evicted(drive: Any, body: Any) -> Any:
    """Evict a run; see that its clean-up begins nothing and gives nothing up."""
    run = drive(body)
    run.commands()
    reached: list[Any] = []
    agenda: Any = run.machine._agenda
    agenda.open = agenda.abandon = lambda *what: reached.append(what)
    run.machine.evict()
    assert reached == []
    assert run.commands() == []
    return run


def test_eviction_runs_clean_up_that_reaches_nothing(drive):
    """`finally`, `except BaseException`, `async with` and async generators end without a word to the journal."""
    seen: list[str] = []

    @asynccontextmanager
    async def resource():
        try:
            yield
        finally:
            seen.append("with")
            await work(2)
            seen.append("not reached")

    async def numbers():
        try:
            yield 1
        finally:
            seen.append("generator")
            await pay(3)
            seen.append("not reached")

    async def body():
        async with aclosing(numbers()) as stream, resource():
            await anext(stream)
            try:
                await work(1)
            except BaseException:
                seen.append("except")
                await outlast.sleep(5)
                seen.append("not reached")
            finally:
                seen.append("finally")
                await ask()
                seen.append("not reached")

    run = evicted(drive, body)
    assert seen == ["except", "finally", "with", "generator"]
    assert run.machine.pinned == 0


def test_eviction_keeps_a_task_that_will_not_end(drive):
    """A loop that swallows everything is given up after a while and reported, whatever it waits for."""

    def body(wait: Any):
        async def inner():
            while True:
                try:
                    await wait()
                except BaseException:
                    outlast.now(), outlast.uuid4(), outlast.info()

        return inner

    for wait in (
        lambda: work(1),
        lambda: pay(1),
        ask,
        lambda: outlast.sleep(5),
        lambda: outlast.receive(go),
        lambda: outlast.wait_condition(lambda: outlast.now() > EPOCH),
    ):
        assert evicted(drive, body(wait)).machine.pinned == 1


def test_swallowing_clock_watcher_does_not_hang_the_eviction(drive):
    """Reading the time under eviction gives the time: an exception there would spin in a loop that swallows it."""

    async def body():
        while True:
            with suppress(BaseException):
                if outlast.now() > EPOCH:
                    return
                await outlast.sleep(1)

    assert evicted(drive, body).machine.pinned == 1


def test_eviction_while_messages_wait_takes_none(drive):
    """A receive that clean-up calls takes no message, and no condition holds."""
    seen: list[Any] = []

    async def body():
        try:
            await work(1)
        finally:
            seen.append("cleaning")
            try:
                seen.append(await outlast.receive(go))
            finally:
                await outlast.wait_condition(lambda: True)
                seen.append("not reached")

    run = drive(body)
    run.deliver(run.message("go", 1))
    run.machine.evict()
    assert seen == ["cleaning"]


def test_a_call_used_twice_is_refused(drive):
    """A call happens once: awaited again, or started and awaited, it is refused."""

    async def body():
        call = work(1)
        task = asyncio.create_task(call)
        with pytest.raises(DefinitionError, match="used twice"):
            await call
        return await task

    run = drive(body)
    run.done("r:1", 4)
    assert run.result() == 4


def test_eviction_of_a_run_that_waits_for_its_effect_finishes_nothing(drive):
    """A body that has ended while an effect is unsettled is not finished by leaving memory."""

    async def body():
        asyncio.create_task(pay(1))
        await work(2)

    run = drive(body)
    run.intend(run.commands()[0])
    run.done("r:2", 1)
    run.machine.evict()
    assert run.commands() == []
