"""Forks and retries of runs that have children and write to others, case by case; the laws are in tests/property/test_fork_children.py."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client.retry import retry_position
from outlast.effects.key import child_id, idempotency_key, namespace_of_child, run_of
from outlast.journal.canonical import payload_sha256
from outlast.journal.entry import (
    Entry,
    Forked,
    MessageReceived,
    MessageSent,
    RunEnded,
    Started,
    from_row,
)
from outlast.store.change import RunKey, Status
from outlast.testing import Receiver, Simulation

ONCE = outlast.RetryPolicy(maximum_attempts=1)
go = outlast.Signal("go", int)
receiver = Receiver()
down: set[str] = set()


@outlast.step(retry=ONCE)
async def look(name: str) -> str:
    if name in down:
        raise OSError(f"{name} is down")
    return name


@outlast.effect(idempotent=True, repeats=True)
async def pay(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), f"paid {name}")


@outlast.workflow
async def kid(name: str) -> str:
    return f"{await pay(name)} {await look(name)} {bool(outlast.info().parent)}"


@outlast.workflow
async def hears(times: int) -> int:
    try:
        await look("ears")
    except OSError:
        await outlast.sleep(5)
        raise
    return sum([await outlast.receive(go) for _ in range(times)])


@outlast.workflow
async def cleans_up(id: str = "") -> str:
    try:
        return await outlast.run_child(kid("kid"), id=id or None)
    except outlast.WorkflowFailedError:
        await look("broom")
        raise


@outlast.workflow
async def waits_for(name: str, close: Any) -> str:
    child = await outlast.start_child(sleeps(name), parent_close=close)
    await look("parent")
    result = await child.result()
    return f"{child.id}: {result}"


@outlast.workflow
async def sleeps(name: str) -> str:
    paid = await pay(name)
    try:
        await outlast.sleep(100)
    except asyncio.CancelledError:
        await outlast.sleep(5)
        raise
    return paid


@outlast.workflow
async def talks() -> int:
    child = await outlast.start_child(hears(2))
    await child.send(go, 1)
    await outlast.sleep(10)
    await child.send(go, 2)
    return await child.result()


@outlast.workflow
async def writes() -> str:
    picked = await look("picked")
    await outlast.run_handle("other").send(go, len(picked))
    await outlast.run_handle("other").cancel("enough")
    return picked


@outlast.workflow
async def asks(name: str) -> str:
    picked = await look(name)
    return await outlast.run_child(kid(picked))


@outlast.workflow
async def goes_on(left: int) -> str:
    await pay(f"{left}")
    await look(f"{left}")
    if left > 1:
        outlast.continue_as_new(goes_on(left - 1))
    return "done"


@outlast.workflow
async def after(run: str) -> str:
    return await outlast.run_handle(run, kid).result()


CODE = [look, pay, kid, hears, cleans_up, waits_for, sleeps, talks, writes, asks, goes_on, after]


@pytest.fixture(autouse=True)
def _forget() -> None:
    receiver.forget()
    down.clear()


def run(scenario: Any) -> Any:
    async def begin(sim: Simulation) -> Any:
        await sim.start_worker()
        return await scenario(sim)

    return Simulation(CODE, longest=timedelta(days=9)).run(begin)


async def journal(sim: Simulation, run: str) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", run))]


async def failed(sim: Simulation, call: Any, *broken: str, id: str = "o") -> Any:
    down.update(broken)
    origin = await sim.client.start(call, id=id)
    with pytest.raises((outlast.WorkflowFailedError, outlast.RunTerminatedError)):
        await origin.result()
    down.clear()
    return origin


def key(run_id: str, name: str) -> str:
    return idempotency_key(run_id, "pay", payload_sha256({"name": name}))


@pytest.mark.parametrize(("id", "again"), [("", "o/retry-1/r:1"), ("kin", "kin/o/retry-1")])
def test_a_child_that_failed_is_retried_with_its_parent(id, again):
    """Also where the parent cleans up before it fails; what the child had done stands, under the key that it had."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        origin = await failed(sim, cleans_up(id), "kid")
        return await (await origin.retry(reason="up again")).result(), await journal(sim, again)

    result, entries = run(scenario)
    assert result == "paid kid kid True"
    assert receiver.requests == {key(id or "o/r:1", "kid"): 1}
    (forked,) = [one for one in entries if isinstance(one, Forked)]
    assert forked.parent is not None
    assert (forked.parent.run_id, forked.parent.operation) == ("o/retry-1", "r:1")


@pytest.mark.parametrize("close", ["terminate", "cancel", "abandon"])
@pytest.mark.parametrize("how", ["terminate", "cancel", ""])
def test_a_parent_that_was_ended_is_retried_with_its_children(close, how):
    """Whatever its end means to them: those that it ends go on from there, one that goes on alone is waited for."""

    async def scenario(sim: Simulation) -> str:
        down.update([] if how else ["parent"])
        origin = await sim.client.start(waits_for("x", close), id="o")
        await sim.until("o/r:1", lambda head: head.next_seq > 3)
        if how:
            await getattr(origin, how)("enough")
        await sim.closed("o")
        if close == "cancel":
            await sim.closed("o/r:1")
        down.clear()
        return await (await origin.retry(reason="again")).result()

    # Who waits for a child and is cancelled sends that on, and waits for its end.
    is_own = close != "abandon" or how == "cancel"
    assert run(scenario) == ("o/retry-1/r:1: paid x" if is_own else "o/r:1: paid x")
    assert receiver.requests == {key("o/r:1", "x"): 1}


def test_a_child_that_cleans_up_must_have_ended():
    """A retry says which child it waits for, and leaves nothing behind."""

    async def scenario(sim: Simulation) -> tuple[str, int]:
        down.add("parent")
        origin = await sim.client.start(waits_for("x", "cancel"), id="o")
        await sim.closed("o")
        with pytest.raises(outlast.RunConflictError) as caught:
            await origin.retry(reason="at once")
        return str(caught.value), len(await sim.client.runs.list())

    told, runs = run(scenario)
    assert "its child, run o/r:1, was asked to stop with it" in told
    assert runs == 2


def test_a_retry_whose_child_would_have_the_id_of_another_run_makes_nothing():
    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        origin = await failed(sim, cleans_up(), "kid")
        await sim.client.start(hears(1), id="r/r:1")
        with pytest.raises(outlast.RunConflictError) as caught:
            await origin.retry(id="r", reason="up again")
        return str(caught.value), sorted(one.run_id for one in await sim.client.runs.list())

    told, runs = run(scenario)
    assert "taken" in told
    assert runs == ["o", "o/r:1", "r/r:1"]


def test_the_same_retry_again_is_the_same_family():
    async def scenario(sim: Simulation) -> tuple[str, int]:
        origin = await failed(sim, cleans_up(), "kid")
        for _ in range(2):
            retry = await origin.retry(id="r", reason="up again")
        result = await retry.result()
        await origin.retry(id="r", reason="up again")
        return result, len(await sim.client.runs.list())

    assert run(scenario) == ("paid kid kid True", 4)


def test_the_last_retry_of_a_child_counts():
    """A child that was retried by itself gives its result to the retry of its parent."""

    async def scenario(sim: Simulation) -> tuple[str, int]:
        origin = await failed(sim, cleans_up(), "kid")
        await (await sim.client.handle("o/r:1").retry(reason="alone")).result()
        return await (await origin.retry(reason="too")).result(), len(await sim.client.runs.list())

    # Alone it had no parent, and no run is made for it again.
    assert run(scenario) == ("paid kid kid False", 4)


def test_what_a_child_was_sent_lies_in_the_inbox_of_its_retry():
    """It had failed when it was told: nobody would send that again."""

    async def scenario(sim: Simulation) -> tuple[int, list[Entry]]:
        origin = await failed(sim, talks(), "ears")
        return await (await origin.retry(reason="up")).result(), await journal(sim, "o/retry-1/r:1")

    result, entries = run(scenario)
    assert result == 3
    assert sum(isinstance(one, MessageReceived) for one in entries) == 2


def test_what_a_child_has_heard_is_not_sent_to_its_retry_again():
    """Its parent was terminated before it knew that the message had come."""

    async def scenario(sim: Simulation) -> tuple[list[type], int]:
        origin = await sim.client.start(talks(), id="o")
        while len(await journal(sim, "o")) < 5:
            await asyncio.sleep(0.00001)
        await origin.terminate("enough")
        kinds = [type(one) for one in await journal(sim, "o")]
        await sim.closed("o/r:1")
        retry = await origin.retry(reason="go on")
        return kinds, await retry.result()

    kinds, result = run(scenario)
    assert kinds[-1] is MessageSent
    assert result == 3


def test_a_run_that_waited_for_another_is_retried_from_its_end():
    async def scenario(sim: Simulation) -> tuple[int, list[type]]:
        await failed(sim, kid("kid"), "kid", id="other")
        await failed(sim, after("other"))
        entries = await journal(sim, "o")
        return retry_position(entries), [type(one) for one in entries]

    position, kinds = run(scenario)
    assert position == kinds.index(RunEnded)


def test_a_position_after_a_message_to_an_open_child_is_refused_where_another_would_lack_it():
    async def scenario(sim: Simulation) -> tuple[str, int, str]:
        origin = await sim.client.start(talks(), id="o")
        await sim.until("o", lambda head: head.status is Status.WAITING and head.next_seq >= 6)
        with pytest.raises(outlast.DefinitionError) as caught:
            await origin.fork(6, id="f", reason="to see", effects="new_key")
        told = str(caught.value)
        good = await origin.fork(5, id="g", reason="to see", effects="new_key")
        same = await origin.fork(6, id="s", reason="to see", effects="same_key")
        refused = await origin.fork(6, id="r", reason="to see")
        with pytest.raises(outlast.WorkflowFailedError) as failure:
            await refused.result()
        assert await same.result() == await origin.result() == 3
        return told, await good.result(), str(failure.value.__cause__)

    told, result, refused = run(scenario)
    assert "before position 6 a message was sent to run o/r:1" in told
    assert "give 5 or less" in told
    assert result == 3
    assert "has not ended as far as anybody knows" in refused


@pytest.mark.parametrize(
    ("effects", "heard"), [("refuse", []), ("same_key", [5]), ("new_key", [5])]
)
def test_what_a_fork_may_say_to_others(effects, heard):
    """The origin said something else: that is known, and what it did not say is refused or sent, as was said."""

    async def scenario(sim: Simulation) -> tuple[str, list[int]]:
        await sim.client.start(hears(9), id="other")
        origin = await sim.client.start(writes(), id="o")
        await origin.result()
        await sim.client.start(hears(9), id="other", if_closed="restart")
        await origin.fork(outcome=("r:1", "other"), id="f", reason="to see", effects=effects)
        head = await sim.closed("f")
        await asyncio.sleep(10)
        found = await journal(sim, "other")
        values = [int(bytes(one.value)) for one in found if isinstance(one, MessageReceived)]
        return f"{head.status} {head.reason}", values

    told, values = run(scenario)
    assert values == heard
    if effects == "refuse":
        assert "which did not send the signal go to run other" in told
    else:
        assert told == "completed "


@pytest.mark.parametrize(
    ("effects", "used"), [("refuse", None), ("same_key", "o/r:2"), ("new_key", "f/r:2")]
)
def test_the_child_that_the_origin_did_not_come_to(effects, used):
    """It is bound as the fork: refused, with the keys that the origin's child would have, or with keys of its own."""

    async def scenario(sim: Simulation) -> str:
        origin = await sim.client.start(asks("a"), id="o")
        await origin.result()
        receiver.forget()
        await origin.fork(outcome=("r:1", "b"), id="f", reason="to see", effects=effects)
        head = await sim.closed("f")
        return f"{head.status} {head.reason}"

    told = run(scenario)
    if used is None:
        assert "ForkedEffectError: the run is a child of a fork" in told
        assert not receiver.requests
    else:
        assert told == "completed "
        assert receiver.requests == {key(used, "b"): 1}


def test_a_retry_goes_on_in_new_generations_where_its_origin_had_ended():
    """Its next generation never was: the retry's has keys of its own, and nothing of it is refused."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        origin = await failed(sim, goes_on(3), "2")
        retry = await origin.retry(reason="up again")
        result = await retry.result()
        rows = await sim.store.journal(RunKey("default", retry.id), generation=2)
        first = from_row(rows[0].row)
        assert isinstance(first, Started)
        return result, [first.effects, first.keys, first.namespace]

    assert run(scenario) == ("done", ["", "", "o/retry-1~2"])
    assert receiver.requests == Counter([key("o", "3"), key("o~2", "2"), key("o/retry-1~2", "1")])


def test_the_fork_of_a_child_is_nobodys_child():
    """Up to the position its code is told the parent that it had."""

    async def scenario(sim: Simulation) -> tuple[str, str]:
        await (await sim.client.start(asks("a"), id="o")).result()
        child = sim.client.handle("o/r:2", kid)
        early = await child.fork(2, id="f", reason="to see")
        return await child.result(), await early.result()

    assert run(scenario) == ("paid a a True", "paid a a False")


def test_the_namespace_of_a_child_that_never_was_is_that_which_it_would_have():
    assert run_of("t\x1fo~3") == ("o", 3)
    assert child_id("o", 3, "r~1:2") == "o/r-1:2@3"
    assert namespace_of_child("o", "r:1") == "o/r:1"
    assert namespace_of_child("t\x1fo~3", "r:1") == "t\x1fo/r:1@3"
    assert namespace_of_child("t\x1fo~3", "r:1", "own") == "t\x1fown"
