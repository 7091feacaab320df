"""A store in memory: for tests, simulation and `memory://`. Nothing outlives the process.

It keeps the whole contract, on an injected clock and without threads of its own, so that a seeded scheduler can drive several
workers against one. Every change is judged before anything of it is written.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import StampedRow
from outlast.store.bound import UNSTORABLE, unstorable_part
from outlast.store.change import (
    Applied,
    ApprovalRow,
    Change,
    ClearOutbox,
    Conflict,
    Decide,
    Fenced,
    FinishTask,
    HeadUpdate,
    Message,
    OperationDrop,
    OperationPut,
    OutboxItem,
    PutControl,
    PutMessage,
    Refused,
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
    APPROVED,
    DENIED,
    PENDING,
    WITHDRAWN,
    decision_refusal,
    due_from,
    listed_state,
    settle_approvals,
    unfit_after,
)
from outlast.store.memory_task import TaskTable
from outlast.store.moment import EPOCH, Instant, LeaseClock, elapsed, lapsed, lease_end, to_micros
from outlast.store.protocol import SUSPECT_LAPSES, Claim, ClaimedRun, LiveWorker, RunImage
from outlast.store.task import TaskClaim, TaskKey, TaskRow

_BOOT = "memory"


@dataclass(slots=True)
class _Item:
    stamped: StampedMessage
    generation: int
    consumed: bool = False


@dataclass(slots=True)
class _Run:
    head: RunHead
    due: datetime | None
    due_set_at: datetime = EPOCH
    stopped: Instant | None = None
    calls: bool = False
    unfit_builds: tuple[str, ...] = ()
    journals: dict[int, list[StampedRow]] = field(default_factory=dict[int, list[StampedRow]])
    operations: dict[str, OperationPut] = field(default_factory=dict[str, OperationPut])
    approvals: dict[str, ApprovalRow] = field(default_factory=dict[str, ApprovalRow])
    former_approvals: list[ApprovalRow] = field(default_factory=list[ApprovalRow])

    def give_back(
        self, status: Status, due: datetime | None, stopped: Instant, now: datetime
    ) -> None:
        """Leave the run without an owner."""
        self.head = replace(self.head, status=status, owner=None, wake_at=None)
        self.due, self.due_set_at, self.stopped = due, now, stopped

    def is_due(self, now: datetime) -> bool:
        """Whether it can be claimed; what was set by a wall clock that was ahead of now means nothing any more."""
        return self.due is not None and (self.due <= now or self.due_set_at > now)


@dataclass(slots=True)
class _Worker:
    row: WorkerRow
    renewed: Instant


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
        self._outbox: dict[tuple[RunKey, int], OutboxItem] = {}
        self._workers: dict[WorkerId, _Worker] = {}
        self._tasks = TaskTable()
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
                verdicts[index] = self._apply(change, now)
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

    def _apply(self, change: Change, now: datetime) -> Verdict:
        part = unstorable_part(change)
        if part:
            return Refused(UNSTORABLE, part)
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
                for number in change.numbers:
                    self._outbox.pop((change.run, number), None)
                return Applied(now)
            case PutControl():
                current = self._controls.get((change.tenant, change.name), (0, b""))[0]
                if current != change.version:
                    return Conflict(version=current)
                self._controls[change.tenant, change.name] = (current + 1, change.body)
                return Applied(now)
            case FinishTask():
                return self._finish_task(change, now)

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
        at = max(now, head.changed_at)
        refusal = self._refusal(run, change)
        if refusal is not None:
            return refusal
        approvals = settle_approvals(change, run.approvals.get, now, at)
        if isinstance(approvals, Refused):
            return approvals
        run.approvals.update(approvals)
        self._write_owned(run, change, now, at)
        return Applied(at)

    def _refusal(self, run: _Run, change: RunChange) -> Refused | None:
        """Return why the change does not fit the run's journal, inbox or outbox."""
        next_seq = run.head.next_seq
        if [row.seq for row in change.entries] != [
            *range(next_seq, next_seq + len(change.entries))
        ]:
            return Refused("seq")
        for message_id in change.consumed:
            if not self._unread(run, message_id) or change.consumed.count(message_id) > 1:
                return Refused("message", message_id)
        for item in change.outbox:
            if (change.run, item.number) in self._outbox:
                return Refused("outbox", str(item.number))
        refusal = self._tasks.refusal(change.run, change.tasks)
        if refusal is not None:
            return refusal
        if change.head is not None and change.head.status.closed:
            unread = {item.stamped.message.message_id for item in self._unconsumed(run)}
            if not unread <= set(change.consumed):
                return Refused("mail")
        return None

    def _write_owned(self, run: _Run, change: RunChange, now: datetime, at: datetime) -> None:
        head = run.head
        run.journals[head.generation].extend(StampedRow(row, at) for row in change.entries)
        for message_id in change.consumed:
            item = self._inboxes[change.run][head.generation, message_id]
            item.consumed = True
            item.stamped = replace(item.stamped, message=replace(item.stamped.message, body=b""))
        for act in change.operations:
            if isinstance(act, OperationDrop):
                run.operations.pop(act.operation, None)
            else:
                run.operations[act.operation] = act
        for sent in change.outbox:
            self._outbox[change.run, sent.number] = sent
        self._tasks.write(change.run, head.generation, change.tasks, now)
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
        if change.head is not None:
            self._write_head(run, change.head, now)

    def _write_head(self, run: _Run, update: HeadUpdate, now: datetime) -> None:
        run.head = replace(
            run.head,
            status=update.status,
            reason=update.reason,
            wake_at=update.wake_at,
            note=update.note,
        )
        if update.status.closed:
            self._end(run, update.status)
        elif update.release:
            last = max((item.stamped.number for item in self._unconsumed(run)), default=0)
            seen = (
                (last if update.mail_seen is None else update.mail_seen)
                if update.ignore_mail
                else 0
            )
            run.calls = last > seen
            run.head = replace(run.head, owner=None)
            run.due, run.due_set_at = due_from(update, calls=run.calls, now=now), now
            run.stopped = self._lease.instant()

    def _end(self, run: _Run, status: Status) -> None:
        run.give_back(status, None, self._lease.instant(), self._clock.now())
        run.operations.clear()
        self._tasks.end(run.head.run)
        for approval_id, row in run.approvals.items():
            if row.state == PENDING:
                run.approvals[approval_id] = replace(row, state=WITHDRAWN)

    # unowned changes

    def _start(self, change: StartRun, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        former = None if run is None else run.head
        fits = change.generation == 1 if former is None else former.status.closed
        if not fits or (former is not None and change.generation != former.generation + 1):
            return Conflict(former)
        if change.worker is not None and not self._live(change.worker):
            return Fenced("the worker's lease has lapsed")
        if [row.seq for row in change.entries] != list(range(len(change.entries))):
            return Refused("seq")
        at = now if former is None else max(now, former.changed_at)
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
        )
        if run is None:
            run = self._runs[change.run] = _Run(head, None)
        run.former_approvals.extend(run.approvals.values())
        run.approvals.clear()
        run.head, run.calls, run.unfit_builds = head, False, ()
        run.due, run.due_set_at = None if change.worker else now, now
        run.head = replace(head, mail=bool(self._unconsumed(run)))
        run.journals[change.generation] = [StampedRow(row, at) for row in change.entries]
        return Applied(at, run.head.epoch if change.worker else 0)

    def _put_message(self, change: PutMessage, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        known = self._known(change.run, run, change.message)
        if known is not None:
            return Applied(known.stamped.at)
        if run is None and not change.early:
            return Refused("not_found")
        if run is not None and run.head.status.closed:
            return Refused("closed")
        self._deliver(change.run, change.message, now)
        return Applied(now)

    def _deliver(self, key: RunKey, message: Message, now: datetime) -> None:
        run = self._runs.get(key)
        inbox = self._inboxes.setdefault(key, {})
        stamped = StampedMessage(message, now, len(inbox) + 1)
        generation = _receiving(run)
        inbox[generation, message.message_id] = _Item(stamped, generation)
        if run is None:
            return
        run.head = replace(run.head, mail=True)
        run.calls, run.due_set_at = True, now
        if run.head.owner is None and run.head.status is not Status.PAUSED:
            run.due = now if run.due is None else min(run.due, now)

    def _decide(self, change: Decide, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        known = self._known(change.run, run, change.message)
        if known is not None:
            return Applied(known.stamped.at)
        row = None if run is None else run.approvals.get(change.approval_id)
        refusal = decision_refusal(row, change, now)
        if refusal or run is None or row is None:
            return Refused(refusal, change.approval_id)
        state = APPROVED if change.approved else DENIED
        run.approvals[change.approval_id] = replace(row, state=state, decided_at=now, by=change.by)
        self._deliver(change.run, change.message, now)
        return Applied(now)

    def _terminate(self, change: Terminate, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        if run is None:
            return Refused("not_found")
        if run.head.status.closed:
            return Refused("closed")
        at = max(now, run.head.changed_at)
        self._end(run, Status.TERMINATED)
        run.head = replace(run.head, reason=change.reason, epoch=run.head.epoch + 1, changed_at=at)
        return Applied(at)

    def _finish_task(self, change: FinishTask, now: datetime) -> Verdict:
        run = self._runs.get(change.run)
        if change.message is not None:
            known = self._known(change.run, run, change.message)
            if known is not None:
                return Applied(known.stamped.at)
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
            can_go_on = [key for _, key in parked if self._runs[key].is_due(now)]
            due_now = self._one_suspect(can_go_on, worker)
            taken = [self._take(self._runs[key], worker) for key in due_now[: max(limit, 0)]]
            left = [due for due, key in parked if due > now and self._runs[key].due is not None]
            next_due = next(iter(left), None)
            return Claim(tuple(taken), tuple(mail), next_due, now)

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
            paused = self._runs[row.key.run].head.status is Status.PAUSED
            return row.queue in queues and row.name in steps and not paused

        with self._lock:
            self._check_open()
            now = self._clock.now()
            if not self._live(worker):
                return TaskClaim((), (), None, now)
            self._bury()
            return self._tasks.claim(worker, wanted, now, limit=limit, known=known)

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
                run.give_back(status, None if paused else due, stopped, self._clock.now())
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
        self, run: RunKey, *, generation: int | None = None
    ) -> tuple[StampedRow, ...]:
        """Return the rows of one generation, by default the current one."""
        with self._lock:
            self._check_open()
            found = self._runs.get(run)
            if found is None:
                return ()
            return tuple(
                found.journals.get(found.head.generation if generation is None else generation, ())
            )

    async def approvals(
        self, tenant: str, *, pending: bool = True, run: RunKey | None = None
    ) -> list[ApprovalRow]:
        """Return approvals, oldest first."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            rows = [
                replace(row, state=listed_state(row, now))
                for key, found in self._runs.items()
                if key.tenant == tenant and run in (None, key)
                for row in (*found.former_approvals, *found.approvals.values())
                if not pending or listed_state(row, now) == PENDING
            ]
        return sorted(rows, key=lambda row: (row.requested_at, row.run, row.put.approval_id))

    async def workers(self) -> list[LiveWorker]:
        """Return the registered workers."""
        with self._lock:
            self._check_open()
            now = self._lease.instant()
            return [
                LiveWorker(known.row, self._live(worker), elapsed(known.renewed, now))
                for worker, known in sorted(self._workers.items())
            ]

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return version and body of a control row."""
        with self._lock:
            self._check_open()
            return self._controls.get((tenant, name))

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

    async def outbox(self, limit: int) -> list[tuple[RunKey, OutboxItem]]:
        """Return items that wait for the relay, oldest first per sender."""
        with self._lock:
            self._check_open()
            return [(key, item) for (key, _), item in self._outbox.items()][:limit]

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

    def _unconsumed(self, run: _Run) -> list[_Item]:
        inbox = self._inboxes.get(run.head.run, {})
        return [
            item
            for item in inbox.values()
            if not item.consumed and item.generation == run.head.generation
        ]

    def _unread(self, run: _Run, message_id: str) -> bool:
        item = self._inboxes.get(run.head.run, {}).get((run.head.generation, message_id))
        return item is not None and not item.consumed

    def _known(self, key: RunKey, run: _Run | None, message: Message) -> _Item | None:
        return self._inboxes.get(key, {}).get((_receiving(run), message.message_id))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(
                "the memory store is closed", hint="open a new one; its content is gone"
            )


def _offered(run: _Run, build: str) -> bool:
    return build not in run.unfit_builds or run.calls


def _receiving(run: _Run | None) -> int:
    """Return the generation that a message is for; one that comes before its run waits for the first."""
    return 1 if run is None else run.head.generation


def place_of(change: Change) -> tuple[str, str]:
    """Return by what changes are put in order: one order in which every store judges and locks."""
    return (
        (change.tenant, "")
        if isinstance(change, PutControl)
        else (change.run.tenant, change.run.run_id)
    )
