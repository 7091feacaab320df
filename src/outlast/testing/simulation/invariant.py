"""What must hold after every event of a simulation: a second, plain model of what the store is told and of what bodies do.

It shares no rule with the stores, so that a fault of theirs is not repeated here. Numbers are those of the design's invariants:
1, a recorded outcome never changes and is never executed again; 5, what was accepted is delivered once and in order; 6, no effect
begins on an approval that does not hold; 7, one worker an epoch. What an effect does to the world is the business of `World`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from outlast.errors import OutlastError
from outlast.journal.entry import (
    Accepted,
    ApprovalRequested,
    Cancelled,
    Completed,
    ContinuedAsNew,
    EffectCompleted,
    EffectIntended,
    Entry,
    Failed,
    MessageReceived,
    PauseRequested,
    StampedRow,
    Taken,
    UpdateReceived,
    from_row,
)
from outlast.store.change import (
    Applied,
    BeatOperation,
    BeatTask,
    Change,
    ClearOutbox,
    Decide,
    FinishTask,
    Message,
    PutControl,
    PutMessage,
    RevokeSticky,
    RunChange,
    RunKey,
    StartRun,
    Status,
    Terminate,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.protocol import Claim
from outlast.testing.clock import SimulatedClock
from outlast.testing.simulation.bodies import Bodies
from outlast.testing.simulation.consent import Consent
from outlast.testing.simulation.forked import begin_fork
from outlast.testing.simulation.model import Item, Life, Run
from outlast.testing.simulation.task import Tasks
from outlast.testing.simulation.written import Written

logger = logging.getLogger("outlast.testing")

_END = (Completed, Failed, Cancelled)
_CLOSE_SECONDS = 1e-3
_TOLD = {EffectIntended: "intent", EffectCompleted: "outcome", ApprovalRequested: "request"}


class InvariantViolatedError(OutlastError):
    """The system did what it must never do.

    Args:
        invariant: Its number in the design; 0 for what no number stands for.
    """

    code = "invariant_violated"

    def __init__(self, invariant: int, what: str, *, run: str = "", operation: str = "") -> None:
        label = f"invariant {invariant}: " if invariant else ""
        super().__init__(f"{label}{what}", run=run or None, operation=operation or None)
        self.invariant = invariant


def _messages(entries: Iterable[Entry]) -> list[str]:
    """Return the ids of the messages that were received, in order."""
    return [one.message_id for one in entries if isinstance(one, MessageReceived | UpdateReceived)]


class Invariants:
    """Told of every event, in the order in which they happen.

    Args:
        clock: The simulation's.
        violated: Called with each violation; it may not count on being able to raise through the code under test.
    """

    def __init__(
        self, clock: SimulatedClock, violated: Callable[[InvariantViolatedError], None]
    ) -> None:
        self._clock = clock
        self._violated = violated
        self.runs: dict[RunKey, Run] = {}
        self.lives: dict[WorkerId, Life] = {}
        self.happened: Callable[[str, str], object] = lambda _process, _what: None
        """Called with the process and a word when an `attempt` begins, and when something was written: an `intent`, an `outcome`
        of an effect, a `request` to a person, and that a run was given back (`park`)."""
        self.bodies = Bodies(
            clock,
            self.check,
            self.runs,
            self.lives,
            lambda process: self.happened(process, "attempt"),
        )
        self.written = Written(self.check, self.bodies)
        self.consent = Consent(self.check)
        self.tasks = Tasks(clock, self.check, self.runs, self.lives)
        self.bodies.tasks = self.tasks

    def check(
        self, holds: object, invariant: int, what: str, *, run: RunKey | None = None, at: str = ""
    ) -> None:
        """Report a violation unless `holds`."""
        if not holds:
            self._violated(
                InvariantViolatedError(invariant, what, run=str(run or ""), operation=at)
            )

    # Workers

    def registered(self, row: WorkerRow) -> None:
        """A worker's life begins; `host` names its process, since a request may outlive that."""
        now = self._clock.monotonic()
        known = self.lives.get(row.worker)
        if known is None or known.over(now):
            self._let_go(row.worker, now if known is None else min(now, known.end))
        self.lives[row.worker] = Life(row.lease.total_seconds(), now, row.host, row.build)

    def renewed(self, worker: WorkerId) -> None:
        """The store says that the worker's lease runs on."""
        life = self.lives.get(worker)
        now = self._clock.monotonic()
        self.check(life and life.runs(now), 7, f"the lapsed lease of {worker} was renewed")
        if life is not None:
            life.seen = now

    def put_back(self) -> None:
        """The store is held to have been put back: what is open may have done what nobody remembers."""
        for run in self.runs.values():
            run.restored = run.restored or not run.closed

    def retired(self, worker: WorkerId) -> None:
        """A worker's life ends, and its runs are given back."""
        life = self.lives.pop(worker, None)
        held = [key for key, run in self.runs.items() if run.owner == worker]
        for key in held:
            rests = life is None or self.bodies.rests(life.process, key)
            self.check(rests, 3, "given back while an effect of it acts", run=key)
        now = self._clock.monotonic()
        self._let_go(worker, now if life is None else min(now, life.end))

    def _let_go(self, worker: WorkerId, stopped: float) -> None:
        self.tasks.let_go(worker)
        for run in self.runs.values():
            if run.owner == worker:
                run.let_go(stopped)

    def claimed(self, worker: WorkerId, claim: Claim) -> None:
        """Runs were given to a worker."""
        now = self._clock.monotonic()
        for claimed in claim.runs:
            key, run = claimed.head.run, self.runs[claimed.head.run]
            self.check(not run.closed, 1, "a run that has ended was given to a worker", run=key)
            life = self.lives.get(run.owner) if run.owner else None
            self.check(
                life is None or life.over(now),
                7,
                f"taken from {run.owner}, whose lease still runs",
                run=key,
            )
            lapses = claimed.head.lapses - run.lapses
            self.check(
                lapses == 1 if life else lapses in (0, 1),
                0,
                f"{lapses} owners are said to have been lost since the last one",
                run=key,
            )
            run.lapses = claimed.head.lapses
            stopped = life.end if life else run.stopped
            if stopped is not None:
                run.taken_over(stopped)
                ago = claimed.stopped_ago.total_seconds() if claimed.stopped_ago else 0.0
                self.check(
                    ago <= now - stopped + _CLOSE_SECONDS,
                    3,
                    f"its owner is said to have stopped {ago} s ago, and may have acted since",
                    run=key,
                )
            self.check(claimed.head.epoch == run.epoch + 1, 7, "an epoch was used twice", run=key)
            if run.parked is Status.PAUSED:
                recalled = run.unread_kinds() & {"resume", "cancel"}
                self.check(recalled, 0, "a paused run was taken, and nobody resumed it", run=key)
            run.parked = None
            run.owner, run.epoch = worker, claimed.head.epoch

    def loaded(self, key: RunKey) -> None:
        """Somebody has read a run, to take it up."""
        if key in self.runs:
            self.runs[key].fresh.clear()

    # Changes

    def committed(self, changes: Iterable[tuple[Change, Verdict]], now: datetime) -> None:
        """The store has judged changes, in this order.

        Args:
            now: The store's time.
        """
        for change, verdict in changes:
            if isinstance(change, RunChange):
                self._owned(change, verdict, now)
            elif isinstance(verdict, Applied):
                self._unowned(change, now)

    def _unowned(self, change: Change, now: datetime) -> None:
        match change:
            case StartRun():
                self._started(change, now)
            case PutMessage():
                self._accepted(change.run, change.message, change.incarnation)
            case Decide():
                self._decided(change, now)
            case Terminate():
                self._terminated(change.run)
                self.tasks.ended(change.run)
            case ClearOutbox():
                run = self.runs.get(change.run)
                if run is not None and not run.closed and run.generation == change.generation:
                    for answer in change.answers:
                        self._accepted(change.run, answer)
            case FinishTask() | BeatTask():
                self._of_task(change)
            case BeatOperation() | PutControl() | RevokeSticky():
                self._heard(change, now)
            case _:
                pass

    def _heard(self, change: BeatOperation | PutControl | RevokeSticky, now: datetime) -> None:
        if isinstance(change, PutControl):
            self.consent.control(change, now)
        elif isinstance(change, RevokeSticky):
            self.consent.sticky.revoked(change)
        else:
            self.bodies.heard(change, now)

    def _of_task(self, change: FinishTask | BeatTask) -> None:
        if isinstance(change, BeatTask):
            self.tasks.beats(change)
        elif change.message is None or self._accepted(change.run, change.message):
            self.tasks.finished(change)

    def _started(self, change: StartRun, now: datetime) -> None:
        run = self.runs.setdefault(change.run, Run())
        self.check(
            run.generation == 0 or run.closed,
            1,
            "a run was started while one with its id is open",
            run=change.run,
        )
        run.renew()
        self.check(
            change.generation == run.generation, 1, "a generation is missing", run=change.run
        )
        times = (*change.times, *[now] * (len(change.entries) - len(change.times)))
        run.rows = [StampedRow(row, at) for row, at in zip(change.entries, times, strict=True)]
        begin_fork(run, [from_row(row) for row in change.entries], self._clock.monotonic())
        self.consent.begun(change.run)
        run.owner, run.restored = change.worker, change.restored is not None
        if change.worker is not None:
            run.epoch += 1
            run.workers[run.epoch] = change.worker
            self._seen(change.worker, change.run)
        for message in change.messages:
            self._accepted(change.run, message)

    def _accepted(self, key: RunKey, message: Message, incarnation: int = 0) -> bool:
        """Note a message; False when it is known already.

        Args:
            incarnation: The only one that was meant; 0 for whichever is there.
        """
        run = self.runs.setdefault(key, Run())
        name = (incarnation or max(run.incarnation, 1), message.message_id)
        if name in run.inbox:
            return False
        self.check(not run.closed, 5, "a message was accepted for a run that has ended", run=key)
        run.inbox[name] = Item(len(run.inbox) + 1, str(message.kind))
        return True

    def _decided(self, change: Decide, now: datetime) -> None:
        if not self._accepted(change.run, change.message):
            return
        self.consent.decided(self.runs[change.run], change, now)
        request = self.runs[change.run].approvals.get(change.approval_id)
        self.check(
            request is not None
            and request.state == "pending"
            and now < request.put.expires_at
            and change.seen_sha256 == request.put.subject_sha256,
            6,
            f"a decision on {change.approval_id} was taken that does not hold",
            run=change.run,
        )
        if request is not None and change.approved:
            request.vote()
        elif request is not None:
            request.state = "edited" if change.edit else "denied"

    def _terminated(self, key: RunKey) -> None:
        run = self.runs[key]
        self.check(not run.closed, 1, "a run was ended twice", run=key)
        run.end(self._clock.monotonic())
        run.terminated = True
        run.epoch += 1

    def _seen(self, worker: WorkerId, key: RunKey) -> None:
        """A change renews the lease of its worker, which must still run."""
        life = self.lives.get(worker)
        now = self._clock.monotonic()
        alive = life is not None and life.runs(now)
        self.check(alive, 7, f"a change of {worker}, whose lease is over, was written", run=key)
        if life is not None:
            life.seen = now

    def _owned(self, change: RunChange, verdict: Verdict, now: datetime) -> None:
        key, run = change.run, self.runs.get(change.run)
        holds = run is not None and run.owner == change.worker and run.epoch == change.epoch
        if run is not None and change.digest == run.digest and run.version == change.version + 1:
            self._sent_again(run, change, verdict)
            return
        if not isinstance(verdict, Applied) or run is None:
            return
        self.check(holds, 7, f"{change.worker} wrote, and does not hold the run", run=key)
        first = run.workers.setdefault(change.epoch, change.worker)
        self.check(
            first == change.worker, 7, f"{first} and {change.worker} wrote under one epoch", run=key
        )
        self.check(not run.closed, 1, "something was written after the end", run=key)
        self.check(change.version == run.version, 7, "a change was lost or written twice", run=key)
        self._seen(change.worker, key)
        run.version, run.digest = change.version + 1, change.digest
        self._append(run, change, verdict.at)
        self._check_build(run, change)
        self.written.take(run, change, now)
        self.consent.written(run, change, now)
        if change.entries:
            run.lapses = 0
        self._head(run, change)
        self.tasks.written(run, change)
        self._tell(change)
        self._roll_over(run, change, verdict.at)

    def _sent_again(self, run: Run, change: RunChange, verdict: Verdict) -> None:
        """The last change came a second time: whoever holds the run now, a living worker must be told that it was written."""
        life = self.lives.get(change.worker)
        now = self._clock.monotonic()
        if life is None or life.over(now):
            return
        self.check(
            isinstance(verdict, Applied) and (verdict.at == run.at or run.terminated),
            7,
            f"a change that was written is not recognised: {verdict}",
            run=change.run,
        )
        life.seen = now

    def _check_build(self, run: Run, change: RunChange) -> None:
        """What is pinned is moved by workers of its build, until somebody says that any may."""
        life = self.lives.get(change.worker)
        build = life.build if life else ""
        for entry in map(from_row, change.entries):
            if isinstance(entry, Accepted) and entry.any_build:
                run.build = ""
            elif isinstance(entry, Taken):
                right = entry.build in ("", build)
                self.check(right, 2, f"pinned by {build} to {entry.build}", run=change.run)
                run.build = entry.build
            right = run.build in ("", build)
            self.check(right, 2, f"moved by {build}, pinned to {run.build}", run=change.run)

    def _append(self, run: Run, change: RunChange, at: datetime) -> None:
        self.check(
            run.at is None or at >= run.at, 1, "the journal's time goes back", run=change.run
        )
        run.at = at
        seen = (*change.times, *[at] * (len(change.entries) - len(change.times)))
        for row, time in zip(change.entries, seen, strict=True):
            former = run.rows[-1].at if run.rows else time
            self.check(former <= time <= at, 1, "the time of an entry goes back", run=change.run)
            self.check(
                row.seq == len(run.rows), 1, "an entry was written over another", run=change.run
            )
            last = run.rows[-1].row.turn if run.rows else -1
            self.check(row.turn >= last, 1, "a turn goes back", run=change.run)
            run.rows.append(StampedRow(row, time))

    def _head(self, run: Run, change: RunChange) -> None:
        key = change.run
        ends = bool(run.rows) and isinstance(from_row(run.rows[-1].row), _END)
        closes = change.head is not None and change.head.status.closed
        self.check(
            ends == closes, 1, "the head and the journal differ about the end", run=change.run
        )
        if closes:
            run.end(self._clock.monotonic())
            self.check(
                not run.unread(), 5, f"ended with unread messages {run.unread()}", run=change.run
            )
            self.check(
                not run.asked, 5, f"ended with unanswered updates {run.asked}", run=change.run
            )
        elif change.head is not None and change.head.release:
            run.let_go(self._clock.monotonic())
            run.parked = change.head.status
            paused = run.parked is Status.PAUSED
            self.check(not paused or run.paused, 0, "parked as paused, and it is not", run=key)
        if run.owner is None:
            life = self.lives.get(change.worker)
            rests = life is None or self.bodies.rests(life.process, change.run)
            self.check(rests, 3, "given back while an effect of it acts", run=change.run)

    def _roll_over(self, run: Run, change: RunChange, at: datetime) -> None:
        """The generation that ends is the one that the next one follows; what it carries over was received, and is carried once."""
        ends = bool(run.rows) and isinstance(from_row(run.rows[-1].row), ContinuedAsNew)
        self.check(
            ends == bool(change.next), 1, "a generation ended without a next one", run=change.run
        )
        if not change.next:
            return
        begun = [from_row(one) for one in change.next]
        received = _messages(from_row(one.row) for one in run.rows)
        carried = _messages(begun)
        in_order = [one for one in received if one in set(carried)]
        self.check(carried == in_order, 5, f"carried over {carried}", run=change.run)
        updates = {one.message_id for one in begun if isinstance(one, UpdateReceived)}
        elsewhere = run.forked.elsewhere if run.forked else set[str]()
        self.check(
            run.asked - elsewhere == updates,
            5,
            f"updates {run.asked} have no answer, and {updates} go on",
            run=change.run,
        )
        run.begin([StampedRow(one, at) for one in change.next])
        begin_fork(run, begun, self._clock.monotonic())
        run.asked = updates
        run.paused = any(isinstance(one, PauseRequested) for one in begun)

    def _tell(self, change: RunChange) -> None:
        life = self.lives.get(change.worker)
        process = life.process if life else ""
        kinds = {type(from_row(row)) for row in change.entries}
        for kind, word in _TOLD.items():
            if kind in kinds:
                self.happened(process, word)
        if change.head is not None and change.head.release:
            self.happened(process, "park")
