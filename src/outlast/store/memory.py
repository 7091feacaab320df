"""A store in memory: for tests, simulation and `memory://`. Nothing outlives the process.

It keeps the whole contract, on an injected clock and without threads of its own, so that a seeded scheduler can drive several
workers against one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import StampedRow
from outlast.store.change import (
    ApprovalRow,
    Change,
    MessageKind,
    MessageState,
    OperationPut,
    OutboxItem,
    Restored,
    RunHead,
    RunKey,
    StampedMessage,
    Status,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.condition import PENDING, RECALLS, listed_state
from outlast.store.figures import Figures
from outlast.store.judge import Judge
from outlast.store.judge_owned import sticky_run
from outlast.store.memory_figures import figures_of
from outlast.store.memory_rows import MemoryRows, MemoryRun
from outlast.store.memory_task import claim_tasks, give_back_tasks
from outlast.store.moment import Instant, LeaseClock, elapsed, lapsed, lease_end, to_micros
from outlast.store.notice import NoticeRow
from outlast.store.protocol import (
    SUSPECT_LAPSES,
    Claim,
    ClaimedRun,
    DoubtRow,
    GenerationRow,
    LiveWorker,
    RunImage,
)
from outlast.store.request import RequestRow, RequestState
from outlast.store.request_condition import listed
from outlast.store.restoration import (
    EVERYBODY,
    RESTORATION,
    Restoration,
    moment_of,
    put_back,
)
from outlast.store.rows import Moment, RunState
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter
from outlast.store.task import TaskClaim, TaskKey, TaskRow

_BOOT = "memory"


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
        self._rows = MemoryRows(self._live, clock.now)
        self._workers: dict[WorkerId, _Worker] = {}
        self._subscribers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._timeline = f"memory-{to_micros(clock.now())}"
        self._begun = 0
        self._closed = False

    @property
    def runs(self) -> dict[RunKey, MemoryRun]:
        """The rows of each run: for tests, which may change them behind the store's back."""
        return {run.key: run for run, _ in self._rows.states()}

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write many changes at once; see `Store.commit`."""
        with self._lock:
            self._check_open()
            judge = Judge(self._rows, Moment(self._clock.now(), self._lease.instant()))
            verdicts, renewed = judge.judge(changes)
            for worker in renewed:
                self._workers[worker].renewed = self._lease.instant()
        self._wake()
        return verdicts

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

    async def claim(
        self, worker: WorkerId, workflows: frozenset[str], limit: int, *, released: bool = False
    ) -> Claim:
        """Take runs that have something to do and no living owner; see `Store.claim`."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            if not self._live(worker):
                return Claim((), (), None, now)
            self._bury()
            build = self._workers[worker].row.build
            states = self._rows.states()
            owned = [state for _, state in states if state.head.owner == worker]
            mail = sorted(state.head.run for state in owned if state.head.mail)
            parked = sorted(
                (state.due, run.key)
                for run, state in states
                if state.due is not None
                and state.head.workflow in workflows
                and _offered(state, build)
                and (state.head.released or not released)
            )
            # Those whose time means nothing come last, by the time at which it was set.
            can_go_on = [key for due, key in parked if due <= now]
            ahead = sorted((self._state(key).due_set_at, key) for due, key in parked if due > now)
            can_go_on += [key for set_at, key in ahead if set_at > now]
            due_now = self._one_suspect(can_go_on, owned)[: max(limit, 0)]
            taken = tuple(self._take(key, worker, paused=released) for key in due_now)
            left = [due for due, key in parked if due > now and key not in due_now]
            held = len(owned) + len(taken)
            relay = self._rows.next_relay(now)
            return Claim(taken, tuple(mail), next(iter(left), None), now, held, relay)

    def _state(self, key: RunKey) -> RunState:
        state = self._rows.run(key.tenant, key.run_id).state
        assert state is not None
        return state

    def _one_suspect(self, keys: list[RunKey], owned: list[RunState]) -> list[RunKey]:
        """Return the runs without those suspects that must wait for their turn to be alone."""
        room = not any(state.head.lapses >= SUSPECT_LAPSES for state in owned)
        kept: list[RunKey] = []
        for key in keys:
            if self._state(key).head.lapses < SUSPECT_LAPSES:
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
            return claim_tasks(self._rows, worker, wanted, now, limit=limit, known=known)

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
                DoubtRow(run.key, row.operation, row.name)
                for run, state in self._rows.states()
                for row in run.operations.values()
                if run.key.tenant == tenant
                and row.in_doubt
                and effect in {"", row.name}
                and workflow in {"", state.head.workflow}
            ]
        found.sort(key=lambda one: (one.run.run_id, one.operation))
        return [one for one in found if (one.run.run_id, one.operation) > (after or ("", ""))][
            : max(limit, 0)
        ]

    async def sticky(self, tenant: str, wanted: StickyFilter) -> list[StickyRow]:
        """Return a page of the decisions that stick."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            state = None if wanted.run is None else self._found(wanted.run)
            run = None if state is None else sticky_run(state.head)
            rows = self._rows.stickies.get(tenant, {}).values()
            found = sorted(
                (row for row in rows if wanted.takes(row, run, now)), key=lambda row: row.key
            )
            return found[: None if wanted.limit is None else max(wanted.limit, 0)]

    async def notices(self, run: RunKey) -> list[NoticeRow]:
        """Return the notices of the run's requests that wait."""
        with self._lock:
            self._check_open()
            found = self._rows.find(run)
            rows = [] if found is None else list(found.notices.values())
            return sorted(rows, key=lambda row: (row.generation, row.approval_id, row.due_at))

    async def next_notice(self, tenant: str = "") -> datetime | None:
        """Return when the next notice is due."""
        with self._lock:
            self._check_open()
            return next((row.due_at for row in self._rows.open_notices(tenant)), None)

    async def operation(self, run: RunKey, operation: str) -> OperationPut | None:
        """Return the row of one open operation."""
        with self._lock:
            self._check_open()
            found = self._rows.find(run)
            return None if found is None else found.operations.get(operation)

    async def figures(self, tenant: str = "") -> Figures:
        """Return what waits, and for how long; see `StoreReader.figures`."""
        with self._lock:
            self._check_open()
            living = frozenset(filter(self._live, self._workers))
            return replace(
                figures_of(self._rows, tenant, living, self._clock.now()),
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
            found = self._rows.find(run)
            return () if found is None else _tasks(found)

    async def owned(self, worker: WorkerId) -> list[RunHead]:
        """Return the runs that a worker owns, by run."""
        with self._lock:
            self._check_open()
            states = self._rows.states()
            heads = [state.head for _, state in states if state.head.owner == worker]
        return sorted(heads, key=lambda head: head.run)

    def _take(self, key: RunKey, worker: WorkerId, *, paused: bool) -> ClaimedRun:
        state = self._state(key)
        head = replace(
            state.head,
            owner=worker,
            epoch=state.head.epoch + 1,
            status=Status.RUNNING,
            reason="",
            wake_at=None,
            released=state.head.released and paused,
        )
        run = self._rows.run(key.tenant, key.run_id)
        run.state = replace(state, head=head, due=None, calls=False)
        stopped = state.stopped
        return ClaimedRun(
            head, None if stopped is None else elapsed(stopped, self._lease.instant())
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
        now = self._clock.now()
        give_back_tasks(self._rows, worker, now, lapses=lapses)
        for run, state in self._rows.states():
            if state.head.owner == worker:
                run.state = _given_back(run, state, due, stopped, lapses)
                run.state = replace(run.state, due_set_at=now)

    # reading

    async def head(self, run: RunKey) -> RunHead | None:
        """Return the run's row."""
        with self._lock:
            self._check_open()
            state = self._found(run)
            return None if state is None else state.head

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
                state.head
                for run, state in self._rows.states()
                if run.key.tenant == tenant
                and (not statuses or state.head.status in statuses)
                and (not workflow or state.head.workflow == workflow)
                and (before is None or (state.head.created_at, run.key.run_id) < before)
            ]
        found.sort(key=lambda head: (head.created_at, head.run.run_id), reverse=True)
        return found[:limit]

    async def journal(
        self, run: RunKey, *, generation: int | None = None, after: int = -1
    ) -> tuple[StampedRow, ...]:
        """Return the rows of one generation, by default the current one."""
        with self._lock:
            self._check_open()
            return tuple(self._journal(run, generation)[max(after + 1, 0) :])

    async def latest(
        self, run: RunKey, kind: str, name: str, *, generation: int | None = None
    ) -> StampedRow | None:
        """Return the last row of this kind and name."""
        with self._lock:
            self._check_open()
            rows = reversed(self._journal(run, generation))
            return next((one for one in rows if (one.row.kind, one.row.name) == (kind, name)), None)

    async def answer(self, run: RunKey, message_id: str) -> MessageState | None:
        """Return what has become of an update."""
        with self._lock:
            self._check_open()
            run_rows = self._rows.find(run)
            found = [
                item
                for (_, known), item in ({} if run_rows is None else run_rows.inbox).items()
                if known == message_id and item.stamped.message.kind is MessageKind.UPDATE
            ]
            if not found:
                return None
            last = max(found, key=lambda item: item.incarnation)
            state = self._found(run)
            return MessageState(
                last.incarnation,
                last.consumed,
                over=state is not None
                and (state.head.status.closed or state.head.incarnation > last.incarnation),
                answered=last.answer is not None,
                answer=last.answer or b"",
            )

    async def generations(self, run: RunKey, *, limit: int = 100) -> tuple[GenerationRow, ...]:
        """Return the run's generations, newest first."""
        with self._lock:
            self._check_open()
            found = self._rows.find(run)
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
                for found in self._rows.all_rows()
                if found.key.tenant == tenant and run in (None, found.key)
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
            return self._rows.controls.get((tenant, name))

    async def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request."""
        with self._lock:
            self._check_open()
            row = self._rows.request(tenant, request_id)
            return None if row is None else listed(row, self._clock.now())

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
            rows = (
                listed(row, now) for row in self._rows.requests.values() if row.tenant == tenant
            )
            found = [
                replace(row, answer=b"")
                for row in rows
                if row.state in states and (before is None or _begun(row) < before)
            ]
        return sorted(found, key=_begun, reverse=True)[: max(limit, 0)]

    async def load(self, run: RunKey) -> RunImage | None:
        """Return everything about a run's current generation."""
        with self._lock:
            self._check_open()
            found = self._rows.find(run)
            if found is None or found.state is None:
                return None
            head = found.state.head
            return RunImage(
                head,
                tuple(found.rows(None)),
                tuple(found.operations[operation] for operation in sorted(found.operations)),
                tuple(item.stamped for item in found.unread(head.incarnation)),
                tuple(found.approvals[approval] for approval in sorted(found.approvals)),
                _tasks(found),
            )

    async def mail(self, run: RunKey) -> tuple[StampedMessage, ...]:
        """Return the run's messages that are not yet consumed, in order of arrival."""
        with self._lock:
            self._check_open()
            found = self._rows.find(run)
            if found is None or found.state is None:
                return ()
            return tuple(item.stamped for item in found.unread(found.state.head.incarnation))

    async def outbox(
        self, limit: int, *, run: RunKey | None = None, age: timedelta = timedelta(0)
    ) -> list[tuple[RunKey, OutboxItem]]:
        """Return items that wait for the relay, oldest first."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            found = [
                (key, item)
                for at, key, item in self._rows.items()
                if run in (None, key) and (at <= now - age or at > now)
            ]
            return found[: max(limit, 0)]

    async def last_entry(self, run: RunKey, generation: int) -> StampedRow | None:
        """Return the last row of one generation's journal."""
        with self._lock:
            self._check_open()
            rows = self._journal(run, generation)
            return rows[-1] if rows else None

    def now(self) -> datetime:
        """Return the store's time."""
        return self._clock.now()

    async def timeline(self) -> str:
        """Return the id of this store's line of history."""
        return self._timeline

    async def begin_timeline(self, why: str) -> str:
        """Say that the store was put back to an earlier state; see `Store.begin_timeline`."""
        with self._lock:
            self._check_open()
            now, former = self._clock.now(), self._timeline
            self._begun += 1
            self._timeline = f"memory-{to_micros(now)}-{self._begun}"
            states = self._rows.states()
            newest = max((state.head.changed_at for _, state in states), default=None)
            until = moment_of(newest, now)
            for worker in list(self._workers):
                del self._workers[worker]
                self._give_back(worker, now, self._lease.instant(), lapses=0)
            for run, state in self._rows.states():
                if not state.head.status.closed:
                    run.state = replace(state, head=_held_back(state.head, now, until))
            version, body = self._rows.controls.get((EVERYBODY, RESTORATION), (0, None))
            restoration = Restoration(self._timeline, former, now, until, why)
            body = put_back(body, restoration)
            self._rows.put_control(EVERYBODY, RESTORATION, version + 1, body)
        self._wake()
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

    def _found(self, key: RunKey) -> RunState | None:
        run = self._rows.find(key)
        return None if run is None else run.state

    def _journal(self, key: RunKey, generation: int | None) -> list[StampedRow]:
        run = self._rows.find(key)
        return [] if run is None else run.rows(generation)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(
                "the memory store is closed", hint="open a new one; its content is gone"
            )


def _given_back(
    run: MemoryRun, state: RunState, due: datetime, stopped: Instant, lapses: int
) -> RunState:
    """Return the row of a run that its worker has given back, or has died with."""
    head = state.head
    is_paused = head.status is Status.PAUSED
    unread = run.unread(head.incarnation)
    is_offered = not is_paused or any(one.stamped.message.kind in RECALLS for one in unread)
    status = Status.PAUSED if is_paused else Status.READY
    return replace(
        state,
        head=replace(head, status=status, owner=None, wake_at=None, lapses=head.lapses + lapses),
        due=due if is_offered else None,
        stopped=stopped,
        calls=head.mail,
    )


def _held_back(head: RunHead, now: datetime, until: datetime) -> RunHead:
    """Return the row of a run that is older than a restore."""
    known = head.restored
    since = until if known is None else min(until, known.until)
    return replace(head, released=False, restored=Restored(max(now, head.changed_at), since))


def _offered(state: RunState, build: str) -> bool:
    return build not in state.unfit_builds or state.calls


def _tasks(run: MemoryRun) -> tuple[TaskRow, ...]:
    return tuple(task.row for task in run.tasks())


def _asked(row: ApprovalRow) -> tuple[datetime, str, str]:
    return row.requested_at, row.run.run_id, row.put.approval_id


def _begun(row: RequestRow) -> tuple[datetime, str]:
    return row.started_at, row.request_id
