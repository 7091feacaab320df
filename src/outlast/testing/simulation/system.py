"""Several workers in one thread, on simulated time, with every chance drawn from one seed.

Equal seeds give equal traces. Each worker is a simulated process with a network of its own to the one store: it can be killed,
frozen and cut off at any moment. Nothing really waits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from outlast.client import Birth, Client
from outlast.errors import DefinitionError
from outlast.journal.entry import Taken
from outlast.store.change import RunHead, RunKey
from outlast.testing.clock import SimulatedClock, SkewedClock
from outlast.testing.fault import Faults, FaultyStore
from outlast.testing.loop import (
    LONGEST,
    Process,
    SimulatedLoop,
    SimulationStuckError,
    current_process,
)
from outlast.testing.simulation.invariant import Invariants
from outlast.testing.simulation.watch import WatchedStore, watched
from outlast.testing.stand_in import with_doubles
from outlast.testing.thread import SeededRandom, SimulatedThreads
from outlast.worker.options import POLL, WorkerOptions
from outlast.worker.parked import OnParked
from outlast.worker.worker import Worker
from outlast.workflows.definition import Definition, Step
from outlast.workflows.registry import Registry

T = TypeVar("T")

_SELDOM = timedelta(seconds=10)
_HOURS_SECONDS = 7200.0


class SimulatedWorker:
    """A worker in a simulated process.

    Args:
        process: Where all its code runs.
        store: Its own way to the store; set its `faults` to cut it off.
    """

    def __init__(
        self,
        process: Process,
        worker: Worker,
        store: FaultyStore,
        threads: SimulatedThreads,
        client: Client,
    ) -> None:
        self.process = process
        self.worker = worker
        self.store = store
        self.threads = threads
        self.client = client
        """A client in the same process: its runs are born claimed by this worker."""

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in this process, and wait for it."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.create_task(work, context=self.process.context()))

    async def stop(self, grace: timedelta | None = None) -> None:
        """Stop gracefully.

        Raises:
            DefinitionError: The process is dead or stands still, and can do nothing.
        """
        if self.process.stopped:
            raise DefinitionError(
                f"{self.process} cannot stop gracefully",
                hint="what was killed has ended; thaw() what was frozen or stalled first",
            )
        await self.within(self.worker.stop(grace))

    def kill(self) -> None:
        """End it as SIGKILL does."""
        self.process.kill()

    def freeze(self) -> None:
        """Stop it where it is, as SIGSTOP does."""
        self.process.freeze()

    def stall(self) -> None:
        """Stop its event loop, as a callback that blocks does; its threads go on."""
        self.process.stall()

    def thaw(self) -> None:
        """Let it go on, as SIGCONT does."""
        self.process.thaw()


class Simulation:
    """A store, its clock, and the workers that share it.

    `store` is in memory, `clock` moves when nothing else can happen, `client` belongs to no worker, and `trace` notes what was asked of
    the store, by whom and when.

    Args:
        definitions: The workflows, steps and effects of every worker; everything decorated so far by default.
        doubles: Stand in for definitions of the same kind and name, in every worker that has those; see `double`.
        seed: Everything that could be one way or another follows from it.
        faults: Of each worker's way to the store.
        options: Of each worker; by default they serve every queue in which a step of the definitions runs.
        thread_delay: Seconds at most before and after a synchronous body.
        longest: How much simulated time may pass.
    """

    def __init__(  # noqa: PLR0913 - what can be said of a simulation
        self,
        definitions: Iterable[Definition[..., Any]] | None = None,
        *,
        doubles: Iterable[Definition[..., Any]] = (),
        seed: int = 0,
        faults: Faults | None = None,
        options: WorkerOptions | None = None,
        thread_delay: float = 0.0,
        longest: timedelta = LONGEST,
    ) -> None:
        self.seed = seed
        self.clock = SimulatedClock()
        self.loop = SimulatedLoop(self.clock, longest=longest, source=self.source("scheduler"))
        self.invariants = Invariants(self.clock, self.loop.fail)
        """What must hold; a violation ends the simulation with an `InvariantViolatedError`."""
        self.invariants.written.knows_keys = False
        self.store = WatchedStore(self.clock, self.invariants)
        self.trace: list[str] = []
        """What was asked of the store, by whom and when."""
        self.workers: list[SimulatedWorker] = []
        self._doubles = list(doubles)
        self._definitions = with_doubles(definitions, self._doubles)
        self._faults = faults or Faults()
        # Where no hint is lost a look without one finds nothing, and days of them would only cost time.
        poll = POLL if self._faults.lost_hint else _SELDOM
        self._options = options or WorkerOptions(
            library="simulated", poll=poll, queues=queues_of(self._definitions)
        )
        asks = self._options.policy is not None or self._options.authority is not None
        self.invariants.written.knows_order = not asks
        self._thread_delay = thread_delay
        self.outside = FaultyStore(self.store, self.source("outside"), note=self.note)
        """The way to the store of everybody outside; good, until its `faults` are set."""
        self.client = Client(
            self.outside,
            random=SeededRandom(f"{seed}/outside"),
            principal="tester",
            registry=Registry(self._definitions),
        )
        """A client in no worker's process."""

    def run(self, scenario: Callable[[Simulation], Awaitable[T]]) -> T:
        """Run a scenario to its end, and put everything away.

        Raises:
            SimulationStuckError: It does not end; says what the open runs wait for.
            InvariantViolatedError: Outlast, or the store, has broken a promise.
        """
        try:
            return self.loop.run_until_complete(self._through(scenario))
        except SimulationStuckError as error:
            raise SimulationStuckError(
                f"{error.message}; {self._open_runs()}", hint=error.hint
            ) from None
        finally:
            self._close()

    def _played(self, definitions: Iterable[Definition[..., Any]]) -> list[Definition[..., Any]]:
        """Return what a worker registers of its own, with the doubles of what is among it."""
        given = list(definitions)
        known = {(one.kind, one.name) for one in given}
        return with_doubles(given, [one for one in self._doubles if (one.kind, one.name) in known])

    async def _through(self, scenario: Callable[[Simulation], Awaitable[T]]) -> T:
        try:
            return await scenario(self)
        finally:
            await self.client.replicas.close()

    async def start_worker(
        self,
        name: str = "",
        *,
        definitions: Iterable[Definition[..., Any]] | None = None,
        options: WorkerOptions | None = None,
        faults: Faults | None = None,
        before: Callable[[SimulatedWorker], object] = lambda _worker: None,
        parked: OnParked | None = None,
    ) -> SimulatedWorker:
        """Start a worker in a process of its own.

        Args:
            definitions: What it has registered, where that differs.
            faults: Of its way to the store, where these differ.
            before: Called with the worker before it does anything.
            parked: Called with each run that the worker leaves blocked.
        """
        name = name or f"w{len(self.workers) + 1}"
        if any(one.process.name == name for one in self.workers):
            raise DefinitionError(
                f"there is a worker {name!r} already, dead or alive",
                hint="a process that starts anew is another one: leave the name out, or give another",
            )
        chosen = None if definitions is None else self._played(definitions)
        process = Process(name)
        store = FaultyStore(
            self.store, self.source(f"{name}/store"), faults=faults or self._faults, note=self.note
        )
        threads = SimulatedThreads(self.source(f"{name}/threads"), delay=self._thread_delay)
        bits = SeededRandom(f"{self.seed}/{name}")

        def closed(run: RunKey) -> None:
            client.closed(run)

        worker = Worker(
            store,
            self._registry(chosen),
            clock=self._clock_of(name),
            random=bits,
            threads=threads,
            options=replace(options or self._options, host=name, parked=parked),
            closed=closed,
        )
        client = Client(
            store,
            random=bits,
            principal="tester",
            birth=self._birth(worker, process),
            registry=Registry(self._chosen(chosen)),
        )
        simulated = SimulatedWorker(process, worker, store, threads, client)
        self.workers.append(simulated)
        before(simulated)
        await simulated.within(worker.start())
        return simulated

    async def closed(self, run_id: str, *, tenant: str = "default") -> RunHead:
        """Wait until a run has ended, looking at the store."""
        return await self.until(run_id, lambda head: head.status.closed, tenant=tenant)

    async def until(
        self, run_id: str, holds: Callable[[RunHead], bool], *, tenant: str = "default"
    ) -> RunHead:
        """Wait until something holds of a run's row."""
        began = self.clock.monotonic()
        while True:
            head = await self.store.head(RunKey(tenant, run_id))
            if head is not None and holds(head):
                return head
            await self.a_while(since=began)

    async def a_while(self, *, since: float) -> None:
        """Sleep between two looks at something: shortly for some hours, then a minute, so that days cost little.

        Args:
            since: When the first look was, by the monotonic clock.
        """
        is_long = self.clock.monotonic() - since > _HOURS_SECONDS
        await asyncio.sleep(60.0 if is_long else 0.1)

    def spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Do something from outside, beside the scenario."""
        coro = work if asyncio.iscoroutine(work) else _awaited(work)
        return asyncio.get_running_loop().create_task(coro)

    def note(self, text: str) -> None:
        """Add to the trace."""
        process = current_process.get()
        who = process.name if process is not None else "outside"
        self.trace.append(f"{self.clock.monotonic():.6f} {who} {text}")

    def _clock_of(self, name: str) -> SkewedClock:
        """Return a clock of its own: what compares one worker's times with another's, or with the store's, must fail."""
        chance = self.source(f"{name}/clock")
        skew = timedelta(seconds=chance.uniform(-100, 100))
        return SkewedClock(self.clock, wall=skew, booted=float(chance.randrange(1_000_000)))

    def _open_runs(self) -> str:
        """Say what each open run waits for."""
        lines: list[str] = []
        for run, row in self.invariants.runs.items():
            if row.generation and not row.closed:
                entry = row.rows[-1].row if row.rows else None
                last = f", last entry {entry.kind} {entry.name}".rstrip() if entry else ""
                owner = self.invariants.lives.get(row.owner) if row.owner else None
                where = f"held by {owner.process}" if owner else "held by no worker"
                unread = f", unread {row.unread()}" if row.unread() else ""
                lines.append(f"run {run} ({where}{last}{unread})")
        return f"open: {'; '.join(lines)}" if lines else "no run is open"

    def _registry(self, definitions: Iterable[Definition[..., Any]] | None) -> Registry:
        return Registry(watched(one, self.invariants) for one in self._chosen(definitions))

    def _chosen(
        self, definitions: Iterable[Definition[..., Any]] | None
    ) -> Iterable[Definition[..., Any]]:
        return self._definitions if definitions is None else definitions

    def source(self, name: str) -> random.Random:
        """Return the stream of chance of that name."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 - a seed must repeat

    def _birth(self, worker: Worker, process: Process) -> Birth:
        async def submit(change: Any) -> Any:
            context = process.context()
            task = asyncio.get_running_loop().create_task(worker.submit(change), context=context)
            verdict = await asyncio.shield(task)
            worker.look()
            return verdict

        def adopt(*born: Any) -> None:
            process.context().run(worker.adopt, *born)

        return Birth(
            submit=submit,
            owner=worker.born_here,
            adopt=adopt,
            taken=Taken(python="simulated", library="simulated"),
        )

    def _close(self) -> None:
        """End everything without letting it act: no store answers any more, and no thread begins."""
        for one in self.workers:
            one.store.faults = Faults(down=True)
            one.process.kill()
            one.process.release()
        self.loop.drain()
        self.loop.close()


def queues_of(definitions: Iterable[Definition[..., Any]]) -> tuple[str, ...]:
    """Return the queues in which steps of these run."""
    return tuple(sorted(Registry(one for one in definitions if isinstance(one, Step)).queues()))


async def _awaited(work: Awaitable[T]) -> T:
    return await work
