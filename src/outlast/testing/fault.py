"""A wrapper of any store that fails as stores and networks do, from a seed, and that can kill its caller at any commit.

It keeps the store's contract: what it says was not written was not written; what it cannot know it calls unknown.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from outlast.errors import StoreUnavailableError
from outlast.journal.entry import StampedRow
from outlast.store.change import (
    ApprovalRow,
    Change,
    MessageState,
    OperationPut,
    OutboxItem,
    RunChange,
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
from outlast.store.notice import NoticeRow
from outlast.store.protocol import Claim, DoubtRow, GenerationRow, LiveWorker, RunImage, Store
from outlast.store.request import RequestRow, RequestState
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter
from outlast.store.task import TaskClaim, TaskKey, TaskRow
from outlast.testing.loop import halt_if_stopped

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Faults:
    """How a store fails. Chances are between 0 and 1, times are seconds.

    Args:
        latency: The most that a request, and again its answer, takes on its way.
        unavailable: Chance that a verb raises `StoreUnavailableError` and does nothing.
        lost_request: Chance that a commit answers `Unknown` and does nothing.
        lost_answer: Chance that a verb does its work and its answer is lost: `Unknown` for a commit, an error for others.
        lost_hint: Chance that a notification is lost.
        outlives: Chance that a request on its way is carried out although its sender was killed meanwhile.
        echoes: Chance that the network delivers an owned change a second time, when others have followed it.
        down: Every verb raises `StoreUnavailableError`.
    """

    latency: float = 0.0
    unavailable: float = 0.0
    lost_request: float = 0.0
    lost_answer: float = 0.0
    lost_hint: float = 0.0
    outlives: float = 0.0
    echoes: float = 0.0
    down: bool = False


class FaultyStore:
    """A store on the other side of a bad network.

    Args:
        inner: The store.
        source: Where faults come from.
        note: Told of each verb, for a trace.
    """

    def __init__(
        self,
        inner: Store,
        source: random.Random,
        *,
        faults: Faults | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._inner = inner
        self._source = source
        self._note = note
        self.faults = faults or Faults()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.commits = 0
        """Commits that reached the store."""
        self.at_commit: Callable[[str, int], None] = lambda _moment, _number: None
        """Called with `before` and `after` and the number of each commit, from 1; may kill the calling process."""
        self.at_verb: Callable[[str, str], None] = lambda _moment, _verb: None
        """The same for every verb, by name."""

    # The write verb

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write, unless a fault comes between; see `Store.commit`."""
        await self._request("commit")
        if self._happens(self.faults.lost_request):
            self._note("commit: lost")
            return [Unknown("the request was lost")] * len(changes)
        verdicts = await self._carry(lambda: self._write(changes))
        await self._travel()
        if self._happens(self.faults.lost_answer):
            self._note("commit: answer lost")
            return [Unknown("the answer was lost")] * len(changes)
        return verdicts

    async def _write(self, changes: Sequence[Change]) -> list[Verdict]:
        self.commits += 1
        number = self.commits
        self.at_commit("before", number)
        self.at_verb("before", "commit")
        await halt_if_stopped()
        verdicts = await self._inner.commit(changes)
        if self._happens(self.faults.echoes):
            self._echo([one for one in changes if isinstance(one, RunChange)])
        words = [
            f"{type(one).__name__}={type(two).__name__}"
            for one, two in zip(changes, verdicts, strict=True)
        ]
        self._note(f"commit {' '.join(words)}")
        self.at_commit("after", number)
        self.at_verb("after", "commit")
        await halt_if_stopped()
        return verdicts

    def _echo(self, changes: list[RunChange]) -> None:
        async def again() -> None:
            await asyncio.sleep(self._source.uniform(0, 10))
            await self._inner.commit(changes)

        task = asyncio.get_running_loop().create_task(again(), context=contextvars.Context())
        self._tasks.add(task)

    # The worker's verbs

    async def register(self, row: WorkerRow) -> None:
        """Announce a worker."""
        await self._ask("register", lambda: self._inner.register(row))

    def renew(self, worker: WorkerId) -> bool:
        """Renew a lease."""
        if self.faults.down or self._happens(self.faults.unavailable):
            raise _unavailable("renew")
        held = self._inner.renew(worker)
        self._note(f"renew {held}")
        if self._happens(self.faults.lost_answer):
            raise _unavailable("renew")
        return held

    async def report(self, worker: WorkerId, body: bytes) -> None:
        """Keep what a worker says of itself."""
        await self._ask("report", lambda: self._inner.report(worker, body))

    async def retire(self, worker: WorkerId) -> None:
        """Forget a worker."""
        await self._ask("retire", lambda: self._inner.retire(worker))

    async def claim(
        self, worker: WorkerId, workflows: frozenset[str], limit: int, *, released: bool = False
    ) -> Claim:
        """Take runs."""
        claim = await self._ask(
            "claim", lambda: self._inner.claim(worker, workflows, limit, released=released)
        )
        if claim.runs:
            self._note(f"claimed {', '.join(str(one.head.run) for one in claim.runs)}")
        return claim

    async def claim_tasks(
        self,
        worker: WorkerId,
        queues: frozenset[str],
        steps: frozenset[str],
        *,
        limit: int,
        known: frozenset[TaskKey] = frozenset(),
    ) -> TaskClaim:
        """Take tasks."""
        inner = self._inner
        claim = await self._ask(
            "claim_tasks",
            lambda: inner.claim_tasks(worker, queues, steps, limit=limit, known=known),
        )
        if claim.tasks:
            names = (f"{one.row.key.run} {one.row.key.operation}" for one in claim.tasks)
            self._note(f"took {', '.join(names)}")
        return claim

    async def owned(self, worker: WorkerId) -> list[RunHead]:
        """Return the runs that a worker owns."""
        return await self._ask("owned", lambda: self._inner.owned(worker))

    async def load(self, run: RunKey) -> RunImage | None:
        """Return everything about a run."""
        return await self._ask("load", lambda: self._inner.load(run))

    async def mail(self, run: RunKey) -> tuple[StampedMessage, ...]:
        """Return a run's unread messages."""
        return await self._ask("mail", lambda: self._inner.mail(run))

    async def outbox(
        self, limit: int, *, run: RunKey | None = None, age: timedelta = timedelta(0)
    ) -> list[tuple[RunKey, OutboxItem]]:
        """Return what waits for the relay."""
        return await self._ask("outbox", lambda: self._inner.outbox(limit, run=run, age=age))

    # What readers ask

    async def head(self, run: RunKey) -> RunHead | None:
        """Return the run's row."""
        return await self._ask("head", lambda: self._inner.head(run))

    async def heads(
        self,
        tenant: str,
        *,
        statuses: frozenset[Status] = frozenset(),
        workflow: str = "",
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> list[RunHead]:
        """Return a page of runs."""
        return await self._ask(
            "heads",
            lambda: self._inner.heads(
                tenant, statuses=statuses, workflow=workflow, limit=limit, before=before
            ),
        )

    async def journal(
        self, run: RunKey, *, generation: int | None = None, after: int = -1
    ) -> tuple[StampedRow, ...]:
        """Return a journal."""
        return await self._ask(
            "journal", lambda: self._inner.journal(run, generation=generation, after=after)
        )

    async def latest(
        self, run: RunKey, kind: str, name: str, *, generation: int | None = None
    ) -> StampedRow | None:
        """Return the last row of a kind and name."""
        return await self._ask(
            "latest", lambda: self._inner.latest(run, kind, name, generation=generation)
        )

    async def answer(self, run: RunKey, message_id: str) -> MessageState | None:
        """Return what has become of an update."""
        return await self._ask("answer", lambda: self._inner.answer(run, message_id))

    async def generations(self, run: RunKey, *, limit: int = 100) -> tuple[GenerationRow, ...]:
        """Return a run's generations."""
        return await self._ask("generations", lambda: self._inner.generations(run, limit=limit))

    async def last_entry(self, run: RunKey, generation: int) -> StampedRow | None:
        """Return how a journal ends."""
        return await self._ask("last_entry", lambda: self._inner.last_entry(run, generation))

    async def approvals(
        self,
        tenant: str,
        *,
        pending: bool = True,
        run: RunKey | None = None,
        limit: int | None = None,
        after: tuple[datetime, str, str] | None = None,
    ) -> list[ApprovalRow]:
        """Return approvals."""
        return await self._ask(
            "approvals",
            lambda: self._inner.approvals(
                tenant, pending=pending, run=run, limit=limit, after=after
            ),
        )

    async def doubts(
        self,
        tenant: str,
        *,
        effect: str = "",
        workflow: str = "",
        limit: int = 100,
        after: tuple[str, str] | None = None,
    ) -> list[DoubtRow]:
        """Return effects in doubt."""
        return await self._ask(
            "doubts",
            lambda: self._inner.doubts(
                tenant, effect=effect, workflow=workflow, limit=limit, after=after
            ),
        )

    async def operation(self, run: RunKey, operation: str) -> OperationPut | None:
        """Return the row of an open operation."""
        return await self._ask("operation", lambda: self._inner.operation(run, operation))

    async def sticky(self, tenant: str, wanted: StickyFilter) -> list[StickyRow]:
        """Return a page of decisions that stick."""
        return await self._ask("sticky", lambda: self._inner.sticky(tenant, wanted))

    async def notices(self, run: RunKey) -> list[NoticeRow]:
        """Return the notices of a run."""
        return await self._ask("notices", lambda: self._inner.notices(run))

    async def next_notice(self, tenant: str = "") -> datetime | None:
        """Return when the next notice is due."""
        return await self._ask("next_notice", lambda: self._inner.next_notice(tenant))

    async def tasks(self, run: RunKey) -> tuple[TaskRow, ...]:
        """Return a run's tasks."""
        return await self._ask("tasks", lambda: self._inner.tasks(run))

    async def figures(self, tenant: str = "") -> Figures:
        """Return what waits."""
        return await self._ask("figures", lambda: self._inner.figures(tenant))

    async def workers(self) -> list[LiveWorker]:
        """Return the workers."""
        return await self._ask("workers", self._inner.workers)

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return a control row."""
        return await self._ask("control", lambda: self._inner.control(tenant, name))

    async def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request."""
        return await self._ask("request", lambda: self._inner.request(tenant, request_id))

    async def requests(
        self,
        tenant: str,
        *,
        states: frozenset[RequestState],
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> list[RequestRow]:
        """Return a page of requests."""
        return await self._ask(
            "requests",
            lambda: self._inner.requests(tenant, states=states, limit=limit, before=before),
        )

    # What needs no network

    def now(self) -> datetime:
        """Return the store's time."""
        return self._inner.now()

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` in the subscriber's own context, unless the hint is lost."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()

        def hint() -> None:
            if not self.faults.down and not self._happens(self.faults.lost_hint):
                loop.call_soon(wake, context=context.copy())

        return self._inner.subscribe(hint)

    async def timeline(self) -> str:
        """Return the id of the line of history."""
        return await self._inner.timeline()

    async def begin_timeline(self, why: str) -> str:
        """Say that the store was put back."""
        return await self._ask("begin_timeline", lambda: self._inner.begin_timeline(why))

    def describe(self) -> str:
        """Return where the store is."""
        return f"faulty {self._inner.describe()}"

    async def close(self) -> None:
        """Close the store."""
        await self._inner.close()

    # The network

    async def _ask(self, verb: str, work: Callable[[], Awaitable[T]]) -> T:
        await self._request(verb)

        async def visit() -> T:
            self.at_verb("before", verb)
            await halt_if_stopped()
            answer = await work()
            self.at_verb("after", verb)
            await halt_if_stopped()
            return answer

        answer = await self._carry(visit)
        await self._travel()
        if self._happens(self.faults.lost_answer):
            self._note(f"{verb}: answer lost")
            raise _unavailable(verb)
        return answer

    async def _request(self, verb: str) -> None:
        await self._travel()
        if self.faults.down or self._happens(self.faults.unavailable):
            self._note(f"{verb}: unavailable")
            raise _unavailable(verb)

    async def _travel(self) -> None:
        if self.faults.latency:
            await asyncio.sleep(self._source.uniform(0, self.faults.latency))

    async def _carry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work in the caller's process, or on the network, where the caller's death does not reach it."""
        if not self._happens(self.faults.outlives):
            return await work()

        async def outside() -> T:
            await self._travel()
            return await work()

        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(
            outside(), context=contextvars.Context()
        )
        self._tasks.add(task)
        return await asyncio.shield(task)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._source.random() < chance


def _unavailable(verb: str) -> StoreUnavailableError:
    return StoreUnavailableError(f"a simulated fault at {verb}", hint="it was asked for")
