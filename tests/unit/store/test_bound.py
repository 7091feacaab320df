"""What no store can keep is named by its path, so that whoever wrote it can be told which."""

from dataclasses import dataclass
from datetime import datetime

import pytest
from msgspec.structs import replace

from outlast.store.bound import MAX_BODY_BYTES, unstorable_part
from outlast.store.change import (
    Answer,
    ApprovalPut,
    ApprovalWithdraw,
    BeatOperation,
    BeatTask,
    ClearOutbox,
    CoverRow,
    Decide,
    DropWatch,
    FinishTask,
    GrantSpend,
    HeadUpdate,
    OperationDrop,
    OperationPut,
    OutboxItem,
    OutboxKind,
    PutControl,
    PutWatch,
    RunChange,
    RunKey,
    Status,
    TaskDrop,
    TaskPut,
    Terminate,
    Watch,
    WorkerId,
)
from outlast.testing.conformance.bench import letter, row, sending, starting

RUN = RunKey("default", "run")
BAD = "a\0b"
TORN = "\udce9"
SENT = OutboxKind.SIGNAL
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - without a zone on purpose


def put(**fields):
    """Return a request that can be kept but for `fields`."""
    time = datetime.fromisoformat("2026-01-01T00:00Z")
    given = {"expires_at": time, "use_by": time, "covers": (CoverRow("e", "h"),), "body": b""}
    return ApprovalPut("a1", "r:1", "role", "hash", **{**given, **fields})


def owned(**fields):
    """Return an owned change."""
    return RunChange(RUN, WorkerId("w"), 1, 1, **fields)


def head(**fields):
    """Return an owned change of the head alone."""
    return owned(head=HeadUpdate(Status.WAITING, **fields))


@dataclass
class Length:
    """Stands for a body that is too large, without its bytes."""

    def __len__(self):
        return MAX_BODY_BYTES + 1


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (starting(BAD), "run_id"),
        (starting(tenant=TORN), "tenant"),
        (starting(workflow=BAD), "workflow"),
        (starting(entries=(row(0), row(1, operation=BAD))), "entries[1].operation"),
        (starting(entries=(row(0, Length()),)), "entries[0].body"),
        (starting(messages=(letter(), letter(TORN))), "messages[1].message_id"),
        (starting(messages=(letter(body=Length()),)), "messages[0].body"),
        (owned(answers=(Answer(BAD, b""),)), "answers[0].message_id"),
        (owned(answers=(Answer("m", b""), Answer("n", Length()))), "answers[1].body"),
        (sending(RUN, TORN), "message.message_id"),
        (replace(sending(RUN), message=letter(body=Length())), "message.body"),
        (Decide(RUN, "a1", "s", True, BAD, letter()), "by"),
        (Decide(RUN, "a1", "s", True, "bob", letter(name=BAD)), "message.name"),
        (Terminate(RUN, "bob", BAD), "reason"),
        (ClearOutbox(RunKey("default", BAD), (1,)), "run_id"),
        (ClearOutbox(RUN, (1,), (letter(), letter(BAD))), "answers[1].message_id"),
        (PutWatch(RUN, Watch(RunKey("t", BAD), 1, "r:1")), "watch.watcher.run_id"),
        (DropWatch(RUN, Watch(RUN, 1, BAD)), "watch.operation"),
        (starting(origin=BAD), "origin"),
        (starting(watch=Watch(RUN, 1, BAD)), "watch.operation"),
        (sending(RUN, origin=TORN), "origin"),
        (Terminate(RUN, "bob", "why", BAD), "origin"),
        (PutControl("default", BAD, 0, b""), "name"),
        (PutControl("default", "n", 0, Length()), "body"),
        (head(reason=TORN), "head.reason"),
        (head(unfit_build=BAD), "head.unfit_build"),
        (head(wake_at=NAIVE), "head.wake_at"),
        (head(note=Length()), "head.note"),
        (owned(operations=(OperationDrop("r:1"), OperationDrop(BAD))), "operations[1].operation"),
        (owned(operations=(OperationPut("r:1", "step", BAD),)), "operations[0].name"),
        (owned(operations=(OperationPut("r:1", "s", "n", 0, NAIVE),)), "operations[0].due_at"),
        (owned(consumed=("m1", BAD)), "consumed[1]"),
        (owned(outbox=(OutboxItem(RunKey("t", BAD), SENT),)), "outbox[0].target.run_id"),
        (owned(outbox=(OutboxItem(RUN, SENT, BAD),)), "outbox[0].message_id"),
        (owned(outbox=(OutboxItem(RUN, SENT, origin=TORN),)), "outbox[0].origin"),
        (owned(outbox=(OutboxItem(RUN, SENT, body=Length()),)), "outbox[0].body"),
        (owned(approvals=(ApprovalWithdraw(BAD),)), "approvals[0].approval_id"),
        (owned(approvals=(put(body=Length()),)), "approvals[0].body"),
        (owned(approvals=(put(use_by=NAIVE),)), "approvals[0].use_by"),
        (
            owned(approvals=(put(covers=(CoverRow("e", "h"), CoverRow(BAD, "h"))),)),
            "approvals[0].covers[1].effect",
        ),
        (owned(spends=(GrantSpend(BAD, 0, "r:1", "h"),)), "spends[0].approval_id"),
        (owned(tasks=(TaskDrop("r:1"), TaskDrop(BAD))), "tasks[1].operation"),
        (owned(tasks=(TaskPut("r:1", 1, BAD, "n", b""),)), "tasks[0].queue"),
        (owned(tasks=(TaskPut("r:1", 1, "q", "n", Length()),)), "tasks[0].arguments"),
        (owned(tasks=(TaskPut("r:1", 1, "q", "n", b"", NAIVE),)), "tasks[0].due_at"),
        (owned(tasks=(TaskPut("r:1", 1, "q", "n", b"", None, Length()),)), "tasks[0].progress"),
        (
            owned(operations=(OperationPut("r:1", "s", "n", heard_at=NAIVE),)),
            "operations[0].heard_at",
        ),
        (BeatOperation(RunKey("t", BAD), 1, "r:1"), "run_id"),
        (BeatOperation(RUN, 1, BAD), "operation"),
        (BeatOperation(RUN, 1, "r:1", Length()), "progress"),
        (BeatTask(RUN, 1, BAD, 1, WorkerId("w"), b"1"), "operation"),
        (BeatTask(RUN, 1, "r:1", 1, WorkerId("w"), Length()), "progress"),
        (FinishTask(RUN, 1, BAD, 1, WorkerId("w")), "operation"),
        (FinishTask(RUN, 1, "r:1", 1, WorkerId("w"), letter(BAD)), "message.message_id"),
        (FinishTask(RUN, 1, "r:1", 1, WorkerId("w"), letter(body=Length())), "message.body"),
    ],
)
def test_part_is_named(change, part):
    """The first field that cannot be kept is named by its path."""
    assert unstorable_part(change) == part


@pytest.mark.parametrize(
    "change",
    [
        starting("ünï/☃ %'\n"),
        sending(RUN, ""),
        owned(entries=(row(1, bytes(256)),), approvals=(put(),), consumed=("m",)),
        head(reason="r", wake_at=datetime.fromisoformat("2026-01-01T00:00+02:00")),
    ],
)
def test_what_can_be_kept_has_no_such_part(change):
    """Any other text, any bytes and any aware time are kept."""
    assert unstorable_part(change) == ""
