"""What must hold of a store and of the world after chaos, whatever happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import apsw
import chaos_flow
from chaos_load import KINDS, Accepted, kind_of
from crash_bench import check_journal, check_rows

from outlast.clock import Clock
from outlast.journal.entry import (
    ApprovalDecided,
    CancelRequested,
    Completed,
    EffectCompleted,
    EffectIntended,
    Entry,
    MessageReceived,
    from_row,
)
from outlast.replay.delivery import Delivery
from outlast.replay.machine import Machine
from outlast.store.change import RunKey, Status
from outlast.store.protocol import RunImage, Store
from outlast.testing import replay_run
from outlast.workflows.definition import Definition
from outlast.workflows.registry import Registry


def check_file(path: Path) -> None:
    """Let SQLite look at every page; nobody owns anything, and no lock of a worker is left."""
    connection = apsw.Connection(str(path))
    try:
        assert connection.pragma("integrity_check") == "ok"
        assert list(connection.execute("PRAGMA foreign_key_check")) == []
        for table, where in (
            ("run", "owner IS NOT NULL OR open = 1 OR due IS NOT NULL"),
            ("worker", "1"),
            ("operation", "1"),
            ("outbox", "1"),
            ("watch", "1"),
            ("message", "consumed = 0"),
            ("approval", "state = 'pending'"),
        ):
            found = list(connection.execute(f"SELECT * FROM {table} WHERE {where}"))
            assert found == [], f"left behind in {table}: {found}"
    finally:
        connection.close()
    locks = {one.name for one in Path(f"{path}-workers").iterdir()}
    assert locks <= {"checkpoint.lock"}, locks


def check_accepted(label: str, entries: Sequence[Entry], accepted: Accepted) -> None:
    """What the store accepted for the run is in its journal, once, in order; and nothing else is."""
    received = [one.message_id for one in entries if isinstance(one, MessageReceived)]
    assert received == accepted.messages.get(label, []), received
    decided = [one.approval_id for one in entries if isinstance(one, ApprovalDecided)]
    assert decided == [accepted.decisions[label]] if label in accepted.decisions else not decided
    cancels = [one for one in entries if isinstance(one, CancelRequested)]
    asked = accepted.cancels.get(label, 0)
    assert min(asked, 1) <= len(cancels) <= asked


def check_effects(label: str, entries: Sequence[Entry]) -> None:
    """The world was changed as declared, by the operations and under the keys that the journal knows; no grant was spent twice."""
    intents = {one.name: one for one in entries if isinstance(one, EffectIntended)}
    done = {one.name for one in entries if isinstance(one, EffectCompleted)}
    assert set(intents) == done == {f"chaos_{body}" for body in KINDS[kind_of(label)].acts}
    for name, intent in intents.items():
        acts = chaos_flow.acts(name.removeprefix("chaos_"), label)
        assert {one["key"] for one in acts} == {intent.key}, f"{name}, {intent}: {acts}"
        assert {one["operation"] for one in acts} == {intent.operation}, f"{name}: {acts}"
        if name in {"chaos_order", "chaos_transfer"}:
            assert len(acts) == 1, f"{name} was applied {len(acts)} times: {acts}"
    spent = Counter(
        (one.grant.approval_id, one.grant.cover) for one in intents.values() if one.grant
    )
    assert all(count == 1 for count in spent.values())


def check_end(label: str, image: RunImage, last: Entry, accepted: Accepted) -> None:
    """The run came to the end that an undisturbed one comes to."""
    head = image.head
    assert (head.owner, head.wake_at, image.operations, image.messages) == (None, None, (), ()), (
        head
    )
    if kind_of(label) == "endless":
        assert head.status is Status.CANCELLED
        return
    assert head.status is Status.COMPLETED, head
    assert isinstance(last, Completed)
    workflow = CODE.workflows[head.workflow]
    result = KINDS[kind_of(label)].result(label)
    if kind_of(label) == "lapse" and label in accepted.decisions:
        result = "decided"
    assert workflow.result.decode(bytes(last.value)) == result, last


CODE = Registry(one for one in vars(chaos_flow).values() if isinstance(one, Definition))


async def check_replay(store: Store, clock: Clock, image: RunImage, entries: list[Entry]) -> None:
    """The code, given the journal without its end, comes to that end by itself."""
    run = image.head.run
    assert await replay_run(store, CODE, clock, run) == entries[-1]
    program = CODE.workflows[image.head.workflow]
    machine = Machine(program, tenant=run.tenant, run_id=run.run_id)
    delivery = Delivery(machine, clock)
    try:
        await delivery.deliver(list(zip(entries[:-1], image.rows[:-1], strict=True)))
        assert type(machine.outcome) is type(entries[-1])
        if isinstance(entries[-1], Completed):
            assert machine.outcome == entries[-1]
    finally:
        await delivery.evict()


def check_terminated(label: str, image: RunImage, entries: Sequence[Entry], count: int) -> None:
    """A run that was ended from outside stayed as it was then; what was under way may have acted once."""
    head = image.head
    assert (head.status, head.owner, image.operations) == (Status.TERMINATED, None, ()), head
    assert len(entries) == count
    check_rows(image.rows, overtaken=True)
    for intent in (one for one in entries if isinstance(one, EffectIntended)):
        acts = chaos_flow.acts(intent.name.removeprefix("chaos_"), label)
        assert {one["key"] for one in acts} <= {intent.key}, acts
        assert intent.name != "chaos_order" or len(acts) <= 1, acts


async def check_run(store: Store, clock: Clock, label: str, accepted: Accepted) -> None:
    """All of it, for one run."""
    image = await store.load(RunKey("default", label))
    assert image is not None, f"{label} was accepted and is lost"
    entries = [from_row(one.row) for one in image.rows]
    try:
        if label in accepted.terminations:
            check_terminated(label, image, entries, accepted.terminations[label])
            return
        end = "cancelled" if kind_of(label) == "endless" else "completed"
        check_journal(image.rows, end, overtaken=True)
        check_end(label, image, entries[-1], accepted)
        check_accepted(label, entries, accepted)
        check_effects(label, entries)
        await check_replay(store, clock, image, entries)
    except AssertionError as error:
        for one in image.rows:
            error.add_note(f"{one.row.seq} {one.row.kind} {one.row.operation} {one.row.name}")
        error.add_note(f"run {label}")
        raise
