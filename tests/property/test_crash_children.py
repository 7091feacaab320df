"""Laws of crash points between runs: a parent with children, a message, a watched run, killed before and after every commit and call.

The commits are those of all runs and of the relay: an item written, the other run written, the item cleared.
"""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import Client
from outlast.journal.entry import (
    ChildRequested,
    ChildStarted,
    Entry,
    MessageAnswered,
    MessageReceived,
    MessageSent,
    RunEnded,
    WatchRequested,
    from_row,
)
from outlast.store.change import MessageKind, RunKey, Status
from outlast.testing import CrashPoint, Receiver, Trial, Workload, every_crash, undisturbed

pytestmark = pytest.mark.slow

receiver = Receiver()
word = outlast.Signal("word", str)
stores: list[Any] = []
"""The store of each trial, innermost."""


@outlast.effect(idempotent=True)
async def do(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), name)


@outlast.workflow
async def child(name: str) -> str:
    return await do(name)


@outlast.workflow
async def listener() -> str:
    """Started by nobody's parent; told a word, it ends with it."""
    return await do(await outlast.receive(word))


@outlast.workflow
async def slow_child() -> str:
    """Clean up when cancelled, with an effect."""
    try:
        await outlast.sleep(1000)
    except asyncio.CancelledError:
        await do("cleaned up")
        raise
    return "slept"


@outlast.workflow
async def parent() -> list[str]:
    """Two children, one through a handle; a message to another run, whose end is waited for."""
    await outlast.sleep(1)
    one = await outlast.start_child(child("one"))
    other = outlast.run_handle("listener", listener)
    await other.send(word, "hear")
    two, said, first = await asyncio.gather(
        outlast.run_child(child("two"), parent_close="abandon"), other.result(), one.result()
    )
    return [first, two, said]


@outlast.workflow
async def gives_up() -> str:
    """A child that is cancelled with who waits for it, and one that is terminated with its parent."""
    await outlast.sleep(1)
    await outlast.start_child(slow_child(), id="left")
    try:
        await asyncio.wait_for(outlast.run_child(slow_child(), id="slow"), 2)
    except TimeoutError:
        return "gave up"
    return "done"


@outlast.workflow
async def looks_away() -> str:
    """Stop waiting for the end of another run."""
    await outlast.sleep(1)
    other = outlast.run_handle("listener", listener)
    try:
        await asyncio.wait_for(other.result(), 1)
    except TimeoutError:
        await other.cancel("nobody waits")
    return "looked away"


@outlast.workflow
async def leaves() -> str:
    """End with a child that is asked to stop then."""
    await outlast.sleep(1)
    await outlast.start_child(slow_child(), id="left", parent_close="cancel")
    return "left"


CODE = [do, child, listener, slow_child, parent, gives_up, looks_away, leaves]


async def listen(client: Client) -> None:
    """Be the run that others deal with; keep the store to be looked at."""
    stores.append(client.store._inner)
    await client.start(listener(), id="listener")
    await asyncio.Event().wait()


async def keep(client: Client) -> None:
    """Keep the store to be looked at."""
    stores.append(client.store._inner)
    await asyncio.Event().wait()


def work(call: Callable[[], Any], meanwhile: Any = keep) -> Workload[Any]:
    return Workload(
        call,
        receiver=receiver,
        meanwhile=meanwhile,
        definitions=CODE,
        longest=timedelta(hours=12),
    )


WORK = {
    "parent": work(parent, listen),
    "gives_up": work(gives_up),
    "looks_away": work(looks_away, listen),
    "leaves": work(leaves),
}
RESULTS = {
    "parent": ["one", "two", "hear"],
    "gives_up": "gave up",
    "looks_away": "looked away",
    "leaves": "left",
}
ONCE = (ChildRequested, ChildStarted, RunEnded, MessageSent, WatchRequested, MessageAnswered)


def entries_of(store: Any, run_id: str) -> list[Entry]:
    """Return the journal of any run of a trial."""
    run = store.runs[RunKey("default", run_id)]
    return [from_row(one.row) for one in run.journals[run.head.generation]]


def left_over(store: Any) -> list[Any]:
    """Return what lies about in the store: items under way, and rows and watches of runs that have ended."""
    closed = {run.head.run: run for run in store.runs.values() if run.head.status.closed}
    rows = [row for run in closed.values() for row in run.operations.values()]
    watches = [who for run in closed.values() for who in run.watches]
    items = [item for run in store.runs.values() for item in run.outbox.values()]
    return [*items, *watches, *rows]


def check(name: str, trial: Trial[Any]) -> None:
    """The undisturbed result; what each run was told is in its journal once; nothing is left over."""
    assert trial.result == RESULTS[name], trial
    assert set(trial.changes.values()) <= {1}, trial
    store = stores.pop()
    stores.clear()
    assert left_over(store) == [], trial
    for key, run in store.runs.items():
        entries = entries_of(store, key.run_id)
        for kind in ONCE:
            told = Counter(one.operation for one in entries if isinstance(one, kind))
            assert set(told.values()) <= {1}, (trial, key, kind, told)
        for one in entries:
            if isinstance(one, RunEnded):
                other = store.runs[RunKey("default", one.run_id)]
                assert one.status == other.head.status, (trial, one)
        assert run.head.generation == 1
    if name == "parent":
        heard = [one for one in entries_of(store, "listener") if isinstance(one, MessageReceived)]
        assert [one.sender for one in heard] == ["run"], trial
        assert trial.changes.total() == 3, trial
    left = RunKey("default", "left")
    if name == "gives_up":
        assert store.runs[left].head.status is Status.TERMINATED, trial
    if name == "leaves":
        asked = [one.stamped.message for one in store.runs[left].inbox.values()]
        assert [one.kind for one in asked] == [MessageKind.CANCEL], trial


@pytest.mark.parametrize("name", WORK)
def test_a_crash_at_any_point_changes_nothing(name: str) -> None:
    """Every commit of every run and of the relay, and every call: the same end, everything once, nothing left."""
    for trial in every_crash(WORK[name]):
        check(name, trial)


@pytest.mark.soak
@pytest.mark.parametrize("name", WORK)
def test_two_crashes_in_a_row_change_nothing(name: str) -> None:
    """The process that recovers is killed at each of its points too."""
    for trial in every_crash(WORK[name], crashes=2):
        check(name, trial)


def test_the_relay_is_among_the_points() -> None:
    """There are more commits than the runs' own: both halves of each item's way are points at which to die."""
    trial = undisturbed(WORK["parent"])
    store = stores.pop()
    points = trial.lives[0].points
    commits = max(point.number for point in points if point.what == "commit")
    owned = sum(run.head.version for run in store.runs.values())
    assert commits > owned
    assert CrashPoint("after", "commit", commits) in points
