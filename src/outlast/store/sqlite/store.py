"""A store in one SQLite file: one thread writes, one reads, any number of processes share the file.

Changes that wait while a transaction is under way go into the next one together. Nothing is answered as applied before it is on
the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import apsw

from outlast.clock import Clock
from outlast.errors import StoreError, StoreUnavailableError
from outlast.journal.entry import StampedRow
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
    Unknown,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.figures import Figures
from outlast.store.group import GroupCommit
from outlast.store.lane import Lane
from outlast.store.moment import Instant, LeaseClock, to_micros
from outlast.store.notice import NoticeRow
from outlast.store.protocol import Claim, DoubtRow, GenerationRow, LiveWorker, RunImage
from outlast.store.request import RequestRow, RequestState
from outlast.store.sqlite import figures, lease, notice, read, request, sticky, timeline
from outlast.store.sqlite.checkpoint import Checkpointer
from outlast.store.sqlite.connection import (
    SQLiteOptions,
    absolute,
    check_place,
    open_reader,
    open_writer,
)
from outlast.store.sqlite.damage import naming
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.failure import failure_of
from outlast.store.sqlite.lock import LockFolder
from outlast.store.sqlite.scope import Writing
from outlast.store.sqlite.task_claim import TaskClaiming
from outlast.store.sqlite.timeline import Seen
from outlast.store.sqlite.transaction import write_all
from outlast.store.sqlite.watch import Watch
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter
from outlast.store.task import TaskClaim, TaskKey, TaskRow

T = TypeVar("T")

logger = logging.getLogger("outlast.store")

_PAUSE_SECONDS = 0.001
_MAY_BE_WRITTEN = frozenset({apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC})
"""After these the whole transaction may lie in the log although its commit was not confirmed."""


async def open_sqlite(
    path: str | os.PathLike[str],
    *,
    clock: Clock,
    create: bool = True,
    options: SQLiteOptions | None = None,
) -> SQLiteStore:
    """Open the database at `path`, and bring its schema up to date.

    Args:
        path: The file; resolved to an absolute path.
        clock: Wall time for timers and deadlines, boot time for leases.
        options: Timeouts and permissions; the defaults suit a local disk.
        create: Make the file when there is none.

    Raises:
        StoreUnavailableError: It cannot be opened here or now, or is no database of Outlast.
        StoreVersionError: A newer version wrote it.
        StoreCorruptError: It is damaged.
    """
    options = options or SQLiteOptions()
    place = absolute(path)
    check_place(place, options, create=create)
    store = SQLiteStore(place, clock, options)
    try:
        await store.connect()
    except BaseException:
        await store.close()
        raise
    return store


class SQLiteStore:
    """Keeps runs in one SQLite file. Made by `open_sqlite`.

    Args:
        path: Absolute.
    """

    def __init__(self, path: str, clock: Clock, options: SQLiteOptions) -> None:
        self._path = path
        self._clock = clock
        self._options = options
        self._lease = LeaseClock(clock)
        self._process = os.getpid()
        self._locks = LockFolder(path)
        self._seen = Seen(path)
        self._open_writers: list[Database] = []
        self._open_readers: list[Database] = []
        self._checkpointer: Checkpointer | None = None
        self._abandoned = False
        self._writing = Lane(
            path, "outlast-sqlite-write", tell=self._tell, idle=self._idle, last=self._end_writing
        )
        self._reading = Lane(
            path, "outlast-sqlite-read", tell=self._tell, idle=_nothing, last=self._end_reading
        )
        self._commits = GroupCommit(self._write)
        self._watch = Watch(self._writing, options.poll)
        self._writing.start()
        self._reading.start()

    async def connect(self) -> None:
        """Open both connections, each on its own thread."""
        await self._on(self._writing, self._open_writer)
        await self._on(self._reading, self._open_reader)

    # writing

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write many changes in one transaction; see `Store.commit`."""
        self._check_process()
        if not changes:
            return []
        waiting, first = self._commits.add(changes)
        if first:
            try:
                self._writing.submit(self._flush)
            except StoreUnavailableError as error:
                self._commits.fail(error)
        return await asyncio.wrap_future(waiting)

    async def register(self, row: WorkerRow) -> None:
        """Announce a worker; its lease begins, and its life is proved by a lock from now on."""

        def hold_and_write() -> None:
            try:
                # All within the transaction: so nobody sweeps a lock away that is taken and not yet registered.
                with self._writer.immediate():
                    self._hold(row.worker)
                    lease.register(self._now_writing(), row)
                    self._locks.sweep(lease.registered(self._writer))
            except BaseException:
                self._locks.forget(row.worker)
                raise

        await self._on(self._writing, hold_and_write)
        self._watch.wake()

    def renew(self, worker: WorkerId) -> bool:
        """Renew a worker's lease, ahead of all commits that wait; False when it has lapsed.

        Raises:
            StoreUnavailableError: The store is closed, or the write failed.
        """
        self._check_process()

        def write() -> bool:
            with self._writer.immediate():
                return lease.renew(self._now_writing(), worker)

        return self._writing.submit(write, urgent=True).result()

    async def report(self, worker: WorkerId, body: bytes) -> None:
        """Keep what a worker says of itself."""

        def write() -> None:
            with self._writer.immediate():
                lease.report(self._writer, worker, body)

        await self._on(self._writing, write)

    async def retire(self, worker: WorkerId) -> None:
        """Forget a worker that ends, and give its runs back."""

        def write() -> None:
            with self._writer.immediate():
                lease.retire(self._now_writing(), worker)
            self._locks.forget(worker)

        await self._on(self._writing, write)
        self._watch.wake()

    async def claim(
        self, worker: WorkerId, workflows: frozenset[str], limit: int, *, released: bool = False
    ) -> Claim:
        """Take runs that have something to do and no living owner; see `Store.claim`."""

        def look() -> Claim:
            claiming = lease.Claiming(
                self._writer, self._locks, worker, self._moment, released=released
            )
            with self._naming():
                return claiming.claim(workflows, limit)

        return await self._on(self._writing, look)

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

        def look() -> TaskClaim:
            claiming = TaskClaiming(self._writer, self._locks, worker, self._moment)
            with self._naming():
                return claiming.claim_tasks(queues, steps, limit, known)

        return await self._on(self._writing, look)

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
            lambda database: read.doubts(
                database, tenant, (effect, workflow), limit, after or ("", "")
            )
        )

    async def sticky(self, tenant: str, wanted: StickyFilter) -> list[StickyRow]:
        """Return a page of the decisions that stick."""
        now = self._clock.now()
        return await self._read(lambda database: sticky.page(database, tenant, wanted, now))

    async def notices(self, run: RunKey) -> list[NoticeRow]:
        """Return the notices of the run's requests that wait."""
        return await self._read(lambda database: notice.of_run(database, run))

    async def next_notice(self, tenant: str = "") -> datetime | None:
        """Return when the next notice is due."""
        return await self._read(lambda database: notice.next_due(database, tenant))

    async def operation(self, run: RunKey, operation: str) -> OperationPut | None:
        """Return the row of one open operation."""
        return await self._read(lambda database: read.operation(database, run, operation))

    async def tasks(self, run: RunKey) -> tuple[TaskRow, ...]:
        """Return the tasks of the run's remote steps, by operation."""
        return await self._read(lambda database: read.tasks(database, run))

    async def owned(self, worker: WorkerId) -> list[RunHead]:
        """Return the runs that a worker owns, by run."""
        return await self._read(lambda database: read.owned(database, worker))

    async def head(self, run: RunKey) -> RunHead | None:
        """Return the run's row."""
        return await self._read(lambda database: read.head(database, run))

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
        behind = None if before is None else (to_micros(before[0]), before[1])
        wanted = read.HeadFilter(statuses, workflow, limit, behind)
        return await self._read(lambda database: read.heads(database, tenant, wanted))

    async def journal(
        self, run: RunKey, *, generation: int | None = None, after: int = -1
    ) -> tuple[StampedRow, ...]:
        """Return the rows of one generation, by default the current one."""
        return await self._read(lambda database: read.journal(database, run, generation, after))

    async def latest(
        self, run: RunKey, kind: str, name: str, *, generation: int | None = None
    ) -> StampedRow | None:
        """Return the last row of this kind and name."""
        return await self._read(
            lambda database: read.latest(database, run, generation, (kind, name))
        )

    async def answer(self, run: RunKey, message_id: str) -> MessageState | None:
        """Return what has become of an update."""
        return await self._read(lambda database: read.answer(database, run, message_id))

    async def generations(self, run: RunKey, *, limit: int = 100) -> tuple[GenerationRow, ...]:
        """Return the run's generations, newest first."""
        return await self._read(lambda database: read.generations(database, run, limit))

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
        behind = None if after is None else (to_micros(after[0]), *after[1:])
        wanted = read.ApprovalFilter(pending, run, limit, behind, self._clock.now())
        return await self._read(lambda database: read.approvals(database, tenant, wanted))

    async def figures(self, tenant: str = "") -> Figures:
        """Return what waits, and for how long; see `StoreReader.figures`."""
        moment = self._moment()
        return await self._read(
            lambda database: figures.figures(database, self._locks, tenant, moment)
        )

    async def workers(self) -> list[LiveWorker]:
        """Return the registered workers, and whether they live."""
        now = self._lease.instant()
        return await self._read(lambda database: read.workers(database, self._locks, now))

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return version and body of a control row."""
        return await self._read(lambda database: read.control(database, tenant, name))

    async def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request."""
        now = self._clock.now()
        return await self._read(lambda database: request.find(database, tenant, request_id, now))

    async def requests(
        self,
        tenant: str,
        *,
        states: frozenset[RequestState],
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> list[RequestRow]:
        """Return a page of the tenant's requests, newest first, without their answers."""
        now = self._clock.now()
        return await self._read(
            lambda database: request.page(database, tenant, states, now, limit, before)
        )

    async def load(self, run: RunKey) -> RunImage | None:
        """Return everything about a run's current generation."""
        return await self._read(lambda database: read.load(database, run))

    async def mail(self, run: RunKey) -> tuple[StampedMessage, ...]:
        """Return the run's messages that are not yet consumed, in order of arrival."""
        return await self._read(lambda database: read.mail(database, run))

    async def outbox(
        self, limit: int, *, run: RunKey | None = None, age: timedelta = timedelta(0)
    ) -> list[tuple[RunKey, OutboxItem]]:
        """Return items that wait for the relay, oldest first."""
        now = self._clock.now()
        return await self._read(lambda database: read.outbox(database, limit, run, now - age, now))

    async def last_entry(self, run: RunKey, generation: int) -> StampedRow | None:
        """Return the last row of one generation's journal."""
        return await self._read(lambda database: read.last_entry(database, run, generation))

    async def timeline(self) -> str:
        """Return the id of this file's line of history."""
        return await self._read(read.timeline)

    async def begin_timeline(self, why: str) -> str:
        """Say that the file was put back to an earlier state; see `Store.begin_timeline`."""

        def write() -> str:
            with self._writer.immediate():
                timeline.begin(self._now_writing(), why)
            self._seen.note(*timeline.standing(self._writer))
            return timeline.standing(self._writer)[0]

        begun = await self._on(self._writing, write)
        self._watch.wake()
        return begun

    def now(self) -> datetime:
        """Return the store's time: the wall time of this machine, which all processes on the file share."""
        return self._clock.now()

    def describe(self) -> str:
        """Return the absolute path of the file."""
        return self._path

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the running loop when any process has committed; return how to stop."""
        self._check_process()
        return self._watch.subscribe(wake)

    async def close(self) -> None:
        """Finish what is queued, stop both threads and close the file. Idempotent.

        Workers that were not retired are not taken for dead by this: their leases decide, or the end of this process.
        """
        if os.getpid() != self._process:
            return
        self._watch.clear()
        # The writer last: whoever closes the file last empties the log, which a reader cannot.
        for lane in (self._reading, self._writing):
            lane.stop()
            await asyncio.shield(asyncio.wrap_future(lane.ended))
            lane.join()

    async def abandon(self) -> None:
        """Close as if the process had died: its workers are dead from now on. For tests."""
        self._abandoned = True
        await self.close()

    # on the threads

    def _tell(self, error: BaseException) -> StoreError | None:
        return failure_of(error, self._path) if isinstance(error, apsw.Error) else None

    def _open_writer(self) -> None:
        with self._naming():
            self._open_writers.append(open_writer(self._path, self._options))
        try:
            self._locks.create()
        except OSError as error:
            raise StoreUnavailableError(
                f"the folder {self._path}-workers cannot be made ({error})",
                hint="this user must be allowed to write the folder of the database",
            ) from error
        self._look_back()
        self._checkpointer = Checkpointer(self._writer, self._locks, f"{self._path}-wal")
        self._watch.follow(self._writer)

    def _look_back(self) -> None:
        """Begin a new line of history in a file that was put back to an earlier state."""
        # What was seen comes first: the file may only be further on when it is read.
        is_known, seen = self._seen.is_there, self._seen.marks()
        why = timeline.why_put_back(self._writer, seen)
        if why:
            with self._naming(), self._writer.immediate():
                # Another process may have done it meanwhile.
                if timeline.why_put_back(self._writer, seen):
                    timeline.begin(self._now_writing(), why)
            logger.error(
                "%s was put back to an earlier state: %s; workers move nothing until `outlast release`",
                self._path,
                why,
            )
        name, mark = timeline.standing(self._writer)
        if mark and not (is_known or why):
            logger.warning(
                "%s was in use before, and nothing beside it (%s-workers) says up to where: if it is a copy that was put back, stop "
                "this, and say so by `outlast restore --here`",
                self._path,
                self._path,
            )
        self._seen.note(name, mark)

    def _hold(self, worker: WorkerId) -> None:
        try:
            self._locks.hold(worker)
        except OSError as error:
            raise StoreUnavailableError(
                f"no lock could be taken beside {self._path} ({error})",
                hint=f"this user must be allowed to write the folder {self._path}-workers",
            ) from error

    def _open_reader(self) -> None:
        self._open_readers.append(open_reader(self._path, self._options))

    def _moment(self) -> tuple[datetime, Instant]:
        return self._clock.now(), self._lease.instant()

    def _now_writing(self) -> Writing:
        return Writing(self._writer, *self._moment())

    def _flush(self) -> None:
        more = self._commits.flush()
        self._watch.wake()
        if self._checkpointer is not None:
            self._checkpointer.after_commit()
        if not more:
            return
        # A short pause after a full group, and a place at the end of the queue: other processes and other jobs come first.
        time.sleep(_PAUSE_SECONDS)
        try:
            self._writing.submit(self._flush)
        except StoreUnavailableError:
            self._flush()

    def _write(self, changes: Sequence[Change]) -> list[Verdict]:
        try:
            with self._writer.immediate():
                verdicts = write_all(self._now_writing(), changes)
                grown = timeline.grow(self._writer)
        except apsw.IOError as error:
            if getattr(error, "extendedresult", 0) not in _MAY_BE_WRITTEN:
                raise failure_of(error, self._path) from error
            return [Unknown(str(error))] * len(changes)
        except apsw.Error as error:
            raise failure_of(error, self._path) from error
        if grown is not None:
            self._seen.note(*grown)
        return verdicts

    def _idle(self) -> None:
        self._watch.look()
        if self._checkpointer is not None:
            self._checkpointer.when_idle()

    def _end_writing(self) -> None:
        for database in self._open_writers:
            database.close()
        self._seen.close()
        if self._abandoned:
            self._locks.abandon()
        else:
            self._locks.close()

    def _end_reading(self) -> None:
        for database in self._open_readers:
            database.close()

    @property
    def _writer(self) -> Database:
        return self._open_writers[0]

    async def _read(self, ask: Callable[[Database], T]) -> T:
        def look() -> T:
            with self._naming():
                return ask(self._open_readers[0])

        return await self._on(self._reading, look)

    def _naming(self) -> contextlib.AbstractContextManager[None]:
        return naming(f"a row of {self._path}")

    async def _on(self, lane: Lane, function: Callable[[], T]) -> T:
        self._check_process()
        return await asyncio.wrap_future(lane.submit(function))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreUnavailableError(
                f"{self._path} was opened before this process was forked; SQLite connections do not survive a fork",
                hint="open the store in the child, or start children with the `spawn` method",
            )


def _nothing() -> None:
    """There is nothing to do in idle time."""
