"""What becomes of a commit, judged in memory: every change of every kind, by the conditions that all stores share.

Each change is judged before anything of it is written, so that one which does not hold leaves nothing. The memory store lets its own
rows be judged; the PostgreSQL store those that it has read and locked, of which it writes what has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from outlast.journal.entry import StampedRow
from outlast.store.beat import AWAITS
from outlast.store.bound import CORRUPT, UNSTORABLE, unstorable_part
from outlast.store.change import (
    CAPPED,
    MAX_UNREAD,
    SAGA,
    Applied,
    BeatOperation,
    BeatTask,
    Change,
    ClearOutbox,
    Conflict,
    Decide,
    DropWatch,
    DueNotice,
    Fenced,
    FinishTask,
    Message,
    PutControl,
    PutMessage,
    PutWatch,
    Refused,
    Release,
    RevokeSticky,
    RunChange,
    RunHead,
    StampedMessage,
    StartRun,
    Status,
    Terminate,
    Verdict,
    WorkerId,
)
from outlast.store.condition import (
    PENDING,
    broken_guard,
    decided,
    decision_refusal,
    is_other,
    offers,
    place_of,
    start_times,
    stranger_refusal,
)
from outlast.store.judge_owned import OwnedJudge, end_run, sticky_run
from outlast.store.notice import EndNotice, NoticeRow, TakeNotices
from outlast.store.notice_condition import ended, is_over, taken
from outlast.store.request import PURGED_IN_PASSING, BeginRequest, PurgeRequests, RequestChange
from outlast.store.request_condition import settle
from outlast.store.rows import InboxRow, Moment, Rows, RunRows, RunState
from outlast.store.sticky import STICKY
from outlast.store.sticky_condition import revoked, stuck
from outlast.store.task import task_fence

logger = logging.getLogger("outlast.store")

_FIRST = 1
"""The incarnation for which a message waits that comes before its run."""


class Judge:
    """Judges the changes of one commit, all of one moment.

    Args:
        rows: What is written is found there at once.
        checked: Whether it is known of every change that a store can keep it.
    """

    def __init__(self, rows: Rows, moment: Moment, *, checked: bool = False) -> None:
        self._checked = checked
        self._rows = rows
        self._moment = moment
        self._now = moment.now
        self._owned = OwnedJudge(rows, moment)

    def judge(self, changes: Sequence[Change]) -> tuple[list[Verdict], set[WorkerId]]:
        """Return the verdicts, in the order of the changes, and the workers whose leases are renewed by them."""
        verdicts: list[Verdict] = [Applied(self._now)] * len(changes)
        renewed: set[WorkerId] = set()
        for index in sorted(range(len(changes)), key=lambda index: place_of(changes[index])):
            change = changes[index]
            verdict = verdicts[index] = self._alone(change)
            is_owners = isinstance(change, RunChange | StartRun)
            if is_owners and change.worker and isinstance(verdict, Applied):
                renewed.add(change.worker)
        return verdicts, renewed

    def _alone(self, change: Change) -> Verdict:
        """Return the verdict on one change: what it raises while it is judged is its own, and takes no other down."""
        try:
            part = "" if self._checked else unstorable_part(change)
            return Refused(UNSTORABLE, part) if part else self._apply(change)
        except Exception as error:
            logger.exception("a change is refused")
            return Refused(CORRUPT, type(error).__name__)

    def _apply(self, change: Change) -> Verdict:
        if isinstance(change, RunChange):
            return self._owned.apply(change, self._run(change))
        if isinstance(change, RequestChange | TakeNotices | EndNotice | RevokeSticky | PutControl):
            return self._apply_to_table(change)
        run = self._run(change)
        match change:
            case StartRun():
                return self._start(change, run)
            case PutMessage():
                return self._put_message(change, run)
            case Decide():
                return self._decide(change, run)
            case Terminate():
                return self._terminate(change, run)
            case Release():
                return self._release(change, run)
            case FinishTask() | BeatTask() | BeatOperation():
                return self._of_attempt(change, run)
            case ClearOutbox() | PutWatch() | DropWatch():
                return self._of_relay(change, run)

    def _run(
        self,
        change: RunChange
        | StartRun
        | PutMessage
        | Decide
        | Terminate
        | Release
        | FinishTask
        | BeatTask
        | BeatOperation
        | ClearOutbox
        | PutWatch
        | DropWatch,
    ) -> RunRows:
        return self._rows.run(change.run.tenant, change.run.run_id)

    def _version(self, tenant: str, name: str) -> int:
        return self._rows.control(tenant, name)[0]

    def _move_on(self, tenant: str, name: str) -> None:
        version, body = self._rows.control(tenant, name)
        self._rows.put_control(tenant, name, version + 1, body)

    # starts and messages

    def _start(self, change: StartRun, run: RunRows) -> Verdict:
        former = None if run.state is None else run.state.head
        fits = change.generation == 1 if former is None else former.status.closed
        if not fits or (former is not None and change.generation != former.generation + 1):
            return Conflict(former)
        if change.worker is not None and not self._rows.live(change.worker):
            return Fenced("the worker's lease has lapsed")
        if [row.seq for row in change.entries] != list(range(max(len(change.entries), 1))):
            return Refused("seq")
        at = self._now if former is None else max(self._now, former.changed_at)
        times = start_times(change, at)
        if isinstance(times, Refused):
            return times
        inbox = change.generation
        new: dict[str, Message] = {}
        for message in change.messages:
            known = run.message(inbox, message.message_id)
            standing = (
                known.stamped.message if known else new.setdefault(message.message_id, message)
            )
            if is_other(message, standing.digest):
                return Refused("other", message.message_id)
        if change.watch is not None:
            run.watch(change.watch)
        if former is not None:
            run.empty_unread()
            run.leave_approvals()
        for message in new.values():
            self._add(run, message, inbox)
        epoch = 0 if former is None else former.epoch
        head = self._born(change, epoch + (change.worker is not None), at)
        stopped = None if run.state is None else run.state.stopped
        due = None if change.worker else self._now
        run.state = RunState(
            replace(head, mail=run.unread_count(inbox) > 0), due, self._now, stopped
        )
        stamped = zip(change.entries, times, strict=True)
        run.append(change.generation, [StampedRow(row, time) for row, time in stamped])
        return Applied(at, head.epoch if change.worker else 0)

    @staticmethod
    def _born(change: StartRun, epoch: int, at: datetime) -> RunHead:
        return RunHead(
            run=change.run,
            generation=change.generation,
            workflow=change.workflow,
            fingerprint=change.fingerprint,
            status=Status.RUNNING if change.worker else Status.READY,
            reason="",
            owner=change.worker,
            epoch=epoch,
            version=0,
            next_seq=len(change.entries),
            digest=b"",
            wake_at=None,
            mail=False,
            lapses=0,
            created_at=at,
            changed_at=at,
            incarnation=change.generation,
            origin=change.origin,
            released=change.released,
            restored=change.restored,
        )

    def _put_message(self, change: PutMessage, run: RunRows) -> Verdict:
        state = run.state
        inbox = _receiving(run)
        known = self._known(run, change.incarnation or inbox, change.message)
        if known is not None:
            return known
        if state is None and not change.early:
            return Refused("not_found")
        if state is not None and (refusal := _stranger_refusal(change, state.head)):
            return Refused(refusal)
        if state is not None and state.head.status.closed:
            return Refused("closed")
        if change.message.kind in CAPPED:
            if state is not None and state.ending:
                return Refused("closed")
            if run.unread_count(inbox) >= MAX_UNREAD:
                return Refused("full", change.message.message_id)
        self._deliver(run, change.message)
        return Applied(self._now)

    def _known(self, run: RunRows, incarnation: int, message: Message) -> Verdict | None:
        """Return what a message is answered with that an inbox knows already; None when it does not know it."""
        known = run.message(incarnation, message.message_id)
        if known is None:
            return None
        if is_other(message, known.stamped.message.digest):
            return Refused("other", message.message_id)
        return Applied(known.stamped.at)

    def _deliver(self, run: RunRows, message: Message) -> None:
        self._add(run, message, _receiving(run))
        state = run.state
        if state is None:
            return
        state = replace(state, head=replace(state.head, mail=True), due_set_at=self._now)
        if offers(state.head.status, state.head.reason, message.kind):
            due = state.due
            if state.head.owner is None:
                due = self._now if due is None else min(due, self._now)
            state = replace(state, calls=True, due=due)
        run.state = state

    def _add(self, run: RunRows, message: Message, inbox: int) -> None:
        run.add_message(InboxRow(StampedMessage(message, self._now, 0), inbox))

    # of the relay

    def _of_relay(self, change: ClearOutbox | PutWatch | DropWatch, run: RunRows) -> Verdict:
        state = run.state
        match change:
            case DropWatch():
                run.unwatch(change.watch)
            case PutWatch():
                if state is None:
                    return Refused("not_found")
                if state.head.status.closed:
                    return Refused("closed")
                run.watch(change.watch)
            case ClearOutbox():
                run.clear_outbox(change.numbers)
                if state is not None and _waits(state.head, change.generation):
                    for message in change.answers:
                        if self._known(run, state.head.incarnation, message) is None:
                            self._deliver(run, message)
        return Applied(self._now)

    # people

    def _decide(self, change: Decide, run: RunRows) -> Verdict:
        known = self._known(run, _receiving(run), change.message)
        if known is not None:
            return known
        row = None if run.state is None else run.approval(change.approval_id)
        refusal = decision_refusal(row, change, self._now, self._version)
        if refusal is not None or run.state is None or row is None:
            return refusal or Refused("unknown", change.approval_id)
        after, message = decided(row, change, self._now)
        if change.sticky is not None:
            if self._rows.sticky(change.run.tenant, change.sticky.sticky_id) is not None:
                return Refused("sticky", change.sticky.sticky_id)
            key = sticky_run(run.state.head)
            self._rows.put_sticky(stuck(change.sticky, change, row, key, self._now))
            self._move_on(change.run.tenant, STICKY)
        run.put_approval(after)
        if after.state != PENDING:
            run.close_notices(run.state.head.generation, change.approval_id)
        self._deliver(run, message)
        return Applied(self._now)

    def _terminate(self, change: Terminate, run: RunRows) -> Verdict:
        state = run.state
        if state is None:
            return Refused("not_found")
        head = state.head
        if refusal := _stranger_refusal(change, head):
            return Refused(refusal)
        if head.status.closed:
            return Refused("closed")
        if not change.abandon and run.has_saga():
            return Refused(SAGA)
        at = max(self._now, head.changed_at)
        head = replace(
            head,
            status=Status.TERMINATED,
            reason=change.reason,
            ended_by=change.by,
            epoch=head.epoch + 1,
            changed_at=at,
        )
        run.state = replace(state, head=head)
        return Applied(at, outbox=end_run(run, self._moment))

    def _release(self, change: Release, run: RunRows) -> Verdict:
        state = run.state
        if state is None:
            return Refused("not_found")
        if state.head.status.closed:
            return Refused("closed")
        restored = None if change.trust else state.head.restored
        run.state = replace(state, head=replace(state.head, released=True, restored=restored))
        return Applied(self._now)

    # attempts

    def _of_attempt(self, change: FinishTask | BeatTask | BeatOperation, run: RunRows) -> Verdict:
        match change:
            case FinishTask():
                return self._finish_task(change, run)
            case BeatTask():
                return self._beat_task(change, run)
            case BeatOperation():
                return self._beat_operation(change, run)

    def _finish_task(self, change: FinishTask, run: RunRows) -> Verdict:
        if change.message is not None:
            known = self._known(run, _receiving(run), change.message)
            if known is not None:
                return known
        if not self._rows.live(change.worker):
            return Fenced("the worker's lease has lapsed")
        task = run.task(change.operation)
        why = task_fence(None if task is None else task.row, change)
        if why or task is None:
            return Fenced(why)
        if change.message is None:
            run.put_task(replace(task, row=replace(task.row, worker=None, since=self._now)))
        else:
            run.drop_task(change.operation)
            self._deliver(run, change.message)
        return Applied(self._now)

    def _beat_task(self, change: BeatTask, run: RunRows) -> Verdict:
        if not self._rows.live(change.worker):
            return Fenced("the worker's lease has lapsed")
        task = run.task(change.operation)
        why = task_fence(None if task is None else task.row, change)
        if why or task is None:
            return Fenced(why)
        run.put_task(replace(task, progress=change.progress))
        return Applied(self._now)

    def _beat_operation(self, change: BeatOperation, run: RunRows) -> Verdict:
        state = run.state
        if state is None:
            return Refused("not_found")
        if state.head.generation != change.generation:
            return Refused("generation")
        if state.head.status.closed:
            return Refused("closed")
        row = run.operation(change.operation)
        if row is None or not row.awaits:
            return Refused(AWAITS, change.operation)
        progress = change.progress or row.progress
        run.put_operation(replace(row, beats=row.beats + 1, heard_at=self._now, progress=progress))
        return Applied(self._now)

    # what belongs to no run

    def _apply_to_table(
        self, change: RequestChange | TakeNotices | EndNotice | RevokeSticky | PutControl
    ) -> Verdict:
        match change:
            case PutControl():
                return self._put_control(change)
            case RevokeSticky():
                return self._revoke(change)
            case TakeNotices():
                return self._take_notices(change)
            case EndNotice():
                return self._end_notice(change)
            case PurgeRequests():
                removed = self._purge(change.tenant, change.limit)
                return Applied(self._now, removed=removed)
            case _:
                return self._of_request(change)

    def _put_control(self, change: PutControl) -> Verdict:
        current = self._version(change.tenant, change.name)
        if current != change.version:
            return Conflict(version=current)
        self._rows.put_control(change.tenant, change.name, current + 1, change.body)
        return Applied(self._now)

    def _revoke(self, change: RevokeSticky) -> Verdict:
        row = self._rows.sticky(change.tenant, change.sticky_id)
        after = revoked(row, change, self._now)
        if isinstance(after, str):
            return Refused(after, change.sticky_id)
        broken = broken_guard(change.guards, self._version)
        if broken is not None:
            return Refused("stale", broken.name)
        self._rows.put_sticky(after)
        self._move_on(change.tenant, STICKY)
        return Applied(self._now)

    def _of_request(self, change: RequestChange) -> Verdict:
        assert not isinstance(change, PurgeRequests)
        row = self._rows.request(change.tenant, change.request_id)
        verdict, after = settle(row, change, self._now)
        if after is None and row is not None:
            self._rows.drop_request(change.tenant, change.request_id)
        elif after is not None and after is not row:
            self._rows.put_request(after)
        if isinstance(change, BeginRequest) and isinstance(verdict, Applied):
            self._purge(change.tenant, PURGED_IN_PASSING)
        return verdict

    def _purge(self, tenant: str, limit: int) -> int:
        gone = self._rows.expired_requests(tenant, max(limit, 0))
        for request_id in gone:
            self._rows.drop_request(tenant, request_id)
        return len(gone)

    def _take_notices(self, change: TakeNotices) -> Verdict:
        found: list[DueNotice] = []
        for row in self._rows.due_notices(change.tenant, max(change.limit, 0)):
            run = self._rows.run(row.tenant, row.run_id)
            held = None
            if not is_over(row, self._now):
                held = _due_notice(run, taken(row, change.hold, self._now))
            if held is None:
                run.drop_notice(row)
            else:
                run.put_notice(held.notice)
                found.append(held)
        return Applied(self._now, notices=tuple(found))

    def _end_notice(self, change: EndNotice) -> Verdict:
        run = self._rows.run(change.tenant, change.run_id)
        row = run.notice(change.generation, change.approval_id, change.notice)
        after = ended(row, change, self._now)
        if isinstance(after, Refused):
            return after
        run.put_notice(after)
        return Applied(self._now)


def _due_notice(run: RunRows, notice: NoticeRow) -> DueNotice | None:
    """Return a notice with its request, while that waits."""
    row = None if run.state is None else run.approval(notice.approval_id)
    if run.state is None or row is None or row.state != PENDING:
        return None
    return DueNotice(notice, row, run.state.head.workflow)


def _waits(head: RunHead, generation: int) -> bool:
    return not head.status.closed and head.generation == generation


def _stranger_refusal(change: PutMessage | Terminate, head: RunHead) -> str:
    return stranger_refusal(
        change, generation=head.generation, incarnation=head.incarnation, origin=head.origin
    )


def _receiving(run: RunRows) -> int:
    """Return the incarnation that a message is for."""
    return _FIRST if run.state is None else run.state.head.incarnation
