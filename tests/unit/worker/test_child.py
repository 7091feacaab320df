"""Children: started once, awaited, cancelled, ended with their parent; what becomes of a child is what its parent is told."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import JournalEntry
from outlast.errors import DefinitionError
from outlast.journal.entry import (
    CancelRequested,
    ChildRefused,
    ChildRequested,
    ChildStarted,
    Entry,
    MessageSent,
    Parent,
    RunEnded,
    Started,
)
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Simulation
from outlast.worker.worker import WorkerOptions

bodies: Counter[str] = Counter()
go = outlast.Signal("go", str)


@outlast.step
async def note(name: str) -> str:
    bodies[name] += 1
    return name


@outlast.workflow
async def double(number: int) -> int:
    return int(await note(str(2 * number)))


@outlast.workflow
async def fails(text: str) -> int:
    raise ValueError(text)


@outlast.workflow
async def waits(name: str) -> str:
    """Wait for a word; clean up when cancelled."""
    try:
        word = await outlast.receive(go)
    except asyncio.CancelledError:
        await outlast.sleep(5)
        await note(f"{name} cleaned up")
        raise
    return await note(word)


@outlast.workflow
async def stubborn() -> str:
    """Go on when cancelled, and return."""
    try:
        await outlast.sleep(1000)
    except asyncio.CancelledError:
        await outlast.sleep(10)
    return "went on"


@outlast.workflow
async def awaits(number: int) -> int:
    return await outlast.run_child(double(number)) + 1


@outlast.workflow
async def gathers(count: int) -> list[int]:
    return list(await asyncio.gather(*(outlast.run_child(double(n)) for n in range(count))))


@outlast.workflow
async def catches() -> list[str]:
    try:
        await outlast.run_child(fails("no"))
    except outlast.WorkflowFailedError as error:
        return [error.message, str(error.run), repr(error.__cause__)]
    return []


@outlast.workflow
async def waits_for_one(child_id: str) -> str:
    return await outlast.run_child(waits(child_id), id=child_id)


@outlast.workflow
async def gives_up(seconds: float) -> str:
    try:
        await asyncio.wait_for(outlast.run_child(waits("slow"), id="slow"), seconds)
    except TimeoutError:
        return f"gave up after {(outlast.now() - outlast.info().started_at).total_seconds():.0f} s"
    return "done"


@outlast.workflow
async def overrules() -> str:
    try:
        async with asyncio.timeout(5):
            return await outlast.run_child(stubborn(), id="stubborn")
    except TimeoutError:
        return "timed out"


@outlast.workflow
async def shields() -> str:
    child = asyncio.create_task(outlast.run_child(waits("kept"), id="kept"))
    try:
        await asyncio.wait_for(asyncio.shield(child), 5)
    except TimeoutError:
        await note("shielded")
    return await child


@outlast.workflow
async def handles() -> list[str]:
    child = await outlast.start_child(waits("h"), id="h")
    await child.send(go, "hello")
    return [child.id, await child.result(), await child.result()]


@outlast.workflow
async def cancels() -> list[str]:
    child = await outlast.start_child(waits("h"), id="h")
    await child.cancel("enough")
    said: list[str] = []
    for _ in range(2):
        try:
            await child.result()
        except outlast.RunCancelledError as error:
            said.append(error.message)
    await child.cancel("once more")
    try:
        await child.send(go, "too late")
    except outlast.RunConflictError as error:
        said.append(error.message)
    return said


@outlast.workflow
async def leaves(policy: str, end: str) -> str:
    """End in some way while a child is open."""
    given: Any = policy
    await outlast.start_child(waits("left"), id="left", parent_close=given)
    if end == "fail":
        raise RuntimeError("enough")
    if end == "wait":
        await outlast.sleep(1000)
    return end


@outlast.workflow
async def family(depth: int) -> int:
    """Each generation has one child, to a certain depth."""
    parent = outlast.info().parent
    await note(f"{outlast.info().run_id} < {parent}")
    if depth == 0:
        return 0
    return 1 + await outlast.run_child(family(depth - 1))


@outlast.workflow
async def takes(child_id: str) -> str:
    try:
        return str(await outlast.run_child(double(1), id=child_id))
    except outlast.RunConflictError as error:
        return error.message


@outlast.workflow
async def forgets(count: int) -> str:
    for number in range(count):
        await outlast.start_child(double(number), parent_close="abandon")
    return "forgot"


@outlast.workflow
async def late_cancel() -> str:
    """Cancel who waits for a child, and end in the same moment."""
    waiting = asyncio.create_task(outlast.run_child(waits("l"), id="l", parent_close="abandon"))
    await outlast.sleep(5)
    waiting.cancel()
    return "ended"


@outlast.effect(start_to_close_timeout=timedelta(seconds=1))
async def lose() -> str:
    raise OSError("the answer was lost")


@outlast.workflow
async def doubts() -> list[str]:
    """Wait for an effect in doubt and for a child."""
    return await asyncio.gather(lose(), outlast.run_child(waits("d"), id="d"))


CODE = [
    *(lose, doubts),
    *(note, double, fails, waits, stubborn, awaits, gathers, catches, waits_for_one, gives_up),
    *(overrules, shields, handles, cancels, leaves, family, takes, forgets, late_cancel),
]
FAST = WorkerOptions(library="simulated", idle=timedelta(milliseconds=200))


@pytest.fixture(autouse=True)
def _clean() -> None:
    bodies.clear()


def parked(head: RunHead) -> bool:
    """Whether the run was given back and waits."""
    return head.status is Status.WAITING and head.owner is None


async def journal(sim: Simulation, run_id: str) -> list[Entry]:
    """Return a run's entries."""
    entries: list[JournalEntry] = await sim.client.handle(run_id).journal()
    return [one.entry for one in entries]


async def at_rest(sim: Simulation) -> None:
    """Wait until nothing is on its way between runs."""
    began = sim.clock.monotonic()
    while await sim.store.outbox(1):
        await sim.a_while(since=began)


def left_over(sim: Simulation) -> list[Any]:
    """Return what is left in the store of runs that have ended."""
    store: Any = sim.store
    runs = store.runs.values()
    items = [item for run in runs for item in run.outbox.values()]
    ended = [run for run in runs if run.head.status.closed]
    rows = [row for run in ended for row in (*run.operations.values(), *run.watches)]
    return [*items, *rows]


def play(call: Any, *, meanwhile: Any = None, options: WorkerOptions = FAST) -> Any:
    """Run a workflow to its end; return what it gave, and the entries of its journal."""

    async def scenario(sim: Simulation) -> tuple[Any, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(call(), id="p")
        if meanwhile is not None:
            await meanwhile(sim)
        result = await handle.result()
        await at_rest(sim)
        assert left_over(sim) == []
        return result, await journal(sim, "p")

    return Simulation(CODE, options=options).run(scenario)


def test_a_child_is_a_run_of_its_own() -> None:
    """Its result comes back, its id is made of its parent's and the operation, and its history names its parent."""

    async def scenario(sim: Simulation) -> tuple[int, list[Entry], list[Entry], RunHead | None]:
        await sim.start_worker()
        result = await (await sim.client.start(awaits(4), id="p")).result()
        head = await sim.store.head(RunKey("default", "p/r:1"))
        return result, await journal(sim, "p"), await journal(sim, "p/r:1"), head

    result, parent, child, head = Simulation(CODE).run(scenario)
    assert result == 9
    assert [type(one).__name__ for one in parent[2:]] == ["ChildRequested", "RunEnded", "Completed"]
    started = child[0]
    assert isinstance(started, Started)
    assert (started.parent, started.principal) == (Parent("p", 1, "r:1"), "tester")
    assert started.namespace == "p/r:1"
    assert head is not None
    assert head.origin == "p~1~r:1"


def test_many_children_at_once() -> None:
    """Each is started once, and all results come back in order."""
    result, entries = play(lambda: gathers(30))
    assert result == [2 * n for n in range(30)]
    assert len(bodies) == 30
    assert set(bodies.values()) == {1}
    assert sum(isinstance(one, RunEnded) for one in entries) == 30


def test_a_failed_child_raises_what_its_handle_would() -> None:
    """The error names the child, says what was raised and where, and its cause is that exception."""
    message, run, cause = play(catches)[0]
    assert message.startswith("the run failed: ValueError: no, raised at test_child.py:")
    assert (run, cause) == ("p/r:1", "ValueError('no')")


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_a_child_that_somebody_else_ends_raises(how: str) -> None:
    """Cancelled or terminated, the parent is told which, and why."""

    async def end_it(sim: Simulation) -> None:
        await sim.until("c", parked)
        await getattr(sim.client.handle("c"), how)("not needed")

    with pytest.raises(outlast.WorkflowFailedError) as caught:
        play(lambda: waits_for_one("c"), meanwhile=end_it)
    cause = caught.value.__cause__
    kind, text = {
        "cancel": (outlast.RunCancelledError, "the run was cancelled"),
        "terminate": (outlast.RunTerminatedError, "the run was terminated: not needed"),
    }[how]
    assert isinstance(cause, kind)
    assert (cause.message, cause.run) == (text, "c")


def test_a_parked_parent_is_woken_by_the_end_of_its_child() -> None:
    """Both leave memory; the message to the child brings both back, at once."""

    async def scenario(sim: Simulation) -> tuple[dict[str, str], str, float]:
        await sim.start_worker()
        handle = await sim.client.start(waits_for_one("c"), id="p")
        await sim.until("c", parked)
        await sim.until("p", parked)
        noted = (await handle.status()).waits["runs"]
        since = sim.clock.monotonic()
        await sim.client.handle("c").send(go, "now")
        return noted, await handle.result(), sim.clock.monotonic() - since

    noted, result, seconds = Simulation(CODE, options=FAST).run(scenario)
    assert (noted, result) == ({"r:1": "c"}, "now")
    assert seconds < 0.2


def test_cancelling_the_wait_cancels_the_child_and_ends_with_it() -> None:
    """The timeout comes after 10 seconds and the child needs 5 to clean up: the wait takes 15."""
    result, entries = play(lambda: gives_up(10))
    assert result == "gave up after 15 s"
    assert bodies == {"slow cleaned up": 1}
    (sent,) = (one for one in entries if isinstance(one, MessageSent))
    assert (sent.operation, sent.kind, sent.run_id) == ("r:2/cancel", "cancel", "slow")


def test_a_child_that_goes_on_overrules_the_cancel_for_nobody() -> None:
    """The child returned, so that is what is recorded; who was cancelled is told so all the same."""
    result, entries = play(overrules)
    assert result == "timed out"
    (ended,) = (one for one in entries if isinstance(one, RunEnded))
    assert (ended.status, bytes(ended.value)) == ("completed", b'"went on"')


def test_shield_keeps_the_child() -> None:
    """The wait around the shield ends; the child knows nothing of it."""

    async def release(sim: Simulation) -> None:
        began = sim.clock.monotonic()
        while not bodies["shielded"]:
            await sim.a_while(since=began)
        await sim.client.handle("kept").send(go, "free")

    result, entries = play(shields, meanwhile=release)
    assert result == "free"
    assert not [one for one in entries if isinstance(one, MessageSent)]


def test_a_handle_sends_and_waits_as_often_as_it_likes() -> None:
    """A message of the parent is one of the child's; its result can be asked for again."""
    result, entries = play(handles)
    assert result == ["h", "hello", "hello"]
    assert sum(isinstance(one, ChildStarted) for one in entries) == 1


def test_a_handle_cancels() -> None:
    """What ended as cancelled raises so each time; to cancel it again is no error, to send to it is one."""
    said, _ = play(cancels)
    assert said == ["the run was cancelled", "the run was cancelled", "the run has ended"]
    assert bodies == {"h cleaned up": 1}


ENDS = {"return": Status.COMPLETED, "fail": Status.FAILED, "wait": Status.TERMINATED}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("policy", ["terminate", "cancel", "abandon"])
def test_the_end_of_a_parent_means_to_its_child_what_was_said(policy: str, end: str) -> None:
    """Whether it returned, raised, or was terminated without being loaded."""

    async def scenario(sim: Simulation) -> tuple[RunHead, RunHead]:
        await sim.start_worker()
        await sim.client.start(leaves(policy, end), id="p")
        await sim.until("left", lambda head: True)
        if end == "wait":
            await sim.until("p", parked)
            await sim.client.handle("p").terminate("enough")
        parent = await sim.closed("p")
        if policy == "abandon":
            await asyncio.sleep(60)
            child = await sim.store.head(RunKey("default", "left"))
            assert child is not None
            await sim.client.handle("left").terminate("the test is over")
        else:
            child = await sim.closed("left")
        await at_rest(sim)
        assert left_over(sim) == []
        return parent, child

    parent, child = Simulation(CODE, options=FAST).run(scenario)
    assert parent.status is ENDS[end]
    wanted = {"terminate": "terminated", "cancel": "cancelled", "abandon": "waiting"}
    assert child.status == wanted[policy]
    assert bodies == ({"left cleaned up": 1} if policy == "cancel" else {})
    if policy == "terminate":
        assert child.reason == "the run that started it has ended"


def test_a_parent_terminated_takes_its_line_along() -> None:
    """Each generation ends the next one, whoever is alive to move them."""

    async def scenario(sim: Simulation) -> list[str]:
        worker = await sim.start_worker()
        await sim.client.start(waits_for_line(3), id="p")
        await sim.until("p/r:1/r:1/r:1", parked)
        await worker.within(worker.client.handle("p").terminate("enough"))
        ids = ["p", "p/r:1", "p/r:1/r:1", "p/r:1/r:1/r:1"]
        heads = [await sim.closed(one) for one in ids]
        await at_rest(sim)
        assert left_over(sim) == []
        return [head.status for head in heads]

    statuses = Simulation([*CODE, waits_for_line], options=FAST).run(scenario)
    assert statuses == ["terminated"] * 4


@outlast.workflow
async def waits_for_line(depth: int) -> str:
    if depth == 0:
        return await outlast.receive(go)
    return await outlast.run_child(waits_for_line(depth - 1))


def test_a_line_of_descendants() -> None:
    """Children have children; each knows its parent."""
    assert play(lambda: family(4))[0] == 4
    assert bodies["p/r:2/r:2 < p/r:2"] == 1
    assert bodies["p < "] == 1


def test_an_id_that_another_run_has_is_refused() -> None:
    """The parent is told which run has it; that run is not touched."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry], list[Entry]]:
        await sim.start_worker()
        await sim.client.start(double(9), id="mine")
        await sim.closed("mine")
        said = await (await sim.client.start(takes("mine"), id="p")).result()
        await at_rest(sim)
        assert left_over(sim) == []
        return said, await journal(sim, "p"), await journal(sim, "mine")

    said, parent, mine = Simulation(CODE).run(scenario)
    assert (
        said
        == "the id is taken by a run of workflow double that this run did not start by this call"
    )
    assert [type(one) for one in parent[2:4]] == [ChildRequested, ChildRefused]
    assert isinstance(mine[0], Started)
    assert "mine" in repr(mine[0].namespace)


def test_ids_of_a_later_generation_are_others() -> None:
    """A parent that is started again has children of its own."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        for _ in range(2):
            await sim.client.start(awaits(1), id="p", if_closed="restart")
            await sim.closed("p")
        return sorted(one.run_id for one in await sim.client.runs.list(workflow="double"))

    assert Simulation(CODE).run(scenario) == ["p/r:1", "p/r:1@2"]


def test_children_that_nobody_waits_for_live_on() -> None:
    """The parent has ended long since; all of them run, once."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        await (await sim.client.start(forgets(3), id="p")).result()
        heads = [await sim.closed(f"p/r:{n}") for n in (1, 2, 3)]
        await at_rest(sim)
        assert left_over(sim) == []
        return [head.status for head in heads]

    assert Simulation(CODE).run(scenario) == ["completed"] * 3
    assert bodies == {"0": 1, "2": 1, "4": 1}


def test_a_cancel_of_the_last_moment_is_sent() -> None:
    """Who waits is cancelled in the turn in which the parent ends: the child is asked to stop all the same."""

    async def scenario(sim: Simulation) -> tuple[RunHead, list[Entry]]:
        await sim.start_worker()
        await sim.client.start(late_cancel(), id="p")
        await sim.closed("p")
        head = await sim.closed("l")
        await at_rest(sim)
        assert left_over(sim) == []
        return head, await journal(sim, "l")

    head, entries = Simulation(CODE, options=FAST).run(scenario)
    assert head.status is Status.CANCELLED
    (asked,) = (one for one in entries if isinstance(one, CancelRequested))
    assert (asked.by, asked.reason) == ("run p", "the wait for it was cancelled")


def test_a_run_in_doubt_that_waits_for_a_child_is_not_blocked() -> None:
    """Something can still move: the child. When that has ended, only an operator can."""

    async def scenario(sim: Simulation) -> tuple[Status, Status]:
        await sim.start_worker()
        await sim.client.start(doubts(), id="p")
        first = await sim.until("p", lambda head: head.owner is None and head.version > 2)
        await sim.client.handle("d").send(go, "now")
        await sim.closed("d")
        then = await sim.until("p", lambda head: head.status is Status.BLOCKED)
        await sim.client.handle("p").terminate("enough")
        return first.status, then.status

    assert Simulation(CODE, options=FAST).run(scenario) == (Status.WAITING, Status.BLOCKED)


def test_wrong_uses_are_refused_where_they_are_made() -> None:
    """A call that is none, an id that cannot be one, a policy that does not exist, and a place where no workflow runs."""
    with pytest.raises(outlast.OutsideWorkflowError, match=r"outlast\.run_child"):
        outlast.run_child(double(1))
    with pytest.raises(outlast.OutsideWorkflowError, match=r"outlast\.run_handle"):
        outlast.run_handle("x")
    for wrong, words in WRONG.items():
        with pytest.raises(outlast.WorkflowFailedError, match=words) as caught:
            play(lambda wrong=wrong: misuses(wrong))
        cause = caught.value.__cause__
        assert isinstance(cause.__cause__ if wrong == "long" else cause, DefinitionError)


WRONG = {
    "step": "is no call of a workflow",
    "function": "is no call of a workflow",
    "id": "cannot be a run id",
    "policy": "parent_close='stay'",
    "enter": "was awaited inside a workflow",
    "long": "would give the child is too long: 257 characters",
}


@outlast.workflow
async def misuses(what: str) -> None:
    wrong: Any = double if what == "function" else double(1)
    match what:
        case "id":
            await outlast.run_child(wrong, id="a~b")
        case "policy":
            stay: Any = "stay"
            await outlast.run_child(wrong, parent_close=stay)
        case "step":
            step = note("x")
            step.use()
            await outlast.run_child(step)
        case "enter":
            await double(1)
        case "long":
            await outlast.run_child(nests(), id="x" * 253)
        case _:
            await outlast.run_child(wrong)


@outlast.workflow
async def nests() -> int:
    return await outlast.run_child(double(1))


CODE += [misuses, nests]
