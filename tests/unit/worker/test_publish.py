"""What a workflow publishes reaches outside when it is durable, in order, with the end at the latest; and who reads it runs nothing."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.journal.entry import Published, StepCompleted, from_row
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, Simulation
from outlast.worker.worker import WorkerOptions
from outlast.workflows import registry

go = outlast.Signal("go", str)
asked_twice = outlast.Query("asked twice", None, int)
RUN = RunKey("default", "r")


@dataclass
class Progress:
    """How far it is."""

    done: int
    of: int


@outlast.step
async def tick_published(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@outlast.workflow
async def shows_progress(steps: int) -> str:
    for done in range(steps):
        outlast.publish("progress", Progress(done, steps))
        await tick_published(1.0)
    outlast.publish("progress", Progress(steps, steps))
    return "done"


@outlast.workflow
async def ends_published(how: str) -> str:
    outlast.publish("state", "begun")
    try:
        if how == "approval":
            await outlast.approval("x", role="boss", expires_in=timedelta(seconds=5))
        elif how != "returns":
            await outlast.receive(go)
    finally:
        outlast.publish("state", "cleaned up")
    if how == "raises":
        raise ValueError("as was said")
    return "done"


@outlast.workflow
async def busy_published(steps: int) -> int:
    """Publish after each of many steps side by side, of which some end all the time."""
    done = 0

    async def one(number: int) -> None:
        nonlocal done
        await tick_published(0.05 * number)
        done += 1
        outlast.publish("done", done)

    await asyncio.gather(*(one(number) for number in range(steps)))
    return done


@outlast.workflow
async def publishes_between(beside: float) -> None:
    """Publish between two steps, while another one goes on if so asked."""

    async def two() -> None:
        await tick_published(5.0)
        outlast.publish("state", "between")
        await tick_published(5.0)

    await asyncio.gather(two(), *([tick_published(beside)] if beside else []))


@outlast.workflow
async def publishes_too_much() -> str:
    try:
        outlast.publish("a", "x" * (3 * 1024 * 1024))
    except outlast.EncodeError:
        outlast.publish("a", "too much")
    return await outlast.receive(go)


@outlast.workflow
async def misuses(what: str) -> None:
    if what == "publish":
        outlast.publish("a", object())
    for _ in range(2):
        outlast.on_query(asked_twice, lambda _: 1)


CODE = [
    *(tick_published, shows_progress, ends_published, busy_published, publishes_too_much),
    *(misuses, publishes_between),
]


def published(sim: Simulation) -> Any:
    """Return what is published under `progress`, to whoever looks."""
    handle: RunHandle[Any] = sim.client.handle("r")
    return handle.published("progress", Progress)


def test_each_value_is_seen_outside_in_order() -> None:
    """By a client without a worker, while the run moves; typed, or as plain data."""

    async def scenario(sim: Simulation) -> tuple[list[Any], Any]:
        await sim.start_worker()
        handle = await sim.client.start(shows_progress(3), id="r")
        seen: list[Any] = []
        while not (await handle.status()).status.closed:
            now = await published(sim)
            if seen[-1:] != [now]:
                seen.append(now)
            await asyncio.sleep(0.05)
        if seen[-1] != await published(sim):
            seen.append(await published(sim))
        return seen, await handle.published("progress")

    seen, plain = Simulation(CODE).run(scenario)
    assert [one for one in seen if one is not None] == [Progress(done, 3) for done in range(4)]
    assert plain == {"done": 3, "of": 3}


def test_nothing_is_published_before_it_is_durable() -> None:
    """A worker whose writes do not come through has published nothing, and the next one publishes in its place."""

    async def scenario(sim: Simulation) -> tuple[list[Any], list[Any]]:
        first = await sim.start_worker()
        await first.client.start(shows_progress(2), id="r")
        first.store.faults = Faults(lost_request=1.0)
        seen: list[Any] = []
        for _ in range(20):
            await asyncio.sleep(0.1)
            seen.append(await published(sim))
        first.kill()
        await sim.start_worker()
        await sim.closed("r")
        rows = await sim.store.journal(RUN)
        return [*seen, await published(sim)], [from_row(one.row) for one in rows]

    seen, entries = Simulation(CODE).run(scenario)
    assert seen == [*[None] * 20, Progress(2, 2)]
    values = [one.value for one in entries if isinstance(one, Published)]
    assert [bytes(one) for one in values] == [
        b'{"done":0,"of":2}',
        b'{"done":1,"of":2}',
        b'{"done":2,"of":2}',
    ]


@pytest.mark.parametrize(
    ("how", "status"),
    [("returns", "completed"), ("raises", "failed"), ("cancel", "cancelled"), ("approval", "cancelled")],
)  # fmt: skip
def test_what_is_published_last_is_there_when_the_run_has_ended(how: str, status: str) -> None:
    """However it ends: it goes into the same write as the end."""

    async def scenario(sim: Simulation) -> tuple[str, Any, list[str]]:
        worker = await sim.start_worker()
        handle = await worker.client.start(ends_published(how), id="r")
        await asyncio.sleep(1)
        if how == "raises":
            await handle.send(go, "on")
        elif how == "cancel":
            await handle.cancel()
        head = await sim.closed("r")
        kinds = [one.row.kind for one in await sim.store.journal(RUN)]
        return head.status, await handle.published("state"), kinds

    found, value, kinds = Simulation(CODE).run(scenario)
    assert (found, value) == (status, "cleaned up")
    assert kinds[-2:] == ["published", status]


def test_a_message_that_comes_with_the_end_takes_nothing_of_it_away() -> None:
    """The store refuses an end with unread mail; what was published is then written with the message."""

    async def scenario(sim: Simulation) -> tuple[Status, list[Any]]:
        worker = await sim.start_worker(faults=Faults(latency=0.2))
        handle = await worker.client.start(ends_published("returns"), id="r")
        for number in range(20):
            try:
                await sim.client.handle("r").send(go, f"late {number}")
            except outlast.RunConflictError:
                break
            await asyncio.sleep(0.02)
        await handle.result()
        rows = await sim.store.journal(RUN)
        return (await handle.status()).status, [from_row(one.row) for one in rows]

    for seed in range(5):
        status, entries = Simulation(CODE, seed=seed).run(scenario)
        said = [bytes(one.value) for one in entries if isinstance(one, Published)]
        assert (status, said) == (Status.COMPLETED, [b'"begun"', b'"cleaned up"'])


def test_a_busy_run_publishes_while_it_is_busy() -> None:
    """What is published goes with whatever is written next; it does not wait until nothing else is to be written."""

    async def scenario(sim: Simulation) -> list[Any]:
        worker = await sim.start_worker(faults=Faults(latency=0.2))
        await worker.client.start(busy_published(40), id="r")
        await sim.closed("r")
        return [from_row(one.row) for one in await sim.store.journal(RUN)]

    entries = Simulation(CODE, options=WorkerOptions(library="simulated")).run(scenario)
    kinds = [type(one) for one in entries]
    assert kinds.count(Published) == kinds.count(StepCompleted) == 40
    for place, entry in enumerate(entries):
        if isinstance(entry, Published):
            ended = kinds[:place].count(StepCompleted)
            assert int(entry.value) <= ended <= int(entry.value) + 12


@pytest.mark.parametrize("beside", [0.0, 60.0])
def test_what_was_published_as_a_pause_came_is_seen_during_it(beside: float) -> None:
    """Nothing is attempted for it: also while an attempt that was under way goes on."""

    async def scenario(sim: Simulation) -> tuple[Any, list[str], bool]:
        await sim.start_worker()
        handle = await sim.client.start(publishes_between(beside), id="r")
        await asyncio.sleep(1)
        await handle.pause()
        await asyncio.sleep(10)
        seen = await handle.published("state")
        kinds = [type(from_row(one.row)).__name__ for one in await sim.store.journal(RUN)]
        paused = (await handle.status()).status == "paused"
        await handle.resume()
        await handle.result()
        return seen, kinds[2:], paused

    seen, kinds, paused = Simulation(CODE).run(scenario)
    assert (seen, paused) == ("between", not beside)
    assert kinds == ["PauseRequested", "StepCompleted", "Published"]


def test_a_key_without_a_value_a_run_that_is_not_there_and_a_wrong_type() -> None:
    """None, and two errors."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(ends_published("returns"), id="r")
        await sim.closed("r")
        assert await handle.published("other") is None
        with pytest.raises(outlast.RunNotFoundError):
            await sim.client.handle("nobody").published("state")
        with pytest.raises(outlast.DecodeError, match="published as 'state'"):
            await handle.published("state", int)
        await sim.client.start(ends_published("waits"), id="r", if_closed="restart")
        await sim.until("r", lambda head: head.next_seq == 3)
        assert await handle.published("state", str) == "begun"

    Simulation(CODE).run(scenario)


def test_a_value_that_is_too_large_is_an_error_where_it_is_published() -> None:
    """The workflow may catch it; the run is not harmed."""

    async def scenario(sim: Simulation) -> tuple[Any, str]:
        await sim.start_worker()
        handle = await sim.client.start(publishes_too_much(), id="r")
        await handle.send(go, "on")
        return await handle.published("a") or await handle.result(), await handle.result()

    assert Simulation(CODE).run(scenario)[1] == "on"


@pytest.mark.parametrize("what", ["publish", "on_query"])
def test_a_misuse_is_told_with_the_line_of_the_author(what: str) -> None:
    """And not with a line of ours."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(misuses(what), id="r")
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await handle.result()
        return str(caught.value)

    assert "in misuses" in Simulation(CODE).run(scenario)


def test_reading_costs_one_look_and_needs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file, from a client that knows nothing of the workflow, also when the run has ended."""
    monkeypatch.setattr(registry, "_declared", CODE)
    url = f"sqlite:///{tmp_path / 's.db'}"

    async def main() -> Any:
        async with outlast.open(url, workflows=[ends_published]) as app:
            await app.run(ends_published("returns"), id="r")
        async with outlast.connect(url) as client:
            monkeypatch.setattr(registry, "_declared", [])
            value = await client.handle("r").published("state")
            assert len(client.replicas) == 0
            return value

    assert asyncio.run(main()) == "cleaned up"
