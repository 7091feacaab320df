"""Trials: a workload's process is killed at chosen points, others come after it, and what came of it is looked at."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from outlast.client import JournalEntry
from outlast.effects.intent import Applied, NotApplied
from outlast.errors import DefinitionError, OutlastError, RunBlockedError, RunNotFoundError
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing.crash.point import COMMIT, BodyCall, CrashPoint, Life, Moment
from outlast.testing.crash.watch import watched
from outlast.testing.crash.workload import Workload
from outlast.testing.fault import Faults
from outlast.testing.receiver import living_receivers
from outlast.testing.simulation import SimulatedWorker, Simulation
from outlast.testing.simulation.system import queues_of
from outlast.worker.options import WorkerOptions
from outlast.workflows.definition import Workflow

R = TypeVar("R")

_OPTIONS = WorkerOptions(
    library="simulated",
    idle=timedelta(milliseconds=200),
    poll=timedelta(seconds=5),
)
"""Runs leave memory while they wait; and what a worker does regularly is seldom enough for workloads that take days."""

_IN_DOUBT = "in doubt"
_ASKING = (_IN_DOUBT, "compensation failed")
"""Why a run is blocked that an operator can help on by saying what became of an effect."""


class CrashPointError(OutlastError):
    """A trial never came to the point where it was to be killed."""

    code = "crash_point"


@dataclass(frozen=True, slots=True, repr=False)
class Trial(Generic[R]):
    """How a workload went.

    Args:
        points: Where its processes were killed, in order; none when it was undisturbed.
        lives: What each process did; one more than were killed, unless the last one died when all was over.
        status: Of the run at the end: closed, or `blocked` while an effect is in doubt, or a compensation was given up.
        journal: Of the run at the end.
        requests: How often the workload's receiver was asked for each key; all receivers, where it names none.
        changes: How often it changed the world under each key.
    """

    points: tuple[CrashPoint, ...]
    lives: tuple[Life, ...]
    status: Status
    journal: tuple[JournalEntry, ...]
    requests: Counter[str]
    changes: Counter[str]
    ending: _Ending[R]

    @property
    def result(self) -> R:
        """What the workflow returned, decoded.

        Raises:
            WorkflowFailedError: The workflow raised; the cause is that exception.
            RunCancelledError: It was cancelled, or an approval expired.
            RunBlockedError: An effect is in doubt, and the workload does not say how an operator would resolve it.
        """
        if self.ending.error is not None:
            raise self.ending.error
        return cast("R", self.ending.value)

    @property
    def in_doubt(self) -> bool:
        """Whether the trial ended at an effect in doubt."""
        return self.status is Status.BLOCKED

    @property
    def calls(self) -> tuple[BodyCall, ...]:
        """The bodies that began, in all lives."""
        return tuple(call for life in self.lives for call in life.calls)

    def __repr__(self) -> str:
        """Say where it was killed, what stood in the journal then, and how it ended."""
        deaths = [
            f"killed {point} (last entry: {_last(life.left)})"
            for point, life in zip(self.points, self.lives, strict=False)
        ]
        return f"<Trial: {'; then '.join([*deaths, f'the run is {self.status}'])}>"


@dataclass(frozen=True, slots=True)
class _Ending(Generic[R]):
    """What the run's handle gave."""

    value: R | None = None
    error: OutlastError | None = None


def undisturbed(workload: Workload[R], *, seed: int = 0) -> Trial[R]:
    """Run the workload to its end without a crash."""
    return crashed(workload, seed=seed)


def crashed(workload: Workload[R], *points: CrashPoint, seed: int = 0) -> Trial[R]:
    """Kill the first process at the first point, the one that comes after it at the second, and so on; then run to the end.

    Args:
        seed: Everything that could be one way or another follows from it.

    Raises:
        CrashPointError: A process never came to its point.
        RunBlockedError: The run cannot go on, for another reason than an effect in doubt; as when it calls what is not registered.
        SimulationStuckError: It does not end.
    """
    for receiver in living_receivers():
        # What a receiver remembers of another trial, under the same keys, would hide what this one lost.
        receiver.forget()
    workload.reset()
    code = workload.registered()
    simulation = Simulation(
        code,
        seed=seed,
        faults=Faults(latency=workload.latency.total_seconds()),
        options=replace(_OPTIONS, queues=queues_of(code)),
        longest=workload.longest,
    )
    return simulation.run(_Running(simulation, workload, points).to_the_end)


def every_crash(workload: Workload[R], *, crashes: int = 1, seed: int = 0) -> Iterator[Trial[R]]:
    """Run the workload undisturbed, then with a crash at each of its points.

    Args:
        crashes: Of how many processes in a row. With 2, after each crash of the first process the one that recovers is killed at
            each of its own points too: the number of trials is squared.

    Yields: One trial for each choice of points; the undisturbed one is not among them.

    Raises:
        DefinitionError: `crashes` is less than 1.
    """
    if crashes < 1:
        raise DefinitionError(
            f"every_crash() was asked for {crashes} crashes", hint="ask for 1 or more"
        )
    yield from _after(workload, undisturbed(workload, seed=seed), crashes, seed)


def _after(workload: Workload[R], trial: Trial[R], crashes: int, seed: int) -> Iterator[Trial[R]]:
    if crashes == 0 or len(trial.lives) == len(trial.points):
        return
    for point in trial.lives[-1].points:
        worse = crashed(workload, *trial.points, point, seed=seed)
        yield worse
        yield from _after(workload, worse, crashes - 1, seed)


class _Recorder:
    """Notes what one process does, and kills it at its point."""

    def __init__(self, point: CrashPoint | None) -> None:
        self._point = point
        self._counts: Counter[str] = Counter()
        self.worker: SimulatedWorker | None = None
        self.points: list[CrashPoint] = []
        self.calls: list[BodyCall] = []

    def watch(self, worker: SimulatedWorker) -> None:
        """Watch a process from its beginning: it may find something of its predecessors to be relayed at once."""
        self.worker = worker
        worker.store.at_commit = self.at_commit

    def at_commit(self, moment: str, number: int) -> None:
        """Note a commit."""
        self._reach(cast("Literal['before', 'after']", moment), COMMIT, number)

    def began(self, call: BodyCall) -> int:
        """Note that a body begins; see `Watcher`."""
        self._counts[call.what] += 1
        number = self._counts[call.what]
        if self._reach("before", call.what, number):
            self.calls.append(call)
        return number

    def waits(self, call: BodyCall, number: int) -> None:
        """Note that a body waits; see `Watcher`."""
        self._reach("during", call.what, number)

    def ended(self, call: BodyCall, number: int) -> None:
        """Note that a body ended; see `Watcher`."""
        self._reach("after", call.what, number)

    def _reach(self, moment: Moment, what: str, number: int) -> bool:
        """Pass a point; False when the process goes no further."""
        if self.worker is not None and self.worker.process.dead:
            return False
        point = CrashPoint(moment, what, number)
        self.points.append(point)
        if point == self._point:
            assert self.worker is not None, "a body ran before its worker had started"
            self.worker.kill()
            return False
        return True


class _Running(Generic[R]):
    """One trial under way."""

    def __init__(
        self, simulation: Simulation, workload: Workload[R], points: tuple[CrashPoint, ...]
    ) -> None:
        self._simulation = simulation
        self._workload = workload
        self._points = points
        self._workflow: Workflow[..., R] = workload.workflow()
        self._run = RunKey("default", workload.id)
        self._handle = simulation.client.handle(workload.id, self._workflow)
        self._tasks: list[asyncio.Task[Any]] = []
        self._meanwhile: asyncio.Task[Any] | None = None
        self._resolved = -1
        """The version of the run's row for which an operator has spoken."""

    async def to_the_end(self, simulation: Simulation) -> Trial[R]:
        """Let process after process live, and look at what came of it."""
        if self._workload.started_outside:
            await simulation.client.start(self._workload.call(), id=self._workload.id)
        lives: list[Life] = []
        head: RunHead | None = None
        for point in (*self._points, None):
            if head is not None and await self._is_at_rest(head):
                _require_no_more(point)
                break
            life, head = await self._live(point)
            lives.append(life)
        assert head is not None
        await self._end_meanwhile()
        given = self._workload.receiver
        receivers = living_receivers() if given is None else [given]
        for receiver in receivers:
            await receiver.come_to_rest()
        return Trial(
            points=self._points,
            lives=tuple(lives),
            status=head.status,
            journal=await self._journal(),
            requests=sum((one.requests for one in receivers), Counter[str]()),
            changes=sum((one.changes for one in receivers), Counter[str]()),
            ending=await self._ending(head),
        )

    async def _live(self, point: CrashPoint | None) -> tuple[Life, RunHead | None]:
        """Start a process, and wait until it is dead, or the run is over and nothing is on its way to other runs."""
        recorder = _Recorder(point)
        worker = await self._simulation.start_worker(
            definitions=watched(self._workload.registered(), recorder), before=recorder.watch
        )
        if not self._workload.started_outside:
            start = worker.client.start(self._workload.call(), id=self._workload.id)
            self._tasks.append(self._simulation.spawn(worker.within(start)))
        head = await self._watch(worker)
        if point is not None and not worker.process.dead:
            raise CrashPointError(
                f"the process never came to the point {point}",
                run=self._workload.id,
                hint=f"it came through: {', '.join(map(str, recorder.points))}. Bodies that are not the same each time, by a "
                "clock, a random number or a count of their own, make points that come and go",
            )
        life = Life(tuple(recorder.points), tuple(recorder.calls), await self._journal())
        return life, head

    async def _watch(self, worker: SimulatedWorker) -> RunHead | None:
        began = self._simulation.clock.monotonic()
        while True:
            dead = worker.process.dead
            head = await self._simulation.store.head(self._run)
            self._raise_what_broke()
            if dead:
                return head
            if head is not None:
                if await self._is_at_rest(head):
                    return head
                self._refuse_blocked(head)
                self._begin_meanwhile()
                await self._resolve(head)
            await self._simulation.a_while(since=began)

    async def _is_at_rest(self, head: RunHead) -> bool:
        """Whether the run is over and nothing is on its way to another run."""
        return self._over(head) and not await self._simulation.store.outbox(1)

    def _over(self, head: RunHead) -> bool:
        return head.status.closed or (head.reason in _ASKING and self._workload.resolve is None)

    def _refuse_blocked(self, head: RunHead) -> None:
        if head.status is not Status.BLOCKED or head.reason in _ASKING:
            return
        note: dict[str, Any] = msgspec.json.decode(head.note) if head.note else {}
        raise RunBlockedError(
            f"the run is blocked ({head.reason}): {note.get('error', 'no reason is known')}",
            run=self._workload.id,
            hint="a trial's worker registers everything decorated so far, or what the Workload's `definitions` name",
        )

    async def _resolve(self, head: RunHead) -> None:
        """Say of each effect in doubt what became of it, once."""
        resolve = self._workload.resolve
        if resolve is None or head.reason not in _ASKING or head.version == self._resolved:
            return
        self._resolved = head.version
        for one in (await self._handle.detail()).operations:
            if one.state == _IN_DOUBT:
                await self._say(one.operation, resolve(one.key))

    async def _say(self, operation: str, answer: object) -> None:
        if not isinstance(answer, Applied | NotApplied):
            raise DefinitionError(
                f"the Workload's `resolve` gave {answer!r}",
                run=self._workload.id,
                operation=operation,
                hint="say Applied(value) or NotApplied(), as receiver.find does",
            )
        reason = "established by the workload's `resolve`"
        if isinstance(answer, Applied):
            value = msgspec.to_builtins(cast("Applied[Any]", answer).value)
            await self._handle.resolve(operation, applied=value, reason=reason)
        else:
            await self._handle.resolve(operation, not_applied=True, reason=reason)

    # The outside

    def _begin_meanwhile(self) -> None:
        if self._meanwhile is None and self._workload.meanwhile is not None:
            work = self._workload.meanwhile(self._simulation.client)
            self._meanwhile = self._simulation.spawn(work)
            self._tasks.append(self._meanwhile)

    async def _end_meanwhile(self) -> None:
        if self._meanwhile is not None:
            self._meanwhile.cancel()
            await asyncio.wait([self._meanwhile])
        self._raise_what_broke()

    def _raise_what_broke(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    # What came of it

    async def _journal(self) -> tuple[JournalEntry, ...]:
        try:
            return tuple(await self._handle.journal())
        except RunNotFoundError:
            return ()

    async def _ending(self, head: RunHead) -> _Ending[R]:
        if head.reason == _IN_DOUBT:
            found = (await self._handle.detail()).operations
            names = ", ".join(f"{one.name} ({one.operation})" for one in found)
            error = RunBlockedError(
                f"the run is blocked: in doubt whether this happened: {names}",
                run=self._workload.id,
                hint="look at `trial.in_doubt` first; or give the Workload what an operator would find: resolve=receiver.find",
            )
            return _Ending(error=error)
        try:
            return _Ending(value=await self._handle.result())
        except OutlastError as error:
            return _Ending(error=error)


def _require_no_more(point: CrashPoint | None) -> None:
    if point is not None:
        raise CrashPointError(
            f"the run was over before a process could come to the point {point}",
            hint="kill the processes before it at earlier points",
        )


def _last(entries: tuple[JournalEntry, ...]) -> str:
    if not entries:
        return "none"
    entry = entries[-1].entry
    return " ".join(filter(None, (type(entry).__name__, getattr(entry, "name", ""))))
