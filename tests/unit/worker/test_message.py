"""What somebody mistyped does not end a run: it is put aside, said, and the run waits on. What was put aside is seen from outside."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

import outlast
from outlast.client import RunDetail
from outlast.journal.entry import AlarmRaised, MessageReceived, from_row
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Simulation

count = outlast.Signal("a count", int)


@outlast.effect(idempotent=True)
async def ship(place: str) -> str:
    return place


@outlast.effect(start_to_close_timeout=timedelta(seconds=5))
async def lose(amount: int) -> int:
    raise OSError("the answer was lost")


@outlast.workflow
async def wait_for_count() -> int:
    return await outlast.receive(count)


@outlast.workflow
async def ask_then_wait() -> int:
    await outlast.approval(
        "ship", covers=[ship("here")], role="boss", expires_in=timedelta(hours=1)
    )
    return await outlast.receive(count)


@outlast.workflow
async def lose_once() -> int:
    return await lose(5)


CODE = [ship, lose, wait_for_count, ask_then_wait, lose_once]


def parked(head: RunHead) -> bool:
    """Whether the run was given back and waits."""
    return head.status in {Status.WAITING, Status.BLOCKED} and head.owner is None


def test_a_value_that_does_not_fit_is_put_aside() -> None:
    """The run goes on waiting, says what is wrong with what came, and takes the next one."""

    async def scenario(sim: Simulation) -> tuple[RunDetail, object, RunDetail, int]:
        await sim.start_worker()
        handle = await sim.client.start(wait_for_count(), id="r")
        await sim.until("r", parked)
        await handle.send("a count", "five")
        await sim.until("r", lambda head: parked(head) and head.next_seq == 3)
        unfit = await handle.detail()
        noted = (await handle.status()).waits["alarms"]
        await handle.send(count, 5)
        await sim.closed("r")
        return unfit, noted, await handle.detail(), await handle.result()

    unfit, noted, after, result = Simulation(CODE).run(scenario)
    (alarm,) = unfit.alarms
    assert (alarm.what, alarm.about, alarm.by) == ("unfit_message", "a count", "tester")
    assert "expected int" in alarm.why
    assert noted == ["unfit_message a count"]
    assert (after.alarms, result) == ([], 5)


@pytest.mark.parametrize(("name", "value"), [("a count", 5), ("nobody declares this", {"any": 1})])
def test_what_fits_or_is_not_declared_is_taken(name: str, value: object) -> None:
    """A value that fits, and a value of a name that no code knows, are messages."""

    async def scenario(sim: Simulation) -> list[object]:
        await sim.start_worker()
        handle = await sim.client.start(wait_for_count(), id="r")
        await sim.until("r", parked)
        await handle.send(name, value)
        await sim.until(
            "r", lambda head: head.next_seq > 2 and (parked(head) or head.status.closed)
        )
        return [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]

    entries = Simulation(CODE).run(scenario)
    (message,) = [one for one in entries if isinstance(one, MessageReceived)]
    assert msgspec.json.decode(message.value) == value
    assert not any(isinstance(one, AlarmRaised) for one in entries)


def test_a_resolve_that_does_not_fit_is_seen_until_one_fits() -> None:
    """The alarm stands at the operation, is noted with the row, and is over with the outcome."""

    async def scenario(sim: Simulation) -> tuple[RunDetail, object, RunDetail]:
        await sim.start_worker()
        handle = await sim.client.start(lose_once(), id="r")
        await sim.until("r", parked)
        await handle.resolve("r:1", applied="many")
        await handle.resolve("r:9", not_applied=True)
        await sim.until("r", lambda head: parked(head) and head.next_seq == 6)
        unfit = await handle.detail()
        noted = (await handle.status()).waits["alarms"]
        await handle.resolve("r:1", applied=5)
        await sim.closed("r")
        return unfit, noted, await handle.detail()

    unfit, noted, after = Simulation(CODE).run(scenario)
    assert [(one.what, one.operation, one.about, one.said) for one in unfit.alarms] == [
        ("unfit_outcome", "r:1", "r:1", "applied"),
        ("unfit_outcome", "", "r:9", "not_applied"),
    ]
    assert noted == ["unfit_outcome r:1", "unfit_outcome r:9"]
    assert (after.alarms, after.status.status) == ([], Status.COMPLETED)


def test_a_granted_approval_is_no_longer_waited_for() -> None:
    """A run that is parked after a yes waits for its message only, and is not woken by the request's deadline."""

    async def scenario(sim: Simulation) -> tuple[dict[str, object], object]:
        await sim.start_worker()
        handle = await sim.client.start(ask_then_wait(), id="r")
        await sim.until("r", parked)
        (view,) = await sim.client.approvals.list()
        await sim.client.approvals.approve("r", view.approval_id, seen_sha256=view.subject_sha256)
        head = await sim.until("r", lambda head: parked(head) and head.next_seq == 4)
        return (await handle.status()).waits, head.wake_at

    waits, wake_at = Simulation(CODE).run(scenario)
    assert (waits["approvals"], waits["signals"], wake_at) == ({}, ["a count"], None)
