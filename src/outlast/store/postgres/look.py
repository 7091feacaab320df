"""What a commit has to read before it can be judged: the keys of every row at which its changes may look.

Law: whatever a judge asks of a row that stands in the database, the row was asked for here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from outlast.store.change import (
    ApprovalExpire,
    ApprovalPut,
    ApprovalWithdraw,
    BeatOperation,
    BeatTask,
    Change,
    ClearOutbox,
    Decide,
    FinishTask,
    Guard,
    PutControl,
    PutMessage,
    RevokeSticky,
    RunChange,
    RunKey,
    StartRun,
    Terminate,
    WorkerId,
)
from outlast.store.notice import EndNotice, TakeNotices
from outlast.store.request import (
    PURGED_IN_PASSING,
    BeginRequest,
    PurgeRequests,
    RequestChange,
)
from outlast.store.sticky import STICKY

RunPart = tuple[str, str, str]
"""Tenant, run id, and the id of something of the run."""


class Look:
    """The keys of what is read, each once.

    Args:
        runs: Run ids whose rows are locked.
        early: Of those, the ids that may get an inbox before there is a run.
        owned: Run ids that their owners write.
        whole: Run ids of which everything is read that a later commit may look at.
        unread: Run ids of which all is read that is not consumed.
        ending: Run ids of which all is read that an end concerns.
        written: Control rows that may be written; `guards` are only looked at.
        due: How many notices are taken, by tenant.
        expired: How many records are purged, by tenant.
    """

    def __init__(self, changes: Iterable[Change]) -> None:
        self.workers: set[WorkerId] = set()
        self.runs: set[RunKey] = set()
        self.early: set[RunKey] = set()
        self.owned: set[RunKey] = set()
        self.whole: set[RunKey] = set()
        self.messages: set[RunPart] = set()
        self.unread: set[RunKey] = set()
        self.ending: set[RunKey] = set()
        self.operations: set[RunPart] = set()
        self.approvals: set[RunPart] = set()
        self.tasks: set[RunPart] = set()
        self.all_tasks: set[RunKey] = set()
        self.notices: set[tuple[str, str, int, str, str]] = set()
        self.guards: set[tuple[str, str]] = set()
        self.written: set[tuple[str, str]] = set()
        self.stickies: set[tuple[str, str]] = set()
        self.requests: set[tuple[str, str]] = set()
        self.due: dict[str, int] = {}
        self.expired: dict[str, int] = {}
        self.add(changes)

    def add(self, changes: Iterable[Change]) -> None:
        """Look at what these changes look at, too."""
        for change in changes:
            self._add(change)

    def _add(self, change: Change) -> None:
        match change:
            case RunChange():
                self._add_owned(change)
            case StartRun():
                self._add_start(change)
            case PutMessage() | Decide() | FinishTask() | BeatTask() | BeatOperation():
                self._add_to_run(change)
            case Terminate():
                self.runs.add(change.run)
                self.ending.add(change.run)
            case ClearOutbox():
                self.runs.add(change.run)
                for message in change.answers:
                    self._message(change.run, message.message_id)
            case PutControl():
                self.written.add((change.tenant, change.name))
            case RevokeSticky():
                self._sticky(change.tenant, change.sticky_id)
                self._guard(change.guards)
            case TakeNotices():
                self.due[change.tenant] = self.due.get(change.tenant, 0) + max(change.limit, 0)
            case EndNotice():
                place = change.generation, change.approval_id, change.notice
                self.notices.add((change.tenant, change.run_id, *place))
                self.runs.add(RunKey(change.tenant, change.run_id))
            case _:
                if isinstance(change, RequestChange):
                    self._add_request(change)
                else:
                    self.runs.add(change.run)

    def _add_owned(self, change: RunChange) -> None:
        run = change.run
        self.workers.add(change.worker)
        self.runs.add(run)
        self.owned.add(run)
        for message_id in change.consumed:
            self._message(run, message_id)
        for answer in change.answers:
            self._message(run, answer.message_id)
        for act in change.operations:
            self.operations.add((*_key(run), act.operation))
        head = change.head
        if head is not None and head.release and not head.status.closed:
            self.unread.add(run)
        if change.next or (head is not None and head.status.closed):
            self.ending.add(run)
        for act in change.tasks:
            self.tasks.add((*_key(run), act.operation))
        if change.hold is not None:
            self.all_tasks.add(run)
        self._add_approvals(change)

    def _add_approvals(self, change: RunChange) -> None:
        tenant = change.run.tenant
        acts: Sequence[ApprovalPut | ApprovalExpire | ApprovalWithdraw] = change.approvals
        for one in (*acts, *change.spends):
            self.approvals.add((*_key(change.run), one.approval_id))
        for act in acts:
            if isinstance(act, ApprovalPut):
                self.stickies |= {(tenant, vote.sticky) for vote in act.votes if vote.sticky}
        for permit in change.permits:
            self._guard((*permit.authority, *permit.stops))

    def _add_start(self, change: StartRun) -> None:
        self.runs.add(change.run)
        if change.worker is not None:
            self.workers.add(change.worker)
        for message in change.messages:
            self._message(change.run, message.message_id)

    def _add_to_run(
        self, change: PutMessage | Decide | FinishTask | BeatTask | BeatOperation
    ) -> None:
        run = change.run
        self.runs.add(run)
        match change:
            case PutMessage():
                self._message(run, change.message.message_id)
                if change.early:
                    self.early.add(run)
            case Decide():
                self._message(run, change.message.message_id)
                self.approvals.add((*_key(run), change.approval_id))
                self._guard(change.guards)
                if change.sticky is not None:
                    self._sticky(run.tenant, change.sticky.sticky_id)
            case FinishTask() | BeatTask():
                self.workers.add(change.worker)
                self.tasks.add((*_key(run), change.operation))
                if isinstance(change, FinishTask) and change.message is not None:
                    self._message(run, change.message.message_id)
            case BeatOperation():
                self.operations.add((*_key(run), change.operation))

    def _add_request(self, change: RequestChange) -> None:
        if isinstance(change, PurgeRequests):
            self._purge(change.tenant, change.limit)
            return
        self.requests.add((change.tenant, change.request_id))
        if isinstance(change, BeginRequest):
            self._purge(change.tenant, PURGED_IN_PASSING)

    def _purge(self, tenant: str, limit: int) -> None:
        self.expired[tenant] = self.expired.get(tenant, 0) + max(limit, 0)

    def _message(self, run: RunKey, message_id: str) -> None:
        self.messages.add((*_key(run), message_id))

    def _guard(self, guards: Iterable[Guard]) -> None:
        self.guards |= {(one.tenant, one.name) for one in guards}

    def _sticky(self, tenant: str, sticky_id: str) -> None:
        self.stickies.add((tenant, sticky_id))
        self.written.add((tenant, STICKY))

    @property
    def controls(self) -> set[tuple[str, str]]:
        """All control rows that are read."""
        return self.guards | self.written


LOCK_CLASSES = 1024
"""So many locks guard all control rows of a schema: a commit takes no more, as a server has room for some thousand at once."""


def lock_number(schema: str, tenant: str, name: str) -> int:
    """Return the number of the advisory lock of a control row, which guards one that is not there yet too.

    Many rows have one number; then one waits for the other without need, where either is written.
    """
    return _hashed(schema) * LOCK_CLASSES + _hashed(tenant, name) % LOCK_CLASSES


def migration_lock(schema: str) -> int:
    """Return the number of the advisory lock of whoever changes the tables."""
    return _hashed(schema, "", "migration") * LOCK_CLASSES


def _hashed(*names: str) -> int:
    """Return a number that leaves room for that of a class within 64 bits."""
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True) // LOCK_CLASSES


def _key(run: RunKey) -> tuple[str, str]:
    return run.tenant, run.run_id
