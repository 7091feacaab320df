"""What `outlast replay` says of a journal under other code: a green answer means that a worker goes on with the run."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

import outlast
from outlast.replay.delivery import in_callback
from outlast.store.change import RunHead, Status
from outlast.testing import Simulation
from outlast.testing.golden import export
from outlast.testing.rehearsal import Rehearsal, rehearse
from outlast.workflows.definition import (
    AttemptOptions,
    Definition,
    Effect,
    EffectOptions,
    Workflow,
)
from outlast.workflows.registry import Registry

GO = outlast.Signal("rehearsed go", int)
WORD = outlast.Signal("rehearsed go", str)


def flow(function: Callable[..., Any]) -> list[Definition[..., Any]]:
    """Return the code of an app: this function, as workflow `flow`."""
    return [Workflow(function, "flow")]


async def former(n: int) -> int:
    told = await outlast.receive(GO)
    return n + told + await outlast.receive(GO)


async def with_other_arguments(n: str, more: int) -> int:
    return len(n) + more


async def with_one_more_argument(n: int, more: int = 0) -> int:
    return await former(n + more)


async def raises_at_the_last_entry(n: int) -> int:
    await outlast.receive(GO)
    raise KeyError("new code\nbreaks here")


async def raises_at_once(n: int) -> int:
    raise KeyError("new code breaks at once")


async def with_another_signal(n: int) -> int:
    await outlast.receive(WORD)
    return n + await outlast.receive(GO)


def waiting(head: RunHead) -> bool:
    return head.status is Status.WAITING and head.next_seq == 3


def rehearsed(code: Callable[..., Any], *, begun: bool = True) -> Rehearsal:
    """Return how a run of the former code replays with this one."""

    async def scenario(sim: Simulation) -> Rehearsal:
        definitions = flow(former)
        handle = await sim.client.start(definitions[0](4), id="r")
        if begun:
            await sim.start_worker()
            await handle.send(GO, 1)
            await sim.until("r", waiting)
        golden = await export(sim.store, "r")
        return await in_callback(lambda: rehearse(golden, Registry(flow(code))))

    return Simulation(flow(former)).run(scenario)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("code", [former, with_one_more_argument])
def test_code_that_fits_replays(code: Callable[..., Any], begun: bool) -> None:
    """Queued or waiting."""
    told = rehearsed(code, begun=begun)
    assert (told.stops, told.why, told.entries) == ("", "", 3 if begun else 1)


@pytest.mark.parametrize("begun", [False, True])
def test_arguments_that_no_longer_fit_are_told_also_of_a_queued_run(begun: bool) -> None:
    """A worker would decode them first of all, and block the run."""
    told = rehearsed(with_other_arguments, begun=begun)
    assert told.stops == "undecodable"
    assert "arguments of workflow flow" in told.why
    assert begun or told.position == 0


@pytest.mark.parametrize(("code", "position"), [(raises_at_the_last_entry, 2), (raises_at_once, 1)])
def test_code_that_raises_where_the_journal_goes_on_would_fail_the_run(
    code: Callable[..., Any], position: int
) -> None:
    """It says with what, where, and after which entry."""
    told = rehearsed(code)
    assert (told.stops, told.position) == ("failed", position)
    assert told.why.startswith("KeyError: 'new code")
    assert f"in {code.__name__}" in told.why
    assert "before it is deployed" in told.remedy[0]


def test_a_message_that_no_longer_fits_is_told() -> None:
    """The worker would block the run."""
    told = rehearsed(with_another_signal)
    assert (told.stops, told.position) == ("undecodable", 2)


@outlast.step
async def rehearsed_step(n: int) -> int:
    return n


async def with_two_steps(n: int) -> int:
    return await rehearsed_step(await rehearsed_step(n)) + await outlast.receive(GO)


async def raises_before_a_step(n: int) -> int:
    raise TypeError("a weight is needed")


def test_code_that_raises_before_an_operation_of_the_journal_is_told_by_what_it_raised() -> None:
    """And no patch is proposed: what there is to do is to mend the code."""

    async def scenario(sim: Simulation) -> Rehearsal:
        definitions = flow(with_two_steps)
        await sim.client.start(definitions[0](4), id="r")
        await sim.start_worker()
        await sim.until("r", lambda head: head.status is Status.WAITING)
        golden = await export(sim.store, "r")
        return await in_callback(
            lambda: rehearse(golden, Registry([*flow(raises_before_a_step), rehearsed_step]))
        )

    told = Simulation([*flow(with_two_steps), rehearsed_step]).run(scenario)
    assert (told.stops, told.position) == ("non-determinism", 2)
    assert told.recorded == "step rehearsed_step at r:1"
    assert told.asked.startswith("raised TypeError: a weight is needed at test_rehearsal.py:")
    assert len(told.remedy) == 1
    assert told.remedy[0].startswith("mend the code where it raises")


async def gives_back(result: str) -> None:
    raise ConnectionError("closed")


async def rents(what: str) -> str:
    return what


def renting(*, undone: bool) -> list[Definition[..., Any]]:
    """Return the code of an app whose effect something undoes, or nothing."""
    options = AttemptOptions(outlast.RetryPolicy(maximum_attempts=1), timedelta(seconds=1))
    rules = EffectOptions(idempotent=True, settle=timedelta(0))
    back = Effect(gives_back, "gives_back", options, rules)
    rent = Effect(rents, "rents", options, replace(rules, compensate=back if undone else None))

    async def flow_of_rent() -> None:
        async with outlast.saga():
            await rent("boat")
            raise LookupError("no lake")

    return [Workflow(flow_of_rent, "flow"), rent, back]


def test_a_compensation_that_is_gone_is_told_with_what_to_do() -> None:
    """No patch would bring it back: the code that declares it has to be deployed."""

    async def scenario(sim: Simulation) -> Rehearsal:
        await sim.start_worker()
        await sim.client.start(former_code[0](), id="r")
        await sim.until("r", lambda head: head.reason == "compensation failed")
        golden = await export(sim.store, "r")
        return await in_callback(lambda: rehearse(golden, Registry(renting(undone=False))))

    former_code = renting(undone=True)
    told = Simulation(former_code).run(scenario)
    assert told.stops == "non-determinism"
    assert told.recorded == "compensate=gives_back"
    assert told.remedy[0].startswith("deploy code whose effect says compensate=gives_back")
