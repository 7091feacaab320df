"""Interrupts and approvals: section D of `docs/cases.md`."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from asking_bench import asked, decide, entries

import outlast
from outlast.journal.entry import ApprovalExpired, ApprovalRequested, EffectIntended
from outlast.store.change import RunKey
from outlast.testing import Simulation

DAY = timedelta(days=1)
BOSS = outlast.Approval("boss", expires_in=DAY, edits="yes")
done: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    done.clear()


@outlast.step
async def look(what: str) -> str:
    done.append(f"looked at {what}")
    return what


@outlast.effect(idempotent=True, approval=BOSS, repeats=True)
async def send(what: str, amount: int = 100) -> str:
    done.append(f"sent {what} {amount}")
    return f"{what} {amount}"


OFTEN = outlast.Approval("boss", expires_in=DAY, sticky="run")


@outlast.effect(idempotent=True, approval=OFTEN, repeats=True)
async def post(what: str) -> str:
    done.append(f"posted {what}")
    return what


@outlast.workflow
async def posting(plan: list[list[list[str]]]) -> list[list[str]]:
    """Post what the plan says, each branch of it one after the other, in the name of an agent."""

    async def branch(calls: list[list[str]]) -> list[str]:
        return [await posted(*one) for one in calls]

    async def posted(what: str, agent: str) -> str:
        try:
            with outlast.agent(agent):
                return await post(what)
        except outlast.ApprovalDeniedError as no:
            return f"no: {no.reason}"

    return await asyncio.gather(*map(branch, plan))


@outlast.workflow
async def branches() -> list[str]:
    async def branch(what: str) -> str:
        await look(what)
        try:
            return await send(what)
        except outlast.ApprovalDeniedError as no:
            return f"no: {no.reason}"

    return await asyncio.gather(branch("a"), branch("b"))


@outlast.workflow
async def mixed() -> list[str]:
    return await asyncio.gather(send("gated"), look("free"))


@outlast.workflow
async def nested() -> str:
    return await outlast.run_child(inner(), id="r")


@outlast.workflow
async def inner() -> str:
    return await send(await look("inside"))


@outlast.workflow
async def drifting() -> str:
    await outlast.approval("10?", covers=[send("x", 10)], role="boss", expires_in=DAY)
    try:
        return await send("x", 1000)
    except outlast.ApprovalMismatchError as error:
        return error.code


@outlast.workflow
async def lapsing() -> str:
    try:
        return await send("late")
    except outlast.ApprovalError as error:
        return f"{error.code}: {error.message}"


CODE = [post, posting, look, send, branches, mixed, nested, inner, drifting, lapsing]


def play(scenario: Any) -> Any:
    return Simulation(CODE, longest=timedelta(days=9)).run(scenario)


async def both(sim: Simulation) -> list[Any]:
    while len(views := await sim.client.approvals.list()) < 2:
        await asyncio.sleep(0.1)
    return views


async def say(sim: Simulation, view: Any, *, no: str = "") -> None:
    act = sim.client.approvals.deny if no else sim.client.approvals.approve
    await act(view.run_id, view.approval_id, seen_sha256=view.subject_sha256, reason=no)


def test_case_047_what_was_answered_is_pending_no_more() -> None:
    """Of two branches that ask, one is answered: the other one's request is the only one left, also for another worker."""

    async def scenario(sim: Simulation) -> Any:
        worker = await sim.start_worker()
        handle = await sim.client.start(branches(), id="r")
        first, second = await both(sim)
        await say(sim, first)
        await asyncio.sleep(5)
        worker.kill()
        await sim.start_worker()
        await asyncio.sleep(60)
        assert [one.approval_id for one in await sim.client.approvals.list()] == [
            second.approval_id
        ]
        await say(sim, second)
        await handle.result()
        return len(await entries(sim, ApprovalRequested))

    assert play(scenario) == 2


def test_case_049_a_child_does_nothing_again_when_it_goes_on() -> None:
    """What it did before its request is done once."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        handle = await sim.client.start(nested(), id="parent")
        await asked(sim)
        worker.kill()
        await sim.start_worker()
        await decide(sim)
        return await handle.result()

    assert play(scenario) == "inside 100"
    assert done == ["looked at inside", "sent inside 100"]


def test_case_050_a_fork_asks_again() -> None:
    """A run that is forked before its request asks anew; the old answer is history of the old run."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(drifting(), id="r")
        await decide(sim)
        await handle.result()
        await handle.fork(2, id="again", reason="to see", effects="new_key")
        view = await asked(sim)
        old = await sim.client.approvals.list(pending=False, run_id="r")
        return view.run_id, view.state, [one.state for one in old]

    assert play(scenario) == ("again", "pending", ["approved"])


def test_case_052_of_two_calls_the_refused_one_is_not_made() -> None:
    """The other one is, whichever was answered first; and the refusal is a result that code can use."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(branches(), id="r")
        first, second = await both(sim)
        await say(sim, second)
        await say(sim, first, no="wrong account")
        return await handle.result()

    assert play(scenario) == ["no: wrong account", "b 100"]
    assert [one for one in done if one.startswith("sent")] == ["sent b 100"]


def test_case_053_what_was_done_beside_a_request_is_kept() -> None:
    """A free call that is done before the other one's answer, and before another worker goes on, is not made again."""

    async def scenario(sim: Simulation) -> Any:
        worker = await sim.start_worker()
        handle = await sim.client.start(mixed(), id="r")
        await asked(sim)
        await asyncio.sleep(5)
        worker.kill()
        await sim.start_worker()
        await decide(sim)
        return await handle.result()

    assert play(scenario) == ["gated 100", "free"]
    assert done == ["looked at free", "sent gated 100"]


async def stick(sim: Simulation, view: Any, sticky: outlast.Sticky, *, no: str = "") -> None:
    act = sim.client.approvals.deny if no else sim.client.approvals.approve
    sha256 = view.subject_sha256
    await act(view.run_id, view.approval_id, seen_sha256=sha256, reason=no, sticky=sticky)


def test_case_055_a_no_outvotes_a_standing_yes() -> None:
    """Any call is approved for the run, one is refused: that one is, with its reason, and so it is later; the others are made."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        plan = [[["a", "x"], ["c", "x"]], [["b", "x"], ["b", "x"], ["d", "x"]]]
        handle = await sim.client.start(posting(plan), id="r")
        first, second = await both(sim)
        await stick(sim, first, outlast.Sticky("run", same=()))
        await stick(sim, second, outlast.Sticky("call"), no="not b")
        return await handle.result()

    assert play(scenario) == [["a", "c"], ["no: not b", "no: not b", "d"]]


def test_case_056_a_standing_yes_to_one_agent_is_none_to_another() -> None:
    """The first agent's next call is answered, the second one's asks."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(posting([[["a", "x"], ["a", "x"], ["a", "y"]]]), id="r")
        await stick(sim, await asked(sim), outlast.Sticky("run", same=()))
        view = await asked(sim)
        while view.subject["covers"][0]["agent"] == "x":
            view = await asked(sim)
        assert done == ["posted a", "posted a"]
        await say(sim, view, no="not y")
        return await handle.result()

    assert play(scenario) == [["a", "a", "no: not y"]]


def test_case_058_equal_calls_of_two_runs_are_two_requests() -> None:
    """Each decision is for one run."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        for name in ("one", "two"):
            await sim.client.start(inner(), id=name)
        views = await both(sim)
        (one,) = [view for view in views if view.run_id == "one"]
        await say(sim, one)
        await sim.closed("one")
        return [view.run_id for view in await sim.client.approvals.list()]

    assert play(scenario) == ["two"]


def test_case_059_a_yes_is_to_the_arguments_that_were_shown() -> None:
    """Other arguments are refused before anything happens."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(drifting(), id="r")
        await decide(sim)
        return await handle.result(), await entries(sim, EffectIntended)

    assert play(scenario) == ("approval_mismatch", [])


async def asked_next(sim: Simulation, former: Any) -> Any:
    """Return the request that waits after another one."""
    while (view := await asked(sim)).approval_id == former.approval_id:
        await asyncio.sleep(0.1)
    return view


def test_case_074_a_yes_sticks_to_the_very_call_unless_it_is_said() -> None:
    """By default to equal calls alone; wider by the arguments that are named."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        plan = [[["a", "x"], ["a", "x"], ["b", "x"], ["c", "x"]]]
        handle = await sim.client.start(posting(plan), id="r")
        first = await asked(sim)
        await stick(sim, first, outlast.Sticky("run"))
        second = await asked_next(sim, first)
        assert done == ["posted a", "posted a"]
        assert second.subject["covers"][0]["arguments"] == {"what": "b"}
        await stick(sim, second, outlast.Sticky("run", same=()))
        return await handle.result()

    assert play(scenario) == [["a", "a", "b", "c"]]


def test_case_062_the_reason_of_a_no_outlives_the_worker() -> None:
    """It reaches the workflow of the worker that goes on."""

    async def scenario(sim: Simulation) -> Any:
        worker = await sim.start_worker()
        handle = await sim.client.start(lapsing(), id="r")
        await asked(sim)
        worker.kill()
        await decide(sim, no="wrong account")
        await sim.start_worker()
        return await handle.result()

    assert "wrong account" in play(scenario)


def test_case_064_an_edited_call_runs_as_it_was_shown_last() -> None:
    """The approver makes 50 of 100: that is what is hashed, shown and run."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(inner(), id="r")
        await decide(sim, edit='{"what":"inside","amount":50}')
        await handle.result()
        edited, last = await sim.client.approvals.list(pending=False, run_id="r")
        return edited.state, last.subject["covers"][0]["arguments"]

    assert play(scenario) == ("edited", {"what": "inside", "amount": 50})
    assert done[-1] == "sent inside 50"


def test_case_067_any_mix_of_settled_and_waiting_calls_goes_on() -> None:
    """One branch is done, one was refused, one waits: another worker takes them up like that."""

    async def scenario(sim: Simulation) -> Any:
        worker = await sim.start_worker()
        handle = await sim.client.start(branches(), id="r")
        first, second = await both(sim)
        await say(sim, first)
        await asyncio.sleep(5)
        worker.kill()
        await say(sim, second, no="not now")
        await sim.start_worker()
        return await handle.result()

    assert play(scenario) == ["a 100", "no: not now"]
    assert done.count("sent a 100") == 1


def test_case_070_an_answer_after_hours_and_a_restart_counts() -> None:
    """Nobody waits in memory, and nothing runs meanwhile."""

    async def scenario(sim: Simulation) -> Any:
        worker = await sim.start_worker()
        handle = await sim.client.start(inner(), id="r")
        await asked(sim)
        worker.kill()
        await asyncio.sleep(10 * 3600)
        assert done == ["looked at inside"]
        await sim.start_worker()
        await decide(sim)
        return await handle.result()

    assert play(scenario) == "inside 100"


def test_case_073_no_answer_is_not_a_no() -> None:
    """It has an outcome of its own, and nobody is said to have refused."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(lapsing(), id="r")
        result = await handle.result()
        (view,) = await sim.client.approvals.list(pending=False)
        (expired,) = await entries(sim, ApprovalExpired)
        assert await sim.store.load(RunKey("default", "r")) is not None
        return result.partition(" decided")[0], view.state, expired.approval_id

    assert play(scenario) == (
        "approval_expired: nobody with the role 'boss'",
        "expired",
        "1~r:1",
    )
