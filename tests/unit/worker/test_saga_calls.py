"""Which calls a saga undoes, once each: equal calls, calls of other sagas, and what the workflow has undone itself."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.journal.entry import EffectRefused, from_row
from outlast.store.change import RunKey
from outlast.testing import Receiver, Simulation

ONCE = outlast.RetryPolicy(maximum_attempts=1)
SOON = timedelta(seconds=20)
world = Receiver()
lost: list[str] = []
"""What happens, and whose answer is lost, once for each name here."""

down: list[str] = []
"""What cannot be reached, once for each name here."""

bodies: list[Callable[[], Coroutine[Any, Any, Any]]] = []


@pytest.fixture(autouse=True)
def _anew() -> None:
    world.forget()
    for one in (lost, down, bodies):
        one.clear()


def act(name: str) -> str:
    if name in down:
        down.remove(name)
        raise ConnectionRefusedError(name)
    world.apply_once(outlast.idempotency_key(), name)
    if name in lost:
        lost.remove(name)
        raise ConnectionError(name)
    return name


@outlast.effect(
    idempotent=True, start_to_close_timeout=SOON, retry=ONCE, schedule_to_close_timeout=SOON
)
async def refund(what: str) -> str:
    return act(f"refund {what}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=ONCE, repeats=True)
async def release(what: str) -> str:
    return act(f"release {what}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=ONCE, compensate=refund)
async def charge(what: str) -> str:
    return act(f"charge {what}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=ONCE, compensate=refund)
async def bill(what: str) -> str:
    return act(f"bill {what}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=ONCE, compensate=release)
async def reserve(what: str) -> str:
    return act(f"reserve {what}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=ONCE, compensate=charge)
async def reverse(what: str) -> str:
    return act(f"reverse {what}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=ONCE, compensate=reverse)
async def deduct(what: str) -> str:
    return act(f"deduct {what}")


@outlast.effect(start_to_close_timeout=timedelta(seconds=1), settle=timedelta(0), compensate=refund)
async def wire(what: str) -> str:
    return act(f"wire {what}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=ONCE)
async def note(what: str) -> str:
    return act(f"note {what}")


@outlast.effect(
    idempotent=True,
    start_to_close_timeout=SOON,
    retry=ONCE,
    compensate=refund,
    same_as=outlast.SameAs("what", role="owner", expires_in=timedelta(hours=1)),
)
async def order(what: str, how: str) -> str:
    return act(f"order {what} {how}")


@outlast.step
async def take_long() -> None:
    await asyncio.sleep(1000)


@outlast.workflow
async def played() -> Any:
    return await bodies[-1]()


@outlast.workflow
async def parting() -> None:
    await outlast.start_child(played(), id="kid")
    await outlast.sleep(10)
    raise LookupError


CODE = [
    *(refund, release, charge, bill, reserve, reverse, deduct, wire, note, order, take_long),
    *(played, parting),
]


def play(
    body: Callable[[], Coroutine[Any, Any, Any]],
    during: Callable[[RunHandle[Any], Simulation], Coroutine[Any, Any, Any]] | None = None,
) -> tuple[str, list[str]]:
    """Return how the run ended, and what the world was told, in order."""
    bodies.append(body)

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(played(), id="r")
        if during is not None:
            await during(handle, sim)
        await sim.closed("r")
        rows = await sim.store.journal(RunKey("default", "r"))
        refused = [
            one for one in (from_row(row.row) for row in rows) if isinstance(one, EffectRefused)
        ]
        assert not [one for one in refused if one.name in ("refund", "release")]
        return str((await handle.status()).status)

    status = Simulation(CODE).run(scenario)
    assert all(count == 1 for count in world.changes.values())
    return status, [value for _, value in world.log]


def test_what_one_key_has_done_is_undone_once() -> None:
    """Equal calls after an unknown end are one to the receiver, however often the workflow makes them, also in an inner saga."""
    lost.extend(["charge a"] * 2)

    async def body() -> None:
        async with outlast.saga():
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    await charge("a")
            async with outlast.saga():
                await charge("a")
            raise LookupError

    assert play(body) == ("compensated", ["charge a", "refund a"])


def test_what_a_saga_may_undo_no_other_code_relies_on() -> None:
    """A call with the key of one that may have happened in a saga that is open elsewhere is refused."""
    lost.append("charge a")

    async def body() -> None:
        ready = asyncio.Event()

        async def other() -> None:
            async with outlast.saga():
                with pytest.raises(ConnectionError):
                    await charge("a")
                ready.set()
                await outlast.sleep(5)
                raise LookupError

        task = asyncio.create_task(other())
        await ready.wait()
        with pytest.raises(outlast.RepeatedEffectError, match="may be undone there"):
            await charge("a")
        await task

    assert play(body) == ("compensated", ["charge a", "refund a"])


def test_another_sagas_undoing_is_not_taken_for_ones_own() -> None:
    """What counts as a compensation was made in the same saga."""

    async def body() -> None:
        async def kept() -> None:
            async with outlast.saga():
                await bill("a")
                await refund("a")

        async def aborted() -> None:
            async with outlast.saga():
                await charge("a")
                await outlast.sleep(5)
                raise LookupError

        await asyncio.gather(kept(), aborted())

    status, told = play(body)
    assert status == "compensated"
    assert sorted(told) == ["bill a", "charge a", "refund a", "refund a"]


def test_an_undoing_that_was_undone_does_not_count() -> None:
    """Newest first: the workflow's own reversal is undone, and then what it had reversed."""

    async def body() -> None:
        async with outlast.saga():
            await deduct("a")
            await reverse("a")
            raise LookupError

    assert play(body) == (
        "compensated",
        ["deduct a", "reverse a", "charge a", "reverse a"],
    )


def test_the_workflows_own_undoing_counts_though_it_may_repeat() -> None:
    """Once: of two that were done, one is left to undo."""

    async def body() -> None:
        async with outlast.saga():
            await reserve("a")
            await reserve("b")
            await release("b")
            raise LookupError

    assert play(body) == ("compensated", ["reserve a", "reserve b", "release b", "release a"])


def test_an_approval_keeps_nothing_from_being_undone() -> None:
    """Be it denied, be it for other arguments, be it over: the yes to an effect is the yes to what undoes it."""

    async def body() -> None:
        with pytest.raises(outlast.ApprovalExpiredError):
            await outlast.approval(
                "?",
                covers=[refund("b"), refund.where(what="c")],
                role="boss",
                expires_in=timedelta(seconds=1),
            )
        async with outlast.saga():
            await charge("a")
            raise LookupError

    assert play(body) == ("compensated", ["charge a", "refund a"])


def test_what_was_undone_and_done_again_can_be_undone_by_the_workflow() -> None:
    """Its own undoing is refused only while nothing stands that it could undo."""

    async def body() -> None:
        with pytest.raises(LookupError):
            async with outlast.saga():
                await charge("a")
                raise LookupError
        with pytest.raises(outlast.RepeatedEffectError):
            await refund("a")
        await charge("a")
        await refund("a")

    assert play(body) == ("completed", ["charge a", "refund a"] * 2)


def test_attempts_have_their_time_anew_when_they_begin_anew() -> None:
    """An operator lets a compensation be tried again whose time was over long ago."""
    down.append("refund a")

    async def body() -> None:
        async with outlast.saga():
            await charge("a")
            raise LookupError

    async def later(handle: RunHandle[Any], sim: Simulation) -> None:
        await sim.until("r", lambda head: head.reason in ("compensation failed", "in doubt"))
        await asyncio.sleep(100)
        await handle.resolve("r:1u:1", not_applied=True, reason="they are up again")

    assert play(body, later) == ("compensated", ["charge a", "refund a"])


def test_a_compensation_that_gave_up_is_not_undone_itself() -> None:
    """It has not happened: what is said of it is that it did, that it is tried again, or that it is left."""
    down.append("reverse a")

    async def body() -> None:
        async with outlast.saga():
            await deduct("a")
            raise LookupError

    async def later(handle: RunHandle[Any], sim: Simulation) -> None:
        await sim.until("r", lambda head: head.reason == "compensation failed")
        with pytest.raises(outlast.DefinitionError):
            await handle.resolve("r:1u:1", compensate=True, reason="?")
        await handle.resolve("r:1u:1", not_applied=True, reason="again")

    assert play(body, later) == ("compensated", ["deduct a", "reverse a"])


def test_what_an_operator_has_undone_is_heard_of_when_it_is() -> None:
    """Whoever waits for it goes on then, and the run is not ended by mistake before."""
    lost.append("wire a")
    down.append("refund a")

    async def body() -> str:
        try:
            return await wire("a")
        except outlast.EffectCompensatedError:
            return "undone" if world.log[-1][1] == "refund a" else "too early"

    async def later(handle: RunHandle[Any], sim: Simulation) -> None:
        await sim.until("r", lambda head: head.reason == "in doubt")
        await handle.resolve("r:1", compensate=True, reason="nobody knows")
        await sim.until("r", lambda head: head.reason == "compensation failed")
        with pytest.raises(outlast.OpenCompensationsError):
            await handle.terminate("by mistake")
        await handle.resolve("r:1c", not_applied=True, reason="up again")
        assert await handle.result() == "undone"

    assert play(body, later) == ("completed", ["wire a", "refund a"])


def test_a_cancel_reaches_a_saga_that_has_outlived_the_body() -> None:
    """Also where it has taken its first cancel back: what it did is undone, and the run ends."""

    async def body() -> None:
        async def stubborn() -> None:
            async with outlast.saga():
                await charge("a")
                try:
                    await outlast.sleep(1000)
                except asyncio.CancelledError:
                    await outlast.sleep(10_000)

        asyncio.create_task(stubborn())  # noqa: RUF006 - left behind on purpose
        await outlast.sleep(5)

    async def later(handle: RunHandle[Any], sim: Simulation) -> None:
        await asyncio.sleep(60)
        await handle.cancel("enough")

    assert play(body, later) == ("completed", ["charge a", "refund a"])


def test_a_saga_that_was_left_out_of_order_binds_nobody_afterwards() -> None:
    """Entered and left by hand."""

    async def body() -> None:
        outer, inner = outlast.saga(), outlast.saga()
        await outer.__aenter__()
        await inner.__aenter__()
        await charge("a")
        error = LookupError()
        await outer.__aexit__(LookupError, error, None)
        await inner.__aexit__(None, None, None)
        await charge("b")

    assert play(body) == ("completed", ["charge a", "refund a", "charge b"])


def test_a_call_outside_goes_on_when_the_saga_is_undone_in_which_an_equal_one_was_made() -> None:
    """Nothing undoes it, so both are one; the one inside is refused, and the other has the outcome."""

    async def body() -> list[str]:
        calls: list[asyncio.Task[str]] = []

        async def inside() -> None:
            with pytest.raises(LookupError):
                async with outlast.saga():
                    calls.append(asyncio.create_task(note("a")))
                    for _ in range(2):
                        await asyncio.sleep(0)
                    raise LookupError

        async def outside() -> str:
            await asyncio.sleep(0)
            return await note("a")

        _, said = await asyncio.gather(inside(), outside())
        assert said == "note a"
        with pytest.raises(outlast.SagaClosedError):
            await calls[0]
        return [said]

    assert play(body) == ("completed", ["note a"])


@pytest.mark.parametrize("inside_first", [True, False])
def test_what_a_person_lets_be_done_again_is_done_in_the_saga_that_asked(
    inside_first: bool,
) -> None:
    """Equal calls that wait for one answer begin each where it was made: what stands outside is not undone, nor relied on inside."""

    async def body() -> list[str]:
        heard: list[str] = []
        await order("a", "by mail")

        async def outside() -> None:
            try:
                heard.append(f"outside {await order('a', 'by phone')}")
            except outlast.RepeatedEffectError:
                heard.append("outside refused")

        async def inside() -> None:
            with pytest.raises(LookupError):
                async with outlast.saga():
                    try:
                        heard.append(f"inside {await order('a', 'by phone')}")
                    except outlast.RepeatedEffectError:
                        heard.append("inside refused")
                    raise LookupError

        parts = (inside, outside) if inside_first else (outside, inside)
        await asyncio.gather(*(part() for part in parts))
        return sorted(heard)

    async def later(handle: RunHandle[Any], sim: Simulation) -> None:
        while not (asked := await sim.client.approvals.list()):
            await asyncio.sleep(1)
        (one,) = asked
        await sim.client.approvals.approve(
            "r", one.approval_id, seen_sha256=one.subject_sha256, reason="it was lost"
        )
        said = "inside order a by phone", "outside refused"
        other = "inside refused", "outside order a by phone"
        assert await handle.result() == list(said if inside_first else other)

    undoing = ["refund a"] if inside_first else []
    told = ["order a by mail", "order a by phone", *undoing]
    assert play(body, later) == ("completed", told)


@pytest.mark.parametrize("waits", ["timer", "step"])
def test_a_run_that_only_waits_after_its_saga_can_be_terminated(waits: str) -> None:
    """Nothing of it would be left."""

    async def body() -> None:
        async with outlast.saga():
            await charge("a")
        await (outlast.sleep(1000) if waits == "timer" else take_long())

    async def later(handle: RunHandle[Any], sim: Simulation) -> None:
        del sim
        await asyncio.sleep(30)
        await handle.terminate("enough")

    assert play(body, later) == ("terminated", ["charge a"])


def test_a_child_inside_its_saga_is_not_ended_with_its_parent_but_undoes_first() -> None:
    """Nobody has said that what it did may stay."""

    async def body() -> None:
        async with outlast.saga():
            await charge("a")
            await outlast.sleep(1000)

    bodies.append(body)

    async def scenario(sim: Simulation) -> tuple[str, ...]:
        await sim.start_worker()
        handle = await sim.client.start(parting(), id="r")
        await sim.closed("r")
        await sim.closed("kid")
        kid = await sim.client.handle("kid").status()
        return str((await handle.status()).status), str(kid.status)

    assert Simulation(CODE).run(scenario) == ("failed", "compensated")
    assert [value for _, value in world.log] == ["charge a", "refund a"]


def test_a_retry_takes_no_child_along_that_is_still_undoing() -> None:
    """It says which one; it neither ends it by force nor goes on with it."""
    down.append("refund a")

    async def body() -> None:
        async with outlast.saga():
            await charge("a")
            await outlast.sleep(1000)

    bodies.append(body)

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(parting(), id="r")
        await sim.closed("r")
        await sim.until("kid", lambda head: head.reason == "compensation failed")
        with pytest.raises(outlast.RunConflictError, match="run kid, was asked to stop with it"):
            await handle.retry(reason="at once")
        kid = sim.client.handle("kid")
        await kid.resolve("r:1u:1", not_applied=True, reason="up again")
        await sim.closed("kid")
        with pytest.raises(outlast.RunConflictError, match="its keys are used up"):
            await handle.retry(reason="now")
        return str((await kid.status()).status)

    assert Simulation(CODE).run(scenario) == "compensated"
    assert [value for _, value in world.log] == ["charge a", "refund a"]


def test_a_run_that_ends_while_an_operator_has_something_undone_says_so() -> None:
    """Nobody waits for the effect any more; the end is written when it is undone, and tells what came of that."""
    lost.append("wire a")

    async def body() -> None:
        task = asyncio.create_task(wire("a"))
        await outlast.sleep(1)
        del task
        raise LookupError

    async def later(handle: RunHandle[Any], sim: Simulation) -> None:
        await sim.until("r", lambda head: head.reason == "in doubt")
        (doubt,) = (await handle.detail()).operations
        await handle.resolve(doubt.operation, compensate=True, reason="nobody knows")

    assert play(body, later) == ("compensated", ["wire a", "refund a"])


def test_a_result_is_not_taken_for_a_parameter_of_that_name() -> None:
    """Both could be meant."""

    @outlast.effect(idempotent=True)
    async def take_back(result: str) -> None: ...

    with pytest.raises(outlast.DefinitionError, match="has a parameter result itself"):

        @outlast.effect(idempotent=True, start_to_close_timeout=SOON, compensate=take_back)
        async def give(result: str) -> str:
            return result
