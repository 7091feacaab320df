"""What becomes of a change that a run's owner writes: judged against the run's rows, then written to them, all or nothing."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from outlast.journal.entry import StampedRow
from outlast.store.beat import missed_beat
from outlast.store.change import (
    Applied,
    ApprovalPut,
    ApprovalRow,
    Conflict,
    Fenced,
    HeadUpdate,
    MessageKind,
    OperationDrop,
    OperationPut,
    Refused,
    RunChange,
    RunHead,
    TaskDrop,
    TaskPut,
    Verdict,
)
from outlast.store.condition import (
    PENDING,
    RECALLS,
    WITHDRAWN,
    due_from,
    next_refusal,
    offers,
    owned_times,
    settle_approvals,
    unfit_after,
)
from outlast.store.farewell import to_children, to_watchers
from outlast.store.moment import EPOCH
from outlast.store.notice_condition import notices_of
from outlast.store.rows import InboxRow, Moment, Rows, RunRows, RunState, TaskState
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyRun
from outlast.store.task import TaskKey, TaskRow, due_of, may_drop


class OwnedJudge:
    """Judges the owned changes of one commit."""

    def __init__(self, rows: Rows, moment: Moment) -> None:
        self._rows = rows
        self._moment = moment
        self._now = moment.now

    def apply(self, change: RunChange, run: RunRows) -> Verdict:
        """Write a change of a run, if it holds."""
        if not self._rows.live(change.worker):
            return Fenced("the worker's lease has lapsed")
        state = run.state
        if state is None:
            return Fenced("there is no such run")
        head = state.head
        if (verdict := _fence(change, head)) is not None:
            return verdict
        after = head.next_seq + len(change.entries)
        if [row.seq for row in change.entries] != [*range(head.next_seq, after)]:
            return Refused("seq")
        dated = owned_times(change, self._now, head.changed_at)
        if isinstance(dated, Refused):
            return dated
        times, at = dated
        refusal = _refusal(run, head, change)
        if refusal is not None:
            return refusal
        settled = self._settle(change, run, head, at)
        if isinstance(settled, Refused):
            return settled
        return Applied(at, outbox=self._write(run, state, change, times, at))

    def _settle(
        self, change: RunChange, run: RunRows, head: RunHead, at: datetime
    ) -> Refused | None:
        """Write requests and grants, or return why that does not hold."""
        if not (change.approvals or change.spends or change.permits):
            return None
        tenant = change.run.tenant

        def find_sticky(sticky_id: str) -> StickyRow | None:
            return self._rows.sticky(tenant, sticky_id)

        settled = settle_approvals(
            change,
            run.approval,
            find_sticky,
            sticky_run(head),
            lambda tenant, name: self._rows.control(tenant, name)[0],
            self._now,
            at,
        )
        if isinstance(settled, Refused):
            return settled
        for use in settled.sticky.values():
            self._rows.put_sticky(use)
        for approval_id, row in settled.approvals.items():
            run.put_approval(row)
            if row.state != PENDING:
                run.close_notices(head.generation, approval_id)
        for act in change.approvals:
            if isinstance(act, ApprovalPut):
                for notice in notices_of(settled.approvals[act.approval_id], head.generation):
                    run.put_notice(notice)
        return None

    def _write(
        self,
        run: RunRows,
        state: RunState,
        change: RunChange,
        times: tuple[datetime, ...],
        at: datetime,
    ) -> bool:
        """Write a change that holds; whether something is in the outbox because of it."""
        head = state.head
        run.append(head.generation, list(map(StampedRow, change.entries, times)))
        _write_inbox(run, head, change)
        for act in change.operations:
            if isinstance(act, OperationDrop):
                run.drop_operation(act.operation)
            else:
                run.put_operation(act)
        sends = run.add_outbox(change.outbox, at)
        _write_tasks(run, change, head.generation, self._now)
        run.state = replace(
            state,
            head=replace(
                head,
                version=head.version + 1,
                next_seq=head.next_seq + len(change.entries),
                digest=change.digest,
                lapses=0 if change.entries else head.lapses,
                mail=run.unread_count(head.incarnation) > 0,
                changed_at=at,
            ),
            unfit_builds=unfit_after(state.unfit_builds, change),
        )
        if change.next:
            sends = _begin_next(run, change, at) or sends
        if change.head is not None:
            sends = self._write_head(run, change.head) or sends
        return sends

    def _write_head(self, run: RunRows, update: HeadUpdate) -> bool:
        assert run.state is not None
        head = replace(
            run.state.head,
            status=update.status,
            reason=update.reason,
            wake_at=update.wake_at,
            note=update.note,
        )
        run.state = replace(run.state, head=head, ending=update.ending)
        if update.status.closed:
            return end_run(run, self._moment)
        if update.release:
            run.state = self._released(run, run.state, update)
        return False

    def _released(self, run: RunRows, state: RunState, update: HeadUpdate) -> RunState:
        head = state.head
        unread = list(run.unread(head.incarnation)) if head.mail else []
        numbers = [
            item.stamped.number
            for item in unread
            if offers(update.status, update.reason, item.stamped.message.kind)
        ]
        last = max(numbers, default=0)
        seen = (last if update.mail_seen is None else update.mail_seen) if update.ignore_mail else 0
        calls, recalled = last > seen, any(map(_recalls, unread))
        due = due_from(update, calls=calls, recalled=recalled, now=self._now)
        return replace(
            state,
            head=replace(head, owner=None),
            calls=calls,
            due=due,
            due_set_at=self._now,
            stopped=self._moment.instant,
        )


def end_run(run: RunRows, moment: Moment) -> bool:
    """Leave what only an open run has, and tell other runs; whether any is told. Its row says by now how it has ended."""
    assert run.state is not None
    head = replace(run.state.head, owner=None, wake_at=None)
    run.state = replace(
        run.state,
        head=head,
        due=None,
        due_set_at=moment.now,
        stopped=moment.instant,
        calls=False,
    )
    sends = _drop_open(run, head)
    items = to_watchers(head.generation, head.status, head.reason, run.take_watches())
    return run.add_outbox(items, head.changed_at) or sends


def sticky_run(head: RunHead) -> StickyRun:
    """Return what a decision that sticks is told of a run."""
    return head.run, head.incarnation, head.workflow


def _fence(change: RunChange, head: RunHead) -> Verdict | None:
    if change.digest and head.version == change.version + 1 and head.digest == change.digest:
        return Applied(head.changed_at)
    if head.owner != change.worker or head.epoch != change.epoch:
        return Fenced(f"the run is at epoch {head.epoch}, held by {head.owner or 'nobody'}")
    return Conflict(head, head.version) if head.version != change.version else None


def _refusal(run: RunRows, head: RunHead, change: RunChange) -> Refused | None:
    """Return why the change does not fit the run's inbox, operations or tasks."""
    if reason := next_refusal(change):
        return Refused(reason)
    refusal = (
        _inbox_refusal(run, head, change)
        or _missed_beat(run, change)
        or _tasks_refusal(run, change)
    )
    if refusal is not None:
        return refusal
    closes = change.head is not None and change.head.status.closed
    is_left = run.unread_count(head.incarnation) > len(change.consumed)
    return Refused("mail") if closes and is_left else None


def _inbox_refusal(run: RunRows, head: RunHead, change: RunChange) -> Refused | None:
    named: set[str] = set()
    for message_id in change.consumed:
        item = run.message(head.incarnation, message_id)
        if item is None or item.consumed or message_id in named:
            return Refused("message", message_id)
        named.add(message_id)
    answered = [answer.message_id for answer in change.answers]
    for message_id in answered:
        item = run.message(head.incarnation, message_id)
        if (
            item is None
            or not (item.consumed or message_id in named)
            or item.stamped.message.kind is not MessageKind.UPDATE
            or item.answer is not None
            or answered.count(message_id) > 1
        ):
            return Refused("answer", message_id)
    return None


def _missed_beat(run: RunRows, change: RunChange) -> Refused | None:
    after: dict[str, OperationPut | None] = {}
    for act in change.operations:
        known = after[act.operation] if act.operation in after else run.operation(act.operation)
        beats = known.beats if known is not None and known.awaits else None
        if refusal := missed_beat(beats, act):
            return refusal
        after[act.operation] = act if isinstance(act, OperationPut) else None
    return None


def _tasks_refusal(run: RunRows, change: RunChange) -> Refused | None:
    after: dict[str, TaskRow | None] = {}
    for act in change.tasks:
        if isinstance(act, TaskPut):
            after[act.operation] = _offered(change, 0, act, EPOCH)
            continue
        if act.operation not in after:
            task = run.task(act.operation)
            after[act.operation] = None if task is None else task.row
        if not may_drop(after[act.operation], act):
            return Refused("task", act.operation)
        after[act.operation] = None
    return None


def _write_inbox(run: RunRows, head: RunHead, change: RunChange) -> None:
    for message_id in change.consumed:
        item = run.message(head.incarnation, message_id)
        if item is not None:
            message = replace(item.stamped.message, body=b"")
            stamped = replace(item.stamped, message=message)
            run.put_message(replace(item, stamped=stamped, consumed=True))
    for answer in change.answers:
        item = run.message(head.incarnation, answer.message_id)
        if item is not None:
            run.put_message(replace(item, answer=answer.body))


def _write_tasks(run: RunRows, change: RunChange, generation: int, now: datetime) -> None:
    for act in change.tasks:
        if isinstance(act, TaskDrop):
            run.drop_task(act.operation)
            continue
        row = _offered(change, generation, act, now)
        known = run.task(act.operation)
        progress = act.progress or (b"" if known is None else known.progress)
        run.put_task(TaskState(row, row.since, now, arguments=act.arguments, progress=progress))
    if change.hold is not None:
        _hold(run, now, held=change.hold)


def _hold(run: RunRows, now: datetime, *, held: bool) -> None:
    """Let nobody take the tasks that a run has, or let those that were held wait anew."""
    for task in run.tasks():
        if task.held == held:
            continue
        row = task.row
        if row.worker is None and not held:
            row = replace(row, since=max(row.since, now))
        run.put_task(replace(task, row=row, held=held))


def _offered(change: RunChange, generation: int, put: TaskPut, now: datetime) -> TaskRow:
    key = TaskKey(change.run, generation, put.operation, put.attempt)
    return TaskRow(key, put.queue, put.name, None, due_of(put, now))


def _begin_next(run: RunRows, change: RunChange, at: datetime) -> bool:
    assert run.state is not None
    head = run.state.head
    sends = _drop_open(run, head)
    run.leave_approvals()
    generation = head.generation + 1
    begun = replace(
        head,
        generation=generation,
        workflow=change.next[0].name,
        next_seq=len(change.next),
    )
    run.state = replace(run.state, head=begun)
    run.append(generation, [StampedRow(row, at) for row in change.next])
    run.forget_messages(head.incarnation)
    return sends


def _drop_open(run: RunRows, head: RunHead) -> bool:
    """Drop what only an open generation has: its open operations and tasks, and its pending approvals; whether other runs are told."""
    items = to_children(head.run, head.generation, run.other_runs())
    sends = run.add_outbox(items, head.changed_at)
    run.drop_operations()
    run.drop_tasks()
    run.end_notices()
    for row in run.pending_approvals():
        run.put_approval(_withdrawn(row))
    return sends


def _withdrawn(row: ApprovalRow) -> ApprovalRow:
    return replace(row, state=WITHDRAWN)


def _recalls(item: InboxRow) -> bool:
    return item.stamped.message.kind in RECALLS
