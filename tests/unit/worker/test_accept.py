"""What an operator accepts: recorded arguments that the code of today would not give, at one place of one journal."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

import outlast
from outlast.client import RunHandle
from outlast.errors import DefinitionError, RunConflictError, RunNotFoundError
from outlast.journal.entry import Accepted, AlarmRaised, EffectIntended
from outlast.store.change import Message, MessageKind, PutMessage, RunHead, RunKey, Status
from outlast.testing import Simulation
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import (
    AttemptOptions,
    Definition,
    Effect,
    EffectOptions,
    Step,
    Workflow,
)

GO = outlast.Signal("go on with it", int)
paid: list[Any] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    paid.clear()


async def _pay(amount: int) -> int:
    paid.append(amount)
    return amount


PAY = Effect(_pay, "pay", AttemptOptions(), EffectOptions(idempotent=True))
OTHER = Effect(_pay, "transfer", AttemptOptions(), EffectOptions(idempotent=True))
STEP = Step(_pay, "pay", AttemptOptions())


def build(
    body: Callable[[], Coroutine[Any, Any, Any]], module: str, *more: Definition[..., Any]
) -> list[Definition[..., Any]]:
    """Return a workflow of the name `flow` as one build of the app."""

    async def flow() -> list[int]:
        return await body()

    workflow = Workflow(flow)
    workflow.__module__ = module
    return [workflow, PAY, *more]


async def _in_euros() -> list[int]:
    first = await PAY(10)
    await outlast.receive(GO)
    return [first, await PAY(11)]


async def _in_cents() -> list[int]:
    first = await PAY(1000)
    await outlast.receive(GO)
    return [first, await PAY(1100)]


async def _as_transfer() -> list[int]:
    first = await OTHER(10)
    await outlast.receive(GO)
    return [first]


EUROS, CENTS = build(_in_euros, "v1"), build(_in_cents, "v2")


def blocked(head: RunHead) -> bool:
    return head.status is Status.BLOCKED and head.owner is None


async def changed(
    sim: Simulation, after: list[Definition[..., Any]]
) -> tuple[RunHandle[Any], RunHead]:
    """Begin a run with euros, and let other code meet it."""
    first = await sim.start_worker(definitions=EUROS)
    handle = await sim.client.start(EUROS[0](), id="r")
    await sim.until("r", lambda head: head.status is Status.WAITING)
    await first.stop()
    await sim.start_worker(definitions=after)
    await handle.send(GO, 1)
    return handle, await sim.until("r", blocked)


def test_a_changed_argument_is_accepted_where_it_stands() -> None:
    """The run goes on by itself, with what was recorded; who said so and why is in the journal; later replays know it."""

    async def scenario(sim: Simulation) -> Any:
        handle, head = await changed(sim, CENTS)
        error = msgspec.json.decode(head.note)["error"]
        await handle.accept(entry=2, reason="the same amount")
        result = await handle.result()
        journal = await handle.journal()
        return error, result, [one.entry for one in journal], head.reason

    error, result, entries, reason = Simulation([]).run(scenario)
    assert reason == "non-determinism"
    assert 'journal entry 2: {"amount":10}' in error
    assert 'code: {"amount":1000}' in error
    assert "outlast runs accept r --entry 2 --reason TEXT" in error
    assert (result, paid) == ([10, 1100], [10, 1100])
    (said,) = [one for one in entries if isinstance(one, Accepted)]
    assert said == Accepted(2, None, by="tester", reason="the same amount")
    intents = [one for one in entries if isinstance(one, EffectIntended)]
    assert [json.loads(bytes(one.requested)) for one in intents] == [
        {"amount": 10},
        {"amount": 1100},
    ]


def test_another_difference_still_stops_it() -> None:
    """Only that entry is accepted: the second one with other arguments is a mismatch of its own."""

    async def three(scale: int) -> list[int]:
        found = [await PAY(n * scale) for n in (1, 2)]
        await outlast.receive(GO)
        return found

    before = build(lambda: three(1), "v1")
    after = build(lambda: three(100), "v2")

    async def scenario(sim: Simulation) -> Any:
        first = await sim.start_worker(definitions=before)
        handle = await sim.client.start(before[0](), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        await first.stop()
        await sim.start_worker(definitions=after)
        await handle.send(GO, 1)
        version = (await sim.until("r", blocked)).version
        await handle.accept(entry=2, reason="cents")
        head = await sim.until("r", lambda head: blocked(head) and head.version > version)
        error = msgspec.json.decode(head.note)["error"]
        await handle.accept(entry=4, reason="cents too")
        return error, await handle.result()

    error, result = Simulation([]).run(scenario)
    assert "journal entry 4" in error
    assert (result, paid) == ([1, 2], [1, 2])


@pytest.mark.parametrize(
    "after",
    [build(_as_transfer, "v2", OTHER), [build(_in_cents, "v2")[0], STEP]],
    ids=["another effect", "a step"],
)
def test_another_kind_or_name_is_never_accepted(after: list[Definition[..., Any]]) -> None:
    """What is accepted are arguments; an operator's word does not make one effect another."""
    if STEP in after:

        async def steps() -> list[int]:
            first = await STEP(10)
            await outlast.receive(GO)
            return [first]

        after = [build(steps, "v2")[0], STEP]

    async def scenario(sim: Simulation) -> Any:
        handle, head = await changed(sim, after)
        await handle.accept(entry=2, reason="I insist")
        again = await sim.until("r", lambda one: blocked(one) and one.version > head.version)
        await sim.start_worker(definitions=EUROS)
        return again.reason, await handle.result()

    assert Simulation([]).run(scenario) == ("non-determinism", [10, 11])
    assert paid == [10, 11]


def test_what_cannot_be_accepted_is_refused_at_once() -> None:
    """Nothing, an entry that is no intent or is not there, a run that has ended or never was."""

    async def scenario(sim: Simulation) -> None:
        handle, _ = await changed(sim, CENTS)
        for how, match in (
            ({}, "nothing is named"),
            ({"entry": 0}, "entry 0 is started"),
            ({"entry": 3}, "entry 3 is effect_completed"),
            ({"entry": 99}, "there is no entry 99"),
            ({"entry": -1}, "there is no entry -1"),
        ):
            with pytest.raises(DefinitionError, match=match):
                await handle.accept(**how, reason="why not")
        await handle.accept(entry=2, reason="fine")
        await handle.result()
        with pytest.raises(RunConflictError):
            await handle.accept(entry=2, reason="too late")
        with pytest.raises(RunNotFoundError):
            await sim.client.handle("no").accept(entry=2, reason="nobody")

    Simulation([]).run(scenario)


def test_an_acceptance_of_another_generation_is_put_aside() -> None:
    """It spoke of another journal: an alarm, and nothing else."""

    async def scenario(sim: Simulation) -> Any:
        handle, head = await changed(sim, CENTS)
        body = b'{"generation":2,"entry":2,"by":"ann","reason":"late"}'
        message = Message("accept/raw", MessageKind.ACCEPT, "", "ann", body)
        await sim.client.commit(PutMessage(RunKey("default", "r"), message))
        await sim.until("r", lambda one: blocked(one) and one.version > head.version)
        alarms = [one.entry for one in await handle.journal() if isinstance(one.entry, AlarmRaised)]
        detail = await handle.detail()
        await handle.terminate()
        return alarms, detail.alarms

    (alarm,), (shown,) = Simulation([]).run(scenario)
    assert alarm.what == shown.what == "unfit_acceptance"
    assert "another generation" in shown.why


def test_an_unreadable_acceptance_does_not_stop_the_run() -> None:
    """As any other message that nobody can read."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker(definitions=EUROS)
        handle = await sim.client.start(EUROS[0](), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        message = Message("accept/raw", MessageKind.ACCEPT, "", "ann", b"[")
        await sim.client.commit(PutMessage(RunKey("default", "r"), message))
        await asyncio.sleep(5)
        await handle.send(GO, 1)
        result = await handle.result()
        kinds = [one.entry for one in await handle.journal() if isinstance(one.entry, AlarmRaised)]
        return result, [one.what for one in kinds]

    options = WorkerOptions(library="simulated")
    assert Simulation([], options=options).run(scenario) == ([10, 11], ["unreadable_message"])
