"""Laws of forks of runs that have children and send messages: wherever one begins, nobody outside sees anything twice."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from searching import examples

import outlast
from outlast.journal.entry import ChildRequested, Entry, MessageReceived, MessageSent, from_row
from outlast.journal.prefix import ROLES, Role
from outlast.store.change import RunKey, Status
from outlast.testing import Receiver, Simulation, replay_run
from outlast.workflows.registry import Registry

TIMEOUT = timedelta(seconds=5)
POLICIES: list[Any] = ["refuse", "same_key", "new_key"]
note = outlast.Signal("note", str)
part = outlast.Signal("part", int)
receiver = Receiver()
applied: Counter[str] = Counter()
"""How often each effect was applied, by its place in the shape."""
down: set[str] = set()
"""Places of what fails."""


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
async def work(path: str) -> str:
    await asyncio.sleep(0.01)
    if path in down:
        raise OSError(f"{path} is down")
    return "worked"


@outlast.effect(idempotent=True, repeats=True, retry=outlast.RetryPolicy(maximum_attempts=1))
async def pay(path: str) -> str:
    if path in down:
        raise OSError(f"{path} is down")
    key = outlast.idempotency_key()
    applied[path] += not receiver.changes[key]
    receiver.apply_once(key, path)
    await asyncio.sleep(0.02)
    return "paid"


@outlast.effect(start_to_close_timeout=TIMEOUT, repeats=True)
async def ship(path: str) -> str:
    await asyncio.sleep(0.02)
    applied[path] += 1
    receiver.apply(outlast.idempotency_key(), path)
    return "shipped"


@outlast.workflow
async def reader() -> None:
    while True:
        await outlast.receive(note)


@outlast.workflow
async def member(text: str, path: str) -> str:
    return json.dumps(await carry_out(json.loads(text), path))


async def carry_out(shape: list[Any], path: str) -> Any:  # noqa: C901 - one arm a kind
    kind, *rest = shape
    match kind:
        case "work":
            return await work(path)
        case "pay":
            return await pay(path)
        case "ship":
            return await ship(path)
        case "sleep":
            await outlast.sleep(rest[0])
            return "slept"
        case "hear":
            return await outlast.receive(part)
        case "tell":
            await outlast.run_handle("reader").send(note, path)
            return "told"
        case "seq":
            return [await carry_out(one, f"{path}.{at}") for at, one in enumerate(rest)]
        case "gather":
            return await asyncio.gather(
                *(carry_out(one, f"{path}.{at}") for at, one in enumerate(rest))
            )
        case "child":
            return await outlast.run_child(member(json.dumps(rest[0]), f"{path}c"))
        case "own":
            return await outlast.run_child(member(json.dumps(rest[0]), f"{path}o"), id=f"own{path}")
        case "twins":
            call = [member(json.dumps(rest[0]), f"{path}t") for _ in range(2)]
            return await asyncio.gather(*(outlast.run_child(one) for one in call))
        case "handle":
            inner = json.dumps(["seq", ["hear"], rest[0], ["hear"]])
            child = await outlast.start_child(member(inner, f"{path}h"), parent_close="cancel")
            await child.send(part, 1)
            await outlast.sleep(1)
            await child.send(part, 2)
            return await child.result()
        case _:
            inner = json.dumps(rest[0])
            await outlast.start_child(member(inner, f"{path}l"), parent_close=kind)
            await outlast.sleep(2)
            return "left"


CODE = [work, pay, ship, reader, member]

leaves = st.one_of(
    st.sampled_from([("work",), ("pay",), ("pay",), ("ship",), ("tell",), ("tell",)]),
    st.tuples(st.just("sleep"), st.integers(1, 9)),
)


def bigger(inner: Any) -> Any:
    several = st.builds(
        lambda how, parts: (how, *parts),
        st.sampled_from(["seq", "gather"]),
        st.lists(inner, min_size=1, max_size=3),
    )
    kinds = ["child", "child", "own", "twins", "handle", "handle", "terminate", "abandon"]
    return st.one_of(several, st.tuples(st.sampled_from(kinds), inner))


shapes = st.recursive(leaves, bigger, max_leaves=5).map(
    lambda shape: (
        ("seq", ("child", shape), ("handle", shape), ("tell",), ("pay",))
        if shape[0] in {"work", "pay", "ship", "tell", "sleep"}
        else ("seq", shape, ("tell",))
    )
)
seeds = st.integers(0, 2**32)


async def journal(sim: Simulation, run: str) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", run))]


async def read(sim: Simulation) -> Counter[str]:
    """Return how often the run that everybody writes to has read each message."""
    found = await journal(sim, "reader")
    return Counter(
        json.loads(bytes(one.value)) for one in found if isinstance(one, MessageReceived)
    )


async def allowed(sim: Simulation, run: str) -> list[int]:
    """Return every position at which a run can be forked."""
    rows = await sim.store.journal(RunKey("default", run))
    turns = [one.row.turn for one in rows]
    end = len(rows) - (ROLES[type(from_row(rows[-1].row))] is Role.END)
    return [at for at in range(1, end + 1) if at == len(rows) or turns[at] != turns[at - 1]]


async def all_over(sim: Simulation) -> None:
    """Return once nothing moves any more but the reader, which never ends."""
    while await sim.store.outbox(1) or any(
        not one.status.closed for one in await sim.client.runs.list() if one.run_id != "reader"
    ):
        await asyncio.sleep(1)
    # The reader has yet to read what came last.
    await asyncio.sleep(10)


async def begin(sim: Simulation, shape: Any) -> outlast.RunHandle[str]:
    await sim.start_worker()
    await sim.client.start(reader(), id="reader")
    return await sim.client.start(member(json.dumps(shape), "p"), id="o")


def forget() -> None:
    receiver.forget()
    applied.clear()
    down.clear()


def simulated(scenario: Any, seed: int = 0) -> Any:
    forget()
    return Simulation(CODE, seed=seed, longest=timedelta(days=9)).run(scenario)


async def end_of(sim: Simulation, fork: outlast.RunHandle[Any]) -> Any:
    """Return what a fork came to: its result, or the word for a refusal."""
    head = await sim.until(
        fork.id, lambda head: head.status.closed or head.status is Status.BLOCKED
    )
    assert head.status is not Status.BLOCKED, (await fork.status()).reason
    try:
        return await fork.result()
    except outlast.WorkflowFailedError as error:
        return refusal_in(error)


def refusal_in(error: BaseException | None) -> str:
    causes = []
    while error is not None:
        causes.append(type(error))
        error = error.__cause__
    assert outlast.ForkedEffectError in causes, causes
    return "refused"


async def fork_of(origin: Any, position: int, effects: Any) -> Any:
    """Fork, or return None where the position is refused with words."""
    try:
        return await origin.fork(position, id=f"f{position}", reason="to see", effects=effects)
    except outlast.DefinitionError as error:
        assert effects == "new_key"
        assert "a new child would lack it" in str(error)
        assert "or less" in str(error)
        return None


LONG = ("seq", ("own", ("seq", ("pay",), ("child", ("pay",)))), ("gather", ("twins", ("pay",)), ("handle", ("ship",)), ("tell",)),
        ("terminate", ("sleep", 9)), ("child", ("tell",)), ("tell",), ("pay",))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("effects", POLICIES)
def test_every_position_of_one_long_run(effects):
    """A fork of a run that is over ends as it did; nothing is attempted, sent or started by it."""
    check_every_position(LONG, 0, effects)


@examples(0.3)
@given(shapes, seeds, st.sampled_from(POLICIES))
def test_a_fork_of_a_run_that_is_over_ends_as_it_did(shape, seed, effects):
    check_every_position(shape, seed, effects)


def check_every_position(shape: Any, seed: int, effects: Any) -> None:
    async def scenario(sim: Simulation) -> None:
        origin = await begin(sim, shape)
        result = await origin.result()
        await all_over(sim)
        seen = (receiver.requests.copy(), await read(sim), len(await sim.client.runs.list()))
        positions = await allowed(sim, "o")
        for position in positions:
            fork = await fork_of(origin, position, effects)
            if fork is None:
                continue
            assert await end_of(sim, fork) == result, position
            await replay_run(sim.store, Registry(CODE), sim.clock, RunKey("default", fork.id))
            await fork.fork(id=f"{fork.id}/again", reason="to see again")
            again = sim.client.handle(f"{fork.id}/again")
            assert await end_of(sim, again) == result, position
        await all_over(sim)
        forks = sum(one.run_id.startswith("f") for one in await sim.client.runs.list())
        now = len(await sim.client.runs.list()) - forks
        assert (receiver.requests, await read(sim), now) == seen
        names = {one.run_id for one in await sim.client.runs.list()}
        assert not [name for name in names if name.startswith("f") and ":" in name]

    simulated(scenario, seed)


@examples(0.3)
@given(shapes, seeds, st.sampled_from(["refuse", "same_key"]), st.data())
def test_a_fork_of_a_run_that_goes_on_repeats_nothing(shape, seed, effects, data):
    """Under `refuse` and `same_key`: it ends as its origin, or is refused; each thing is done as often as by one run alone."""

    async def undisturbed(sim: Simulation) -> Any:
        origin = await begin(sim, shape)
        result = await origin.result()
        await all_over(sim)
        return result, applied.copy(), await read(sim)

    async def forked(sim: Simulation) -> None:
        origin = await begin(sim, shape)
        length = data.draw(st.integers(2, 12), label="entries")
        await sim.until("o", lambda head: head.next_seq >= length or head.status.closed)
        position = data.draw(st.sampled_from(await allowed(sim, "o")), label="position")
        fork = await fork_of(origin, position, effects)
        end = await end_of(sim, fork)
        assert end == result or (end == "refused" and effects == "refuse")
        assert await origin.result() == result
        await all_over(sim)
        assert await read(sim) == texts
        for place, times in applied.items():
            assert times <= done[place] or (effects == "same_key" and is_shipped(shape, place))

    result, done, texts = simulated(undisturbed, seed)
    simulated(forked, seed)


def is_shipped(shape: Any, place: str) -> bool:
    """Whether it is an effect that a receiver cannot tell from another one like it."""
    return place in ships(shape, "p")


def ships(shape: Any, path: str) -> set[str]:
    kind, *rest = shape
    if kind == "ship":
        return {path}
    letter = {"child": "c", "own": "o", "twins": "t", "terminate": "l", "abandon": "l"}
    if kind == "handle":
        return ships(rest[0], f"{path}h.1")
    if kind in letter:
        return ships(rest[0], path + letter[kind])
    if kind in ("seq", "gather"):
        return set().union(*(ships(one, f"{path}.{at}") for at, one in enumerate(rest)))
    return set()


def places(shape: Any, path: str) -> set[str]:
    """Return the places of what can fail."""
    kind, *rest = shape
    if kind in ("work", "pay"):
        return {path}
    letter = {"child": "c", "own": "o", "twins": "t", "terminate": "l", "abandon": "l"}
    if kind == "handle":
        return places(rest[0], f"{path}h.1")
    if kind in letter:
        return places(rest[0], path + letter[kind])
    if kind in ("seq", "gather"):
        return set().union(*(places(one, f"{path}.{at}") for at, one in enumerate(rest)))
    return set()


@examples(0.6)
@given(shapes, seeds, st.data())
def test_a_family_that_was_cut_off_is_retried_to_its_result(shape, seed, data):
    """Parent or child failed, cancelled or terminated at any moment: retried, it comes to the undisturbed result, and nothing twice."""

    async def undisturbed(sim: Simulation) -> Any:
        origin = await begin(sim, shape)
        result = await origin.result()
        await all_over(sim)
        return result, applied.copy(), await read(sim)

    async def cut_off(sim: Simulation) -> None:
        down.update(
            data.draw(st.sets(st.sampled_from(sorted(places(shape, "p")) or ["none"]), max_size=2))
        )
        origin = await begin(sim, shape)
        length = data.draw(st.integers(2, 14), label="entries")
        await sim.until("o", lambda head: head.next_seq >= length or head.status.closed)
        await asyncio.sleep(
            data.draw(st.sampled_from([0, 0.01, 0.03, 0.05, 2]), label="seconds more")
        )
        runs = sorted(one.run_id for one in await sim.client.runs.list() if one.run_id != "reader")
        hit = data.draw(st.sampled_from(["o", *runs]), label="who")
        how = data.draw(st.sampled_from(["terminate", "cancel"]), label="how")
        with contextlib.suppress(outlast.RunConflictError):
            await getattr(sim.client.handle(hit), how)("cut off")
        head = await sim.until("o", lambda head: head.status.closed or head.reason == "in doubt")
        if not head.status.closed:
            return
        if how == "cancel" or hit != "o" or "handle" in json.dumps(shape):
            # Children that clean up must have ended.
            await settled(sim)
        down.clear()
        last, head = origin, await sim.closed("o")
        # What had failed when the run was terminated is told to its retry, which then is retried from there.
        for _ in range(2):
            if head.status in (Status.COMPLETED, Status.BLOCKED):
                break
            try:
                last = await origin.retry(reason="it was cut off")
            except outlast.RunConflictError as error:
                assert "was asked to stop with it" in str(error)  # and is in doubt
                assert ships(shape, "p")
                return
            head = await sim.until(last.id, lambda head: head.status.closed or is_stuck(head))
        if head.status.closed:
            assert await last.result() == result
        assert head.status is Status.COMPLETED or ships(shape, "p"), head.reason
        await settled(sim)
        texts = await read(sim)
        if head.status is Status.COMPLETED:
            assert texts == told or left(shape)
        for place, times in applied.items():
            assert times <= done[place]
        for text, times in texts.items():
            assert times <= told[text]

    result, done, told = simulated(undisturbed, seed)
    simulated(cut_off, seed)


def left(shape: Any) -> bool:
    """Whether there are children that nobody waits for."""
    return shape[0] in ("terminate", "abandon") or any(
        left(one) for one in shape[1:] if isinstance(one, tuple)
    )


def is_stuck(head: Any) -> bool:
    return head.status is Status.BLOCKED


async def settled(sim: Simulation) -> None:
    """Return once nothing moves any more but what waits for an operator."""
    while await sim.store.outbox(1) or any(
        one.status in (Status.READY, Status.RUNNING) for one in await sim.client.runs.list()
    ):
        await asyncio.sleep(1)
    await asyncio.sleep(60)


def test_the_shapes_hold_what_the_laws_are_about() -> None:
    """The long run has children of children, and messages to all kinds of runs."""

    async def scenario(sim: Simulation) -> list[Entry]:
        await (await begin(sim, LONG)).result()
        await all_over(sim)
        found = await journal(sim, "o")
        return [*found, *await journal(sim, "ownp.0")]

    entries = simulated(scenario)
    assert sum(isinstance(one, ChildRequested) for one in entries) >= 6
    assert {bool(one.child) for one in entries if isinstance(one, MessageSent)} == {True, False}
