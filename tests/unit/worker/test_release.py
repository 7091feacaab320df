"""What a paused worker moves, and how a run that is older than a restore goes on."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.effects.intent import Applied, NotApplied
from outlast.errors import DefinitionError, NotAuthorisedError, RunConflictError, RunNotFoundError
from outlast.journal.entry import EffectInDoubt, from_row
from outlast.store.change import PutControl, RunKey, Status
from outlast.store.restoration import EVERYBODY, RESTORATION, Releases
from outlast.testing import Receiver, SimulatedWorker, Simulation
from outlast.worker.worker import WorkerOptions

receiver = Receiver()
made: Counter[str] = Counter()
go = outlast.Signal("go", str)
TIMEOUT = timedelta(seconds=20)
PAUSED = WorkerOptions(library="simulated", paused=True)


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    made.clear()


@outlast.step
async def note(name: str) -> str:
    made[name] += 1
    return name


@outlast.step(queue="gpu")
async def remote(name: str) -> str:
    made[name] += 1
    return name


@outlast.effect(
    idempotent=True, idempotent_for=timedelta(minutes=10), start_to_close_timeout=TIMEOUT
)
async def short(name: str) -> str:
    made[name] += 1
    return receiver.apply_once(outlast.idempotency_key(), name)


def find(name: str) -> Applied[str] | NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find, start_to_close_timeout=TIMEOUT)
async def probed(name: str) -> str:
    made[name] += 1
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.effect(start_to_close_timeout=TIMEOUT)
async def neither(name: str) -> str:
    made[name] += 1
    return receiver.apply(outlast.idempotency_key(), name)


class RefusedError(Exception):
    """Proves that nothing happened."""


RETRY = outlast.RetryPolicy(initial_interval=timedelta(minutes=5), maximum_attempts=2)


def find_none() -> NotApplied:
    made["asked"] += 1
    return NotApplied()


@outlast.effect(
    probe=find_none,
    start_to_close_timeout=TIMEOUT,
    not_applied=(RefusedError,),
    retry=RETRY,
)
async def refused_once() -> str:
    made["once"] += 1
    if made["once"] == 1:
        raise RefusedError("closed")
    return "done"


@outlast.effect(
    idempotent=True,
    idempotent_for=timedelta(minutes=10),
    start_to_close_timeout=TIMEOUT,
    not_applied=(RefusedError,),
    retry=RETRY,
)
async def keyed_refused_once() -> str:
    made["once"] += 1
    if made["once"] == 1:
        raise RefusedError("closed")
    return "done"


@outlast.workflow
async def retries(keyed: bool) -> str:
    return await (keyed_refused_once() if keyed else refused_once())


@outlast.workflow
async def noting(name: str) -> str:
    return await note(name)


@outlast.workflow
async def far(name: str) -> str:
    return await remote(name)


@outlast.workflow
async def waits(kind: str) -> str:
    await outlast.receive(go)
    effect: Any = {"short": short, "probed": probed, "neither": neither}[kind]
    return await effect(kind)


@outlast.workflow
async def parent(kind: str) -> str:
    await outlast.receive(go)
    return await outlast.run_child(waits_not(kind), id="child")


@outlast.workflow
async def waits_not(kind: str) -> str:
    return await neither(kind)


CODE = [
    retries,
    refused_once,
    keyed_refused_once,
    noting,
    far,
    waits,
    parent,
    waits_not,
    note,
    remote,
    short,
    probed,
    neither,
]


async def restored(
    sim: Simulation,
    *runs: Any,
    before: timedelta = timedelta(0),
    after: timedelta = TIMEOUT,
) -> SimulatedWorker:
    """Let runs wait, stop their worker, say that the store was put back, and start another worker."""
    first = await sim.start_worker()
    for number, call in enumerate(runs):
        await sim.client.start(call, id=f"r{number}")
        await sim.until(f"r{number}", lambda head: head.status is Status.WAITING)
    await first.stop()
    await asyncio.sleep(before.total_seconds())
    await sim.client.restored("a test")
    await asyncio.sleep(after.total_seconds())
    for number in range(len(runs)):
        await sim.client.handle(f"r{number}").send(go, "go")
    return await sim.start_worker()


async def doubts_of(sim: Simulation, run_id: str) -> list[str]:
    rows = await sim.store.journal(RunKey("default", run_id))
    found = (from_row(one.row) for one in rows)
    return [one.why for one in found if isinstance(one, EffectInDoubt)]


def test_a_store_that_was_put_back_is_held() -> None:
    """No worker moves anything that is open, or begins; what is released goes on, and the rest when everything is."""

    async def scenario(sim: Simulation) -> None:
        worker = await restored(sim, waits("short"), waits("short"))
        assert worker.worker.paused
        await worker.client.start(noting("new"), id="new")
        await asyncio.sleep(60)
        assert not made
        await sim.client.release("r1", reason="looked at")
        await sim.closed("r1")
        await asyncio.sleep(60)
        assert made == {"short": 1}
        await sim.client.release(everything=True, reason="looked at")
        await sim.closed("r0")
        await sim.closed("new")
        row = Releases.of(await sim.store.control(EVERYBODY, RESTORATION))
        assert [(one.what, one.runs, one.by, one.trusted) for one in row.log] == [
            ("r1", 1, "tester", False),
            ("everything", 0, "tester", False),
        ]

    Simulation(CODE).run(scenario)


@pytest.mark.parametrize("kind", ["short", "probed", "neither"])
@pytest.mark.parametrize("happened", [False, True])
def test_an_effect_whose_intent_is_forgotten(kind: str, happened: bool) -> None:
    """Idempotent: called with its key. Probed: asked before. Neither: in doubt. As after an attempt whose end is unknown."""

    async def forgotten(sim: Simulation) -> None:
        await sim.start_worker()
        await sim.client.start(waits(kind), id="r0")
        await sim.client.handle("r0").send(go, "go")
        await sim.closed("r0")

    async def scenario(sim: Simulation) -> None:
        await restored(sim, waits(kind))
        await sim.client.release("r0", reason="looked at")
        if kind == "neither":
            await sim.until("r0", lambda head: head.status is Status.BLOCKED)
            (why,) = await doubts_of(sim, "r0")
            assert "the store was restored at" in why
            word: dict[str, Any] = {"applied": "neither"} if happened else {"not_applied": True}
            await sim.client.handle("r0").resolve("r:1", **word, reason="looked up")
        await sim.closed("r0")

    if happened:
        Simulation(CODE).run(forgotten)
    Simulation(CODE).run(scenario)
    assert receiver.changes.total() == 1
    assert made[kind] == (2 if kind == "short" and happened else 1)
    assert receiver.probes.total() == (kind == "probed")


@pytest.mark.parametrize("everything", [False, True])
def test_who_vouches_ends_the_care(everything: bool) -> None:
    """With trust an effect is made as in a run that was never restored: no probe is asked, and nothing is in doubt."""

    async def scenario(sim: Simulation) -> None:
        await restored(sim, waits("probed"), waits("neither"))
        named: dict[str, Any] = {"everything": True} if everything else {"workflow": "waits"}
        await sim.client.release(**named, trust=True, reason="nothing was done since")
        await sim.closed("r0")
        await sim.closed("r1")

    Simulation(CODE).run(scenario)
    assert made == {"probed": 1, "neither": 1}
    assert not receiver.probes


def test_a_child_of_what_was_restored_goes_on_with_care() -> None:
    """It may have been started before, and done what it does: it is released with its parent, and its effect is in doubt."""

    async def scenario(sim: Simulation) -> None:
        await restored(sim, parent("child"))
        await sim.client.release("r0", reason="looked at")
        await sim.until("child", lambda head: head.status is Status.BLOCKED)
        await sim.client.handle("child").resolve("r:1", applied="x", reason="looked up")
        await sim.closed("r0")

    Simulation(CODE).run(scenario)
    assert not made


def test_what_begins_after_the_restore_is_new() -> None:
    """A run that is started then makes its effects as ever, also under an id that was used before."""

    async def scenario(sim: Simulation) -> None:
        await restored(sim, waits("neither"))
        await sim.client.release(everything=True, reason="looked at")
        await sim.client.handle("r0").terminate("no more")
        for name in ("r0", "other"):
            await sim.client.start(waits_not(name), id=name, if_closed="restart")
            await sim.closed(name)

    Simulation(CODE).run(scenario)
    assert made == {"r0": 1, "other": 1}


def test_a_forgotten_attempt_may_act_for_a_while() -> None:
    """Until the restore somebody may have begun one: the probe is asked when that can act no more, and not before."""

    async def scenario(sim: Simulation) -> float:
        await restored(sim, waits("probed"), before=timedelta(minutes=5), after=timedelta(0))
        since = sim.clock.monotonic()
        await sim.client.release("r0", reason="looked at")
        await sim.closed("r0")
        return sim.clock.monotonic() - since

    # Its timeout, and two seconds to settle.
    assert 22 <= Simulation(CODE).run(scenario) < 25


def test_a_receiver_that_has_forgotten_the_key_is_not_called() -> None:
    """The key may have been used first when the last change was made that is still there: too long ago is in doubt."""

    async def scenario(sim: Simulation) -> None:
        await restored(sim, waits("short"), after=timedelta(minutes=20))
        await sim.client.release("r0", reason="looked at")
        await sim.until("r0", lambda head: head.status is Status.BLOCKED)
        (why,) = await doubts_of(sim, "r0")
        assert "forgets a key after 0:10:00" in why

    Simulation(CODE).run(scenario)
    assert not made


def test_a_retry_that_was_due_may_have_been_made() -> None:
    """A recorded failure that proves that nothing happened says nothing of attempts that are forgotten: the probe is asked."""

    async def scenario(sim: Simulation) -> None:
        await restored(sim, retries(False))
        await sim.client.release("r0", reason="looked at")
        await sim.closed("r0")

    Simulation(CODE).run(scenario)
    assert made == {"once": 2, "asked": 1}


def test_a_key_that_was_not_used_may_have_been_used() -> None:
    """The same where the receiver knows keys: what may have been called is not called when the key may be forgotten."""

    async def scenario(sim: Simulation) -> None:
        await restored(sim, retries(True), after=timedelta(minutes=20))
        await sim.client.release("r0", reason="looked at")
        await sim.until("r0", lambda head: head.status is Status.BLOCKED)
        assert made == {"once": 1}
        await sim.client.handle("r0").resolve("r:1", not_applied=True, reason="looked up")
        await sim.closed("r0")

    Simulation(CODE).run(scenario)
    assert made == {"once": 2}


def test_a_paused_worker_does_nothing_else() -> None:
    """No remote step is taken, and nothing of others relayed; it goes on with both when everything is released."""

    async def scenario(sim: Simulation) -> None:
        first = await sim.start_worker(options=WorkerOptions(library="simulated"))
        await sim.client.start(far("far"), id="far")
        await sim.until("far", lambda head: head.status is Status.WAITING)
        await first.stop()
        options = WorkerOptions(library="simulated", paused=True, queues=("gpu",))
        await sim.start_worker(options=options)
        await asyncio.sleep(60)
        assert not made
        await sim.client.release(everything=True, reason="looked at")
        await sim.closed("far")

    Simulation(CODE).run(scenario)
    assert made == {"far": 1}


def test_what_was_released_before_ends_no_pause() -> None:
    """Only a release of everything that comes after the worker's start ends its pause; so it is with each life of the worker."""

    async def scenario(sim: Simulation) -> None:
        await sim.client.release(everything=True, reason="long ago")
        worker = await sim.start_worker(options=PAUSED)
        await sim.client.start(noting("a"), id="a")
        worker.freeze()
        await asyncio.sleep(60)
        worker.thaw()
        await asyncio.sleep(60)
        assert worker.worker.paused
        assert not made
        await sim.client.release(everything=True, reason="now")
        await sim.closed("a")

    Simulation(CODE).run(scenario)


def test_a_row_that_cannot_be_read_holds() -> None:
    """Nobody knows then what may go on."""

    async def scenario(sim: Simulation) -> None:
        await sim.client.start(noting("a"), id="a")
        await sim.store.commit([PutControl(EVERYBODY, RESTORATION, 0, b"what?")])
        worker = await sim.start_worker()
        await asyncio.sleep(60)
        assert worker.worker.paused
        await sim.store.commit([PutControl(EVERYBODY, RESTORATION, 1, Releases().encode())])
        await sim.closed("a")

    Simulation(CODE).run(scenario)


def test_what_is_released_is_said_in_one_way() -> None:
    """A reason, and one of ids, workflow and everything; of runs that are there and open."""

    async def scenario(sim: Simulation) -> None:
        client = sim.client
        await sim.start_worker()
        await client.start(noting("a"), id="a")
        await sim.closed("a")
        with pytest.raises(DefinitionError, match="no reason"):
            await client.release("a", reason=" ")
        for given in ({}, {"workflow": "noting", "everything": True}):
            with pytest.raises(DefinitionError, match="not said, or said twice"):
                await client.release(reason="why", **given)
        with pytest.raises(RunNotFoundError):
            await client.release("no", reason="why")
        with pytest.raises(RunConflictError, match="there is nothing to release"):
            await client.release("a", reason="why")
        assert await client.release(workflow="noting", reason="why") == 0
        with pytest.raises(outlast.StoreError, match="workers live"):
            await client.restored("it was set back")

    Simulation(CODE).run(scenario)


def test_not_everybody_releases() -> None:
    """Runs: who may resume them. Everything, and that the store was put back: who holds `outlast:admin` for everybody."""

    async def main() -> None:
        async with outlast.open("memory://", workflows=[noting], paused=True) as app:
            await app.start(noting("a"), id="a")
            await app.roles.grant(app.principal, "outlast:admin", reason="first", everybody=True)
            await app.roles.grant(app.principal, "outlast:admin", reason="first")
            await app.roles.grant("olga", "outlast:resume", reason="operator")
            olga, paul = app.acting_as("olga"), app.acting_as("paul")
            with pytest.raises(NotAuthorisedError):
                await paul.release("a", reason="why")
            with pytest.raises(NotAuthorisedError):
                await olga.release(everything=True, reason="why")
            with pytest.raises(NotAuthorisedError):
                await olga.restored("why")
            assert await olga.release("a", reason="why") == 1
            await app.release(everything=True, reason="why")

    asyncio.run(main())
