"""What a run may see before it is written, and when that is written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
import pytest

from outlast.journal.entry import (
    NO_OPERATION,
    Durability,
    Entry,
    MessageReceived,
    Published,
    StepCompleted,
    TimerFired,
    to_row,
)
from outlast.store.change import OperationDrop, RunChange, RunKey, TaskDrop, Verdict, WorkerId
from outlast.worker import buffer
from outlast.worker.buffer import Buffer, is_soft
from outlast.worker.proposal import Proposal, Rank

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SOFT = {
    "step_completed",
    "step_failed",
    "timer_fired",
    "message_received",
    "update_received",
    "patched",
    "published",
    "saga_aborted",
    "saga_ended",
}


def entry_of(kind: type[Any]) -> Any:
    """Return an entry of a kind, whatever it says."""
    return kind(**{one.name: None for one in msgspec.structs.fields(kind) if one.required})


def step(number: int = 1) -> Proposal:
    """Return the outcome of a step."""
    entry = StepCompleted(f"r:{number}", "step", msgspec.Raw(b"1"))
    return Proposal(Rank.OUTCOME, entry, row=OperationDrop(entry.operation))


def held(mode: Durability, *proposals: Proposal) -> Buffer:
    """Return a buffer that holds these."""
    found = Buffer(mode, lambda: None)
    rows = [to_row(one.entry, seq, seq) for seq, one in enumerate(proposals) if one.entry]
    found.add(proposals, rows, NOW, NOW)
    return found


@pytest.mark.parametrize("kind", get_args(Entry), ids=lambda kind: kind.__name__)
def test_only_these_kinds_are_soft(kind: type[Any]) -> None:
    """A kind of entry that is new is hard until somebody says otherwise here: nothing leaves early by an oversight."""
    tag = kind.__struct_config__.tag
    assert is_soft(Proposal(Rank.OUTCOME, entry_of(kind))) == (tag in SOFT)


def test_what_has_conditions_is_hard() -> None:
    """The outcome that drops a task may be refused, and a mere row may permit something."""
    assert not is_soft(replace(step(), task=TaskDrop("r:1")))
    assert not is_soft(Proposal(Rank.ROW, row=OperationDrop("r:1")))


def test_in_sync_nothing_is_taken() -> None:
    """Also of what is soft, and not of nothing."""
    assert not Buffer("sync", lambda: None).takes([step()])
    assert Buffer("async", lambda: None).takes([step()])
    assert not Buffer("async", lambda: None).takes([step(), Proposal(Rank.ROW)])


@pytest.mark.parametrize(
    ("proposal", "due_in_exit"),
    [
        (step(), False),
        (Proposal(Rank.ARRIVAL, TimerFired("r:1")), False),
        (Proposal(Rank.REQUEST, Published(NO_OPERATION, "key", msgspec.Raw(b"1"))), True),
        (
            Proposal(Rank.ARRIVAL, MessageReceived("m", "go", msgspec.Raw(b"1"), ""), consumed="m"),
            True,
        ),
    ],
)
def test_when_a_write_is_due(proposal: Proposal, due_in_exit: bool) -> None:
    """In `async` always, in `exit` for what somebody outside waits for; never while another one is under way."""
    assert not Buffer("async", lambda: None).is_due
    assert held("async", proposal).is_due
    found = held("exit", step(7), proposal)
    assert found.is_due == due_in_exit


def test_times_never_go_back() -> None:
    """Neither behind the row's, nor behind those that were seen, on their way to the store or not."""

    async def main() -> None:
        found = Buffer("async", lambda: None)

        def seen_at(now: datetime, changed_at: datetime) -> datetime:
            ((_, stamped),) = found.add([step()], [to_row(step().entry, 0, 0)], now, changed_at)  # type: ignore[arg-type]
            return stamped.at

        assert seen_at(NOW, NOW + SECOND) == NOW + SECOND
        assert seen_at(NOW + 3 * SECOND, NOW) == NOW + 3 * SECOND
        found.take_off(RunChange(RunKey("t", "r"), WorkerId("w"), 1, 1), never())
        assert seen_at(NOW, NOW) == NOW + 3 * SECOND
        assert (len(found), len(found.waiting)) == (3, 1)
        assert not found.is_due

    async def never() -> Verdict:
        return await asyncio.get_running_loop().create_future()

    asyncio.run(main())


def test_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many entries, or as many bytes: then nothing is taken until it is written."""
    monkeypatch.setattr(buffer, "MOST_ENTRIES", 2)
    assert held("exit", step()).takes([step()])
    assert not held("exit", step(), step()).takes([step()])
    monkeypatch.setattr(buffer, "MOST_BYTES", 10)
    found = held("exit", step())
    assert not found.takes([step()])
    found.clear()
    assert found.takes([step()])
