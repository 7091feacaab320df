"""A worker: claims runs, gives each a pilot, keeps its lease, and stops without losing anything.

Everything that is not deterministic comes from outside (clock, randomness, threads, store), so that several workers can run in one
process on one simulated clock. A worker whose lease has lapsed lets go of every run and begins a new life under a new id.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import sys
from collections.abc import Callable
from datetime import timedelta

import msgspec

from outlast.clock import Clock, Random, Threads
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import StampedRow, Taken
from outlast.meter.instrument import LAPSES
from outlast.meter.meters import NO_METERS
from outlast.meter.store import metered
from outlast.store.change import (
    Applied,
    Change,
    RunHead,
    RunKey,
    StartRun,
    Terminate,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.protocol import Claim, ClaimedRun, Store
from outlast.store.task import TaskKey
from outlast.worker.always_replay import AlwaysReplay, is_always_replay_set
from outlast.worker.control import Controls
from outlast.worker.deck import Deck
from outlast.worker.deposit import Deposits
from outlast.worker.executor import Executor
from outlast.worker.foreign import has_foreign
from outlast.worker.holder import Holders
from outlast.worker.lease import Lease
from outlast.worker.options import WorkerOptions
from outlast.worker.parked import Parking
from outlast.worker.pilot import Pilot
from outlast.worker.relay import Birth, Relay
from outlast.worker.release import HOW, Paused
from outlast.worker.rules import RuleBook
from outlast.worker.stall import LoopWatch
from outlast.worker.task import TaskRunner
from outlast.worker.vital import Vitals
from outlast.worker.writer import Writer
from outlast.workflows.log import about
from outlast.workflows.registry import Registry

logger = logging.getLogger("outlast.worker")

PAUSE = timedelta(milliseconds=10)
"""Between two looks, so that a storm of hints does not become a storm of claims."""

_STORE_RETRY_SECONDS = 0.5
_OWNED_SECONDS = 1.0
"""Between two looks at what is ours: a run that cannot be moved must not be taken up again and again without a pause."""

_MISSING_SECONDS = 2.0
"""The store may know of more runs of ours than we do, for as long as a birth or an end takes; after so long we have missed one."""

_TURN_SECONDS = 2.5
"""At most so long between two notes that the event loop is alive, however long the lease is."""

_CLAIM_BATCH = 100
_LAST_SECONDS = 5.0
"""How long a stop waits for what it has cancelled or has yet to write, before it leaves the rest to the end of the lease."""


class Worker:
    """Moves the runs of the workflows that it has registered.

    Args:
        closed: Called with each run that has ended by this worker, or that it has lost to somebody who may have ended it.
        watch: Names the step whose body keeps the event loop from turning; nobody does without it.
    """

    def __init__(  # noqa: PLR0913 - what a simulator replaces, one by one
        self,
        store: Store,
        registry: Registry,
        *,
        clock: Clock,
        random: Random,
        threads: Threads,
        options: WorkerOptions | None = None,
        closed: Callable[[RunKey], None] | None = None,
        watch: LoopWatch | None = None,
    ) -> None:
        self._options = options or WorkerOptions()
        meters = self._options.meters
        self._store = store = (
            store if meters is NO_METERS else metered(store, meters, clock.monotonic)
        )
        self._registry = registry
        self._clock = clock
        self._random = random
        self._threads = threads
        self._holders = Holders(self._options.authority)
        self._parking = Parking(self._options.parked, threads)
        always = self._options.always_replay
        self._always_replay = is_always_replay_set() if always is None else always
        self._closed = closed
        self._build = registry.build()
        self._workflows = frozenset(registry.workflows)
        self._watch = watch
        self._executor = Executor(threads, watch, meters)
        self._deposits = Deposits(store)
        self._book = RuleBook(self._options.policy, clock, threads, self._options.recheck_within)
        self._writer = Writer(store, self._sending)
        taken = Taken(
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            library=self._options.library,
        )
        birth = Birth(self.born_here, self.adopt, taken)
        self._relay = Relay(store, self.submit, random, birth, clock.monotonic)
        self._pilots: dict[RunKey, tuple[Pilot, asyncio.Task[None]]] = {}
        self._hint = asyncio.Event()
        self._context = contextvars.copy_context()
        """What every attempt sees, whoever has the run started and whichever worker takes it up."""
        self._paused = Paused(store, asked=self._options.paused)
        self._lapsed = False
        self._unsure = False
        self._owned_at = -_OWNED_SECONDS
        self._missing_since: float | None = None
        self._unsubscribe: Callable[[], None] = _nothing
        self._looking: asyncio.Task[None]
        self._turning: asyncio.Task[None]
        self._past: list[WorkerId] = []
        """Lives that are over, whose rows and locks are still in the store."""
        self._row: WorkerRow
        self._deck: Deck
        self._tasks: TaskRunner
        self._accepting = False
        self._looked_at = clock.monotonic()
        self._is_store_away = False

    @property
    def id(self) -> WorkerId:
        """The id of its present life."""
        return self._deck.worker

    @property
    def paused(self) -> bool:
        """Whether it moves only what is released."""
        return self._paused.holds

    @property
    def runs(self) -> list[RunKey]:
        """The runs in memory."""
        return list(self._pilots)

    @property
    def tasks(self) -> list[TaskKey]:
        """The tasks of remote steps that it works on."""
        return self._tasks.tasks

    @property
    def vitals(self) -> Vitals:
        """How it is. Callable from any thread, also while the event loop stands still."""
        deck = self._deck
        return Vitals(
            worker=deck.worker,
            build=self._build,
            library=self._options.library,
            is_accepting=self._accepting and not self._lapsed,
            still_seconds=deck.lease.still_seconds,
            lease_seconds_left=deck.lease.seconds_left,
            looked_seconds=self._clock.monotonic() - self._looked_at,
            runs=len(self._pilots),
            tasks=len(self._tasks.tasks),
            is_store_away=self._is_store_away,
        )

    async def start(self) -> None:
        """Register, and begin to look for work."""
        await self._begin_life()
        self._unsubscribe = self._store.subscribe(self._hint.set)
        self._context = contextvars.copy_context()
        self._accepting = True
        create_task = asyncio.get_running_loop().create_task
        self._looking = create_task(self._look_for_ever(), name="outlast-worker")
        self._turning = create_task(self._turn_for_ever(), name="outlast-turn")

    async def stop(self, grace: timedelta | None = None) -> None:
        """Stop: claim nothing more, give back what only waits at once, let attempts end within `grace`, then cancel them.

        Args:
            grace: As its options say by default.

        The lease outlives the last attempt. While a synchronous effect acts that could not be stopped, its run is not given back,
        and the lease is renewed until its thread returns, the process ends, or `leave` is called.
        """
        grace_seconds = (self._options.grace if grace is None else grace).total_seconds()
        self._accepting = False
        self._unsubscribe()
        self._unsubscribe = _nothing
        self._holders.close()
        await _cancelled(self._looking)
        have_landed, _ = await asyncio.gather(
            self._stop_pilots(grace_seconds),
            self._tasks.stop(grace_seconds, _LAST_SECONDS),
        )
        # When not even the pilots could write there is nothing to wait for.
        await self._deposits.close(_LAST_SECONDS if have_landed else 0)
        await self._relay.close(_LAST_SECONDS if have_landed else 0)
        await self._writer.close(_LAST_SECONDS if have_landed else 0)
        await self._parking.close(_LAST_SECONDS if have_landed else 0)
        await _cancelled(self._turning)
        await self._executor.end()
        if self._watch is not None:
            self._watch.end()
        if self._executor.acting():
            self._deck.lease.wind_down()
            logger.error(
                "worker %s: synchronous effects still run; their runs are not given back", self.id
            )
            return
        self._deck.lease.end()
        self._past.append(self.id)
        try:
            await self._retire()
        except StoreUnavailableError as error:
            logger.warning(
                "worker %s: could not sign off, its lease will run out: %s", self.id, error
            )

    def leave(self) -> None:
        """Renew the lease no more, whatever still acts: the store is about to be closed."""
        self._deck.lease.end()

    async def _stop_pilots(self, grace_seconds: float) -> bool:
        """Have every pilot land; False when some could not write any more."""
        tasks = [task for _, task in self._pilots.values()]
        for pilot, _ in self._pilots.values():
            pilot.stop()
        if not tasks:
            return True
        _, late = await asyncio.wait(tasks, timeout=grace_seconds)
        for pilot, _ in list(self._pilots.values()):
            pilot.abort_attempts()
        if late:
            _, late = await asyncio.wait(late, timeout=_LAST_SECONDS)
        # The store is away: nothing can be given back, and the end of the lease will say so.
        await _cancelled(*(task for task in tasks if task in late))
        return not late

    async def kill(self) -> None:
        """End as if the process died: write nothing, give nothing back. For tests and simulations."""
        self._accepting = False
        self._unsubscribe()
        self._deck.lease.end()
        self._deposits.kill()
        self._holders.close()
        for pilot, _ in self._pilots.values():
            pilot.lose()
        tasks = [task for _, task in self._pilots.values()]
        tasks.extend((self._looking, self._turning, *self._tasks.cancel()))
        for task in tasks:
            task.cancel()
        await self._relay.close()
        await self._writer.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def look(self) -> None:
        """Look for work now."""
        self._hint.set()

    async def submit(self, change: Change) -> Verdict:
        """Write a change of a client, or of the relay, together with what the runs write."""
        verdict = await self._writer.submit(change)
        if isinstance(change, StartRun) and not isinstance(verdict, Applied):
            # It may have been applied by an earlier sending whose answer was lost, and then the run is ours.
            self._unsure = True
        if isinstance(change, Terminate) and isinstance(verdict, Applied):
            self._say_closed(change.run)
            if verdict.outbox:
                self._relay.wake(change.run)
        return verdict

    def born_here(self, workflow: str) -> WorkerId | None:
        """Return this worker's id when a new run of that workflow may be born claimed by it."""
        room = len(self._pilots) < self._options.runs
        known = self._registry.workflows.get(workflow)
        # One that is pinned is claimed, so that the first entry of its worker names the build.
        may_take = self._accepting and not self._lapsed and not self._paused.holds
        fit = may_take and known is not None and not known.pin
        return self.id if room and fit and self._deck.lease.valid else None

    def holds(self, run: RunKey) -> bool:
        """Whether the run is in this worker's hands."""
        return run in self._pilots

    def adopt(self, head: RunHead, rows: tuple[StampedRow, ...]) -> None:
        """Take over a run that was born claimed by this worker; one that comes after the end of its lease is for whoever claims it."""
        may_take = self._accepting and not self._lapsed
        if may_take and head.owner == self.id and head.run not in self._pilots:
            self._launch(ClaimedRun(head, None), rows)

    # One life

    async def _begin_life(self) -> None:
        options = self._options
        await self._paused.look()
        worker = WorkerId(f"{options.host or 'worker'}-{options.pid}-{self._random.bits(6).hex()}")
        row = WorkerRow(
            worker=worker,
            host=options.host,
            pid=options.pid,
            build=self._build,
            workflows=tuple(sorted(self._workflows)),
            lease=options.lease,
            queues=tuple(sorted(options.queues)),
            paused=self._paused.holds,
        )
        loop = asyncio.get_running_loop()

        def lapsed() -> None:
            # A closed loop raises, and nobody is left to be told.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._lose_life, worker)

        acting = self._executor.acting
        lease = Lease(self._store, worker, options.lease, self._clock, lapsed, acting)
        await self._store.register(row)
        lease.begin(self._threads)
        self._row = row
        self._lapsed = False
        self._deck = Deck(
            store=self._store,
            writer=self._writer,
            lease=lease,
            executor=self._executor,
            clock=self._clock,
            registry=self._registry,
            worker=worker,
            build=self._build,
            library=options.library,
            idle=options.idle,
            relay=self._relay,
            deposits=self._deposits,
            controls=Controls(
                self._store, options.authority, pins=has_foreign(self._registry.effects.values())
            ),
            book=self._book,
            authority=options.authority,
            recheck_within=options.recheck_within,
            check=AlwaysReplay if self._always_replay else None,
            history=options.history,
            holders=self._holders,
            parking=self._parking,
        )
        self._tasks = TaskRunner(self._deck, options.queues, options.tasks, self._hint.set)
        serves = [*row.workflows, *(f"queue {queue}" for queue in row.queues)]
        logger.info("worker %s: ready for %s", worker, ", ".join(serves) or "nothing")
        if self._paused.holds:
            logger.warning("worker %s is PAUSED, %s. %s", worker, self._paused.why, HOW)

    async def _see_what_is_released(self) -> None:
        """Go on with everything, and let others see that, when everything was released."""
        if not (self._paused.holds and await self._paused.look()):
            return
        row = self._row = msgspec.structs.replace(self._row, paused=False)
        logger.warning("worker %s: everything was released; it goes on", self.id)
        await self._store.register(row)

    def _sending(self) -> Callable[[WorkerId], None]:
        return self._deck.lease.sending()

    def _lose_life(self, worker: WorkerId) -> None:
        if self._lapsed or worker != self.id:
            return
        self._lapsed = True
        self._options.meters.add(LAPSES)
        logger.error("worker %s: its lease is over; every run is let go", self.id)
        for pilot, _ in self._pilots.values():
            pilot.lose()
        self._tasks.cancel()
        self._hint.set()

    async def _next_life(self) -> None:
        for pilot, _ in self._pilots.values():
            # One may have been claimed while the lease came to its end.
            pilot.lose()
        tasks = [task for _, task in self._pilots.values()] + self._tasks.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._deck.lease.end()
        former = self.id
        await self._begin_life()
        self._past.append(former)

    async def _retire(self) -> None:
        """Forget the lives that are over; not while a thread acts, which may have begun in one of them."""
        while self._past and not self._executor.acting():
            former = self._past[-1]
            await self._store.retire(former)
            # Two that stop the worker at once may have come here with the same life.
            if former in self._past:
                self._past.remove(former)

    async def _turn_for_ever(self) -> None:
        while True:
            self._deck.lease.loop_turned()
            await asyncio.sleep(min(self._deck.lease.interval / 2, _TURN_SECONDS))

    # Looking for work

    async def _look_for_ever(self) -> None:
        while True:
            try:
                if self._lapsed or not self._deck.lease.valid:
                    self._lose_life(self.id)
                    await self._next_life()
                seconds = await self._look()
                self._looked_at, self._is_store_away = self._clock.monotonic(), False
                await self._retire()
            except StoreUnavailableError as error:
                self._is_store_away = True
                logger.warning("the store cannot be read, trying again: %s", error)
                self._unsure = True
                seconds = self._rest()
            except Exception:
                # A worker that no longer looks would keep its lease and its runs, and move none of them.
                logger.exception("worker %s: looking for work broke inside Outlast", self.id)
                # What it broke on may have come after the claim: then runs are ours, and the answer that names them is lost.
                self._unsure = True
                seconds = self._rest()
            if seconds <= 0:
                continue
            try:
                async with asyncio.timeout(seconds):
                    await self._hint.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(PAUSE.total_seconds())

    def _rest(self) -> float:
        """Return how long to leave the store alone. What was hinted at until now is looked at then."""
        self._hint.clear()
        return _STORE_RETRY_SECONDS

    async def _look(self) -> float:
        """Claim once; return how long to wait until the next look."""
        self._hint.clear()
        await self._find_owned_if_unsure()
        await self._see_what_is_released()
        paused = self._paused.holds
        limit = min(_CLAIM_BATCH, self._options.runs - len(self._pilots))
        claim = await self._store.claim(self.id, self._workflows, limit, released=paused)
        for claimed in claim.runs:
            self._launch(claimed)
        for run in claim.mail:
            self._deliver_mail(run)
        if claim.held < len(self._pilots):
            # Perhaps one was terminated; its attempts must not go on until its next write.
            self._unsure = True
            await self._find_owned_if_unsure()
        self._watch_for_missing(claim)
        due = None if paused else await self._tasks.look()
        if limit and len(claim.runs) == limit:
            return 0
        soon = math.inf if due is None else due
        sweep = math.inf if paused else self._next_sweep(claim)
        return min(self._next_look(claim), sweep, soon)

    def _watch_for_missing(self, claim: Claim) -> None:
        """Notice runs that are ours in the store at each look and never in memory."""
        if claim.held <= len(self._pilots):
            self._missing_since = None
            return
        now = self._clock.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= _MISSING_SECONDS:
            self._missing_since = None
            self._unsure = True

    def _next_sweep(self, claim: Claim) -> float:
        """Have outboxes swept when there is something in them that others left; return when to look again."""
        if claim.next_relay is None:
            return math.inf
        wait = (claim.next_relay - claim.now).total_seconds()
        return wait if wait > 0 else self._relay.sweep()

    async def _find_owned_if_unsure(self) -> None:
        if self._unsure and self._clock.monotonic() - self._owned_at >= _OWNED_SECONDS:
            await self._find_owned()

    async def _find_owned(self) -> None:
        """Take up what is ours in the store and not in memory: a claim or a birth whose answer was lost.

        And let go of what is ours in memory and not in the store: a run that was terminated.
        """
        self._unsure = False
        self._owned_at = self._clock.monotonic()
        before = [(run, pilot) for run, (pilot, _) in self._pilots.items()]
        try:
            heads = await self._store.owned(self.id)
        except StoreUnavailableError:
            self._unsure = True
            raise
        for head in heads:
            held = self._pilots.get(head.run)
            # A pilot that does not know yet that its parking was written holds the run at the epoch before.
            is_known = held is not None and held[0].epoch == head.epoch
            if not is_known and head.workflow in self._workflows:
                logger.info("run %s: ours without our knowing; taken up", head.run)
                self._launch(ClaimedRun(head, timedelta(0)))
        owned = {head.run for head in heads}
        for run, pilot in before:
            # What was given back meanwhile is let go of in any case.
            if run not in owned:
                pilot.lose()

    def _next_look(self, claim: Claim) -> float:
        poll = self._options.poll.total_seconds()
        if claim.next_due is None:
            return poll
        return min(poll, max(0.001, (claim.next_due - claim.now).total_seconds()))

    def _deliver_mail(self, run: RunKey) -> None:
        held = self._pilots.get(run)
        if held is not None:
            held[0].mail_came()
        else:
            self._unsure = True

    def _launch(self, claimed: ClaimedRun, rows: tuple[StampedRow, ...] | None = None) -> None:
        run = claimed.head.run
        former = self._pilots.get(run)
        pilot = Pilot(self._deck, claimed.head, claimed.stopped_ago, rows)
        if former is not None:
            # It was given back, or terminated and started anew: what is attempted there is nobody's any more.
            former[0].lose()

        async def fly() -> None:
            head = claimed.head
            about.set(
                {
                    "worker": self.id,
                    "tenant": run.tenant,
                    "run": run.run_id,
                    "workflow": head.workflow,
                }
            )
            if former is not None:
                # The run came back before its former pilot had let go of everything.
                await asyncio.wait([former[1]])
            await pilot.fly()

        task = asyncio.get_running_loop().create_task(
            fly(), name=f"outlast {run}", context=self._context.copy()
        )
        self._pilots[run] = (pilot, task)
        task.add_done_callback(lambda done: self._landed(run, pilot, done))

    def _landed(self, run: RunKey, pilot: Pilot, task: asyncio.Task[None]) -> None:
        held = self._pilots.get(run)
        if held is not None and held[0] is pilot:
            del self._pilots[run]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("run %s: its pilot broke", run, exc_info=error)
        if pilot.lost or (not task.cancelled() and task.exception() is not None):
            self._unsure = True
        if pilot.ended or pilot.lost:
            self._say_closed(run)
        self._hint.set()

    def _say_closed(self, run: RunKey) -> None:
        if self._closed is not None:
            self._closed(run)


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, and return when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _nothing() -> None:
    """There is nothing to undo yet."""
