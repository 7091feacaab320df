"""Other runs, seen from a workflow that did not start them: messages, cancels, ends; nothing stays behind."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client.explain import explain
from outlast.journal.entry import MessageReceived
from outlast.store.change import PutWatch, RunHead, RunKey, Status
from outlast.testing import Simulation
from outlast.worker.worker import WorkerOptions

word = outlast.Signal("word", str)


@outlast.workflow
async def listener() -> str:
    return await outlast.receive(word)


@outlast.workflow
async def patient() -> str:
    try:
        await outlast.sleep(1_000_000)
    except asyncio.CancelledError:
        return "stopped"
    return "slept"


@outlast.workflow
async def talks(other: str, text: str) -> str:
    run = outlast.run_handle(other, listener)
    await run.send(word, text)
    return await run.result()


@outlast.workflow
async def stops(other: str) -> str:
    run = outlast.run_handle(other)
    await run.cancel("enough")
    await run.cancel("enough said")
    return str(await run.result())


@outlast.workflow
async def waits_for_itself() -> str:
    return str(await outlast.run_handle("me").result())


@outlast.workflow
async def looks(other: str, seconds: float) -> str:
    """Wait for the end of another run, for a while."""
    try:
        return str(await asyncio.wait_for(outlast.run_handle(other).result(), seconds))
    except TimeoutError:
        return "not yet"


@outlast.workflow
async def tells_all(others: list[str]) -> list[str]:
    """Send to each; say what became of it."""
    said: list[str] = []
    for other in others:
        try:
            await outlast.run_handle(other).send(word, "hi")
            said.append("sent")
        except (outlast.RunNotFoundError, outlast.RunConflictError) as error:
            said.append(error.message)
    return said


@outlast.workflow
async def refused_child() -> str:
    """End while the child that was asked for has another one's id."""
    child = asyncio.create_task(outlast.run_child(listener(), id="l"))
    await asyncio.sleep(0)
    await outlast.run_handle("other").cancel()
    return f"{child.done()}"


CODE = [waits_for_itself, listener, patient, talks, stops, looks, tells_all, refused_child]
FAST = WorkerOptions(library="simulated", idle=timedelta(milliseconds=200))


def parked(head: RunHead) -> bool:
    """Whether the run was given back and waits."""
    return head.status is Status.WAITING and head.owner is None


def watches(sim: Simulation) -> list[Any]:
    """Return who watches whom."""
    store: Any = sim.store
    return [run.watches for run in store.runs.values() if run.watches]


async def at_rest(sim: Simulation) -> None:
    """Wait until nothing is on its way between runs."""
    began = sim.clock.monotonic()
    while await sim.store.outbox(1):
        await sim.a_while(since=began)


def test_a_message_arrives_and_the_end_is_told() -> None:
    """The receiver sees who sent it; the sender has the result."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        await sim.start_worker()
        await sim.client.start(listener(), id="l")
        result = await (await sim.client.start(talks("l", "hear"), id="t")).result()
        entries = await sim.client.handle("l").journal()
        await at_rest(sim)
        assert watches(sim) == []
        return result, [
            one.entry.sender for one in entries if isinstance(one.entry, MessageReceived)
        ]

    assert Simulation(CODE).run(scenario) == ("hear", ["t"])


def test_a_run_is_asked_to_stop_and_its_end_is_told() -> None:
    """Asked twice, of which the second comes too late, which is no error."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        await sim.client.start(patient(), id="l")
        await sim.until("l", parked)
        return await (await sim.client.start(stops("l"), id="s")).result()

    assert Simulation(CODE, options=FAST).run(scenario) == "stopped"


def test_the_end_of_a_run_that_has_ended_is_told_at_once() -> None:
    """There is nothing to watch."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        await (await sim.client.start(listener(), id="l")).send(word, "long ago")
        await sim.closed("l")
        result = await (await sim.client.start(looks("l", 5), id="s")).result()
        assert watches(sim) == []
        return result

    assert Simulation(CODE).run(scenario) == "long ago"


def test_a_wait_that_is_given_up_leaves_the_run_alone_and_nothing_behind() -> None:
    """A thousand short waits for one long run are no thousand rows."""

    async def scenario(sim: Simulation) -> tuple[list[str], int, int, str]:
        await sim.start_worker()
        await sim.client.start(listener(), id="l")
        starts = [await sim.client.start(looks("l", 3), id=f"s{n}") for n in range(10)]
        began = sim.clock.monotonic()
        while not watches(sim):
            await sim.a_while(since=began)
        during = len(watches(sim)[0])
        results = [await one.result() for one in starts]
        await at_rest(sim)
        left = len(watches(sim))
        await sim.client.handle("l").send(word, "still there")
        return results, during, left, await sim.client.handle("l", listener).result()

    results, during, left, said = Simulation(CODE).run(scenario)
    assert results == ["not yet"] * 10
    assert (during, left, said) == (10, 0, "still there")


@pytest.mark.parametrize("how", ["terminate", "cancel"])
def test_a_watcher_that_ends_is_no_watcher(how: str) -> None:
    """However it ends: its watch goes with it."""

    async def scenario(sim: Simulation) -> tuple[list[Any], Status]:
        await sim.start_worker()
        await sim.client.start(patient(), id="l")
        handle = await sim.client.start(looks("l", 1e6), id="s")
        await sim.until("s", parked)
        assert len(watches(sim)) == 1
        await getattr(handle, how)("enough")
        head = await sim.closed("s")
        await at_rest(sim)
        return watches(sim), head.status

    left, status = Simulation(CODE, options=FAST).run(scenario)
    assert left == []
    assert status == {"terminate": "terminated", "cancel": "cancelled"}[how]


def test_who_is_not_there_is_said_to_be_so() -> None:
    """Nobody, somebody, and one who has ended."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        for one in ("a", "b"):
            await sim.client.start(listener(), id=one)
        await sim.client.handle("b").send(word, "x")
        await sim.closed("b")
        return await (await sim.client.start(tells_all(["nobody", "a", "b"]), id="t")).result()

    assert Simulation(CODE).run(scenario) == ["there is no such run", "sent", "the run has ended"]


def test_a_run_of_another_tenant_is_not_there() -> None:
    """The same id elsewhere is nobody's business: it is neither found nor reached."""

    async def scenario(sim: Simulation) -> tuple[list[str], tuple[Any, ...]]:
        worker = await sim.start_worker()
        theirs = type(sim.client)(worker.store, random=sim.client._random, tenant="them")
        await theirs.start(listener(), id="a")
        said = await (await sim.client.start(tells_all(["a"]), id="t")).result()
        return said, await sim.store.mail(RunKey("them", "a"))

    assert Simulation(CODE).run(scenario) == (["there is no such run"], ())


def test_a_stranger_with_the_id_of_a_child_is_left_alone() -> None:
    """The parent ends before it was told that the id is taken: whoever has it is not ended with the parent."""

    async def scenario(sim: Simulation) -> Status:
        await sim.start_worker()
        for one in ("l", "other"):
            await sim.client.start(patient() if one == "other" else listener(), id=one)
        await sim.until("l", parked)
        await (await sim.client.start(refused_child(), id="p")).result()
        await at_rest(sim)
        head = await sim.store.head(RunKey("default", "l"))
        assert head is not None
        return head.status

    assert not Simulation(CODE, options=FAST).run(scenario).closed


def test_a_watch_that_is_put_late_is_answered_all_the_same() -> None:
    """The run ends between the request and the watch, by another worker's hands."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        handle = await sim.client.start(listener(), id="l")
        inner = worker.store.commit

        async def late(changes: Any) -> Any:
            if any(isinstance(one, PutWatch) for one in changes):
                await handle.terminate("too late")
            return await inner(changes)

        worker.store.commit = late
        try:
            return await (await sim.client.start(looks("l", 100), id="s")).result()
        except outlast.WorkflowFailedError as error:
            return str(error.__cause__)

    assert "the run was terminated: too late" in Simulation(CODE).run(scenario)


def test_what_another_run_is_waited_for_is_explained() -> None:
    """`runs explain` names the run, and what to type to see why it is where it is."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        await sim.client.start(patient(), id="l")
        handle = await sim.client.start(looks("l", 1e6), id="s")
        await sim.until("s", parked)
        return await handle.detail()

    detail = Simulation(CODE, options=FAST).run(scenario)
    told = explain(detail, lambda *words: " ".join(words))
    assert "It has asked something of run l (r:2) and goes on by itself when" in told.text
    assert "runs explain l" in told.commands
    assert detail.operations == []


def test_a_run_does_not_wait_for_its_own_end() -> None:
    """It would wait for ever, and is told so."""

    async def scenario(sim: Simulation) -> BaseException | None:
        await sim.start_worker()
        handle = await sim.client.start(waits_for_itself(), id="me")
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await handle.result()
        return caught.value.__cause__

    error = Simulation(CODE).run(scenario)
    assert isinstance(error, outlast.DefinitionError)
    assert "its own end" in error.message
