"""Group commit: what waits goes together, each call gets its own answer."""

from datetime import timedelta

import pytest

from outlast.errors import StoreUnavailableError
from outlast.store import group
from outlast.store.change import (
    Answer,
    BeatOperation,
    BeatTask,
    ClearOutbox,
    Decide,
    FinishTask,
    HeadUpdate,
    OperationPut,
    OutboxItem,
    OutboxKind,
    PutControl,
    PutMessage,
    Refused,
    RunChange,
    RunKey,
    Status,
    TaskPut,
    WorkerId,
)
from outlast.store.group import GroupCommit
from outlast.store.request import BeginRequest, EndRequest, ResolveRequest
from outlast.testing.conformance import ManualClock
from outlast.testing.conformance.bench import asking, letter, row, starting


class Disk:
    """Counts transactions, and answers each change with its number."""

    def __init__(self, error=None):
        self.transactions = []
        self.error = error

    def write(self, changes):
        """Write one transaction."""
        self.transactions.append(len(changes))
        if self.error:
            raise self.error
        return [Refused(change.run.run_id) for change in changes]


def reasons(future):
    """Return the answers of one call."""
    return [verdict.reason for verdict in future.result(0)]


def test_what_waits_goes_together():
    """Three calls, one transaction, each its own verdicts in order; only the first asks for a flush."""
    disk = Disk()
    commits = GroupCommit(disk.write)
    first, asked = commits.add([starting("a"), starting("b")])
    second, again = commits.add([starting("c")])
    assert (asked, again) == (True, False)
    assert commits.flush() is False
    assert disk.transactions == [3]
    assert (reasons(first), reasons(second)) == (["a", "b"], ["c"])
    assert commits.add([starting("d")])[1] is True


def test_group_has_an_end(monkeypatch):
    """A group ends at its count or its bytes, and the rest follows; one large call is never cut."""
    monkeypatch.setattr(group, "MAX_CHANGES", 2)
    monkeypatch.setattr(group, "MAX_BYTES", 1000)
    disk = Disk()
    commits = GroupCommit(disk.write)
    for names in ("abc", "d", "e", "f"):
        commits.add([starting(name) for name in names])
    commits.add([starting("g", entries=(row(0, bytes(2000)),))])
    commits.add([starting("h")])
    more = True
    while more:
        more = commits.flush()
    assert disk.transactions == [3, 2, 2, 1]


BODY = bytes(600)
HOUR = timedelta(hours=1)
RUN = RunKey("default", "run")


def owned(**fields):
    """Return an owned change."""
    return RunChange(RUN, WorkerId("w"), 1, 1, **fields)


@pytest.mark.parametrize(
    "change",
    [
        PutMessage(RUN, letter(body=BODY)),
        starting(messages=(letter(body=BODY),)),
        Decide(RUN, "a1", "s", True, "bob", letter(body=BODY)),
        FinishTask(RUN, 1, "r:1", 1, WorkerId("w"), letter(body=BODY)),
        BeatTask(RUN, 1, "r:1", 1, WorkerId("w"), BODY),
        BeatOperation(RUN, 1, "r:1", BODY),
        ClearOutbox(RUN, (1,), (letter(body=BODY),)),
        PutControl("default", "n", 0, BODY),
        BeginRequest("default", "k", "f", "t", HOUR, HOUR, BODY),
        EndRequest("default", "k", "t", True, HOUR, BODY),
        ResolveRequest("default", "k", "t", True, "me", "why", BODY),
        owned(answers=(Answer("m", BODY),)),
        owned(outbox=(OutboxItem(RUN, OutboxKind.SIGNAL, body=BODY),)),
        owned(approvals=(asking(ManualClock(), body=BODY),)),
        owned(head=HeadUpdate(Status.WAITING, note=BODY)),
        owned(operations=(OperationPut("r:1", "step", "n", detail=BODY),)),
        owned(tasks=(TaskPut("r:1", 1, "q", "n", BODY),)),
        owned(next=(row(0, BODY),)),
    ],
    ids=lambda change: type(change).__name__,
)
def test_every_payload_counts(monkeypatch, change):
    """Whatever kind of change brings the bytes, a group ends with them."""
    monkeypatch.setattr(group, "MAX_BYTES", 1000)
    sizes = []

    def write(changes):
        sizes.append(len(changes))
        return [Refused("seen")] * len(changes)

    commits = GroupCommit(write)
    for _ in range(4):
        commits.add([change])
    while commits.flush():
        pass
    assert sizes == [2, 2]


def test_cancelled_call_is_not_written():
    """Who no longer waits when the transaction begins has written nothing."""
    disk = Disk()
    commits = GroupCommit(disk.write)
    gone, _ = commits.add([starting("a")])
    stays, _ = commits.add([starting("b")])
    assert gone.cancel()
    commits.flush()
    assert disk.transactions == [1]
    assert reasons(stays) == ["b"]


@pytest.mark.parametrize("error", [StoreUnavailableError("full"), RuntimeError("bug")])
def test_error_reaches_everyone(error):
    """When nothing was written all who wait are told, and those behind them are served all the same."""
    commits = GroupCommit(Disk(error).write)
    futures = [commits.add([starting(name)])[0] for name in "ab"]
    assert commits.flush() is False
    assert [future.exception(0) for future in futures] == [error, error]


def test_failing_all():
    """All who wait are told of the end."""
    commits = GroupCommit(Disk().write)
    future, _ = commits.add([starting("a")])
    error = StoreUnavailableError("closed")
    commits.fail(error)
    assert future.exception(0) is error
    assert commits.flush() is False
