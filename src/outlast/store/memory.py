"""A store in memory: for tests, simulation and `memory://`. Nothing outlives the process.

It keeps the whole contract, on an injected clock and without threads of its own, so that a seeded scheduler can drive several
workers against one. Every change is judged before anything of it is written.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import StampedRow
from outlast.store.beat import AWAITS, missed_beat
from outlast.store.bound import CORRUPT, UNSTORABLE, unstorable_part
from outlast.store.change import (
    CAPPED,
    MAX_UNREAD,
    SAGA,
    Applied,
    ApprovalPut,
    ApprovalRow,
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
    HeadUpdate,
    Message,
    MessageKind,
    MessageState,
    OperationDrop,
    OperationPut,
    OutboxItem,
    PutControl,
    PutMessage,
    PutWatch,
    Refused,
    RevokeSticky,
    RunChange,
    RunHead,
    RunKey,
    StampedMessage,
    StartRun,
    Status,
    Terminate,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.condition import (
    KNOWN_MESSAGES,
    PENDING,
    RECALLS,
    WITHDRAWN,
    decided,
    decision_refusal,
    due_from,
    is_other,
    listed_state,
    next_refusal,
    offers,
    owned_times,
    place_of,
    settle_approvals,
    start_times,
    stranger_refusal,
    unfit_after,
)
from outlast.store.farewell import to_children, to_watchers
from outlast.store.figures import Figures, backlog_of, backlogs_of
from outlast.store.memory_figures import figures_of
from outlast.store.memory_notice import NoticeTable
from outlast.store.memory_outbox import MemoryOutbox
from outlast.store.memory_request import RequestTable
from outlast.store.memory_sticky import StickyTable
from outlast.store.memory_task import TaskTable
from outlast.store.moment import EPOCH, Instant, LeaseClock, elapsed, lapsed, lease_end, to_micros
from outlast.store.notice import EndNotice, NoticeChange, NoticeRow, TakeNotices
from outlast.store.notice_condition import notices_of
from outlast.store.protocol import (
    SUSPECT_LAPSES,
    Claim,
    ClaimedRun,
    DoubtRow,
    GenerationRow,
    LiveWorker,
    RunImage,
)
from outlast.store.request import RequestChange, RequestRow, RequestState
from outlast.store.sticky import STICKY, StickyRow
from outlast.store.sticky_condition import StickyFilter, StickyRun, stuck
from outlast.store.task import TaskClaim, TaskKey, TaskRow

logger = logging.getLogger("outlast.store")

_BOOT = "memory"


@dataclass(slots=True)
class _Item:
    """An inbox item; `generation` is the one that began the incarnation that it is for."""

    stamped: StampedMessage
    generation: int
    consumed: bool = False
    answer: bytes | None = None


@dataclass(slots=True)
class _Run:
    head: RunHead
    due: datetime | None
    due_set_at: datetime = EPOCH
    stopped: Instant | None = None
    calls: bool = False
    unfit_builds: tuple[str, ...] = ()
    ending: bool = False
    journals: dict[int, list[StampedRow]] = field(default_factory=dict[int, list[StampedRow]])
    operations: dict[str, OperationPut] = field(default_factory=dict[str, OperationPut])
    approvals: dict[str, ApprovalRow] = field(default_factory=dict[str, ApprovalRow])
    former_approvals: list[ApprovalRow] = field(default_factory=list[ApprovalRow])
    forgotten: int = 0
    """How many messages are not known any more."""

    def give_back(
        self, status: Status, due: datetime | None, stopped: Instant, now: datetime
    ) -> None:
        """Leave the run without an owner."""
        self.head = replace(self.head, status=status, owner=None, wake_at=None)
        self.due, self.due_set_at, self.stopped = due, now, stopped


@dataclass(slots=True)
class _Worker:
    row: WorkerRow
    renewed: Instant
    report: bytes = b""


class MemoryStore:
    """Keeps runs in memory.

    Args:
        clock: Wall time for timers and deadlines, monotonic time for leases.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lease = LeaseClock(clock, _BOOT)
        self._lock = threading.RLock()
        self._runs: dict[RunKey, _Run] = {}
        self._inboxes: dict[RunKey, dict[tuple[int, str], _Item]] = {}
        self._outbox = MemoryOutbox()
        self._workers: dict[WorkerId, _Worker] = {}
        self._tasks = TaskTable()
        self._requests = RequestTable()
        self._notices = NoticeTable()
        self._sticky = StickyTable()
        self._controls: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._subscribers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._timeline = f"memory-{to_micros(clock.now())}"
        self._closed = False

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write many changes at once; see `Store.commit`."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            renewing: set[WorkerId] = set()
            verdicts: list[Verdict] = [Applied(now)] * len(changes)
            for index in sorted(range(len(changes)), key=lambda index: place_of(changes[index])):
                change = changes[index]
                verdicts[index] = self._apply_alone(change, now)
                if (
                    isinstance(verdicts[index], Applied)
                    and isinstance(change, RunChange | StartRun)
                    and change.worker
                ):
                    renewing.add(change.worker)
            for worker in renewing:
                self._workers[worker].renewed = self._lease.instant()
        self._wake()
        return verdicts

    def _apply_alone(self, change: Change, now: datetime) -> Verdict:
        """Return the verdict on one change: what it raises while it is judged is its own, and takes no other down."""
        try:
            part = unstorable_part(change)
            return Refused(UNSTORABLE, part) if part else self._apply(change, now)
        except Exception as error:
            logger.exception("a change is refused")
            return Refused(CORRUPT, type(error).__name__)

    def _apply(self, change: Change, now: datetime) -> Verdict:
        if isinstance(change, RequestChange | NoticeChange | RevokeSticky):
            return self._apply_to_table(change, now)
        match change:
            case RunChange():
                return self._apply_owned(change, now)
            case StartRun():
                return self._start(change, now)
            case PutMessage():
                return self._put_message(change, now)
            case Decide():
                return self._decide(change, now)
            case Terminate():
                return self._terminate(change, now)
            case ClearOutbox():
                return self._clear_outbox(change, now)
            case PutWatch():
                return self._put_watch(change, now)
            case DropWatch():
                self._outbox.unwatch(change.run, change.watch)
                return Applied(now)
            case PutControl():
                return self._put_control(change, now)
            case FinishTask() | BeatTask() | BeatOperation():
                return self._of_attempt(change, now)

    def _apply_to_table(
        self, change: RequestChange | NoticeChange | RevokeSticky, now: datetime
    ) -> Verdict:
        match change:
            case RevokeSticky():
                return self._revoke(change, now)
            case TakeNotices():
                return self._notices.take(change, self._due_notice, now)
            case EndNotice():
                return self._notices.finish(change, now)
            case _:
                return self._requests.write(change, now)

    # owned changes

    def _apply_owned(self, change: RunChange, now: datetime) -> Verdict:
        if not self._live(change.worker):
            return Fenced("the worker's lease has lapsed")
        run = self._runs.get(change.run)
        if run is None:
            return Fenced("there is no such run")
        head = run.head
        if change.digest and head.version == change.version + 1 and head.digest == change.digest:
            return Applied(head.changed_at)
        if head.owner != change.worker or head.epoch != change.epoch:
            return Fenced(f"the run is at epoch {head.epoch}, held by {head.owner or 'nobody'}")
        if head.version != change.version:
            return Conflict(head, head.version)
        after = head.next_seq + len(change.entries)
        if [row.seq for row in change.entries] != [*range(head.next_seq, after)]:
            return Refused("seq")
        dated = owned_times(change, now, head.changed_at)
        if isinstance(dated, Refused):
            return dated
        times, at = dated
        refusal = self._refusal(run, change)
        if refusal is not None:
            return refusal
        sticky = self._sticky.of(change.run.tenant)
        key = _sticky_run(change.run, run)
        settled = settle_approvals(
            change, run.approvals.get, sticky.get, key, self._version, now, at
        )
        if isinstance(settled, Refused):
            return settled
        sticky.update(settled.sticky)
        self._keep_approvals(run, settled.approvals, change)
        return Applied(at, outbox=self._write_owned(run, change, times, now, at))

    def _keep_approvals(
        self, run: _Run, approvals: dict[str, ApprovalRow], change: RunChange
    ) -> None:
        run.approvals.update(approvals)
        for approval_id, row in approvals.items():
            if row.state != PENDING:
                self._notices.close(change.run, approval_id)
        for act in change.approvals:
            if isinstance(act, ApprovalPut):
                row = approvals[act.approval_id]
                self._notices.add(notices_of(row, run.head.generation))

    def _due_notice(self, notice: NoticeRow) -> DueNotice | None:
        """Return a notice with its request, while that waits."""
        run = self._runs.get(RunKey(notice.tenant, notice.run_id))
        row = None if run is None else run.approvals.get(notice.approval_id)
        if run is None or row is None or row.state != PENDING:
            return None
        return DueNotice(notice, row, run.head.workflow)

    def _refusal(self, run: _Run, change: RunChange) -> Refused | None:
        """Return why the change does not fit the run's inbox or tasks."""
        if reason := next_refusal(change):
            return Refused(reason)
        named: set[str] = set()
        for message_id in change.consumed:
            if not self._unread(run, message_id) or message_id in named:
                return Refused("message", message_id)
            named.add(message_id)
        answered = [answer.message_id for answer in change.answers]
        for message_id in answered:
            item = self._inboxes.get(change.run, {}).get((run.head.incarnation, message_id))
            consumed = item is not None and (item.consumed or message_id in change.consumed)
            if (
                item is None
                or not consumed
                or item.stamped.message.kind is not MessageKind.UPDATE
                or item.answer is not None
                or answered.count(message_id) > 1
            ):
                return Refused("answer", message_id)
        refusal = _missed_beat(run, change) or self._tasks.refusal(change.run, change.tasks)
        if refusal is not None:
            return refusal
        if change.head is not None and change.head.status.closed:
            unread = {item.stamped.message.message_id for item in self._unconsumed(run)}
            if not unread <= set(change.consumed):
                return Refused("mail")
        return None

    def _write_owned(
        self,
        run: _Run,
        change: RunChange,
        times: tuple[datetime, ...],
        now: datetime,
        at: datetime,
    ) -> bool:
        """Write a change that holds; whether something is in the outbox because of it."""
        head = run.head
        run.journals[head.generation].extend(map(StampedRow, change.entries, times))
        for message_id in change.consumed:
            item = self._inboxes[change.run][head.incarnation, message_id]
            item.consumed = True
            item.stamped = replace(item.stamped, message=replace(item.stamped.message, body=b""))
        for answer in change.answers:
            self._inboxes[change.run][head.incarnation, answer.message_id].answer = answer.body
        for act in change.operations:
            if isinstance(act, OperationDrop):
                run.operations.pop(act.operation, None)
            else:
                run.operations[act.operation] = act
        sends = self._outbox.add(change.run, change.outbox, at)
        self._tasks.write(change.run, head.generation, change.tasks, now)
        if change.hold is not None:
            self._tasks.hold(change.run, now, held=change.hold)
        run.head = replace(
            head,
            version=head.version + 1,
            next_seq=head.next_seq + len(change.entries),
            digest=change.digest,
            lapses=0 if change.entries else head.lapses,
            mail=bool(self._unconsumed(run)),
            changed_at=at,
        )
        run.unfit_builds = unfit_after(run.unfit_builds, change)
        if change.next:
            sends = self._begin_next(run, change, at) or sends
        if change.head is not None:
            sends = self._write_head(run, change.head, now) or sends
        return sends

    def _begin_next(self, run: _Run, change: RunChange, at: datetime) -> bool:
        sends = self._drop_open(run)
        run.former_approvals.extend(run.approvals.values())
        run.approvals.clear()
        generation = run.head.generation + 1
        run.head = replace(
            run.head,
            generation=generation,
            workflow=change.next[0].name,
            next_seq=len(change.next),
        )
        run.journals[generation] = [StampedRow(row, at) for row in change.next]
        self._forget_old(run, self._inboxes.get(change.run, {}))
        return sends

    def _forget_old(self, run: _Run, inbox: dict[tuple[int, str], _Item]) -> None:
        if len(inbox) <= KNOWN_MESSAGES:
            return
        last = len(inbox) + run.forgotten
        for name, item in list(inbox.items()):
            if item.stamped.number <= last - KNOWN_MESSAGES and not _waits(run, item):
                del inbox[name]
                run.forgotten += 1

    def _write_head(self, run: _Run, update: HeadUpdate, now: datetime) -> bool:
        run.head = replace(
            run.head,
            status=update.status,
            reason=update.reason,
            wake_at=update.wake_at,
            note=update.note,
        )
        run.ending = update.ending
        if update.status.closed:
            return self._end(run)
        if update.release:
            unread = [
                item.stamped
                for item in self._unconsumed(run)
                if offers(update.status, update.reason, item.stamped.message.kind)
            ]
            last = max((stamped.number for stamped in unread), default=0)
            seen = (
                (last if update.mail_seen is None else update.mail_seen)
                if update.ignore_mail
                else 0
            )
            run.calls = last > seen
            run.head = replace(run.head, owner=None)
            due = due_from(update, calls=run.calls, recalled=self._recalled(run), now=now)
            run.due, run.due_set_at = due, now
            run.stopped = self._lease.instant()
        return False

    def _end(self, run: _Run) -> bool:
        """Leave what only an open run has, and tell other runs; whether any is told."""
        status, reason = run.head.status, run.head.reason
        run.give_back(status, None, self._lease.instant(), self._clock.now())
        key, generation = run.head.run, run.head.generation
        sends = self._drop_open(run)
        items = to_watchers(generation, status, reason, self._outbox.take_watches(key))
        return self._outbox.add(key, items, run.head.changed_at) or sends

    def _drop_open(self, run: _Run) -> bool:
        """Drop what only an open generation has: its open operations, and its pending approvals; whether other runs are told."""
        key, generation = run.head.run, run.head.generation
        rows = [run.operations[operation] for operation in sorted(run.operations)]
        sends = self._outbox.add(key, to_children(key, generation, rows), run.head.changed_at)
        run.operations.clear()
        self._tasks.end(run.head.run)
        self._notices.end(run.head.run)
        for approval_id, row in run.approvals.items():
            if row.state == PENDING:
                run.approvals[approval_id] = replace(row, state=WITHDRAWN)
        return sends

    # unowned changes

    def _start(self, change: StartRun, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        former = None if run is None else run.head
        fits = change.generation == 1 if former is None else former.status.closed
        if not fits or (former is not None and change.generation != former.generation + 1):
            return Conflict(former)
        if change.worker is not None and not self._live(change.worker):
            return Fenced("the worker's lease has lapsed")
        if [row.seq for row in change.entries] != list(range(max(len(change.entries), 1))):
            return Refused("seq")
        at = now if former is None else max(now, former.changed_at)
        times = start_times(change, at)
        if isinstance(times, Refused):
            return times
        epoch = 0 if former is None else former.epoch
        head = RunHead(
            run=change.run,
            generation=change.generation,
            workflow=change.workflow,
            fingerprint=change.fingerprint,
            status=Status.RUNNING if change.worker else Status.READY,
            reason="",
            owner=change.worker,
            epoch=epoch + 1 if change.worker else epoch,
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
        )
        if (other := self._other_message(change)) is not None:
            return Refused("other", other.message_id)
        if change.watch is not None:
            self._outbox.watch(change.run, change.watch)
        if run is None:
            run = self._runs[change.run] = _Run(head, None)
        else:
            self._empty_unread(run)
        run.former_approvals.extend(run.approvals.values())
        run.approvals.clear()
        run.head, run.calls, run.unfit_builds, run.ending = head, False, (), False
        run.due, run.due_set_at = None if change.worker else now, now
        for message in change.messages:
            if self._known(change.run, change.generation, message) is None:
                self._add(change.run, run, message, now)
        run.head = replace(head, mail=bool(self._unconsumed(run)))
        stamped = zip(change.entries, times, strict=True)
        run.journals[change.generation] = [StampedRow(row, time) for row, time in stamped]
        return Applied(at, run.head.epoch if change.worker else 0)

    def _other_message(self, change: StartRun) -> Message | None:
        """Return the first message of a start that is another one than that which its inbox knows."""
        for message in change.messages:
            known = self._known(change.run, change.generation, message)
            if known is not None and is_other(message, known.stamped.message.digest):
                return message
        return None

    def _empty_unread(self, run: _Run) -> None:
        """What the former run of the id was sent and never read is nobody's from now on."""
        for item in self._unconsumed(run):
            item.stamped = replace(item.stamped, message=replace(item.stamped.message, body=b""))

    def _put_message(self, change: PutMessage, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        inbox = change.incarnation or _receiving(run)
        if (known := self._known_verdict(change.run, inbox, change.message)) is not None:
            return known
        if run is None and not change.early:
            return Refused("not_found")
        if run is not None and (refusal := _stranger_refusal(change, run.head)):
            return Refused(refusal)
        if run is not None and run.head.status.closed:
            return Refused("closed")
        if change.message.kind in CAPPED:
            if run is not None and run.ending:
                return Refused("closed")
            if self._is_full(change.run, run):
                return Refused("full", change.message.message_id)
        self._deliver(change.run, change.message, now)
        return Applied(now)

    def _clear_outbox(self, change: ClearOutbox, now: datetime) -> Verdict:
        self._outbox.clear(change.run, change.numbers)
        run = self._runs.get(change.run)
        if run is None or run.head.status.closed or run.head.generation != change.generation:
            return Applied(now)
        for message in change.answers:
            if self._known(change.run, _receiving(run), message) is None:
                self._deliver(change.run, message, now)
        return Applied(now)

    def _put_watch(self, change: PutWatch, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        if run is None:
            return Refused("not_found")
        if run.head.status.closed:
            return Refused("closed")
        self._outbox.watch(change.run, change.watch)
        return Applied(now)

    def _deliver(self, key: RunKey, message: Message, now: datetime) -> None:
        run = self._runs.get(key)
        self._add(key, run, message, now)
        if run is None:
            return
        run.head = replace(run.head, mail=True)
        run.due_set_at = now
        if not offers(run.head.status, run.head.reason, message.kind):
            return
        run.calls = True
        if run.head.owner is None:
            run.due = now if run.due is None else min(run.due, now)

    def _add(self, key: RunKey, run: _Run | None, message: Message, now: datetime) -> None:
        inbox = self._inboxes.setdefault(key, {})
        forgotten = 0 if run is None else run.forgotten
        stamped = StampedMessage(message, now, len(inbox) + forgotten + 1)
        generation = _receiving(run)
        inbox[generation, message.message_id] = _Item(stamped, generation)

    def _decide(self, change: Decide, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        known = self._known_verdict(change.run, _receiving(run), change.message)
        if known is not None:
            return known
        row = None if run is None else run.approvals.get(change.approval_id)
        refusal = decision_refusal(row, change, now, self._version)
        if refusal is not None or run is None or row is None:
            return refusal or Refused("unknown", change.approval_id)
        after, message = decided(row, change, now)
        if change.sticky is not None:
            rows, key = self._sticky.of(change.run.tenant), _sticky_run(change.run, run)
            if change.sticky.sticky_id in rows:
                return Refused("sticky", change.sticky.sticky_id)
            rows[change.sticky.sticky_id] = stuck(change.sticky, change, row, key, now)
            self._move_on(change.run.tenant, STICKY)
        run.approvals[change.approval_id] = after
        if after.state != PENDING:
            self._notices.close(change.run, change.approval_id)
        self._deliver(change.run, message, now)
        return Applied(now)

    def _terminate(self, change: Terminate, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        if run is None:
            return Refused("not_found")
        if refusal := _stranger_refusal(change, run.head):
            return Refused(refusal)
        if run.head.status.closed:
            return Refused("closed")
        if not change.abandon and any(row.kind == SAGA for row in run.operations.values()):
            return Refused(SAGA)
        at = max(now, run.head.changed_at)
        run.head = replace(
            run.head,
            status=Status.TERMINATED,
            reason=change.reason,
            ended_by=change.by,
            epoch=run.head.epoch + 1,
            changed_at=at,
        )
        return Applied(at, outbox=self._end(run))

    def _move_on(self, tenant: str, name: str) -> None:
        version, body = self._controls.get((tenant, name), (0, b""))
        self._controls[tenant, name] = (version + 1, body)

    def _revoke(self, change: RevokeSticky, now: datetime) -> Verdict:
        refused = self._sticky.revoke(change, self._version, now)
        if refused is not None:
            return refused
        self._move_on(change.tenant, STICKY)
        return Applied(now)

    def _version(self, tenant: str, name: str) -> int:
        return self._controls.get((tenant, name), (0, b""))[0]

    def _put_control(self, change: PutControl, now: datetime) -> Verdict:
        current = self._version(change.tenant, change.name)
        if current != change.version:
            return Conflict(version=current)
        self._controls[change.tenant, change.name] = (current + 1, change.body)
        return Applied(now)

    def _of_attempt(self, change: FinishTask | BeatTask | BeatOperation, now: datetime) -> Verdict:
        if isinstance(change, FinishTask):
            return self._finish_task(change, now)
        if isinstance(change, BeatOperation):
            return self._beat_operation(change, now)
        if not self._live(change.worker):
            return Fenced("the worker's lease has lapsed")
        why = self._tasks.beat(change)
        return Fenced(why) if why else Applied(now)

    def _beat_operation(self, change: BeatOperation, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        if run is None:
            return Refused("not_found")
        if run.head.generation != change.generation:
            return Refused("generation")
        if run.head.status.closed:
            return Refused("closed")
        row = run.operations.get(change.operation)
        if row is None or not row.awaits:
            return Refused(AWAITS, change.operation)
        progress = change.progress or row.progress
        run.operations[change.operation] = replace(
            row, beats=row.beats + 1, heard_at=now, progress=progress
        )
        return Applied(now)

    def _finish_task(self, change: FinishTask, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        if change.message is not None:
            known = self._known_verdict(change.run, _receiving(run), change.message)
            if known is not None:
                return known
        if not self._live(change.worker):
            return Fenced("the worker's lease has lapsed")
        why = self._tasks.finish(change, now)
        if why:
            return Fenced(why)
        if change.message is not None:
            self._deliver(change.run, change.message, now)
        return Applied(now)

    # workers

    async def register(self, row: WorkerRow) -> None:
        """Announce a worker; its lease begins."""
        with self._lock:
            self._check_open()
            if not self._live(row.worker):
                self._give_back(row.worker, self._clock.now(), self._lease.instant(), lapses=1)
            self._workers[row.worker] = _Worker(row, self._lease.instant())
        self._wake()

    def renew(self, worker: WorkerId) -> bool:
        """Renew a worker's lease; False when it has lapsed."""
        with self._lock:
            self._check_open()
            if not self._live(worker):
                return False
            self._workers[worker].renewed = self._lease.instant()
            return True

    async def retire(self, worker: WorkerId) -> None:
        """Forget a worker that ends, and give its runs back."""
        with self._lock:
            self._check_open()
            self._workers.pop(worker, None)
            self._give_back(worker, self._clock.now(), self._lease.instant(), lapses=0)
        self._wake()

    async def claim(self, worker: WorkerId, workflows: frozenset[str], limit: int) -> Claim:
        """Take runs that have something to do and no living owner; see `Store.claim`."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            if not self._live(worker):
                return Claim((), (), None, now)
            self._bury()
            build = self._workers[worker].row.build
            mail = sorted(
                run.head.run
                for run in self._runs.values()
                if run.head.owner == worker and run.head.mail
            )
            parked = sorted(
                (run.due, run.head.run)
                for run in self._runs.values()
                if run.due is not None and run.head.workflow in workflows and _offered(run, build)
            )
            # Those whose time means nothing come last, by the time at which it was set.
            can_go_on = [key for due, key in parked if due <= now]
            ahead = [(self._runs[key].due_set_at, key) for due, key in parked if due > now]
            can_go_on += [key for set_at, key in sorted(ahead) if set_at > now]
            due_now = self._one_suspect(can_go_on, worker)
            taken = [self._take(self._runs[key], worker) for key in due_now[: max(limit, 0)]]
            left = [due for due, key in parked if due > now and self._runs[key].due is not None]
            next_due = next(iter(left), None)
            held = sum(run.head.owner == worker for run in self._runs.values())
            relay = self._outbox.next_relay(now)
            return Claim(tuple(taken), tuple(mail), next_due, now, held, relay)

    def _one_suspect(self, keys: list[RunKey], worker: WorkerId) -> list[RunKey]:
        """Return the runs without those suspects that must wait for their turn to be alone."""
        room = not any(
            run.head.owner == worker and run.head.lapses >= SUSPECT_LAPSES
            for run in self._runs.values()
        )
        kept: list[RunKey] = []
        for key in keys:
            if self._runs[key].head.lapses < SUSPECT_LAPSES:
                kept.append(key)
            elif room:
                room = False
                kept.append(key)
        return kept

    async def claim_tasks(
        self,
        worker: WorkerId,
        queues: frozenset[str],
        steps: frozenset[str],
        *,
        limit: int,
        known: frozenset[TaskKey] = frozenset(),
    ) -> TaskClaim:
        """Take tasks that may be taken and are with no living worker; see `Store.claim_tasks`."""

        def wanted(row: TaskRow) -> bool:
            return row.queue in queues and row.name in steps

        with self._lock:
            self._check_open()
            now = self._clock.now()
            if not self._live(worker):
                return TaskClaim((), (), None, now)
            self._bury()
            return self._tasks.claim(worker, wanted, now, limit=limit, known=known)

    async def doubts(
        self,
        tenant: str,
        *,
        effect: str = "",
        workflow: str = "",
        limit: int = 100,
        after: tuple[str, str] | None = None,
    ) -> list[DoubtRow]:
        """Return a page of the tenant's effects in doubt, by run and operation."""
        with self._lock:
            self._check_open()
            found = [
                DoubtRow(key, row.operation, row.name)
                for key, run in self._runs.items()
                for row in run.operations.values()
                if key.tenant == tenant
                and row.in_doubt
                and effect in {"", row.name}
                and workflow in {"", run.head.workflow}
            ]
        found.sort(key=lambda one: (one.run.run_id, one.operation))
        return [one for one in found if (one.run.run_id, one.operation) > (after or ("", ""))][
            : max(limit, 0)
        ]

    async def sticky(self, tenant: str, wanted: StickyFilter) -> list[StickyRow]:
        """Return a page of the decisions that stick."""
        with self._lock:
            self._check_open()
            run = None if wanted.run is None else self._runs.get(wanted.run)
            key = None if run is None or wanted.run is None else _sticky_run(wanted.run, run)
            return self._sticky.page(tenant, wanted, key, self._clock.now())

    async def notices(self, run: RunKey) -> list[NoticeRow]:
        """Return the notices of the run's requests that wait."""
        with self._lock:
            self._check_open()
            return self._notices.of(run)

    async def next_notice(self, tenant: str = "") -> datetime | None:
        """Return when the next notice is due."""
        with self._lock:
            self._check_open()
            return self._notices.next_due(tenant)

    async def operation(self, run: RunKey, operation: str) -> OperationPut | None:
        """Return the row of one open operation."""
        with self._lock:
            self._check_open()
            found = self._runs.get(run)
            return None if found is None else found.operations.get(operation)

    async def figures(self, tenant: str = "") -> Figures:
        """Return what waits, and for how long; see `StoreReader.figures`."""
        with self._lock:
            self._check_open()
            now, living = self._clock.now(), frozenset(filter(self._live, self._workers))
            runs = [run for key, run in self._runs.items() if tenant in ("", key.tenant)]
            return replace(
                figures_of(runs, living, now),
                requests_in_doubt=self._requests.doubts(tenant, now),
                notices=backlog_of(self._notices.due(tenant, now), now),
                outbox=backlog_of(self._outbox.late(tenant, now), now),
                tasks=backlogs_of(self._tasks.waiting(tenant, now), now),
                workers_live=len(living),
                workers_lapsed=len(self._workers) - len(living),
            )

    async def report(self, worker: WorkerId, body: bytes) -> None:
        """Keep what a worker says of itself."""
        with self._lock:
            self._check_open()
            if worker in self._workers:
                self._workers[worker].report = body

    async def tasks(self, run: RunKey) -> tuple[TaskRow, ...]:
        """Return the tasks of the run's remote steps, by operation."""
        with self._lock:
            self._check_open()
            return self._tasks.of(run)

    async def owned(self, worker: WorkerId) -> list[RunHead]:
        """Return the runs that a worker owns, by run."""
        with self._lock:
            self._check_open()
            heads = [run.head for run in self._runs.values() if run.head.owner == worker]
        return sorted(heads, key=lambda head: head.run)

    def _take(self, run: _Run, worker: WorkerId) -> ClaimedRun:
        head = run.head
        run.head = replace(
            head, owner=worker, epoch=head.epoch + 1, status=Status.RUNNING, reason="", wake_at=None
        )
        run.due, run.calls = None, False
        return ClaimedRun(
            run.head, None if run.stopped is None else elapsed(run.stopped, self._lease.instant())
        )

    def _live(self, worker: WorkerId) -> bool:
        known = self._workers.get(worker)
        return known is not None and not lapsed(
            known.renewed, known.row.lease, self._lease.instant()
        )

    def _bury(self) -> None:
        now, instant = self._clock.now(), self._lease.instant()
        for worker in [worker for worker in self._workers if not self._live(worker)]:
            dead = self._workers.pop(worker)
            end = lease_end(dead.renewed, dead.row.lease)
            self._give_back(worker, now - elapsed(end, instant), end, lapses=1)

    def _give_back(self, worker: WorkerId, due: datetime, stopped: Instant, *, lapses: int) -> None:
        self._tasks.give_back(worker, self._clock.now(), lapses=lapses)
        for run in self._runs.values():
            if run.head.owner == worker:
                paused = run.head.status is Status.PAUSED
                status = Status.PAUSED if paused else Status.READY
                is_offered = not paused or self._recalled(run)
                run.give_back(status, due if is_offered else None, stopped, self._clock.now())
                run.head = replace(run.head, lapses=run.head.lapses + lapses)
                run.calls = run.head.mail

    # reading

    async def head(self, run: RunKey) -> RunHead | None:
        """Return the run's row."""
        with self._lock:
            self._check_open()
            found = self._runs.get(run)
            return None if found is None else found.head

    async def heads(
        self,
        tenant: str,
        *,
        statuses: frozenset[Status] = frozenset(),
        workflow: str = "",
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> list[RunHead]:
        """Return a page of the tenant's runs, newest first."""
        with self._lock:
            self._check_open()
            found = [
                run.head
                for key, run in self._runs.items()
                if key.tenant == tenant
                and (not statuses or run.head.status in statuses)
                and (not workflow or run.head.workflow == workflow)
                and (before is None or (run.head.created_at, key.run_id) < before)
            ]
        found.sort(key=lambda head: (head.created_at, head.run.run_id), reverse=True)
        return found[:limit]

    async def journal(
        self, run: RunKey, *, generation: int | None = None, after: int = -1
    ) -> tuple[StampedRow, ...]:
        """Return the rows of one generation, by default the current one."""
        with self._lock:
            self._check_open()
            return tuple(self._rows(run, generation)[max(after + 1, 0) :])

    async def latest(
        self, run: RunKey, kind: str, name: str, *, generation: int | None = None
    ) -> StampedRow | None:
        """Return the last row of this kind and name."""
        with self._lock:
            self._check_open()
            rows = reversed(self._rows(run, generation))
            return next((one for one in rows if (one.row.kind, one.row.name) == (kind, name)), None)

    async def answer(self, run: RunKey, message_id: str) -> MessageState | None:
        """Return what has become of an update."""
        with self._lock:
            self._check_open()
            found = [
                item
                for (_, known), item in self._inboxes.get(run, {}).items()
                if known == message_id and item.stamped.message.kind is MessageKind.UPDATE
            ]
            if not found:
                return None
            last = max(found, key=lambda item: item.generation)
            head = self._runs[run].head if run in self._runs else None
            return MessageState(
                last.generation,
                last.consumed,
                over=head is not None
                and (head.status.closed or head.incarnation > last.generation),
                answered=last.answer is not None,
                answer=last.answer or b"",
            )

    async def generations(self, run: RunKey, *, limit: int = 100) -> tuple[GenerationRow, ...]:
        """Return the run's generations, newest first."""
        with self._lock:
            self._check_open()
            found = self._runs.get(run)
            journals = {} if found is None else found.journals
            newest = sorted(journals, reverse=True)[:limit]
            last = [(generation, journals[generation][-1]) for generation in newest]
            return tuple(
                GenerationRow(generation, one.row.seq + 1, one.row.kind, one.at)
                for generation, one in last
            )

    async def approvals(
        self,
        tenant: str,
        *,
        pending: bool = True,
        run: RunKey | None = None,
        limit: int | None = None,
        after: tuple[datetime, str, str] | None = None,
    ) -> list[ApprovalRow]:
        """Return a page of approvals, oldest first."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            rows = [
                replace(row, state=listed_state(row, now))
                for key, found in self._runs.items()
                if key.tenant == tenant and run in (None, key)
                for row in (*found.former_approvals, *found.approvals.values())
                if after is None or _asked(row) > after
            ]
        rows = [row for row in rows if not pending or row.state == PENDING]
        return sorted(rows, key=_asked)[: None if limit is None else max(limit, 0)]

    async def workers(self) -> list[LiveWorker]:
        """Return the registered workers."""
        with self._lock:
            self._check_open()
            now = self._lease.instant()
            return [
                LiveWorker(known.row, self._live(worker), elapsed(known.renewed, now), known.report)
                for worker, known in sorted(self._workers.items())
            ]

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return version and body of a control row."""
        with self._lock:
            self._check_open()
            return self._controls.get((tenant, name))

    async def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request."""
        with self._lock:
            self._check_open()
            return self._requests.find(tenant, request_id, self._clock.now())

    async def requests(
        self,
        tenant: str,
        *,
        states: frozenset[RequestState],
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> list[RequestRow]:
        """Return a page of the tenant's requests, newest first, without their answers."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            return self._requests.list(tenant, now, states=states, limit=limit, before=before)

    async def load(self, run: RunKey) -> RunImage | None:
        """Return everything about a run's current generation."""
        with self._lock:
            self._check_open()
            found = self._runs.get(run)
            if found is None:
                return None
            return RunImage(
                found.head,
                tuple(found.journals[found.head.generation]),
                tuple(found.operations[operation] for operation in sorted(found.operations)),
                tuple(item.stamped for item in self._unconsumed(found)),
                tuple(found.approvals[approval] for approval in sorted(found.approvals)),
                self._tasks.of(run),
            )

    async def mail(self, run: RunKey) -> tuple[StampedMessage, ...]:
        """Return the run's messages that are not yet consumed, in order of arrival."""
        with self._lock:
            self._check_open()
            found = self._runs.get(run)
            return () if found is None else tuple(item.stamped for item in self._unconsumed(found))

    async def outbox(
        self, limit: int, *, run: RunKey | None = None, age: timedelta = timedelta(0)
    ) -> list[tuple[RunKey, OutboxItem]]:
        """Return items that wait for the relay, oldest first."""
        with self._lock:
            self._check_open()
            return self._outbox.list(limit, run, age, self._clock.now())

    async def last_entry(self, run: RunKey, generation: int) -> StampedRow | None:
        """Return the last row of one generation's journal."""
        with self._lock:
            self._check_open()
            found = self._runs.get(run)
            rows = [] if found is None else found.journals.get(generation, [])
            return rows[-1] if rows else None

    def now(self) -> datetime:
        """Return the store's time."""
        return self._clock.now()

    async def timeline(self) -> str:
        """Return the id of this store's line of history."""
        return self._timeline

    def describe(self) -> str:
        """Say that nothing is kept."""
        return "memory (nothing outlives this process)"

    async def close(self) -> None:
        """Stop using the store."""
        self._closed = True
        self._subscribers.clear()

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the running loop when something may have changed; return how to stop."""
        entry = (asyncio.get_running_loop(), wake)
        self._subscribers.append(entry)

        def stop() -> None:
            if entry in self._subscribers:
                self._subscribers.remove(entry)

        return stop

    def _wake(self) -> None:
        for loop, wake in list(self._subscribers):
            if not loop.is_closed():
                loop.call_soon_threadsafe(wake)

    def _rows(self, key: RunKey, generation: int | None) -> list[StampedRow]:
        run = self._runs.get(key)
        if run is None:
            return []
        return run.journals.get(run.head.generation if generation is None else generation, [])

    def _unconsumed(self, run: _Run) -> list[_Item]:
        inbox = self._inboxes.get(run.head.run, {})
        return [
            item
            for item in inbox.values()
            if not item.consumed and item.generation == run.head.incarnation
        ]

    def _recalled(self, run: _Run) -> bool:
        return any(item.stamped.message.kind in RECALLS for item in self._unconsumed(run))

    def _is_full(self, key: RunKey, run: _Run | None) -> bool:
        inbox = self._inboxes.get(key, {})
        if len(inbox) < MAX_UNREAD:
            return False
        generation = _receiving(run)
        unread = (not one.consumed and one.generation == generation for one in inbox.values())
        return sum(unread) >= MAX_UNREAD

    def _unread(self, run: _Run, message_id: str) -> bool:
        item = self._inboxes.get(run.head.run, {}).get((run.head.incarnation, message_id))
        return item is not None and not item.consumed

    def _known(self, key: RunKey, incarnation: int, message: Message) -> _Item | None:
        return self._inboxes.get(key, {}).get((incarnation, message.message_id))

    def _known_verdict(self, key: RunKey, incarnation: int, message: Message) -> Verdict | None:
        """Return what a message is answered with that an inbox knows already; None when it does not know it."""
        known = self._known(key, incarnation, message)
        if known is None:
            return None
        if is_other(message, known.stamped.message.digest):
            return Refused("other", message.message_id)
        return Applied(known.stamped.at)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(
                "the memory store is closed", hint="open a new one; its content is gone"
            )


def _missed_beat(run: _Run, change: RunChange) -> Refused | None:
    beats = {row.operation: row.beats for row in run.operations.values() if row.awaits}
    for act in change.operations:
        if refusal := missed_beat(beats.pop(act.operation, None), act):
            return refusal
        if isinstance(act, OperationPut) and act.awaits:
            beats[act.operation] = act.beats
    return None


def _waits(run: _Run, item: _Item) -> bool:
    """Whether the run has yet to read or to answer a message."""
    if item.generation != run.head.incarnation:
        return False
    is_update = item.stamped.message.kind is MessageKind.UPDATE
    return not item.consumed or (is_update and item.answer is None)


def _offered(run: _Run, build: str) -> bool:
    return build not in run.unfit_builds or run.calls


def _stranger_refusal(change: PutMessage | Terminate, head: RunHead) -> str:
    return stranger_refusal(
        change, generation=head.generation, incarnation=head.incarnation, origin=head.origin
    )


def _sticky_run(key: RunKey, run: _Run) -> StickyRun:
    return key, run.head.incarnation, run.head.workflow


def _asked(row: ApprovalRow) -> tuple[datetime, str, str]:
    return row.requested_at, row.run.run_id, row.put.approval_id


def _receiving(run: _Run | None) -> int:
    """Return the incarnation that a message is for; one that comes before its run waits for the first."""
    return 1 if run is None else run.head.incarnation
