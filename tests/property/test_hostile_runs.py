"""What a run does that meets hostile bytes: it is blocked, or says so and goes on; its worker lives, and other runs go on."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hostile_bytes import NASTY, mutated
from hypothesis import given
from hypothesis import strategies as st
from searching import examples

import outlast
from outlast.client import RunDetail
from outlast.errors import DecodeError, OutlastError
from outlast.journal.entry import AlarmRaised, EntryRow, StampedRow, UpdateReceived, from_row
from outlast.journal.parse import parse
from outlast.store.change import (
    Message,
    MessageKind,
    OperationPut,
    PutMessage,
    RunHead,
    RunKey,
    Status,
)
from outlast.testing import Simulation
from outlast.worker.worker import WorkerOptions

pytestmark = pytest.mark.slow

go = outlast.Signal("hostile go", int)


@outlast.step
async def plan(n: int) -> dict[str, int]:
    return {"n": n}


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
async def fail() -> None:
    raise ValueError("no")


@outlast.effect(idempotent=True)
async def ship(n: int) -> str:
    return "sent"


@outlast.workflow
async def flow(n: int) -> int:
    await plan(n)
    with contextlib.suppress(ValueError):
        await fail()
    await outlast.approval({"n": n}, covers=[ship(n)], role="boss", expires_in=timedelta(days=9))
    await ship(n)
    await outlast.sleep(5)
    return await outlast.receive(go) + await outlast.receive(go)


@outlast.workflow
async def quick(n: int) -> int:
    return (await plan(n))["n"]


CODE = [plan, fail, ship, flow, quick]
OPTIONS = WorkerOptions(library="simulated", idle=timedelta(seconds=1))


REQUESTS = {MessageKind.CANCEL, MessageKind.PAUSE, MessageKind.RESUME}
BODIES = [data for what, data in NASTY.items() if what != "the longest integer"]
"""All but what is an int, and so a message that is meant."""


def parked(head: RunHead) -> bool:
    """Whether the run was given back."""
    return head.owner is None and head.status in {Status.WAITING, Status.BLOCKED}


def rests(head: RunHead) -> bool:
    """Whether nothing more will come of the run by itself."""
    stuck = head.status is Status.BLOCKED and head.owner is None
    return head.status.closed or stuck or (parked(head) and not head.mail)


async def waiting_run(sim: Simulation, run_id: str) -> list[StampedRow]:
    """Bring a run to its last wait, and return its journal."""
    handle = await sim.client.start(flow(1), id=run_id)
    await sim.until(run_id, parked)
    (view,) = [one for one in await sim.client.approvals.list() if one.run_id == run_id]
    await sim.client.approvals.approve(run_id, view.approval_id, seen_sha256=view.subject_sha256)
    await sim.until(run_id, lambda head: parked(head) and head.wake_at is None and not head.mail)
    await handle.send(go, 1)
    await sim.until(run_id, lambda head: parked(head) and head.next_seq == ENTRIES)
    return list(await sim.store.journal(RunKey("default", run_id)))


ENTRIES = 10


def damage(sim: Simulation, run_id: str, place: int, row: EntryRow) -> None:
    """Exchange a row behind the store's back."""
    journal = sim.store.runs[RunKey("default", run_id)].journals
    (rows,) = journal.values()
    rows[place] = StampedRow(row, rows[place].at)


async def goes_on(sim: Simulation) -> None:
    """Check that the worker still does its work."""
    handle = await sim.client.start(quick(7), id="innocent")
    assert await handle.result() == 7


async def settled(sim: Simulation, run_id: str) -> RunHead:
    """Wake a run, and return its row when it rests again or has ended."""
    await sim.client.handle(run_id).send("hostile go", 2)
    return await sim.until(run_id, rests)


async def looked_at(sim: Simulation, run_id: str) -> None:
    """Look at a run from outside in every way: what cannot be read is an error of ours."""
    handle = sim.client.handle(run_id)
    detail = await handle.detail()
    assert isinstance(detail, RunDetail)
    try:
        [repr(one) for one in await handle.journal()]
    except DecodeError as error:
        assert error.hint


@pytest.mark.parametrize("what", NASTY)
def test_a_run_whose_journal_cannot_be_read_is_blocked_and_its_worker_goes_on(what):
    """Each entry of a journal is exchanged for each kind of hostile bytes."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        for place in range(ENTRIES):
            rows = await waiting_run(sim, f"r{place}")
            damage(
                sim, f"r{place}", place, msgspec.structs.replace(rows[place].row, body=NASTY[what])
            )
        for place in range(ENTRIES):
            head = await settled(sim, f"r{place}")
            assert (head.status, head.reason) == (Status.BLOCKED, "undecodable"), place
            await looked_at(sim, f"r{place}")
        await goes_on(sim)

    Simulation(CODE, options=OPTIONS).run(scenario)


_REASONS = {"undecodable", "non-determinism", "in doubt"}


@examples(0.6)
@given(data=st.data())
def test_a_run_whose_journal_was_changed_is_blocked_for_a_reason_or_goes_on(data):
    """Whatever is done to a row, the run is blocked with a reason that is no fault of ours, or comes to an end of its own."""
    place = data.draw(st.integers(0, ENTRIES - 1))

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        rows = await waiting_run(sim, "r")
        body = data.draw(mutated([rows[place].row.body]))
        damage(sim, "r", place, msgspec.structs.replace(rows[place].row, body=body))
        head = await settled(sim, "r")
        if head.status is Status.BLOCKED:
            assert head.reason in _REASONS
        await looked_at(sim, "r")
        await goes_on(sim)

    Simulation(CODE, options=OPTIONS).run(scenario)


@pytest.mark.parametrize("kind", MessageKind)
def test_a_hostile_message_is_put_aside_and_the_run_waits_on(kind):
    """No message ends or blocks a run, however deep or endless: each is an alarm, and what wants an answer has one."""
    # An object is a request, if one that says nothing.
    bodies = [one for one in BODIES if kind not in REQUESTS or not one.startswith(b"{")]

    async def scenario(sim: Simulation) -> list[Any]:
        await sim.start_worker()
        await waiting_run(sim, "r")
        run = RunKey("default", "r")
        for number, data in enumerate(bodies):
            message = Message(f"m{number}", kind, "hostile go", "you", data)
            await sim.store.commit([PutMessage(run, message)])
        head = await sim.until("r", rests)
        assert head.status is Status.WAITING
        await looked_at(sim, "r")
        await goes_on(sim)
        if kind is MessageKind.UPDATE:
            await sim.client.handle("r").cancel()
            await sim.closed("r")
            states = [await sim.store.answer(run, f"m{number}") for number in range(len(bodies))]
            assert all(state is not None and state.answered for state in states)
        return [from_row(one.row) for one in await sim.store.journal(run)]

    entries = Simulation(CODE, options=OPTIONS).run(scenario)
    alarms = [one for one in entries[ENTRIES:] if isinstance(one, AlarmRaised)]
    # What is JSON of any kind may be for a handler that the run names later.
    taken = [one for one in entries if isinstance(one, UpdateReceived)]
    assert len(alarms) + len(taken) == len(bodies)
    for alarm in alarms:
        assert isinstance(parse(bytes(alarm.detail)), dict)


@pytest.mark.parametrize("levels", [99, 201, 202, 203, 700, 950])
def test_a_message_that_one_stack_could_read_and_another_not_is_no_poison(levels):
    """What is taken in is read again by everybody: its depth is counted, and not tried against the stack that is left."""
    untyped = "nobody declares this"

    async def scenario(sim: Simulation) -> RunHead:
        await sim.start_worker()
        await waiting_run(sim, "r")
        body = b"[" * levels + b"]" * levels
        message = Message("m1", MessageKind.SIGNAL, untyped, "you", body)
        await sim.store.commit([PutMessage(RunKey("default", "r"), message)])
        await sim.until("r", lambda head: parked(head) and head.next_seq == ENTRIES + 1)
        rows = await sim.store.journal(RunKey("default", "r"))
        _at_depth(300, lambda: from_row(rows[-1].row))
        return await settled(sim, "r")

    assert Simulation(CODE, options=OPTIONS).run(scenario).status is Status.COMPLETED


def _at_depth(frames: int, act: Any) -> Any:
    return act() if frames == 0 else _at_depth(frames - 1, act)


@pytest.mark.parametrize("what", NASTY)
def test_a_hostile_note_or_detail_stops_no_run(what):
    """What a parked run noted, and the row of an operation, are for people: unread, they cost nothing else."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        await waiting_run(sim, "r")
        run = sim.store.runs[RunKey("default", "r")]
        head = msgspec.structs.replace(run.head, note=NASTY[what])
        run.state = msgspec.structs.replace(run.state, head=head)
        run.operations["r:9"] = OperationPut("r:9", "step", "plan", 1, None, NASTY[what])
        await looked_at(sim, "r")
        await settled(sim, "r")
        return await sim.client.handle("r", workflow=flow).result()

    try:
        assert Simulation(CODE, options=OPTIONS).run(scenario) == 3
    except OutlastError as error:  # pragma: no cover - a failure, in a short form
        pytest.fail(str(error)[:500])


@pytest.mark.parametrize("kept", [0, 1])
def test_a_journal_without_its_beginning_is_undecodable(kept):
    """An empty journal, and one that begins with something else, block the run by name."""

    async def scenario(sim: Simulation) -> RunHead:
        await sim.start_worker()
        await waiting_run(sim, "r")
        (rows,) = sim.store.runs[RunKey("default", "r")].journals.values()
        rows[:] = rows[1 : 1 + kept]
        return await settled(sim, "r")

    head = Simulation(CODE, options=OPTIONS).run(scenario)
    assert (head.status, head.reason) == (Status.BLOCKED, "undecodable")
