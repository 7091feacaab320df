"""Receivers that forget a key after a while: what may have happened is not called when they could take the key for a new one."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from outlast.journal.entry import (
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    Entry,
    from_row,
)
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import SimulatedWorker, Simulation
from outlast.testing.loop import current_process
from outlast.worker.worker import WorkerOptions

MINUTE = timedelta(minutes=1)
MEMORY = 10 * MINUTE
TIMEOUT = timedelta(seconds=20)
SETTLE = timedelta(seconds=2)
LAST = MEMORY - TIMEOUT - SETTLE
"""How long after the first use an attempt may still begin."""

plan: list[str] = []
"""What happens to the attempts in turn: `die before`, `die after`, `fail`, `refuse`, or nothing special."""
began: list[datetime] = []
keys: Counter[str] = Counter()
changes: Counter[str] = Counter()
known: dict[str, datetime] = {}
sims: list[Simulation] = []
workers: list[SimulatedWorker] = []


class NoSuchAccountError(Exception):
    """Proves that nothing happened."""


def receive(key: str) -> str:
    """Do it, unless the key is known, and was not forgotten since."""
    now = sims[-1].clock.now()
    if key not in known or now - known[key] >= MEMORY:
        known[key] = now
        changes[key] += 1
    return "done"


async def die() -> None:
    found = current_process.get()
    assert found is not None
    next(one for one in workers if one.process.name == found.name.partition("/")[0]).kill()
    await asyncio.sleep(0.1)


RULES: dict[str, Any] = {
    "idempotent": True,
    "idempotent_for": MEMORY,
    "start_to_close_timeout": TIMEOUT,
    "settle": SETTLE,
    "not_applied": (NoSuchAccountError,),
}


async def act() -> str:
    began.append(sims[-1].clock.now())
    step = plan.pop(0) if plan else ""
    key = outlast.idempotency_key()
    keys[key] += 1
    if step == "die before":
        await die()
    if step == "refuse":
        raise NoSuchAccountError("no")
    if step == "late":
        # The request is on its way for as long as the attempt may take.
        await asyncio.sleep((TIMEOUT + SETTLE).total_seconds() - 3)
    result = receive(key)
    if step == "die after":
        await die()
    if step in ("fail", "late"):
        raise OSError("the answer was lost")
    return result


@outlast.effect(retry=outlast.RetryPolicy(MINUTE, backoff_coefficient=1), **RULES)
async def often(n: int) -> str:
    return await act()


@outlast.effect(retry=outlast.RetryPolicy(maximum_attempts=1), **RULES)
async def once(n: int) -> str:
    return await act()


@outlast.effect(retry=outlast.RetryPolicy(MINUTE, backoff_coefficient=1), **RULES)
def queued(n: int) -> str:
    began.append(sims[-1].clock.now())
    if len(began) == 1:
        workers[0].threads.busy(TIMEOUT.total_seconds() / 2)
    return receive(outlast.idempotency_key())


@outlast.workflow
async def use(which: str) -> str:
    return await {"often": often, "once": once, "queued": queued}[which](5)


@outlast.workflow
async def use_again(minutes: float) -> str:
    try:
        return await once(5)
    except OSError as error:
        notes = error.__notes__
    await outlast.sleep(minutes * 60)
    return f"{await once(5)}: {notes[0]}"


CODE = [often, once, queued, use, use_again]


@pytest.fixture(autouse=True)
def _clean() -> None:
    clean()


def clean() -> None:
    for one in (plan, began, keys, changes, known, sims, workers):
        one.clear()


def simulation(**options: Any) -> Simulation:
    sims.append(
        Simulation(
            CODE,
            options=WorkerOptions(library="simulated"),
            longest=timedelta(days=2),
            **options,
        )
    )
    return sims[-1]


async def worker(sim: Simulation) -> SimulatedWorker:
    workers.append(await sim.start_worker())
    return workers[-1]


async def entries(sim: Simulation, run: str = "r") -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", run))]


def over(head: RunHead) -> bool:
    return head.status.closed or head.status is Status.BLOCKED


async def doubt(sim: Simulation, run: str = "r") -> EffectInDoubt:
    """Return the doubt in which the run waits."""
    head = await sim.until(run, over)
    assert (head.status, head.reason) == (Status.BLOCKED, "in doubt")
    last = (await entries(sim, run))[-1]
    assert isinstance(last, EffectInDoubt)
    return last


def since_first_use() -> timedelta:
    return began[-1] - began[0]


def test_nothing_is_retried_when_its_receiver_has_forgotten_the_key() -> None:
    """The answers are lost again and again: the last attempt comes as long before as it may act, then an operator is asked."""
    plan.extend(["fail"] * 100)

    async def scenario(sim: Simulation) -> EffectInDoubt:
        await worker(sim)
        await sim.client.start(use("often"), id="r")
        return await doubt(sim)

    found = simulation().run(scenario)
    assert len(began) > 2
    assert since_first_use() <= LAST
    assert list(changes.values()) == [1]
    assert "its receiver forgets a key after 0:10:00" in found.why
    assert f"used first at {began[0]:%Y-%m-%d %H:%M}" in found.why
    assert "the last one ended in OSError: the answer was lost" in found.why


@pytest.mark.parametrize(
    ("down", "calls"), [(LAST - MINUTE, 2), (LAST + MINUTE, 1), (timedelta(hours=20), 1)]
)
@pytest.mark.parametrize("cut", ["die before", "die after", "fail"])
def test_after_an_outage_the_key_is_used_or_given_up(cut: str, down: timedelta, calls: int) -> None:
    """Whoever finds the run asks how old the key is: the attempt may have happened, be it cut off or failed."""
    plan.append(cut)

    async def scenario(sim: Simulation) -> Status:
        first = await worker(sim)
        await sim.client.start(use("often"), id="r")
        while not began:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        first.kill()
        await asyncio.sleep(down.total_seconds())
        await worker(sim)
        return (await sim.until("r", over)).status

    status = simulation().run(scenario)
    assert status is (Status.COMPLETED if calls == 2 else Status.BLOCKED)
    assert len(began) == calls
    assert max(changes.values(), default=0) <= 1


def test_what_an_operator_has_cleared_uses_its_key_anew() -> None:
    """It did not happen, so the receiver may know the key or not; and it remembers it from the clearing on."""
    plan.extend(["die before", "fail"])

    async def scenario(sim: Simulation) -> str:
        await worker(sim)
        handle = await sim.client.start(use("often"), id="r")
        await sim.until("r", lambda _: workers[-1].process.dead)
        await asyncio.sleep(MEMORY.total_seconds())
        await worker(sim)
        found = await doubt(sim)
        await handle.resolve(found.operation, not_applied=True, reason="looked")
        return await handle.result()

    assert simulation().run(scenario) == "done"
    assert len(began) == 3
    assert list(keys.values()) == [3]
    assert list(changes.values()) == [1]


@pytest.mark.parametrize(("last", "status"), [("", Status.COMPLETED), ("fail", Status.BLOCKED)])
def test_attempts_that_changed_nothing_use_no_key(last: str, status: Status) -> None:
    """Refused for longer than the memory, the effect is called on, until an attempt may have happened: that one is the last."""
    plan.extend(["refuse"] * 12 + [last])

    async def scenario(sim: Simulation) -> Status:
        await worker(sim)
        await sim.client.start(use("often"), id="r")
        return (await sim.until("r", over)).status

    assert simulation().run(scenario) is status
    assert since_first_use() > MEMORY
    assert (len(began), list(changes.values())) == (13, [1])


@pytest.mark.parametrize(("minutes", "status"), [(9.0, "completed"), (9.7, "blocked")])
def test_an_equal_call_after_an_unknown_end_counts_from_the_first(
    minutes: float, status: str
) -> None:
    """It has the same key, so the receiver must know that still; the exception of the first said that it may have happened."""
    plan.append("fail")

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        await worker(sim)
        await sim.client.start(use_again(minutes), id="r")
        head = await sim.until("r", over)
        return str(head.status), await entries(sim)

    found, journal = simulation().run(scenario)
    assert found == status
    assert len({one.key for one in journal if isinstance(one, EffectIntended)}) == 1
    (failed,) = [one for one in journal if isinstance(one, EffectFailed)]
    assert failed.unknown
    assert failed.failure.notes[0].startswith("the effect may have happened")
    assert list(changes.values()) == [1]
    assert len(began) == (2 if status == "completed" else 1)


@pytest.mark.parametrize("step", ["refuse", "fail"])
def test_what_failed_says_whether_it_may_have_happened(step: str) -> None:
    """An error that proves that nothing happened says so; any other one leaves it unknown."""
    plan.append(step)

    async def scenario(sim: Simulation) -> EffectFailed:
        await worker(sim)
        handle = await sim.client.start(use("once"), id="r")
        await sim.closed("r")
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await handle.result()
        notes = getattr(caught.value.__cause__, "__notes__", [])
        assert bool([one for one in notes if "may have happened" in one]) == (step == "fail")
        return next(one for one in await entries(sim) if isinstance(one, EffectFailed))

    assert simulation().run(scenario).unknown == (step == "fail")


@pytest.mark.parametrize(("wait", "calls"), [(LAST - MINUTE, 2), (LAST, 1)])
def test_the_retry_of_a_run_counts_from_the_first_use_in_its_origin(
    wait: timedelta, calls: int
) -> None:
    """What failed and may have happened is called again under the key that it had, as long as its receiver knows that."""
    plan.append("fail")

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry], list[Entry]]:
        await worker(sim)
        handle = await sim.client.start(use("once"), id="r")
        await sim.closed("r")
        await asyncio.sleep(wait.total_seconds())
        again = await handle.retry(reason="the receiver is back")
        head = await sim.until(again.id, over)
        return head.status, await entries(sim), await entries(sim, again.id)

    status, first, second = simulation().run(scenario)
    assert status is (Status.COMPLETED if calls == 2 else Status.BLOCKED)
    assert len(began) == calls
    intents = [one for one in (*first, *second) if isinstance(one, EffectIntended)]
    assert len(intents) == 2
    assert len({one.key for one in intents}) == 1
    assert list(changes.values()) == [1]
    assert any(isinstance(one, EffectCompleted) for one in second) == (calls == 2)


def test_an_attempt_that_waits_for_a_thread_asks_again() -> None:
    """When a thread is free at last, the receiver has forgotten the key: the body does not begin."""

    async def scenario(sim: Simulation) -> EffectInDoubt:
        first = await worker(sim)
        await sim.client.start(use("queued"), id="r")
        while not began:
            await asyncio.sleep(0.1)
        first.kill()
        second = await worker(sim)
        second.threads.crowded = LAST.total_seconds() + 60
        return await doubt(sim)

    found = simulation().run(scenario)
    assert "forgets a key" in found.why
    assert len(began) == 1


moves = st.tuples(
    st.sampled_from(["die before", "die after", "fail", "late", "refuse", "done"]),
    st.sampled_from([0.0, 1.0, 5.0, 9.0, 9.6, 11.0]),
)


@settings(max_examples=25)
@given(st.lists(moves, min_size=1, max_size=6))
def test_a_receiver_that_forgets_is_never_made_to_do_it_twice(played: list[Any]) -> None:
    """Crashes, lost answers and outages of any length in any order: it happened once at most, and never was told undone."""
    clean()
    plan.extend(step for step, _ in played)
    outages = [minutes for _, minutes in played]

    async def scenario(sim: Simulation) -> Status:
        await worker(sim)
        await sim.client.start(use("often"), id="r")
        while True:
            head = await sim.until("r", lambda one: over(one) or workers[-1].process.dead)
            if over(head):
                return head.status
            await asyncio.sleep(60 * (outages.pop(0) if outages else 0))
            await worker(sim)

    status = simulation().run(scenario)
    assert max(changes.values(), default=0) <= 1
    assert status in (Status.COMPLETED, Status.BLOCKED)
    assert status is Status.BLOCKED or list(changes.values()) == [1]
