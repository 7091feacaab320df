"""Laws of children: for any tree of them, with any ends and whatever dies meanwhile, each parent is told of each child's end once."""

# ruff: noqa: D103 - the workflow of a test says what it does in its body
from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from hypothesis import example, given
from hypothesis import strategies as st
from searching import examples

import outlast
from outlast.journal.entry import (
    ChildRefused,
    ChildRequested,
    ChildStarted,
    Entry,
    MessageAnswered,
    MessageSent,
    RunEnded,
    Started,
    from_row,
)
from outlast.store.change import CLOSED, Status
from outlast.testing import Faults, Receiver, Simulation
from outlast.worker.worker import WorkerOptions

receiver = Receiver()


@dataclass
class Node:
    """One run.

    Args:
        seconds: How long it waits before it looks at its children's ends, or ends itself.
        waits: Whether it waits for the children that it has started.
    """

    end: Literal["return", "raise"] = "return"
    seconds: float = 0.0
    waits: bool = True
    kids: list[Kid] = field(default_factory=list)


@dataclass
class Kid:
    """A child, and how its parent deals with it.

    Args:
        mode: It is awaited, awaited through a handle, never looked at, given up after a while, or cancelled through its handle.
    """

    node: Node
    mode: Literal["await", "handle", "leave", "give up", "cancel"] = "await"
    close: Literal["terminate", "cancel", "abandon"] = "terminate"


@outlast.effect(idempotent=True)
async def act(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), name)


@outlast.workflow
async def node(what: Node) -> int:
    """Have children, wait, and end as told; say how many of them came back with a number."""
    tasks: list[asyncio.Task[int]] = []
    for number, kid in enumerate(what.kids):
        name = f"{outlast.info().run_id}.{number}"
        match kid.mode:
            case "await" | "give up":
                call = outlast.run_child(node(kid.node), id=name, parent_close=kid.close)
                task = asyncio.create_task(call)
                if kid.mode == "give up":
                    asyncio.get_running_loop().call_later(3.5 + number, task.cancel)
                tasks.append(task)
            case _:
                child = await outlast.start_child(node(kid.node), id=name, parent_close=kid.close)
                if kid.mode == "cancel":
                    await child.cancel("not needed")
                if kid.mode != "leave":
                    tasks.append(asyncio.create_task(child.result()))
    try:
        await act(outlast.info().run_id)
        await outlast.sleep(what.seconds)
    finally:
        if what.waits and tasks:
            await asyncio.wait(tasks)
    if what.end == "raise":
        raise ValueError("as told")
    done = [one for one in tasks if one.done() and not one.cancelled() and not one.exception()]
    return len(done)


def kids(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(
        Node,
        end=st.sampled_from(["return", "return", "raise"]),
        seconds=st.sampled_from([0.0, 0.0, 2.0, 8.0]),
        waits=st.sampled_from([True, True, True, False]),
        kids=st.lists(
            st.builds(
                Kid,
                nodes,
                st.sampled_from(["await", "await", "handle", "leave", "give up", "cancel"]),
                st.sampled_from(["terminate", "cancel", "abandon"]),
            ),
            min_size=1,
            max_size=3,
        ),
    )


leaves = st.builds(
    Node,
    end=st.sampled_from(["return", "return", "raise"]),
    seconds=st.sampled_from([0.0, 3.0, 30.0]),
)
trees = kids(st.recursive(leaves, kids, max_leaves=5))
HARMS = ["kill", "kill", "kill", "terminate", "cancel", "freeze", "cut", "stop", "back", "forth"]
disturbances = st.lists(st.tuples(st.floats(0, 12), st.sampled_from(HARMS)), max_size=3)
faults = st.sampled_from(
    [
        Faults(),
        Faults(latency=0.2),
        Faults(lost_answer=0.1, lost_request=0.05, lost_hint=0.3),
        Faults(latency=0.1, unavailable=0.1, outlives=0.5, echoes=0.2, lost_answer=0.1),
    ]
)
OPTIONS = WorkerOptions(library="simulated", idle=timedelta(milliseconds=300))


def count(what: Node) -> int:
    return 1 + sum(count(kid.node) for kid in what.kids)


async def begin_worker(sim: Simulation, fault: Faults) -> None:
    """Start a worker whose way to the store is bad, once it is registered."""
    worker = await sim.start_worker(faults=Faults())
    worker.store.faults = fault


async def end_one(sim: Simulation, how: str, which: int) -> None:
    """Terminate or cancel one of the open runs."""
    found = [one for one in await sim.client.runs.list() if one.status not in CLOSED]
    if found:
        chosen = sorted(found, key=lambda one: one.run_id)[which % len(found)]
        with contextlib.suppress(outlast.RunConflictError):
            await getattr(sim.client.handle(chosen.run_id), how)("bad luck")


async def disturb(sim: Simulation, how: str, fault: Faults) -> None:
    """Do harm to a worker, or to the clock."""
    worker = sim.workers[-1]
    match how:
        case "kill":
            worker.kill()
            await begin_worker(sim, fault)
        case "stop" if not worker.process.stopped:
            await worker.stop()
            await begin_worker(sim, fault)
        case "freeze" | "stop":
            worker.freeze()
            later(20, worker.thaw)
        case "cut":
            worker.store.faults = Faults(down=True)
            later(5, lambda: setattr(worker.store, "faults", fault))
        case _:
            sim.clock.jump(timedelta(hours=1) * (1 if how == "forth" else -1))


def later(seconds: float, act: Callable[[], object]) -> None:
    """Do something later, whatever happens to the processes meanwhile."""
    asyncio.get_running_loop().call_later(seconds, act, context=contextvars.Context())


async def live(
    sim: Simulation, what: Node, harm: list[tuple[float, str]], fault: Faults
) -> dict[str, Any]:
    """Let a tree grow and end, whatever happens; return the runs of the store."""
    for _ in range(2):
        await begin_worker(sim, fault)
    await sim.client.start(node(what), id="root")
    began = sim.clock.monotonic()
    for at, how in sorted(harm):
        await asyncio.sleep(max(0.0, at - (sim.clock.monotonic() - began)))
        if how in ("terminate", "cancel"):
            await end_one(sim, how, int(at * 10))
        else:
            await disturb(sim, how, fault)
    store: Any = sim.store
    while await sim.store.outbox(1) or any(
        not run.head.status.closed for run in store.runs.values()
    ):
        await sim.a_while(since=began)
    assert not any(run.outbox or run.watches or run.operations for run in store.runs.values())
    return {key.run_id: run for key, run in store.runs.items()}


def entries(run: Any) -> list[Entry]:
    return [from_row(one.row) for one in run.journals[1]]


def of(kind: type[Any], found: list[Entry]) -> list[Any]:
    return [one for one in found if isinstance(one, kind)]


# A run that was to be parked a fraction of a nanosecond later, which the clock could not move by.
IDLE_FOR_AN_INSTANT = Node(
    end="raise",
    seconds=8.0,
    waits=True,
    kids=[
        Kid(Node(end="raise", seconds=3.0), "await", "abandon"),
        Kid(
            Node(
                waits=False,
                kids=[
                    Kid(Node(end="raise"), "handle", "terminate"),
                    Kid(Node(seconds=3.0), "give up", "abandon"),
                    Kid(Node(seconds=3.0), "await", "cancel"),
                ],
            ),
            "handle",
            "terminate",
        ),
    ],
)
UNSTEADY = Faults(latency=0.1, unavailable=0.1, lost_answer=0.1, outlives=0.5, echoes=0.2)


@examples(0.6)
@given(what=trees, harm=disturbances, fault=faults, seed=st.integers(0, 10**6))
@example(what=IDLE_FOR_AN_INSTANT, harm=[], fault=UNSTEADY, seed=222)
def test_each_end_is_told_once(what, harm, fault, seed):
    """What a parent is told is what became of the child, once; nothing is left when all is over; each run acted once at most."""
    receiver.forget()
    sim = Simulation([node, act], seed=seed, options=OPTIONS, longest=timedelta(hours=12))
    runs = sim.run(lambda sim: live(sim, what, harm, fault))
    assert len(runs) <= count(what)
    assert set(receiver.changes.values()) <= {1}
    for run_id, run in runs.items():
        found = entries(run)
        told = of(RunEnded, found)
        asked = {one.operation: one for one in of(ChildRequested, found)}
        assert not of(ChildRefused, found)
        for kind in (ChildRequested, ChildStarted, RunEnded, MessageSent, MessageAnswered):
            assert set(Counter(one.operation for one in of(kind, found)).values()) <= {1}
        for one in told:
            assert one.run_id == asked[one.operation].run_id
            assert one.status == runs[one.run_id].head.status
        # Requested children exist: whatever became of the parent meanwhile.
        assert {one.run_id for one in asked.values()} <= set(runs)
        for one in asked.values():
            (parent,) = of(Started, entries(runs[one.run_id]))
            assert (parent.parent.run_id, parent.parent.operation) == (run_id, one.operation)
        spec = told_to(found)
        if run.head.status in (Status.COMPLETED, Status.FAILED):
            names = {kid_id(run_id, number): kid.mode for number, kid in enumerate(spec.kids)}
            requested = {one.run_id for one in asked.values()}
            # Only what was given up before it was requested was not.
            assert requested >= {name for name, mode in names.items() if mode != "give up"}
            if spec.waits:
                waited = {name for name in requested if names[name] != "leave"}
                assert {one.run_id for one in told} >= waited


def kid_id(run_id: str, number: int) -> str:
    return f"{run_id}.{number}"


def told_to(found: list[Entry]) -> Node:
    """Return what a run was told to do."""
    (started,) = of(Started, found)
    args, kwargs = node.arguments.decode(bytes(started.arguments))
    return [*args, *kwargs.values()][0]
