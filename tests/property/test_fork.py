"""Laws of forks: whatever a run did, a fork of it ends the same and repeats no effect; a run that was cut off is retried to its result."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from searching import examples

import outlast
from outlast.effects.intent import Applied, NotApplied
from outlast.journal.entry import (
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    Entry,
    Forked,
    MessageReceived,
    from_row,
)
from outlast.journal.prefix import ROLES, Role
from outlast.store.change import RunKey, Status
from outlast.testing import Receiver, Simulation, replay_run
from outlast.workflows.registry import Registry

MESSAGES = 3
TIMEOUT = timedelta(seconds=5)
receiver = Receiver()
number = outlast.Signal("number", int)


@outlast.step
async def work(n: int, path: str) -> int:
    await asyncio.sleep(0.01 * (n % 3))
    return n * 2


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
async def broken(n: int, path: str) -> int:
    raise OSError(f"{n} is broken")


@outlast.effect(idempotent=True, repeats=True)
async def pay(n: int, path: str) -> int:
    await asyncio.sleep(0.02)
    said = receiver.apply_once(outlast.idempotency_key(), n)
    await asyncio.sleep(0.02)
    return said


async def find(n: int, path: str) -> Applied[int] | NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find, start_to_close_timeout=TIMEOUT)
async def mail(n: int, path: str) -> int:
    await asyncio.sleep(0.02)
    said = receiver.apply(outlast.idempotency_key(), n)
    await asyncio.sleep(0.02)
    return said


@outlast.effect(start_to_close_timeout=TIMEOUT)
async def ship(n: int, path: str) -> int:
    await asyncio.sleep(0.02)
    said = receiver.apply(outlast.idempotency_key(), n)
    await asyncio.sleep(0.02)
    return said


@outlast.effect(start_to_close_timeout=TIMEOUT, not_applied=(OSError,), repeats=True)
async def declined(n: int, path: str) -> int:
    raise OSError(f"{n} was declined")


@outlast.effect(start_to_close_timeout=TIMEOUT, repeats=True)
async def guarded(n: int, path: str) -> int:
    return receiver.apply(outlast.idempotency_key(), n)


ACTS = {one.name: one for one in (work, broken, pay, mail, ship, declined)}


@outlast.workflow
async def program(text: str) -> str:
    return json.dumps(await carry_out(json.loads(text), "p"))


async def carry_out(shape: list[Any], path: str) -> Any:
    """Carry out a part; what it gives does not depend on which of several branches was first, as that of two equal calls would."""
    kind, *rest = shape
    match kind:
        case "sleep":
            await outlast.sleep(rest[0])
            return "slept"
        case "hear":
            with contextlib.suppress(TimeoutError):
                await outlast.receive(number, timeout=timedelta(hours=1))
            return "heard"
        case "ask":
            return await ask(rest[0], path)
        case "seq":
            return [await carry_out(one, f"{path}.{at}") for at, one in enumerate(rest)]
        case "gather":
            return await asyncio.gather(
                *(carry_out(one, f"{path}.{at}") for at, one in enumerate(rest))
            )
        case "draw":
            return str(outlast.uuid4())
        case "twice":
            return [await carry_out([rest[0], rest[1]], path) for _ in range(2)]
        case _:
            try:
                return await ACTS[kind](rest[0], path)
            except (OSError, outlast.RepeatedEffectError) as error:
                return type(error).__name__


async def ask(n: int, path: str) -> str:
    try:
        await outlast.approval(
            n, covers=[guarded(n, path)], role="boss", expires_in=timedelta(hours=1)
        )
    except outlast.ApprovalDeniedError:
        return "denied"
    return f"{await guarded(n, path)}"


CODE = [work, broken, pay, mail, ship, declined, guarded, program]

few = st.integers(1, 4)
leaves = st.one_of(
    st.tuples(st.sampled_from(sorted(ACTS)), few),
    st.tuples(st.sampled_from(["pay", "mail", "ship"]), few),
    st.tuples(st.just("sleep"), st.integers(1, 30)),
    st.tuples(st.sampled_from(["hear", "draw"])),
    st.tuples(st.just("twice"), st.sampled_from(sorted(ACTS)), few),
    st.tuples(st.just("ask"), few),
)
shapes = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda how, parts: (how, *parts),
        st.sampled_from(["seq", "gather"]),
        st.lists(inner, min_size=1, max_size=4),
    ),
    max_leaves=8,
).map(lambda shape: ("seq", *shape[1:]) if shape[0] == "seq" else ("seq", shape))
seeds = st.integers(0, 2**32)


class Outside:
    """Whoever sends and decides, alike for each run."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.chance = random.Random(sim.seed)  # noqa: S311 - a seed must repeat

    async def feed(self, run: str, heard: int = 0) -> None:
        """Send what the run has not had yet, now and then; decide what it asks, the same way each time."""
        handle = self.sim.client.handle(run)
        left = list(range(heard, MESSAGES))
        with contextlib.suppress(outlast.RunConflictError):
            while True:
                if left and self.chance.random() < 0.5:
                    await handle.send(number, left.pop(0))
                for view in await self.sim.client.approvals.list(run_id=run):
                    no = view.subject["subject"] % 2
                    act = (
                        self.sim.client.approvals.deny if no else self.sim.client.approvals.approve
                    )
                    with contextlib.suppress(outlast.DecisionRefusedError):
                        await act(run, view.approval_id, seen_sha256=view.subject_sha256)
                if (await handle.status()).status.closed:
                    return
                await asyncio.sleep(self.chance.choice([0.1, 1, 5]))


async def journal(sim: Simulation, run: str) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", run))]


async def allowed(sim: Simulation, run: str) -> list[int]:
    """Return every position at which a run can be forked."""
    rows = await sim.store.journal(RunKey("default", run))
    turns = [one.row.turn for one in rows]
    end = len(rows) - (ROLES[type(from_row(rows[-1].row))] is Role.END)
    return [at for at in range(1, end + 1) if at == len(rows) or turns[at] != turns[at - 1]]


def heard_in(entries: list[Entry]) -> int:
    return sum(isinstance(one, MessageReceived) for one in entries)


@examples(0.6)
@given(shapes, seeds, st.sampled_from(["refuse", "same_key", "new_key"]), st.data())
def test_a_fork_ends_as_its_origin_and_repeats_no_effect(shape, seed, effects, data):
    """At any position, under any policy: the same result; nothing is attempted; the origin is what it was; the journal replays."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        outside = Outside(sim)
        origin = await sim.client.start(program(json.dumps(shape)), id="o")
        await outside.feed("o")
        result = await origin.result()
        before = await sim.store.load(RunKey("default", "o"))
        requests = receiver.requests.copy()
        position = data.draw(st.sampled_from(await allowed(sim, "o")), label="position")
        fork = await origin.fork(position, id="f", reason="to see", effects=effects)
        await outside.feed("f", heard_in((await journal(sim, "o"))[:position]))
        assert await fork.result() == result
        assert receiver.requests == requests
        assert await sim.store.load(RunKey("default", "o")) == before
        closed = await replay_run(sim.store, Registry(CODE), sim.clock, RunKey("default", "f"))
        assert closed is not None
        again = data.draw(st.sampled_from(await allowed(sim, "f")), label="position in the fork")
        second = await fork.fork(again, id="g", reason="to see again")
        await outside.feed("g", heard_in((await journal(sim, "f"))[:again]))
        assert await second.result() == result
        assert receiver.requests == requests

    receiver.forget()
    Simulation(CODE, seed=seed, longest=timedelta(days=9)).run(scenario)


@examples(0.6)
@given(shapes, seeds, st.data())
def test_a_run_that_was_cut_off_is_retried_to_its_result(shape, seed, data):
    """Ended from outside at any moment, and retried: the undisturbed result, or in doubt about what nobody can know; nothing twice."""

    async def undisturbed(sim: Simulation) -> Any:
        await sim.start_worker()
        origin = await sim.client.start(program(json.dumps(shape)), id="o")
        await Outside(sim).feed("o")
        return await origin.result()

    async def cut_off(sim: Simulation) -> None:
        await sim.start_worker()
        outside = Outside(sim)
        origin = await sim.client.start(program(json.dumps(shape)), id="o")
        feeding = sim.spawn(outside.feed("o"))
        length = data.draw(st.integers(2, 14), label="entries")
        while not (head := await sim.store.head(key)) or not (
            head.next_seq >= length or head.status.closed
        ):
            await asyncio.sleep(0.005)
        await asyncio.sleep(data.draw(st.sampled_from([0, 0.01, 0.03, 0.05]), label="seconds more"))
        with contextlib.suppress(outlast.RunConflictError):
            await origin.terminate("cut off")
        await feeding
        if (await origin.status()).status is Status.COMPLETED:
            assert await origin.result() == result
            return
        fork = await origin.retry(reason="it was cut off")
        kept = await journal(sim, fork.id)
        feeding = sim.spawn(outside.feed(fork.id, heard_in(kept)))
        head = await sim.until(
            fork.id, lambda head: head.status.closed or head.reason == "in doubt"
        )
        if head.status is Status.BLOCKED:
            doubts = (await fork.detail()).operations
            assert {one.name for one in doubts if one.state == "in doubt"} <= {
                "mail",
                "ship",
                "guarded",
            }
        else:
            assert await fork.result() == result
        feeding.cancel()
        assert set(receiver.changes.values()) <= {1}
        assert_nothing_settled_was_done_again(await journal(sim, "o"), await journal(sim, fork.id))

    key = RunKey("default", "o")
    receiver.forget()
    result = Simulation(CODE, seed=seed, longest=timedelta(days=9)).run(undisturbed)
    receiver.forget()
    Simulation(CODE, seed=seed, longest=timedelta(days=9)).run(cut_off)


def assert_nothing_settled_was_done_again(origin: list[Entry], fork: list[Entry]) -> None:
    """What the origin completed has that outcome in the fork; its intents keep their keys."""
    intents = {one.operation: one for one in origin if isinstance(one, EffectIntended)}
    ends = {one.operation: one for one in origin if isinstance(one, EffectCompleted)}
    after = {one.operation: one for one in fork if isinstance(one, EffectIntended)}
    for operation in intents.keys() & after.keys():
        assert after[operation].key == intents[operation].key
    for one in fork:
        if isinstance(one, EffectCompleted | EffectFailed) and one.operation in ends:
            assert isinstance(one, EffectCompleted)
            assert one.value == ends[one.operation].value
            assert one.source in (ends[one.operation].source, "fork")
    assert sum(isinstance(one, Forked) for one in fork) == 1


@pytest.mark.slow
@pytest.mark.parametrize("effects", ["refuse", "same_key", "new_key"])
def test_every_position_of_one_long_run(effects: Any) -> None:
    """Not drawn but enumerated: everything that the laws draw, in one run."""
    shape = ("seq", ("gather", ("pay", 1), ("mail", 2), ("declined", 3), ("ask", 2)), ("hear",), ("ask", 1), ("sleep", 5),
             ("gather", ("hear",), ("ship", 3), ("seq", ("work", 1), ("pay", 1)), ("broken", 2)), ("draw",), ("twice", "declined", 3), ("twice", "pay", 3), ("twice", "ship", 3))  # fmt: skip

    async def scenario(sim: Simulation) -> Counter[str]:
        await sim.start_worker()
        outside = Outside(sim)
        origin = await sim.client.start(program(json.dumps(shape)), id="o")
        await outside.feed("o")
        result, requests = await origin.result(), receiver.requests.copy()
        positions = await allowed(sim, "o")
        for position in positions:
            fork = await origin.fork(position, id=f"f{position}", reason="to see", effects=effects)
            await outside.feed(fork.id, heard_in((await journal(sim, "o"))[:position]))
            assert await fork.result() == result
            assert receiver.requests == requests
        return Counter(type(one).__name__ for one in await journal(sim, "o"))

    receiver.forget()
    kinds = Simulation(CODE, longest=timedelta(days=9)).run(scenario)
    assert kinds["EffectIntended"] >= 6
    assert kinds["ApprovalDecided"] == 2
