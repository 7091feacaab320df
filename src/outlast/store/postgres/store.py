"""A store in PostgreSQL: one thread writes, one renews leases, one claims, a few read; any number of processes share the schema.

Changes that wait while a commit is under way go into the next one together. Each thread has a connection of its own, so that nothing
waits for a lock of this process, and the event loop for nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import psycopg
from msgspec.structs import replace

from outlast.clock import Clock
from outlast.errors import StoreError, StoreUnavailableError
from outlast.journal.entry import StampedRow
from outlast.store.bound import keeps
from outlast.store.change import (
    ApprovalRow,
    Change,
    MessageState,
    OperationPut,
    OutboxItem,
    RunHead,
    RunKey,
    StampedMessage,
    Status,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.figures import Figures
from outlast.store.group import GroupCommit
from outlast.store.lane import Lane
from outlast.store.notice import NoticeRow
from outlast.store.postgres.claim import Leasing
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.commit import Committing
from outlast.store.postgres.failure import AGAIN, failure_of, is_lost
from outlast.store.postgres.figures import figures
from outlast.store.postgres.history import History
from outlast.store.postgres.listen import Hints
from outlast.store.postgres.read import ApprovalFilter, Reading
from outlast.store.postgres.recall import Recall
from outlast.store.postgres.schema import bring_up_to_date, check_server
from outlast.store.postgres.session import OF_RENEWALS, Session
from outlast.store.postgres.setting import PostgresSetting
from outlast.store.postgres.task_claim import TaskLeasing
from outlast.store.protocol import Claim, DoubtRow, GenerationRow, LiveWorker, RunImage
from outlast.store.request import RequestRow, RequestState
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter
from outlast.store.task import TaskClaim, TaskKey, TaskRow

T = TypeVar("T")

_MOST_CLAIMED = 1 << 40
_TRIES = 5
READERS = 3
"""Threads that read: what is loaded for many runs at once does not wait for one round trip after the other."""


async def open_postgres(
    setting: PostgresSetting, *, clock: Clock, create: bool = True
) -> PostgresStore:
    """Open the store in a schema, and bring its tables up to date.

    Args:
        clock: Of this machine: what carries the server's time on between two sights of it.
        create: Make the schema when there is none.

    Raises:
        StoreUnavailableError: It cannot be reached or used, or may lose commits.
        StoreVersionError: A newer version wrote it.
    """
    store = PostgresStore(setting, clock)
    try:
        await store.connect(create=create)
    except BaseException:
        await store.close()
        raise
    return store


class PostgresStore:
    """Keeps runs in a schema of a PostgreSQL database. Made by `open_postgres`."""

    def __init__(self, setting: PostgresSetting, clock: Clock) -> None:
        self._setting = setting
        self._clock = StoreClock(clock)
        self._process = os.getpid()
        self._hints = Hints(setting)
        self._closed = False
        recall = self._recall = Recall()
        self._history = History(setting, self._clock, recall)
        self._writer = Session(setting, self._write_anew)
        self._keeper = Session(setting, self._history.look)
        renewing = replace(setting, conninfo=setting.renewing)
        self._renewer = Session(renewing, self._history.look, OF_RENEWALS)
        self._committing = Committing(self._writer, self._clock, recall, setting.place, _pause)
        self._leasing = Leasing(self._keeper, self._clock)
        self._renewal = Leasing(self._renewer, self._clock)
        self._commits = GroupCommit(self._committing.write)
        self._writing = self._lane("write", self._writer)
        self._keeping = self._lane("claim", self._keeper)
        self._renewing = self._lane("renew", self._renewer)
        self._readers = [Session(setting, self._history.look) for _ in range(READERS)]
        self._reading = [
            self._lane(f"read-{place}", one) for place, one in enumerate(self._readers)
        ]
        self._next_reader = itertools.cycle(range(READERS))
        for lane in self._lanes:
            lane.start()

    def _lane(self, name: str, session: Session) -> Lane:
        return Lane(
            self._setting.place,
            f"outlast-postgres-{name}",
            tell=self._tell,
            idle=_nothing,
            last=session.close,
        )

    @property
    def _lanes(self) -> list[Lane]:
        return [*self._reading, self._keeping, self._renewing, self._writing]

    async def connect(self, *, create: bool = True) -> None:
        """Reach the server, and bring the schema up to date."""

        def prepare() -> None:
            check_server(self._writer, self._setting)
            setting = self._setting
            if not create:
                _require_schema(self._writer, setting)
            bring_up_to_date(self._writer, setting)
            Reading(self._writer, self._clock).now()
            self._history.check(self._writer)

        await self._on(self._writing, prepare)
        self._hints.start()

    # writing

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write many changes in one transaction; see `Store.commit`."""
        self._check_process()
        if not changes:
            return []
        waiting, first = self._commits.add(changes)
        if first:
            self._submit_flush()
        return await asyncio.wrap_future(waiting)

    def _submit_flush(self) -> None:
        try:
            self._writing.submit(self._flush)
        except StoreUnavailableError as error:
            self._commits.fail(error)

    def _flush(self) -> None:
        more = self._commits.flush()
        self._hints.changed()
        if more:
            self._submit_flush()

    async def register(self, row: WorkerRow) -> None:
        """Announce a worker; its lease begins."""
        await self._on(self._keeping, lambda: self._disturbed(lambda: self._leasing.register(row)))
        self._hints.changed()

    def renew(self, worker: WorkerId) -> bool:
        """Renew a worker's lease, beside all commits and claims; False when it has lapsed.

        Raises:
            StoreUnavailableError: The store is closed, or the write failed.
        """
        self._check_process()
        return self._renewing.submit(lambda: self._renewed(worker)).result()

    async def report(self, worker: WorkerId, body: bytes) -> None:
        """Keep what a worker says of itself."""
        await self._on(self._keeping, lambda: self._leasing.report(worker, body))

    async def retire(self, worker: WorkerId) -> None:
        """Forget a worker that ends, and give its runs back."""
        await self._on(self._keeping, lambda: self._disturbed(lambda: self._leasing.retire(worker)))
        self._hints.changed()

    async def claim(
        self, worker: WorkerId, workflows: frozenset[str], limit: int, *, released: bool = False
    ) -> Claim:
        """Take runs that have something to do and no living owner; see `Store.claim`."""
        names = sorted(filter(keeps, workflows))
        return await self._on(
            self._keeping,
            lambda: self._disturbed(
                lambda: self._leasing.claim(
                    worker, names, min(limit, _MOST_CLAIMED), released=released
                )
            ),
        )

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
        places = (sorted(filter(keeps, queues)), sorted(filter(keeps, steps)))
        leasing = TaskLeasing(self._keeper, self._clock)
        return await self._on(
            self._keeping,
            lambda: self._disturbed(
                lambda: leasing.claim(worker, places, min(limit, _MOST_CLAIMED), known)
            ),
        )

    # reading

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
        return await self._read(
            lambda reading: reading.doubts(tenant, effect, workflow, limit, after or ("", ""))
        )

    async def sticky(self, tenant: str, wanted: StickyFilter) -> list[StickyRow]:
        """Return a page of the decisions that stick."""
        return await self._read(lambda reading: reading.sticky(tenant, wanted))

    async def notices(self, run: RunKey) -> list[NoticeRow]:
        """Return the notices of the run's requests that wait."""
        return await self._read(lambda reading: reading.notices(run))

    async def next_notice(self, tenant: str = "") -> datetime | None:
        """Return when the next notice is due."""
        return await self._read(lambda reading: reading.next_notice(tenant))

    async def operation(self, run: RunKey, operation: str) -> OperationPut | None:
        """Return the row of one open operation."""
        return await self._read(lambda reading: reading.operation(run, operation))

    async def tasks(self, run: RunKey) -> tuple[TaskRow, ...]:
        """Return the tasks of the run's remote steps, by operation."""
        return await self._read(lambda reading: reading.tasks(run))

    async def owned(self, worker: WorkerId) -> list[RunHead]:
        """Return the runs that a worker owns, by run."""
        return await self._read(lambda reading: reading.owned(worker))

    async def head(self, run: RunKey) -> RunHead | None:
        """Return the run's row."""
        return await self._read(lambda reading: reading.head(run))

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
        return await self._read(
            lambda reading: reading.heads(tenant, statuses, workflow, limit, before)
        )

    async def journal(
        self, run: RunKey, *, generation: int | None = None, after: int = -1
    ) -> tuple[StampedRow, ...]:
        """Return the rows of one generation, by default the current one."""
        return await self._read(lambda reading: reading.journal(run, generation, after))

    async def latest(
        self, run: RunKey, kind: str, name: str, *, generation: int | None = None
    ) -> StampedRow | None:
        """Return the last row of this kind and name."""
        return await self._read(lambda reading: reading.latest(run, generation, kind, name))

    async def answer(self, run: RunKey, message_id: str) -> MessageState | None:
        """Return what has become of an update."""
        return await self._read(lambda reading: reading.answer(run, message_id))

    async def generations(self, run: RunKey, *, limit: int = 100) -> tuple[GenerationRow, ...]:
        """Return the run's generations, newest first."""
        return await self._read(lambda reading: reading.generations(run, limit))

    async def last_entry(self, run: RunKey, generation: int) -> StampedRow | None:
        """Return the last row of one generation's journal."""
        return await self._read(lambda reading: reading.last_entry(run, generation))

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
        wanted = ApprovalFilter(pending, run, limit, after)
        return await self._read(lambda reading: reading.approvals(tenant, wanted))

    async def figures(self, tenant: str = "") -> Figures:
        """Return what waits, and for how long; see `StoreReader.figures`."""
        place = next(self._next_reader)
        session = self._readers[place]
        return await self._on(
            self._reading[place],
            lambda: self._again(lambda: figures(session, self._clock, tenant)),
        )

    async def workers(self) -> list[LiveWorker]:
        """Return the registered workers, and whether they live."""
        return await self._read(lambda reading: reading.workers())

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return version and body of a control row."""
        return await self._read(lambda reading: reading.control(tenant, name))

    async def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request."""
        return await self._read(lambda reading: reading.request(tenant, request_id))

    async def requests(
        self,
        tenant: str,
        *,
        states: frozenset[RequestState],
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> list[RequestRow]:
        """Return a page of the tenant's requests, newest first, without their answers."""
        return await self._read(lambda reading: reading.requests(tenant, states, limit, before))

    async def load(self, run: RunKey) -> RunImage | None:
        """Return everything about a run's current generation."""
        return await self._read(lambda reading: reading.load(run))

    async def mail(self, run: RunKey) -> tuple[StampedMessage, ...]:
        """Return the run's messages that are not yet consumed, in order of arrival."""
        return await self._read(lambda reading: reading.mail(run))

    async def outbox(
        self, limit: int, *, run: RunKey | None = None, age: timedelta = timedelta(0)
    ) -> list[tuple[RunKey, OutboxItem]]:
        """Return items that wait for the relay, oldest first."""
        return await self._read(lambda reading: reading.outbox(limit, run, age))

    async def timeline(self) -> str:
        """Return the id of this schema's line of history."""
        return await self._read(lambda reading: reading.timeline())

    async def begin_timeline(self, why: str) -> str:
        """Say that the store was put back to an earlier state; see `Store.begin_timeline`."""
        begun = secrets.token_hex(16)
        await self._on(self._keeping, lambda: self._leasing.begin_timeline(begun, why))
        self._hints.changed()
        return begun

    def now(self) -> datetime:
        """Return the server's time, as this process can tell it without asking."""
        return self._clock.now()

    def describe(self) -> str:
        """Return where the store is, without user and password."""
        return self._setting.place

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the running loop when any process may have committed; return how to stop."""
        self._check_process()
        return self._hints.subscribe(wake)

    async def close(self) -> None:
        """Finish what is queued, and close every connection. Idempotent."""
        if os.getpid() != self._process or self._closed:
            return
        self._closed = True
        for lane in self._lanes:
            lane.stop()
        for lane in self._lanes:
            await asyncio.shield(asyncio.wrap_future(lane.ended))
            lane.join()
        await asyncio.get_running_loop().run_in_executor(None, self._hints.close)

    # on the threads

    def _write_anew(self, session: Session) -> None:
        """A connection that writes was made: what was known of another one counts no more."""
        self._recall.clear()
        self._history.look(session)

    def _disturbed(self, function: Callable[[], T]) -> T:
        """Run a verb of workers; another transaction that came between lets it be tried again."""
        for number in range(_TRIES):
            try:
                return self._again(function)
            except AGAIN:
                _pause(number)
        return function()

    def _tell(self, error: BaseException) -> StoreError | None:
        place = self._setting.place
        return failure_of(error, place) if isinstance(error, psycopg.Error) else None

    def _again(self, function: Callable[[], T]) -> T:
        """Run what may be run twice; a connection that had died while it was idle is made anew."""
        try:
            return function()
        except psycopg.Error as error:
            if not is_lost(error):
                raise
        return function()

    def _renewed(self, worker: WorkerId) -> bool:
        """Renew; a connection that cannot be made is not tried for twice, as that would take as long again."""
        if self._renewer.is_closed:
            return self._renewal.renew(worker)
        return self._again(lambda: self._renewal.renew(worker))

    async def _read(self, ask: Callable[[Reading], T]) -> T:
        place = next(self._next_reader)
        reading = Reading(self._readers[place], self._clock)
        return await self._on(self._reading[place], lambda: self._again(lambda: ask(reading)))

    async def _on(self, lane: Lane, function: Callable[[], T]) -> T:
        self._check_process()
        return await asyncio.wrap_future(lane.submit(function))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreUnavailableError(
                f"{self._setting.place} was opened before this process was forked; connections do not survive a fork",
                hint="open the store in the child, or start children with the `spawn` method",
            )


def _require_schema(session: Session, setting: PostgresSetting) -> None:
    found = session.rows("SELECT 1 FROM pg_namespace WHERE nspname = %b", (setting.schema,))
    if not found:
        raise StoreUnavailableError(
            f"there is no store at {setting.place}",
            hint="check the URL. `outlast migrate`, `outlast worker MODULE` and outlast.open() create it: run one of them first, and try "
            "again; or let the client do so, with outlast.connect(…, create=True)",
        )


def _pause(number: int) -> None:
    """Wait a little, longer each time, and each thread for another while."""
    time.sleep(min(0.001 * 2**number, 0.25) * (0.5 + (threading.get_ident() % 97) / 97))


def _nothing() -> None:
    """There is nothing to do in idle time."""
