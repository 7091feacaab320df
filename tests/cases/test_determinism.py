"""Determinism, versions, replay: faults that comparable systems had, and what happens here. The numbers are those of docs/cases.md."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import outlast
from outlast.journal.entry import (
    KINDS,
    Entry,
    EntryRow,
    StepCompleted,
    from_row,
    to_row,
)
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Simulation, replay_run
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import (
    AttemptOptions,
    Definition,
    Effect,
    EffectOptions,
    Step,
    Workflow,
)
from outlast.workflows.registry import Registry

RUN = RunKey("default", "r")
GO = outlast.Signal("go", int)
SHORT = WorkerOptions(library="simulated", lease=timedelta(seconds=3))
IN_MEMORY = WorkerOptions(library="simulated", idle=timedelta(hours=2))
"""A run that waits is not parked: no execution is left in the middle."""

calls: list[str] = []
"""What bodies of steps and effects were called, in order."""


@pytest.fixture(autouse=True)
def _clean() -> None:
    calls.clear()
    cache.clear()
    delays.clear()
    orders.clear()


async def entries_of(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


async def replay(sim: Simulation, *definitions: Definition[..., Any]) -> None:
    await replay_run(sim.store, Registry(definitions), sim.clock, RUN)


# 76: caches


cache: dict[str, list[str]] = {}
"""What a process remembers; a cold one begins with nothing."""


@outlast.step
async def list_tools(server: str) -> list[str]:
    if server not in cache:
        calls.append(f"asked {server}")
        cache[server] = ["find", "read"]
    return cache[server]


@outlast.step
async def use_tool(tool: str) -> str:
    calls.append(f"used {tool}")
    return tool.upper()


@outlast.workflow
async def caches_in_the_step(server: str) -> str:
    tools = await list_tools(server)
    used = await use_tool(tools[0])
    await outlast.receive(GO)
    return used


@outlast.workflow
async def asks_the_same_again(server: str) -> str:
    for _ in range(3):
        tools = await list_tools(server)
    used = await use_tool(tools[0])
    await outlast.receive(GO)
    return used


@outlast.workflow
async def caches_in_the_workflow(server: str) -> str:
    if server not in cache:
        cache[server] = await list_tools(server)
    used = await use_tool(cache[server][0])
    await outlast.receive(GO)
    return used


CACHING = [list_tools, use_tool, caches_in_the_step, asks_the_same_again, caches_in_the_workflow]


async def _warm_then_cold(sim: Simulation, call: outlast.Call[str]) -> None:
    """Run to the wait in a warm process, which dies; a cold one takes the run up."""
    cache["server"] = ["find", "read"]
    warm = await sim.start_worker()
    await sim.client.start(call, id="r")
    while "used find" not in calls:
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.1)
    warm.kill()
    cache.clear()
    await sim.start_worker()


@pytest.mark.parametrize("flow", [caches_in_the_step, asks_the_same_again], ids=lambda f: f.name)
def test_case_076_a_warm_cache_does_not_decide_whether_a_step_exists(
    flow: Workflow[..., str],
) -> None:
    """Each call of a step is an operation, whatever its body or an equal call before remembers: a cold worker replays it."""

    async def scenario(sim: Simulation) -> str:
        await _warm_then_cold(sim, flow("server"))
        handle = sim.client.handle("r", flow)
        await handle.send(GO, 1)
        return await handle.result()

    assert Simulation(CACHING, options=SHORT).run(scenario) == "FIND"
    assert calls == ["used find"]


@pytest.mark.without_always_replay("the workflow is not deterministic on purpose")
def test_case_076_a_cache_in_workflow_code_is_named_and_nothing_is_executed() -> None:
    """A workflow that skips a step by what its process remembers is blocked in a cold one, with both sides shown."""

    async def scenario(sim: Simulation) -> RunHead:
        await _warm_then_cold(sim, caches_in_the_workflow("server"))
        return await sim.until("r", lambda head: head.status is Status.BLOCKED)

    head = Simulation(CACHING, options=SHORT).run(scenario)
    assert head.reason == "non-determinism"
    why = msgspec.json.decode(head.note)["error"]
    assert "step use_tool at r:1" in why
    assert "list_tools" in why
    assert calls == ["used find"]


# 77: parallel work


delays: list[float] = []
"""How long the n-th parallel step takes, in seconds."""


@outlast.step
async def piece(n: int) -> int:
    await asyncio.sleep(delays[n])
    return n


@outlast.workflow
async def gathered(count: int) -> list[int]:
    return list(await asyncio.gather(*(piece(n) for n in range(count))))


@outlast.workflow
async def grouped(count: int) -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(piece(n)) for n in range(count)]
    return [task.result() for task in tasks]


@outlast.workflow
async def in_branches(count: int) -> list[int]:
    async def branch(n: int) -> int:
        return await piece(n)

    return list(await asyncio.gather(*(branch(n) for n in range(count))))


@outlast.workflow
async def as_each_completes(count: int) -> list[int]:
    tasks = {asyncio.create_task(piece(n)) for n in range(count)}
    found: list[int] = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        found += [task.result() for task in done]
    return sorted(found)


PARALLEL = [gathered, grouped, in_branches, as_each_completes]


@pytest.mark.parametrize("flow", PARALLEL, ids=lambda flow: flow.name)
def test_case_077_parallel_tools_are_numbered_by_creation(flow: Workflow[..., list[int]]) -> None:
    """Whatever order they end in, the n-th created has the n-th id; ten orders, each replayed ten times."""
    count, orders_seen = 6, set()
    for seed in range(10):
        delays[:] = random.Random(seed).sample(range(1, count + 1), count)

        async def scenario(sim: Simulation) -> list[tuple[str, int]]:
            worker = await sim.start_worker()
            assert await worker.client.run(flow(count), id="r") == list(range(count))
            for _ in range(10):
                await replay(sim, piece, flow)
            steps = [one for one in await entries_of(sim) if isinstance(one, StepCompleted)]
            return [(one.operation, json.loads(bytes(one.value))) for one in steps]

        recorded = Simulation([piece, *PARALLEL], seed=seed).run(scenario)
        assert [n for _, n in recorded] == sorted(range(count), key=delays.__getitem__)
        assert [n for _, n in sorted(recorded)] == list(range(count))
        orders_seen.add(tuple(n for _, n in recorded))
    assert len(orders_seen) > 5


# 80: changed code under a run in flight


async def _load(n: int) -> int:
    calls.append("load")
    return n


async def _save(n: int) -> int:
    calls.append("save")
    return n


async def _anything(n: int) -> int:
    calls.append("something else")
    return n


def step(function: Callable[..., Any], name: str) -> Step[..., Any]:
    return Step(function, name, AttemptOptions())


def effect(function: Callable[..., Any], name: str) -> Effect[..., Any]:
    return Effect(function, name, AttemptOptions(), EffectOptions(idempotent=True))


async def _two_steps(load: Any, save: Any) -> int:
    await load(1)
    return await save(2)


async def _step_and_effect(load: Any, pay: Any) -> int:
    await load(1)
    return await pay(2)


async def _swapped(load: Any, save: Any) -> int:
    await save(1)
    return await load(2)


async def _without_the_first(load: Any, save: Any) -> int:
    return await save(2)


async def _one_in_front(load: Any, save: Any) -> int:
    await save(0)
    await load(1)
    return await save(2)


async def _in_a_branch(load: Any, save: Any) -> int:
    async def branch() -> int:
        await load(1)
        return await save(2)

    return await asyncio.create_task(branch())


async def _sleep_instead(load: Any, save: Any) -> int:
    await load(1)
    await asyncio.sleep(1)
    return 2


async def _question_instead(load: Any, save: Any) -> int:
    await outlast.approval("?", role="owner", expires_in=timedelta(hours=1))
    return await save(2)


async def _other_arguments(load: Any, pay: Any) -> int:
    await load(1)
    return await pay(3)


@dataclass(frozen=True)
class Change:
    """Code that began a run, and the code that meets it.

    Args:
        before: The body that writes the journal, and the names of what it calls.
        after: The same, later.
        shown: Both sides, as the error must show them.
    """

    before: Callable[..., Coroutine[Any, Any, int]]
    after: Callable[..., Coroutine[Any, Any, int]]
    shown: tuple[str, str]
    first: str = "load"
    second_is: type = Step


CHANGES = {
    "two steps swapped": Change(_two_steps, _swapped, ("step load", "step save")),
    "a step renamed": Change(_two_steps, _two_steps, ("step load", "step fetch"), first="fetch"),
    "a step became an effect": Change(
        _two_steps, _two_steps, ("step save", "effect save"), second_is=Effect
    ),
    "an effect became a step": Change(
        _step_and_effect, _two_steps, ("effect save", "step save"), second_is=Step
    ),
    "a step became a timer": Change(_two_steps, _sleep_instead, ("step save", "timer")),
    "a step became an approval": Change(_two_steps, _question_instead, ("step load", "approval")),
    "a step was removed": Change(_two_steps, _without_the_first, ("step load", "step save")),
    "a step was put in front": Change(_two_steps, _one_in_front, ("step load", "step save")),
    "a step has another parent": Change(_two_steps, _in_a_branch, ("step load at r:1", "r.1:1")),
    "an effect has other arguments": Change(
        _step_and_effect, _other_arguments, ('{"n":2}', '{"n":3}'), second_is=Effect
    ),
}


def _code(
    body: Callable[..., Coroutine[Any, Any, int]], first: Any, second: Any, module: str
) -> list[Definition[..., Any]]:
    """Return a workflow of the name `flow` that then waits for a message, and what it calls, as one build of the app."""

    async def flow() -> int:
        result = await body(first, second)
        await outlast.receive(GO)
        return result

    workflow = Workflow(flow)
    workflow.__module__ = module  # builds differ where their sources do
    return [workflow, first, second]


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_case_080_changed_code_is_refused_loudly_and_nothing_is_executed(change: Change) -> None:
    """Kind, name, parent and an effect's arguments are checked; the run waits for fitting code, and goes on with it."""
    make_before = effect if change.before is _step_and_effect else step
    make_after = effect if change.second_is is Effect else step
    before = _code(change.before, step(_load, "load"), make_before(_save, "save"), "v1")
    after = _code(change.after, step(_anything, change.first), make_after(_anything, "save"), "v2")

    async def scenario(sim: Simulation) -> tuple[RunHead, list[str], list[str]]:
        first = await sim.start_worker(definitions=before)
        handle = await sim.client.start(before[0](), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        await first.stop()
        done = list(calls)
        await sim.start_worker(definitions=after)
        await handle.send(GO, 1)
        blocked = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await asyncio.sleep(60)
        seen = calls[len(done) :]
        await sim.start_worker(definitions=before)
        assert await handle.result() == 2
        return blocked, done, seen

    head, done, seen = Simulation([]).run(scenario)
    assert (head.reason, len(done), seen) == ("non-determinism", 2, [])
    assert len(calls) == 2
    why = msgspec.json.decode(head.note)["error"]
    recorded, _, asked = why.partition("\n  code:")
    assert change.shown[0] in recorded
    assert change.shown[1] in asked


async def _swapped_under_a_patch(load: Any, save: Any) -> int:
    if outlast.patched("save-first"):
        return await _swapped(load, save)
    return await _two_steps(load, save)


def test_case_080_a_patch_lets_runs_in_flight_go_the_former_way() -> None:
    """The same change with a patch around it: the run in flight ends as it began, and a new one goes the changed way."""
    before = _code(_two_steps, step(_load, "load"), step(_save, "save"), "v1")
    after = _code(_swapped_under_a_patch, step(_load, "load"), step(_save, "save"), "v2")

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        first = await sim.start_worker(definitions=before)
        handle = await sim.client.start(before[0](), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        await first.stop()
        await sim.start_worker(definitions=after)
        await handle.send(GO, 1)
        result = await handle.result()
        done = len(calls)
        new = await sim.client.start(after[0](), id="new")
        await new.send(GO, 1)
        await new.result()
        return result, calls[done:]

    assert Simulation([]).run(scenario) == (2, ["save", "load"])


# 82: markers of patches


async def _patch_below(load: Any, save: Any) -> int:
    await load(1)
    return await save(2) if outlast.patched("save-too") else 2


async def _patch_above(load: Any, save: Any) -> int:
    saved = await save(2) if outlast.patched("save-too") else 2
    await load(1)
    return saved


async def _patch_above_with_its_change_below(load: Any, save: Any) -> int:
    saves = outlast.patched("save-too")
    await load(1)
    return await save(2) if saves else 2


async def _no_patch_any_more(load: Any, save: Any) -> int:
    await load(1)
    return await save(2)


async def _deprecated(load: Any, save: Any) -> int:
    outlast.deprecate_patch("save-too")
    await load(1)
    return await save(2)


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (_patch_above, "patches so far: 'save-too' answered True"),
        (_no_patch_any_more, "the journal holds the marker of patch 'save-too'"),
        (_patch_above_with_its_change_below, ""),
        (_deprecated, ""),
    ],
    ids=["moved with what it changes", "removed", "moved alone", "deprecated"],
)
def test_case_082_a_marker_shifts_nothing_and_is_checked_by_its_name(later: Any, said: str) -> None:
    """Moving a patch shifts no operation; where it is wrong, the error names the patch, nothing is executed, and fitting code goes on."""
    before = _code(_patch_below, step(_load, "load"), step(_save, "save"), "v1")
    after = _code(later, step(_anything, "load"), step(_anything, "save"), "v2")

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        first = await sim.start_worker(definitions=before)
        handle = await sim.client.start(before[0](), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        await first.stop()
        done = len(calls)
        await sim.start_worker(definitions=after)
        await handle.send(GO, 1)
        why = ""
        if said:
            head = await sim.until("r", lambda head: head.status is Status.BLOCKED)
            assert head.reason == "non-determinism"
            why = msgspec.json.decode(head.note)["error"]
            await sim.start_worker(definitions=before)
        assert await handle.result() == 2
        return why, calls[done:]

    why, executed = Simulation([]).run(scenario)
    assert said in why
    assert executed == []


# 83: the order of cancels


orders: list[list[int]] = []
"""In which order each execution of the workflow saw its tasks end."""


@outlast.step
async def clean(n: int) -> int:
    return n


def _waiting_tasks() -> tuple[list[int], list[asyncio.Task[None]]]:
    order: list[int] = []
    orders.append(order)

    async def pending(n: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            order.append(n)
            await clean(n)

    return order, [asyncio.create_task(pending(n)) for n in range(20)]


@outlast.workflow
async def cancels_a_set() -> list[int]:
    order, tasks = _waiting_tasks()
    await outlast.receive(GO)
    for task in set(tasks):
        task.cancel()
    await asyncio.wait(tasks)
    return order


@outlast.workflow
async def cancels_backwards() -> list[int]:
    order, tasks = _waiting_tasks()
    await outlast.receive(GO)
    for task in reversed(tasks):
        task.cancel()
    await asyncio.wait(tasks)
    return order


@outlast.workflow
async def cancels_a_gather() -> list[int]:
    order, tasks = _waiting_tasks()
    everything = asyncio.gather(*tasks, return_exceptions=True)
    await outlast.receive(GO)
    everything.cancel()
    await asyncio.wait(tasks)
    return order


@outlast.workflow
async def times_out() -> list[int]:
    order, tasks = _waiting_tasks()
    await outlast.receive(GO)
    try:
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)
    except TimeoutError:
        pass
    await asyncio.wait(tasks)
    return order


@outlast.workflow
async def aborts_a_group() -> list[int]:
    order: list[int] = []
    orders.append(order)

    async def pending(n: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            order.append(n)
            await clean(n)

    try:
        async with asyncio.TaskGroup() as group:
            for n in range(20):
                group.create_task(pending(n))
            await outlast.receive(GO)
            raise ValueError
    except* ValueError:
        pass
    return order


CANCELLING = [cancels_a_set, cancels_backwards, cancels_a_gather, times_out, aborts_a_group]


@pytest.mark.without_always_replay("executions are counted")
@pytest.mark.parametrize("flow", CANCELLING, ids=lambda flow: flow.name)
def test_case_083_tasks_are_cancelled_in_creation_order(flow: Workflow[..., list[int]]) -> None:
    """Twenty waiting tasks, cancelled however: they end in the order of their creation, live and in fifty replays."""

    async def scenario(sim: Simulation) -> list[int]:
        worker = await sim.start_worker()
        handle = await worker.client.start(flow(), id="r")
        await handle.send(GO, 1)
        result = await handle.result()
        for _ in range(50):
            await replay(sim, clean, flow)
        return result

    assert Simulation([clean, *CANCELLING], options=IN_MEMORY).run(scenario) == list(range(20))
    assert len(orders) == 51
    assert all(order == list(range(20)) for order in orders)


# 85: stored formats


FORMATS = sorted(Path(__file__).parent.glob("journal_format_*.jsonl"))
"""One file for each format that was ever released, one entry a line. They are never edited: a new format is a new file."""


def _row(line: str) -> EntryRow:
    data = json.loads(line)
    return EntryRow(0, 0, data["type"], data.get("operation", ""), "", line.encode())


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.stem)
def test_case_085_every_entry_ever_stored_is_read_and_keeps_what_it_says(path: Path) -> None:
    """Each kind of entry, as a former version wrote it, decodes; written again, it still says what every field said.

    A field that says no more than its absence need not be written.
    """
    lines = path.read_text().splitlines()
    for line in lines:
        entry = from_row(_row(line))
        again = to_row(entry, 0, 0)
        assert again.kind == json.loads(line)["type"]
        assert from_row(again) == entry
        said, kept = json.loads(line), json.loads(again.body)
        left_out = said.keys() - kept.keys()
        defaults = {name: msgspec.to_builtins(getattr(entry, name)) for name in left_out}
        assert _says({**kept, **defaults}, said)


def _says(later: Any, former: Any) -> bool:
    """Whether it holds all that the former one held, at whatever depth; it may hold more."""
    if isinstance(former, dict):
        return all(name in later and _says(later[name], one) for name, one in former.items())
    if isinstance(former, list):
        return len(later) == len(former) and all(map(_says, later, former))
    return later == former


def test_case_085_the_newest_format_has_every_kind_of_entry() -> None:
    """Whoever adds a kind of entry adds it to the stored examples, or makes a new file of them."""
    assert {json.loads(line)["type"] for line in FORMATS[-1].read_text().splitlines()} == set(KINDS)


@dataclass
class FormerPart:
    """A tool's answer, as the code had it that began the run."""

    text: str
    tags: list[str]
    score: Decimal
    gone: tuple[int, ...] = (1, 2)


@dataclass
class Part:
    """The same answer in later code: a field is gone, and one is new."""

    text: str
    tags: list[str]
    score: Decimal
    since: timedelta = timedelta(0)


async def _answer() -> FormerPart:
    return FormerPart("a", ["x"], Decimal("0.10"))


async def _never() -> Part:
    raise AssertionError("asked again")


def _asking(ask: Callable[..., Any], module: str) -> list[Definition[..., Any]]:
    asking = step(ask, "ask")

    async def flow() -> str:
        part = await asking()
        await outlast.receive(GO)
        return repr(part)

    workflow = Workflow(flow)
    workflow.__module__ = module
    return [workflow, asking]


def test_case_085_a_tools_return_stored_by_former_code_is_decoded() -> None:
    """In a run in flight, what later code no longer has is passed over, and what it has more takes its default."""
    before, after = _asking(_answer, "v1"), _asking(_never, "v2")

    async def scenario(sim: Simulation) -> str:
        first = await sim.start_worker(definitions=before)
        handle = await sim.client.start(before[0](), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        await first.stop()
        await sim.start_worker(definitions=after)
        await handle.send(GO, 1)
        return await handle.result()

    assert Simulation([]).run(scenario) == repr(Part("a", ["x"], Decimal("0.10")))


# 86: runs of another version


async def _waits() -> int:
    return await outlast.receive(GO)


async def _returns() -> int:
    return 1


def _step_first(waits: Step[..., Any], name: str) -> Callable[[], Coroutine[Any, Any, int]]:
    async def body() -> int:
        await waits(1)
        return await outlast.receive(GO)

    body.__name__ = name
    return body


ELSEWHERE = Workflow(_waits, "elsewhere")
"""A workflow that only the other version has."""
WAITING = Workflow(_waits, "waiting")
NEW = Workflow(_returns, "new")
FORMER = step(_load, "former")
LATER = step(_load, "later")
OLD_CHANGED = Workflow(_step_first(FORMER, "changed"), "changed")
NEW_CHANGED = Workflow(_step_first(LATER, "changed"), "changed")
OTHER_VERSIONS = {
    "of a workflow that this worker does not have": (ELSEWHERE, []),
    "of other code": (OLD_CHANGED, [NEW_CHANGED, LATER]),
    "that only wait": (WAITING, [WAITING]),
}


@pytest.mark.parametrize(
    ("workflow", "here"), OTHER_VERSIONS.values(), ids=[f"runs {one}" for one in OTHER_VERSIONS]
)
def test_case_086_runs_that_a_worker_cannot_move_take_none_of_its_room(
    workflow: Workflow[..., int], here: list[Definition[..., Any]]
) -> None:
    """Ten runs that cannot move, and room for two: new runs are claimed and end."""

    async def scenario(sim: Simulation) -> list[Status]:
        first = await sim.start_worker(definitions=[workflow, FORMER])
        for n in range(10):
            await sim.client.start(workflow(), id=f"old-{n}")
        for n in range(10):
            await sim.until(f"old-{n}", lambda head: head.status is Status.WAITING)
        await first.stop()
        options = dataclasses.replace(SHORT, runs=2)
        await sim.start_worker(definitions=[NEW, *here], options=options)
        if NEW_CHANGED in here:
            for n in range(10):
                await sim.client.handle(f"old-{n}").send(GO, 1)
        for n in range(10):
            assert await sim.client.run(NEW(), id=f"new-{n}") == 1
        return [(await sim.until(f"old-{n}", lambda _: True)).status for n in range(10)]

    statuses = Simulation([]).run(scenario)
    assert not any(status.closed for status in statuses)


def test_case_086_runs_of_another_version_go_on_where_it_lives() -> None:
    """Ten runs of other code are handed to the worker that has it, and the new one has its room for new runs meanwhile."""

    async def scenario(sim: Simulation) -> list[int]:
        await sim.start_worker(definitions=[OLD_CHANGED, FORMER])
        for n in range(10):
            await sim.client.start(OLD_CHANGED(), id=f"old-{n}")
        for n in range(10):
            await sim.until(f"old-{n}", lambda head: head.status is Status.WAITING)
        options = dataclasses.replace(SHORT, runs=2)
        await sim.start_worker(definitions=[NEW, NEW_CHANGED, LATER], options=options)
        for n in range(10):
            await sim.client.handle(f"old-{n}").send(GO, n)
        for n in range(10):
            assert await sim.client.run(NEW(), id=f"new-{n}") == 1
        return [await sim.client.handle(f"old-{n}", OLD_CHANGED).result() for n in range(10)]

    assert Simulation([]).run(scenario) == list(range(10))
