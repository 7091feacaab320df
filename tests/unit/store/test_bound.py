"""What no store can keep is named by its path, so that whoever wrote it can be told which."""

import typing
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import msgspec
import pytest
from msgspec.structs import replace

from outlast.store.bound import MAX_BODY_BYTES, unstorable_part
from outlast.store.change import (
    Answer,
    ApprovalExpire,
    ApprovalPut,
    ApprovalWithdraw,
    BeatOperation,
    BeatTask,
    Change,
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
    digest_of,
)
from outlast.store.notice import EndNotice, TakeNotices
from outlast.store.request import (
    BeginRequest,
    EndRequest,
    HoldRequest,
    PurgeRequests,
    ResolveRequest,
)
from outlast.testing.conformance.bench import letter, row, sending, starting

RUN = RunKey("default", "run")
BAD = "a\0b"
TORN = "\udce9"
SENT = OutboxKind.SIGNAL
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - without a zone on purpose


WEST, EAST = timezone(timedelta(hours=-5)), timezone(timedelta(hours=5))
LATE = datetime.max.replace(tzinfo=WEST)
EARLY = datetime.min.replace(tzinfo=EAST)
"""Aware, and beyond the calendar in UTC."""
FAR = 1 << 63
HOUR = timedelta(hours=1)


class NoZone(tzinfo):
    """A zone that does not know, or fails."""

    def utcoffset(self, _):
        """Know nothing."""


class BrokenZone(tzinfo):
    """A zone that fails."""

    def utcoffset(self, _):
        """Fail."""
        raise LookupError


NO_ZONE, BROKEN_ZONE = (datetime(2026, 1, 1, tzinfo=zone()) for zone in (NoZone, BrokenZone))


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


class Length(bytes):
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
        *((head(wake_at=time), "head.wake_at") for time in (LATE, EARLY, NO_ZONE, BROKEN_ZONE)),
        (owned(times=(LATE,)), "times[0]"),
        (owned(approvals=(put(expires_at=LATE),)), "approvals[0].expires_at"),
        (owned(tasks=(TaskPut("r:1", 1, "q", "n", b"", EARLY),)), "tasks[0].due_at"),
        (owned(operations=(OperationPut("r:1", "s", "n", FAR),)), "operations[0].failures"),
        (owned(operations=(OperationPut("r:1", "s", "n", beats=-FAR - 1),)), "operations[0].beats"),
        (owned(tasks=(TaskPut("r:1", FAR, "q", "n", b""),)), "tasks[0].attempt"),
        (owned(outbox=(OutboxItem(RUN, SENT, generation=FAR),)), "outbox[0].generation"),
        (head(mail_seen=FAR), "head.mail_seen"),
        (owned(entries=(replace(row(1), turn=FAR),)), "entries[0].turn"),
        (starting(generation=FAR), "generation"),
        (starting(worker=WorkerId(TORN)), "worker"),
        (sending(RUN, generation=FAR), "generation"),
        (PutWatch(RUN, Watch(RUN, FAR, "r:1")), "watch.generation"),
        (ClearOutbox(RUN, (1, FAR)), "numbers[1]"),
        (PutControl("default", "n", FAR, b""), "version"),
        (Decide(RUN, "a1", TORN, True, "bob", letter()), "seen_sha256"),
        (BeginRequest(BAD, "k", "f", "t", HOUR, HOUR), "tenant"),
        (BeginRequest("d", "k", TORN, "t", HOUR, HOUR), "fingerprint"),
        (BeginRequest("d", "k", "f", "t", HOUR, 0 * HOUR), "keep"),
        (BeginRequest("d", "k", "f", "t", HOUR, HOUR, Length()), "note"),
        (HoldRequest("d", BAD, "t", HOUR), "request_id"),
        (HoldRequest("d", "k", "t", -HOUR), "hold"),
        (EndRequest("d", "k", BAD, True, HOUR), "token"),
        (EndRequest("d", "k", "t", True, HOUR, Length()), "answer"),
        (ResolveRequest("d", "k", "t", True, TORN, "why"), "by"),
        (ResolveRequest("d", "k", "t", True, "me", BAD), "reason"),
        (ResolveRequest("d", "k", "t", True, "me", "why", Length()), "answer"),
        (ResolveRequest("d", "k", "t", True, "me", "why", b"x", NAIVE), "corrects"),
        (PurgeRequests(TORN, 1), "tenant"),
        (PurgeRequests("d", FAR), "limit"),
        (TakeNotices(TORN, 1, HOUR), "tenant"),
        (TakeNotices("d", 1, timedelta(0)), "hold"),
        (EndNotice("d", "r", 1, BAD, "asked", 1, True), "approval_id"),
        (EndNotice("d", "r", 1, "a", "asked", 1, True, ("mail", TORN)), "reached[1]"),
        (EndNotice("d", "r", 1, "a", "asked", 1, False, (), -HOUR), "retry_in"),
        (EndNotice("d", "r", 1, "a", "asked", 1, False, trouble=Length()), "trouble"),
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
        head(wake_at=datetime.max.replace(tzinfo=UTC), mail_seen=FAR - 1),
        head(wake_at=datetime.min.replace(tzinfo=UTC), mail_seen=-FAR),
        head(wake_at=datetime.min.replace(tzinfo=WEST)),
    ],
)
def test_what_can_be_kept_has_no_such_part(change):
    """Any other text, any bytes, any number of 63 bits and any aware time of the calendar are kept."""
    assert unstorable_part(change) == ""


def structs_of(hint):
    """Yield the struct types in an annotation, and in those of their fields, each with the union that it stands in."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        for inner in typing.get_type_hints(hint).values():
            yield from structs_of(inner)
        return
    members = typing.get_args(hint)
    among = [one for one in members if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    if len(among) > 1:
        yield tuple(among)
    for one in members:
        yield from structs_of(one)


def test_whatever_may_stand_in_one_place_says_what_it_is():
    """Two acts with the same fields are two acts: their digests differ, so that none is taken for the other."""
    unions = set(structs_of(Change))
    assert {ApprovalPut, ApprovalExpire, ApprovalWithdraw} in map(set, unions)
    for union in unions:
        tags = [one.__struct_config__.tag for one in union]
        assert None not in tags, union
        assert len(set(tags)) == len(tags), union
    acts = (ApprovalExpire("a1"), ApprovalWithdraw("a1"))
    assert len({digest_of(owned(approvals=(act,))) for act in acts}) == 2


@pytest.mark.parametrize(
    "change", [head(wake_at=LATE), head(reason=TORN), head(mail_seen=-1 << 64)]
)
def test_what_no_store_takes_has_no_digest(change):
    """It is refused with the name of its field, and not before that with an error of the encoder."""
    assert digest_of(change) == b""
    assert unstorable_part(change)
