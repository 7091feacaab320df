"""What must hold after every event of a simulation: a second, plain model of what the store is told and of what bodies do.

It shares no rule with the stores, so that a fault of theirs is not repeated here. Numbers are those of the design's invariants:
1, a recorded outcome never changes and is never executed again; 5, what was accepted is delivered once and in order; 6, no effect
begins on an approval that does not hold; 7, one worker an epoch. What an effect does to the world is the business of `World`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from outlast.clock import Clock
from outlast.errors import OutlastError
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalExpired,
    Cancelled,
    Completed,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    Failed,
    MessageReceived,
    StampedRow,
    StepCompleted,
    StepFailed,
    TimerFired,
    from_row,
)
from outlast.store.change import (
    Applied,
    ApprovalExpire,
    ApprovalPut,
    Change,
    Decide,
    GrantSpend,
    Message,
    PutMessage,
    RunChange,
    RunKey,
    StartRun,
    Terminate,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.protocol import Claim
from outlast.testing.simulation.model import Item, Life, Request, Run
from outlast.workflows.attempt import Attempt

logger = logging.getLogger("outlast.testing")

_END = (Completed, Failed, Cancelled)
_OUTCOMES = (
    *(StepCompleted, StepFailed, EffectCompleted, EffectFailed, EffectRefused),
    *(TimerFired, ApprovalDecided, ApprovalExpired),
)


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


class Invariants:
    """Told of every event, in the order in which they happen.

    Args:
        clock: The simulation's.
        violated: Called with each violation; it may not count on being able to raise through the code under test.
    """

    def __init__(self, clock: Clock, violated: Callable[[InvariantViolatedError], None]) -> None:
        self._clock = clock
        self._violated = violated
        self.runs: dict[RunKey, Run] = {}
        self.lives: dict[WorkerId, Life] = {}
        self.begun: Callable[[str], object] = lambda _process: None
        """Called with its process when an attempt begins."""

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
            self._let_go(row.worker)
        self.lives[row.worker] = Life(row.lease.total_seconds(), now, row.host)

    def renewed(self, worker: WorkerId) -> None:
        """The store says that the worker's lease runs on."""
        life = self.lives.get(worker)
        now = self._clock.monotonic()
        self.check(life and life.runs(now), 7, f"the lapsed lease of {worker} was renewed")
        if life is not None:
            life.seen = now

    def retired(self, worker: WorkerId) -> None:
        """A worker's life ends, and its runs are given back."""
        self.lives.pop(worker, None)
        self._let_go(worker)

    def _let_go(self, worker: WorkerId) -> None:
        for run in self.runs.values():
            if run.owner == worker:
                run.owner = None

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
            self.check(claimed.head.epoch == run.epoch + 1, 7, "an epoch was used twice", run=key)
            run.owner, run.epoch = worker, claimed.head.epoch

    def loaded(self, key: RunKey) -> None:
        """Somebody has read a run, to take it up."""
        if key in self.runs:
            self.runs[key].fresh.clear()

    # Attempts

    def begins(self, attempt: Attempt, kind: str, process: str) -> None:
        """The body of a step or effect begins, in a process."""
        self.begun(process)
        key, at = RunKey(attempt.tenant, attempt.run_id), attempt.operation
        run = self.runs[key]
        life = None if run.owner is None else self.lives.get(run.owner)
        here = life is not None and life.process == process and life.runs(self._clock.monotonic())
        if attempt.key in run.left_over:
            return
        run.attempted.add(at)
        if kind == "step":
            # A step of somebody who does not know yet that he has lost the run is harmless; what he makes of it is refused.
            self.check(
                not here or at not in run.outcomes,
                1,
                f"step {attempt.name} begins although its outcome is recorded",
                run=key,
                at=at,
            )
            return
        intent = run.intents.get(at)
        self.check(
            intent is not None and intent.key == attempt.key,
            1,
            f"effect {attempt.name} begins without an intent that names its key",
            run=key,
            at=at,
        )
        self.check(
            at not in run.outcomes,
            1,
            f"effect {attempt.name} begins although its outcome is recorded",
            run=key,
            at=at,
        )
        self.check(
            here or run.terminated,
            7,
            f"effect {attempt.name} begins in {process}, which does not hold the run",
            run=key,
            at=at,
        )

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
                self._accepted(change.run, change.message)
            case Decide():
                self._decided(change, now)
            case Terminate():
                self._terminated(change.run)
            case _:
                pass

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
        run.rows = [StampedRow(row, now) for row in change.entries]
        run.owner = change.worker
        if change.worker is not None:
            run.epoch += 1
            run.workers[run.epoch] = change.worker
            self._seen(change.worker, change.run)

    def _accepted(self, key: RunKey, message: Message) -> bool:
        """Note a message; False when it is known already."""
        run = self.runs.setdefault(key, Run())
        name = (max(run.generation, 1), message.message_id)
        if name in run.inbox:
            return False
        self.check(not run.closed, 5, "a message was accepted for a run that has ended", run=key)
        run.inbox[name] = Item(len(run.inbox) + 1, str(message.kind))
        return True

    def _decided(self, change: Decide, now: datetime) -> None:
        if not self._accepted(change.run, change.message):
            return
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
        if request is not None:
            request.state = "approved" if change.approved else "denied"

    def _terminated(self, key: RunKey) -> None:
        run = self.runs[key]
        self.check(not run.closed, 1, "a run was ended twice", run=key)
        run.closed = run.terminated = True
        run.owner = None
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
        self._consume(run, change)
        self._approvals(run, change, now)
        self._head(run, change)

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

    def _append(self, run: Run, change: RunChange, at: datetime) -> None:
        self.check(
            run.at is None or at >= run.at, 1, "the journal's time goes back", run=change.run
        )
        run.at = at
        for row in change.entries:
            self.check(
                row.seq == len(run.rows), 1, "an entry was written over another", run=change.run
            )
            last = run.rows[-1].row.turn if run.rows else -1
            self.check(row.turn >= last, 1, "a turn goes back", run=change.run)
            run.rows.append(StampedRow(row, at))
            self._entry(run, change, from_row(row))

    def _entry(self, run: Run, change: RunChange, entry: Entry) -> None:
        at = getattr(entry, "operation", "")
        if isinstance(entry, _OUTCOMES):
            self.check(
                at not in run.outcomes,
                1,
                f"a second outcome: {type(entry).__name__}",
                run=change.run,
                at=at,
            )
            run.outcomes.add(at)
        match entry:
            case EffectIntended():
                self._intended(run, change, entry)
            case EffectCompleted() | EffectFailed() | EffectInDoubt():
                self.check(
                    at in run.intents, 1, "an effect without an intent", run=change.run, at=at
                )
            case EffectRefused():
                self.check(
                    at not in run.intents, 6, "refused after its intent", run=change.run, at=at
                )
            case MessageReceived():
                self._received(run, change, entry)
            case ApprovalDecided():
                request = run.approvals.get(entry.approval_id)
                said = "approved" if entry.approved else "denied"
                self.check(
                    request is not None and request.state == said,
                    6,
                    f"{entry.approval_id} is said to be {said}, and is not",
                    run=change.run,
                    at=at,
                )
            case ApprovalExpired():
                self.check(
                    ApprovalExpire(entry.approval_id) in change.approvals,
                    6,
                    f"{entry.approval_id} is said to have expired, and was not closed",
                    run=change.run,
                    at=at,
                )
            case _:
                pass
        if isinstance(entry, EffectInDoubt):
            self._doubted(run, change, at)

    def _doubted(self, run: Run, change: RunChange, at: str) -> None:
        self.check(
            at in run.attempted or at not in run.fresh,
            1,
            "in doubt, and no attempt of it was ever made",
            run=change.run,
            at=at,
        )

    def _intended(self, run: Run, change: RunChange, intent: EffectIntended) -> None:
        at = intent.operation
        self.check(
            at not in run.intents and at not in run.outcomes,
            1,
            f"effect {intent.name} was intended twice",
            run=change.run,
            at=at,
        )
        run.intents[at] = intent
        run.fresh.add(at)
        covered = any(
            cover.effect == intent.name
            for request in run.approvals.values()
            for cover in request.put.covers
        )
        self.check(
            intent.grant is not None or not covered,
            6,
            f"effect {intent.name} was intended uncovered, and an approval speaks of it",
            run=change.run,
            at=at,
        )
        spends = [one for one in change.spends if one.operation == at]
        named = [] if intent.grant is None else [(intent.grant.approval_id, intent.grant.cover)]
        self.check(
            [(one.approval_id, one.cover) for one in spends] == named,
            6,
            "the approval that the intent names is not the one that is spent",
            run=change.run,
            at=at,
        )

    def _received(self, run: Run, change: RunChange, entry: MessageReceived) -> None:
        item = run.inbox.get((run.generation, entry.message_id))
        if item is None or entry.message_id not in change.consumed:
            self.check(
                False, 5, f"message {entry.message_id} was received and never sent", run=change.run
            )
            return
        self.check(
            item.number > run.last_signal,
            5,
            f"message {entry.message_id} came out of its order",
            run=change.run,
        )
        run.last_signal = item.number

    def _consume(self, run: Run, change: RunChange) -> None:
        for message_id in change.consumed:
            item = run.inbox.get((run.generation, message_id))
            self.check(
                item is not None and not item.consumed,
                5,
                f"message {message_id} was delivered twice, or never accepted",
                run=change.run,
            )
            if item is not None:
                item.consumed = True

    def _approvals(self, run: Run, change: RunChange, now: datetime) -> None:
        for act in change.approvals:
            if isinstance(act, ApprovalPut):
                known = act.approval_id in run.approvals
                self.check(not known, 6, f"{act.approval_id} was asked twice", run=change.run)
                run.approvals[act.approval_id] = Request(act)
                continue
            request = run.approvals[act.approval_id]
            if request.state != "pending":
                continue
            if isinstance(act, ApprovalExpire):
                self.check(
                    now >= request.put.expires_at,
                    6,
                    f"{act.approval_id} expired before its time",
                    run=change.run,
                )
            request.state = "expired" if isinstance(act, ApprovalExpire) else "withdrawn"
        for spend in change.spends:
            self._spent(run, change, spend, now)

    def _spent(self, run: Run, change: RunChange, spend: GrantSpend, now: datetime) -> None:
        request = run.approvals.get(spend.approval_id)
        held = (
            request is not None
            and request.state == "approved"
            and now < request.put.use_by
            and 0 <= spend.cover < len(request.put.covers)
            and request.put.covers[spend.cover].match_sha256 == spend.match_sha256
        )
        self.check(
            held,
            6,
            f"{spend.approval_id} was used, and does not hold",
            run=change.run,
            at=spend.operation,
        )
        if request is None:
            return
        former = request.spent.setdefault(spend.cover, spend.operation)
        self.check(
            former == spend.operation,
            6,
            f"{spend.approval_id} was spent twice: to {former} too",
            run=change.run,
            at=spend.operation,
        )

    def _head(self, run: Run, change: RunChange) -> None:
        ends = bool(run.rows) and isinstance(from_row(run.rows[-1].row), _END)
        closes = change.head is not None and change.head.status.closed
        self.check(
            ends == closes, 1, "the head and the journal differ about the end", run=change.run
        )
        if closes:
            run.closed, run.owner = True, None
            self.check(
                not run.unread(), 5, f"ended with unread messages {run.unread()}", run=change.run
            )
        elif change.head is not None and change.head.release:
            run.owner = None
