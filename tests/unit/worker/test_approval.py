"""Approvals as the worker moves them: request, decision, expiry, and grants that are spent once."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import outlast
from outlast.journal.entry import ApprovalExpired, EffectRefused, Entry, from_row
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, Receiver, Simulation

receiver = Receiver()


@outlast.effect(idempotent=True, repeats=True)
async def pay(amount: int) -> int:
    return receiver.apply_once(outlast.idempotency_key(), amount)


@outlast.workflow
async def pay_after_yes(expires: float, use_within: float, wait: float) -> int:
    await outlast.approval(
        "pay 5",
        covers=[pay(5)],
        role="boss",
        expires_in=timedelta(seconds=expires),
        use_within=timedelta(seconds=use_within),
    )
    if wait:
        await outlast.sleep(wait)
    return await pay(5)


@outlast.workflow
async def pay_twice() -> list[str]:
    await outlast.approval("pay", covers=[pay(5)], role="boss", expires_in=timedelta(hours=1))
    said = [str(await pay(5))]
    try:
        await pay(5)
    except outlast.ApprovalError as error:
        said.append(type(error).__name__)
    return said


@outlast.workflow
async def pay_both_late() -> list[str]:
    await outlast.approval(
        "pay both", covers=[pay(1), pay(2)], role="boss", expires_in=timedelta(seconds=50)
    )
    await outlast.sleep(100)
    results = await asyncio.gather(pay(1), pay(2), return_exceptions=True)
    return [type(one).__name__ for one in results]


CODE = [pay, pay_after_yes, pay_twice, pay_both_late]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()


async def decide(sim: Simulation, *, yes: bool = True) -> None:
    """Decide the one request of the run when it is there."""
    while not (views := await sim.client.approvals.list()):
        await asyncio.sleep(0.1)
    (view,) = views
    act = sim.client.approvals.approve if yes else sim.client.approvals.deny
    await act("r", view.approval_id, seen_sha256=view.subject_sha256)


async def entries(sim: Simulation) -> list[Entry]:
    """Return the run's journal."""
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]


def test_a_yes_lets_the_effect_happen_once() -> None:
    """The grant is spent to its operation; a second call of the same action is refused."""

    async def scenario(sim: Simulation) -> tuple[list[str], tuple[str, ...]]:
        await sim.start_worker()
        handle = await sim.client.start(pay_twice(), id="r")
        await decide(sim)
        await sim.closed("r")
        (view,) = await sim.client.approvals.list(pending=False)
        return await handle.result(), view.spent

    assert Simulation(CODE).run(scenario) == (["5", "ApprovalSpentError"], ("r:2",))
    assert receiver.total == 1


def test_a_no_prevents_the_effect() -> None:
    """The workflow gets the refusal."""

    async def scenario(sim: Simulation) -> Status:
        await sim.start_worker()
        await sim.client.start(pay_after_yes(60, 60, 0), id="r")
        await decide(sim, yes=False)
        return (await sim.closed("r")).status

    assert Simulation(CODE).run(scenario) is Status.FAILED
    assert receiver.total == 0


def test_a_request_expires() -> None:
    """Nobody decides: the run ends as cancelled, also when no worker lived at the moment."""

    async def scenario(sim: Simulation) -> tuple[Status, bool]:
        first = await sim.start_worker()
        await sim.client.start(pay_after_yes(60, 60, 0), id="r")
        await asyncio.sleep(5)
        first.kill()
        await asyncio.sleep(120)
        await sim.start_worker()
        head = await sim.closed("r")
        return head.status, any(isinstance(one, ApprovalExpired) for one in await entries(sim))

    assert Simulation(CODE).run(scenario) == (Status.CANCELLED, True)


@pytest.mark.parametrize("seed", range(30))
def test_a_decision_that_races_with_the_expiry(seed: int) -> None:
    """What the approver was told is what happens: accepted means granted, refused means expired."""

    async def scenario(sim: Simulation) -> tuple[bool, Status]:
        await sim.start_worker()
        await sim.client.start(pay_after_yes(10, 60, 0), id="r")
        while not (views := await sim.client.approvals.list()):
            await asyncio.sleep(0.05)
        (view,) = views
        until = (view.expires_at - sim.clock.now()).total_seconds()
        await asyncio.sleep(until - 0.1 + sim.source("moment").uniform(0, 0.2))
        try:
            await sim.client.approvals.approve(
                "r", view.approval_id, seen_sha256=view.subject_sha256
            )
            accepted = True
        except outlast.DecisionRefusedError:
            accepted = False
        return accepted, (await sim.closed("r")).status

    accepted, status = Simulation(CODE, seed=seed, faults=Faults(latency=0.1)).run(scenario)
    assert status is (Status.COMPLETED if accepted else Status.CANCELLED)
    assert receiver.total == accepted


def test_a_grant_that_is_used_too_late_is_refused() -> None:
    """The intent commit checks the time by the store's clock; nothing happens, and the workflow is told."""

    async def scenario(sim: Simulation) -> tuple[Status, list[str]]:
        await sim.start_worker()
        await sim.client.start(pay_after_yes(60, 120, 200), id="r")
        await decide(sim)
        head = await sim.closed("r")
        refused = [one for one in await entries(sim) if isinstance(one, EffectRefused)]
        return head.status, [one.failure.type for one in refused]

    status, refused = Simulation(CODE).run(scenario)
    assert status in {Status.CANCELLED, Status.FAILED}
    assert [one.rpartition(".")[2] for one in refused] == ["ApprovalExpiredError"]
    assert receiver.total == 0


def test_each_of_two_refused_effects_is_told() -> None:
    """Two covers of one grant, both too late, asked for at the same moment."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        handle = await sim.client.start(pay_both_late(), id="r")
        await decide(sim)
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == ["ApprovalExpiredError"] * 2
    assert receiver.total == 0


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commit", range(1, 7))
def test_a_kill_at_each_commit_of_an_approval(moment: str, commit: int) -> None:
    """Asked once, granted once, spent once."""

    async def scenario(sim: Simulation) -> tuple[int, int]:
        first = await sim.start_worker()

        def at_commit(when: str, number: int) -> None:
            if (when, number) == (moment, commit):
                first.kill()

        first.store.at_commit = at_commit
        handle = await sim.client.start(pay_after_yes(600, 600, 0), id="r")
        decision = sim.spawn(decide(sim))
        await sim.until("r", lambda head: head.status.closed or first.process.dead)
        await sim.start_worker()
        await sim.closed("r")
        await decision
        views = await sim.client.approvals.list(pending=False)
        return await handle.result(), len(views)

    assert Simulation(CODE).run(scenario) == (5, 1)
    assert receiver.total == 1
