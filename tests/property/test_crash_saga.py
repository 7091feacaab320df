"""Laws of crash points in sagas: wherever a process is killed, what an aborted saga did is undone once, and nothing else is."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import Client
from outlast.effects.intent import Applied, NotApplied
from outlast.journal.entry import (
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    SagaAborted,
    SagaEnded,
)
from outlast.store.change import Status
from outlast.testing import Receiver, Trial, Workload, every_crash, undisturbed

pytestmark = pytest.mark.slow

receiver = Receiver()
TIMEOUT = timedelta(seconds=5)
THRICE = outlast.RetryPolicy(maximum_attempts=3)
go = outlast.Signal("go", int)
mended: list[str] = []
"""What an operator has put right: a compensation of it does not fail any more."""


def once(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), name)


def again(name: str) -> str:
    return receiver.apply(outlast.idempotency_key(), name)


def find(name: str) -> Applied[str] | NotApplied:
    return receiver.find(outlast.idempotency_key())


# A compensation of each declaration


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT)
async def undo(name: str) -> str:
    return once(f"undo {name}")


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT)
def send_back(result: str) -> str:
    return once(f"undo {result}")


@outlast.effect(probe=find, start_to_close_timeout=TIMEOUT)
async def undo_and_look(name: str) -> str:
    return again(f"undo {name}")


@outlast.effect(start_to_close_timeout=TIMEOUT)
async def undo_unsurely(name: str) -> str:
    return again(f"undo {name}")


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, retry=THRICE)
async def undo_at_last(name: str) -> str:
    """Fail before it has acted, then after that."""
    number = outlast.attempt().number
    if number == 1:
        raise OSError("not now")
    said = once(f"undo {name}")
    if number == 2:
        raise OSError("no answer")
    return said


@outlast.effect(
    idempotent=True,
    start_to_close_timeout=TIMEOUT,
    retry=outlast.RetryPolicy(maximum_attempts=1),
)
async def undo_when_mended(name: str) -> str:
    if name not in mended:
        raise OSError("somebody has to see to it")
    return once(f"undo {name}")


# Effects of each declaration, and with each compensation


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, compensate=undo)
async def charge(name: str) -> str:
    return once(name)


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, compensate=send_back)
async def buy(name: str) -> str:
    return once(name)


@outlast.effect(probe=find, start_to_close_timeout=TIMEOUT, compensate=undo_and_look)
async def book(name: str) -> str:
    return again(name)


@outlast.effect(start_to_close_timeout=TIMEOUT, compensate=undo)
async def wire(name: str) -> str:
    return again(name)


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, compensate=undo_unsurely)
async def hand_over(name: str) -> str:
    return once(name)


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, compensate=undo_at_last)
async def reserve(name: str) -> str:
    return once(name)


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, compensate=undo_when_mended)
async def fix(name: str) -> str:
    return once(name)


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
async def break_off() -> None:
    raise LookupError("no hotel")


# Workflows


@outlast.workflow
async def travel() -> None:
    """Idempotent, with the result, in a thread, and probed: newest first."""
    async with outlast.saga():
        await charge("a")
        await buy("b")
        await book("c")
        await break_off()


@outlast.workflow
async def short() -> None:
    async with outlast.saga():
        await charge("a")
        raise LookupError("no hotel")


@outlast.workflow
async def kept() -> str:
    async with outlast.saga():
        await charge("a")
        return await book("c")


@outlast.workflow
async def unsure() -> None:
    """What nobody but an operator can answer for, both ways."""
    async with outlast.saga():
        await wire("a")
        await hand_over("b")
        await break_off()


@outlast.workflow
async def failing() -> None:
    """A compensation whose attempts fail, before and after they have acted."""
    async with outlast.saga():
        await charge("a")
        await reserve("b")
        await break_off()


@outlast.workflow
async def stuck() -> None:
    """A compensation that gives up, until somebody has seen to it."""
    async with outlast.saga():
        await charge("a")
        await fix("b")
        await break_off()


@outlast.workflow
async def nested() -> str:
    """One inside that is borne, one inside that is kept, and one beside; then all is undone."""
    async with outlast.saga():
        await charge("a")
        with contextlib.suppress(LookupError):
            async with outlast.saga():
                await charge("b")
                await break_off()
        async with outlast.saga():
            await asyncio.gather(buy("c"), book("d"))
        await break_off()
    return "never"


@outlast.workflow
async def tried_again() -> str:
    """A part that is done, undone, and done again; then it stands."""
    async with outlast.saga():
        await charge("a")
        async for part in outlast.save_point(THRICE):
            async with part:
                said = await charge("b")
                if part.number == 1:
                    await break_off()
    return said


@outlast.workflow
async def cancelled() -> None:
    """Wait for what never comes, after two effects and with a third one in another branch."""
    async with outlast.saga():
        await charge("a")
        async with asyncio.TaskGroup() as group:
            group.create_task(book("b"))
            group.create_task(outlast.receive(go))


CODE = [
    *(undo, send_back, undo_and_look, undo_unsurely, undo_at_last, undo_when_mended),
    *(charge, buy, book, wire, hand_over, reserve, fix, break_off),
    *(travel, short, kept, unsure, failing, stuck, nested, tried_again, cancelled),
]


async def cancel(client: Client) -> None:
    """Cancel the run when it waits, and again while it undoes."""
    handle = client.handle("run")
    while not {"a", "b"} <= {value for _, value in receiver.log}:
        await asyncio.sleep(0.1)
    for _ in range(2):
        await handle.cancel()
        await asyncio.sleep(0.3)


def see_to_it(key: str) -> Applied[Any] | NotApplied:
    """Put right what keeps a compensation from being made; else tell the truth."""
    mended.append("b")
    return receiver.find(key)


def workload(workflow: Any, **more: Any) -> Workload[Any]:
    return Workload(
        lambda: workflow(), receiver=receiver, definitions=CODE, reset=mended.clear, **more
    )


FLOWS: dict[str, tuple[Any, list[str], str, dict[str, Any]]] = {
    "travel": (travel, ["a", "b", "c", "undo c", "undo b", "undo a"], "compensated", {}),
    "short": (short, ["a", "undo a"], "compensated", {}),
    "kept": (kept, ["a", "c"], "completed", {}),
    "unsure": (
        *(unsure, ["a", "b", "undo b", "undo a"], "compensated"),
        {"resolve": receiver.find},
    ),
    "failing": (failing, ["a", "b", "undo b", "undo a"], "compensated", {}),
    "stuck": (stuck, ["a", "b", "undo b", "undo a"], "compensated", {"resolve": see_to_it}),
    "tried again": (tried_again, ["a", "b", "undo b", "b"], "completed", {}),
    "cancelled": (
        *(cancelled, ["a", "b", "undo b", "undo a"], "compensated"),
        {"meanwhile": cancel},
    ),
}


def assert_undone(trial: Trial[Any], happened: list[str], status: str) -> None:
    """Everything happened once under each key, in this order; the end says so, and nothing is called that was settled."""
    assert trial.status.value == status, trial
    assert [value for _, value in receiver.log] == happened, trial
    assert set(trial.changes.values()) == {1}, trial
    assert len(trial.changes) == len(happened), trial
    entries = [one.entry for one in trial.journal]
    undone = Counter(
        one.compensates for one in entries if isinstance(one, EffectIntended) and one.compensates
    )
    assert set(undone.values()) <= {1}, trial
    intents = [one.operation for one in entries if isinstance(one, EffectIntended)]
    assert len(intents) == len(set(intents)), trial
    aborted = [one.operation for one in entries if isinstance(one, SagaAborted)]
    ended = [one.operation for one in entries if isinstance(one, SagaEnded)]
    assert len(set(aborted)) == len(aborted), trial
    assert set(aborted) <= set(ended), trial
    keys = {(call.operation, call.key) for call in trial.calls}
    assert len(keys) == len({call.operation for call in trial.calls}), trial
    for before, after in zip(trial.lives, trial.lives[1:], strict=False):
        known = EffectCompleted | EffectFailed
        settled = {one.entry.operation for one in before.left if isinstance(one.entry, known)}
        assert not settled & {call.operation for call in after.calls}, trial


@pytest.mark.parametrize("name", FLOWS)
def test_every_crash_leads_to_the_undisturbed_undoing(name: str) -> None:
    """Before and after each commit, attempt and probe: of what is done, of what is undone, and between them."""
    workflow, happened, status, more = FLOWS[name]
    work = workload(workflow, **more)
    plain = undisturbed(work)
    assert_undone(plain, happened, status)
    tried = 0
    for trial in every_crash(work):
        assert_undone(trial, happened, status)
        tried += 1
    assert tried == len(plain.lives[0].points) >= 10


def test_every_crash_of_nested_sagas_undoes_each_part_once() -> None:
    """Effects side by side are undone in the order of their intents, backwards, whichever was first."""
    work = workload(nested)
    for trial in [undisturbed(work), *every_crash(work)]:
        happened = [value for _, value in receiver.log]
        assert happened[:3] == ["a", "b", "undo b"], trial
        assert sorted(happened[3:5]) == ["c", "d"], trial
        assert_undone(trial, [*happened[:5], "undo d", "undo c", "undo a"], "compensated")


@pytest.mark.parametrize("name", ["short"])
def test_every_crash_in_every_recovery_leads_there_too(name: str) -> None:
    """With a second crash, wherever the process that recovers may be killed."""
    workflow, happened, status, more = FLOWS[name]
    for trial in every_crash(workload(workflow, **more), crashes=2):
        assert_undone(trial, happened, status)


@pytest.mark.soak
@pytest.mark.parametrize("name", FLOWS)
def test_every_crash_in_every_recovery_of_every_saga(name: str) -> None:
    """Two crashes in a row, in the large ones too."""
    workflow, happened, status, more = FLOWS[name]
    for trial in every_crash(workload(workflow, **more), crashes=2):
        assert_undone(trial, happened, status)


def test_without_an_operator_nothing_is_undone_past_what_is_in_doubt() -> None:
    """A crash leaves the older effects as they are, visibly, until somebody has said what became of the newer one."""
    blocked: Counter[str] = Counter()
    for trial in every_crash(workload(unsure)):
        happened = [value for _, value in receiver.log]
        assert set(trial.changes.values()) <= {1}, trial
        if trial.status is Status.BLOCKED:
            (doubt,) = [one.entry for one in trial.journal if isinstance(one.entry, EffectInDoubt)]
            blocked[doubt.name] += 1
            assert "undo a" not in happened, trial
        else:
            assert_undone(trial, ["a", "b", "undo b", "undo a"], "compensated")
    # From the intent until the outcome is recorded.
    assert blocked == {"wire": 4, "undo_unsurely": 4}
