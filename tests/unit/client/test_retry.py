"""Retrying a run that ended without a result: a fork that goes on from what failed, and repeats nothing that was finished."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.effects.key import idempotency_key
from outlast.journal.canonical import payload_sha256
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalRequested,
    EffectCompleted,
    EffectIntended,
    Entry,
    Forked,
    LeftOut,
    from_row,
)
from outlast.store.change import RunKey, Status
from outlast.testing import Receiver, Simulation

ONCE = outlast.RetryPolicy(maximum_attempts=1)
receiver = Receiver()
done: Counter[str] = Counter()
broken: set[str] = set()
"""Names of what fails."""

go = outlast.Signal("go", int)


def work(name: str) -> str:
    if name in broken:
        raise OSError(f"{name} is broken")
    done[name] += 1
    return name


@outlast.step(retry=ONCE)
async def step(name: str) -> str:
    return work(name)


@outlast.effect(idempotent=True, retry=ONCE)
async def effect(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), work(name))


@outlast.effect(start_to_close_timeout=timedelta(seconds=20), not_applied=(OSError,))
async def once(name: str) -> str:
    if name == "slow":
        await asyncio.sleep(8)
    return receiver.apply(outlast.idempotency_key(), work(name))


@outlast.workflow
async def line(names: str) -> str:
    """Steps and effects one after another, named by words: `!a` is an idempotent effect, `?a` one whose failure proves something."""
    kinds = {"!": effect, "?": once}
    return " ".join([await kinds.get(one[0], step)(one) for one in names.split()])


@outlast.workflow
async def group(names: str) -> list[str]:
    """All at once, after a step, in a group that fails with the first."""
    await step("first")
    async with asyncio.TaskGroup() as tasks:
        made = [
            tasks.create_task(effect(one) if one.startswith("!") else step(one))
            for one in names.split()
        ]
    return [one.result() for one in made]


@outlast.workflow
async def both(names: str) -> list[str]:
    """All at once, and all failures at the end."""
    found = await asyncio.gather(*(step(one) for one in names.split()), return_exceptions=True)
    if errors := [one for one in found if isinstance(one, Exception)]:
        raise ExceptionGroup("several", errors)
    return [one for one in found if isinstance(one, str)]


@outlast.workflow
async def caught() -> str:
    """A failure that is caught, one like it that is not, and clean-up."""
    try:
        await step("a")
    except OSError:
        await step("b")
    try:
        return await step("a")
    except OSError as error:
        await step("cleanup")
        raise RuntimeError("could not") from error


@outlast.workflow
async def picky() -> str:
    """Does not like what a step returned."""
    await effect("!paid")
    found = await step("found")
    if "picky" in broken:
        raise ValueError(f"{found} will not do")
    return found


@outlast.workflow
async def heard() -> int:
    """Does not like what it was sent."""
    await step("a")
    number = await outlast.receive(go)
    if "heard" in broken:
        raise ValueError(f"{number} will not do")
    return number


@outlast.workflow
async def approved(first: str, second: str, expires: float) -> str:
    """Asks, does a step, and then what was approved."""
    await step("before")
    await outlast.approval(
        "do it",
        covers=[once(second)],
        role="boss",
        expires_in=timedelta(seconds=expires),
        use_within=timedelta(hours=1),
    )
    return f"{await step(first)} {await once(second)}"


@outlast.workflow
async def tidies() -> str:
    """Cleans up after a no."""
    try:
        await outlast.approval("it", role="boss", expires_in=timedelta(hours=1))
    except outlast.ApprovalDeniedError:
        await step("cleanup")
        raise
    return await step("a")


@outlast.workflow
async def overlapping() -> str:
    """Uses one approval while it asks for another, and fails before it uses that."""

    async def first() -> str:
        await outlast.approval(1, covers=[once("slow")], role="boss", expires_in=timedelta(hours=1))
        return await once("slow")

    async def second() -> str:
        await outlast.sleep(5)
        await outlast.approval(2, covers=[once("b")], role="boss", expires_in=timedelta(hours=1))
        await outlast.sleep(5)
        return f"{await step('a')} {await once('b')}"

    return " ".join(await asyncio.gather(first(), second()))


@outlast.workflow
async def sleeps() -> str:
    await step("a")
    try:
        await outlast.sleep(1000)
    finally:
        await step("cleanup")
    return await step("b")


@outlast.workflow(timeout=timedelta(seconds=10))
async def hurries(how: str) -> int:
    """Has not heard in time, and cleans up."""
    try:
        return await outlast.receive(go)
    except asyncio.CancelledError:
        match how:
            case "effect":
                await effect("!cleanup")
            case "slow":
                await outlast.sleep(1000)
            case _:
                await step("cleanup")
        if how == "caught":
            raise RuntimeError("too late") from None
        raise


@outlast.workflow
async def hurries_by_child() -> int:
    return await outlast.run_child(hurries("step"))


CODE = [
    step,
    effect,
    once,
    line,
    group,
    both,
    caught,
    picky,
    heard,
    approved,
    tidies,
    overlapping,
    sleeps,
    hurries,
    hurries_by_child,
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    done.clear()
    broken.clear()


async def ended(sim: Simulation, call: Any) -> RunHandle[Any]:
    """Return a run `o` that has ended; there is a worker."""
    await sim.start_worker()
    handle = await sim.client.start(call, id="o")
    await sim.closed("o")
    return handle


async def entries(sim: Simulation, run: str) -> list[Entry]:
    """Return a run's journal."""
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", run))]


async def decide(sim: Simulation, run: str, *, yes: bool = True) -> None:
    """Decide the one request of a run when it is there."""
    while not (views := await sim.client.approvals.list(run_id=run)):
        await asyncio.sleep(0.1)
    act = sim.client.approvals.approve if yes else sim.client.approvals.deny
    await act(run, views[0].approval_id, seen_sha256=views[0].subject_sha256)


def mend() -> None:
    """Let everything work, and count anew."""
    broken.clear()
    done.clear()


# From where


@pytest.mark.parametrize("name", ["b", "!b"])
def test_what_failed_is_done_again_and_nothing_that_was_finished(name: str) -> None:
    """Steps and effects alike; what comes after it follows."""
    broken.add(name)

    async def scenario(sim: Simulation) -> tuple[str, str]:
        failed = await ended(sim, line(f"a !x {name} c !y"))
        mend()
        again = await failed.retry(reason="mended")
        return again.id, await again.result()

    assert Simulation(CODE).run(scenario) == ("o/retry-1", f"a !x {name} c !y")
    assert done == {name: 1, "c": 1, "!y": 1}
    assert set(receiver.requests.values()) == {1}


def test_a_failed_effect_has_the_key_that_it_had() -> None:
    """And one that was never reached has the key that the origin would have used."""
    broken.add("!b")

    async def scenario(sim: Simulation) -> None:
        failed = await ended(sim, line("!b !c"))
        mend()
        await (await failed.retry(reason="mended")).result()

    Simulation(CODE).run(scenario)
    assert set(receiver.requests) == {
        idempotency_key("o", "effect", payload_sha256({"name": name})) for name in ("!b", "!c")
    }


def test_new_keys_where_they_are_asked_for() -> None:
    """Then the receiver takes it for something else; so only what is known not to have happened is done again."""
    broken.update({"?b", "!b"})

    async def scenario(sim: Simulation, names: str) -> str:
        failed = await ended(sim, line(names))
        mend()
        return await (await failed.retry(reason="mended", effects="new_key", id="anew")).result()

    assert Simulation(CODE).run(lambda sim: scenario(sim, "?b")) == "?b"
    assert set(receiver.requests) == {
        idempotency_key("anew", "once", payload_sha256({"name": "?b"}))
    }
    broken.add("!b")
    with pytest.raises(outlast.WorkflowFailedError) as caught:
        Simulation(CODE).run(lambda sim: scenario(sim, "!b"))
    assert isinstance(caught.value.__cause__, outlast.ForkedEffectError)
    assert receiver.requests.total() == 1


def test_all_failures_of_a_group_are_done_again() -> None:
    """From the first of them; what succeeded meanwhile is known."""
    broken.update({"b", "!c"})

    async def scenario(sim: Simulation) -> list[str]:
        failed = await ended(sim, group("!a b !c"))
        mend()
        return await (await failed.retry(reason="mended")).result()

    assert Simulation(CODE).run(scenario) == ["!a", "b", "!c"]
    assert set(receiver.requests.values()) == {1}
    assert done["first"] == 0
    assert done["!c"] == 1


def test_a_run_that_collected_its_failures_is_retried_from_the_first() -> None:
    """All of them are done again, and what succeeded between too."""
    broken.update({"b", "d"})

    async def scenario(sim: Simulation) -> list[str]:
        failed = await ended(sim, both("a b c d"))
        mend()
        return await (await failed.retry(reason="mended")).result()

    assert Simulation(CODE).run(scenario) == ["a", "b", "c", "d"]
    assert done["b"] == done["d"] == 1
    assert done["a"] == 0


def test_the_last_of_equal_failures_counts_and_what_it_was_turned_into() -> None:
    """An equal failure before was caught; the one that ended the run was raised from it, after clean-up."""
    broken.add("a")

    async def scenario(sim: Simulation) -> str:
        failed = await ended(sim, caught())
        mend()
        return await (await failed.retry(reason="mended")).result()

    assert Simulation(CODE).run(scenario) == "a"
    assert done == {"a": 1}


def test_code_that_raised_is_told_again_what_it_was_told_last() -> None:
    """The step runs again, since its value was what the code did not like; effects before it stand."""
    broken.add("picky")

    async def scenario(sim: Simulation) -> str:
        failed = await ended(sim, picky())
        mend()
        return await (await failed.retry(reason="another value")).result()

    assert Simulation(CODE).run(scenario) == "found"
    assert done == {"found": 1}


def test_a_message_is_kept_since_nobody_would_send_it_again() -> None:
    """Mended code takes it as it came; the old code fails over it once more."""
    broken.add("heard")

    async def scenario(sim: Simulation) -> tuple[Status, int]:
        await sim.start_worker()
        failed = await sim.client.start(heard(), id="o")
        await sim.until("o", lambda head: head.status is Status.WAITING)
        await failed.send(go, 5)
        await sim.closed("o")
        await failed.retry(reason="too early")
        second = await sim.closed("o/retry-1")
        mend()
        return second.status, await (await failed.retry(reason="mended")).result()

    assert Simulation(CODE).run(scenario) == (Status.FAILED, 5)


def test_a_cancelled_run_goes_on_from_before_the_cancel() -> None:
    """What it waited for is waited for again, its clean-up is not done."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(sleeps(), id="o")
        await sim.until("o", lambda head: head.status is Status.WAITING)
        await handle.cancel("a mistake")
        await sim.closed("o")
        mend()
        return await (await handle.retry(reason="it was a mistake")).result()

    assert Simulation(CODE).run(scenario) == "b"
    assert done == {"cleanup": 1, "b": 1}


@pytest.mark.parametrize("how", ["step", "effect", "caught"])
def test_a_run_that_ran_out_of_time_has_time_again(how: str) -> None:
    """Whatever its clean-up did: what is kept ends before its time was over."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(hurries(how), id="o")
        with pytest.raises(outlast.WorkflowFailedError):
            await handle.result()
        again = await handle.retry(reason="it may take that long")
        await again.send(go, 5)
        return await again.result()

    assert Simulation(CODE).run(scenario) == 5


def test_a_run_that_was_ended_while_it_cleaned_up_has_time_again() -> None:
    """Also one that an operator terminated after its time was over."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(hurries("slow"), id="o")
        await asyncio.sleep(15)
        await handle.terminate("it takes too long")
        again = await handle.retry(reason="it may take that long")
        await again.send(go, 5)
        return await again.result()

    assert Simulation(CODE).run(scenario) == 5


def test_a_child_that_ran_out_of_time_has_time_again() -> None:
    """It is retried with its parent, and from before its time was over."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(hurries_by_child(), id="o")
        with pytest.raises(outlast.WorkflowFailedError):
            await handle.result()
        again = await handle.retry(reason="it may take that long")
        await sim.until("o/retry-1/r:1", lambda head: head.status is Status.WAITING)
        await sim.client.handle("o/retry-1/r:1").send(go, 5)
        return await again.result()

    assert Simulation(CODE).run(scenario) == 5


def test_a_terminated_run_goes_on_where_it_was() -> None:
    """All that is recorded is kept."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(sleeps(), id="o")
        await sim.until("o", lambda head: head.status is Status.WAITING)
        await handle.terminate("the wrong one")
        mend()
        return await (await handle.retry(reason="it was the wrong one")).result()

    assert Simulation(CODE).run(scenario) == "b"
    assert done == {"cleanup": 1, "b": 1}


# Approvals


def test_an_approval_that_was_not_used_is_asked_for_again() -> None:
    """The step after it failed: a fork inherits no approval, so it begins before the request."""
    broken.add("a")

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        failed = await sim.client.start(approved("a", "b", 3600), id="o")
        await decide(sim, "o")
        await sim.closed("o")
        mend()
        again = await failed.retry(reason="mended")
        await decide(sim, again.id)
        return await again.result()

    assert Simulation(CODE).run(scenario) == "a b"
    assert done == {"a": 1, "b": 1}


def test_an_approved_effect_that_failed_is_asked_for_again() -> None:
    """So that what happens was approved for this run."""
    broken.add("b")

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        await sim.start_worker()
        failed = await sim.client.start(approved("a", "b", 3600), id="o")
        await decide(sim, "o")
        await sim.closed("o")
        mend()
        again = await failed.retry(reason="mended")
        await decide(sim, again.id)
        return await again.result(), await entries(sim, again.id)

    result, written = Simulation(CODE).run(scenario)
    assert result == "a b"
    assert done == {"a": 1, "b": 1}
    (intent,) = (one for one in written if isinstance(one, EffectIntended))
    assert intent.grant is not None


@pytest.mark.parametrize("yes", [True, False])
def test_an_approval_that_was_not_given_is_asked_for_again(yes: bool) -> None:
    """Denied, or out of time."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        await sim.start_worker()
        failed = await sim.client.start(approved("a", "b", 30), id="o")
        if not yes:
            await decide(sim, "o", yes=False)
        await sim.closed("o")
        mend()
        again = await failed.retry(reason="the boss is back")
        await decide(sim, again.id)
        return await again.result(), await entries(sim, again.id)

    result, written = Simulation(CODE).run(scenario)
    assert result == "a b"
    assert done == {"a": 1, "b": 1}
    assert isinstance(written[3], LeftOut)
    assert len([one for one in written if isinstance(one, ApprovalRequested)]) == 1
    assert len([one for one in written if isinstance(one, ApprovalDecided)]) == 1


def test_a_no_that_was_cleaned_up_after_is_asked_for_again() -> None:
    """The failure is the no, whatever was done after it."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        failed = await sim.client.start(tidies(), id="o")
        await decide(sim, "o", yes=False)
        await sim.closed("o")
        mend()
        again = await failed.retry(reason="the boss has thought it over")
        await decide(sim, again.id)
        return await again.result()

    assert Simulation(CODE).run(scenario) == "a"
    assert done == {"a": 1}


def test_an_approval_whose_use_is_not_kept_is_asked_for_again() -> None:
    """It was used, but after the request for the one that was not: both are asked for, and what was done is known."""
    broken.add("a")

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        failed = await sim.client.start(overlapping(), id="o")
        for _ in range(2):
            await decide(sim, "o")
            await asyncio.sleep(1)
        await sim.closed("o")
        mend()
        again = await failed.retry(reason="mended")
        for _ in range(2):
            await decide(sim, again.id)
            await asyncio.sleep(1)
        return await again.result()

    assert Simulation(CODE).run(scenario) == "slow a b"
    assert done == {"a": 1, "b": 1}


def test_an_approval_that_was_used_is_not_asked_for_again() -> None:
    """What it let through has happened."""
    broken.add("z")

    @outlast.workflow
    async def more() -> str:
        await outlast.approval(
            "do it", covers=[once("b")], role="boss", expires_in=timedelta(hours=1)
        )
        return f"{await once('b')} {await step('z')}"

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        failed = await sim.client.start(more(), id="o")
        await decide(sim, "o")
        await sim.closed("o")
        mend()
        return await (await failed.retry(reason="mended")).result()

    assert Simulation([*CODE, more]).run(scenario) == "b z"
    assert done == {"z": 1}


# Again and again


def test_a_retry_takes_up_what_the_last_one_has_come_to() -> None:
    """Asked of the run or of any of its retries: what one of them did is not done again."""
    broken.update({"b", "d"})

    async def scenario(sim: Simulation) -> tuple[list[str], str]:
        failed = await ended(sim, line("a b !c d"))
        broken.discard("b")
        first = await failed.retry(reason="b is mended")
        await sim.closed(first.id)
        second = await failed.retry(reason="is d mended?")
        await sim.closed(second.id)
        broken.clear()
        third = await first.retry(reason="d is mended")
        origins = [
            one.origin.run_id for one in await entries(sim, third.id) if isinstance(one, Forked)
        ]
        assert [second.id, third.id] == ["o/retry-2", "o/retry-3"]
        return origins, await third.result()

    origins, result = Simulation(CODE).run(scenario)
    assert origins == ["o", "o/retry-1", "o/retry-2"]
    assert result == "a b !c d"
    assert done == {"a": 1, "b": 1, "!c": 1, "d": 1}
    assert set(receiver.requests.values()) == {1}


def test_a_fork_that_refused_an_effect_can_be_retried_with_leave() -> None:
    """It goes on from the refusal."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        await sim.start_worker()
        empty = await sim.client.start(line("!z b"), id="q")
        await empty.terminate()
        refused = await empty.fork(1, id="h", reason="to see")
        assert (await sim.closed("h")).status is Status.FAILED
        again = await refused.retry(reason="it may happen")
        return await again.result(), await entries(sim, again.id)

    result, written = Simulation(CODE).run(scenario)
    assert result == "!z b"
    assert [one.source for one in written if isinstance(one, EffectCompleted)] == ["attempt"]
    assert set(receiver.requests) == {
        idempotency_key("q", "effect", payload_sha256({"name": "!z"}))
    }


def test_two_who_retry_at_once_make_one_retry() -> None:
    """The other is told that there is one."""
    broken.add("b")

    async def scenario(sim: Simulation) -> list[str]:
        failed = await ended(sim, line("a b"))
        mend()
        answers = await asyncio.gather(
            *(failed.retry(reason="mended") for _ in range(3)), return_exceptions=True
        )
        await sim.closed("o/retry-1")
        assert await sim.store.head(RunKey("default", "o/retry-2")) is None
        for one in answers:
            if isinstance(one, outlast.RunConflictError):
                said = ("in the same moment", "retried already, as o/retry-1, which is r")
                assert (one.run, any(text in one.message for text in said)) == ("o/retry-1", True)
                assert "new id" not in one.hint
        return [type(one).__name__ for one in answers]

    assert sorted(Simulation(CODE).run(scenario)) == [
        "RunConflictError",
        "RunConflictError",
        "RunHandle",
    ]
    assert done == {"b": 1}


# What is refused


def test_only_a_run_that_ended_without_a_result_is_retried() -> None:
    """One with a result is forked; one that goes on goes on; the same holds for its last retry."""
    broken.add("b")

    async def scenario(sim: Simulation) -> list[str]:
        complete = await ended(sim, line("a"))
        waiting = await sim.client.start(sleeps(), id="w")
        await sim.until("w", lambda head: head.status is Status.WAITING)
        failed = await sim.client.start(line("b"), id="x")
        await sim.closed("x")
        mend()
        await (await failed.retry(reason="mended")).result()
        told: list[str] = []
        for handle in (complete, waiting, failed, sim.client.handle("nobody")):
            with pytest.raises(outlast.OutlastError) as caught:
                await handle.retry(reason="again")
            assert caught.value.hint
            told.append(f"{type(caught.value).__name__} {caught.value.run} {caught.value.message}")
        with pytest.raises(outlast.DefinitionError, match="reason"):
            await failed.retry(reason="", id="other")
        return told

    assert Simulation(CODE).run(scenario) == [
        "RunConflictError o the run cannot be retried: it ended as completed",
        "RunConflictError w the run cannot be retried: it is waiting",
        "RunConflictError x/retry-1 run x was retried already, as x/retry-1, which has completed",
        "RunNotFoundError nobody there is no such run",
    ]


def test_a_stranger_under_the_next_id_is_not_taken_for_a_retry() -> None:
    """Whoever uses such ids gives the retry one of its own."""
    broken.add("b")

    async def scenario(sim: Simulation) -> str:
        failed = await ended(sim, line("b"))
        await (await sim.client.start(line("a"), id="o/retry-1")).result()
        mend()
        with pytest.raises(outlast.RunConflictError, match="the id of another run"):
            await failed.retry(reason="mended")
        return await (await failed.retry(reason="mended", id="mine")).result()

    assert Simulation(CODE).run(scenario) == "b"
