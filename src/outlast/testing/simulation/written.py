"""What must hold of each change that a run's owner has written: its entries, its messages, and the grants that it spends."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from outlast.journal.entry import (
    AlarmRaised,
    ApprovalDecided,
    ApprovalExpired,
    CancelRequested,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    MessageReceived,
    StepCompleted,
    StepFailed,
    TimerFired,
    from_row,
)
from outlast.store.change import (
    ApprovalExpire,
    ApprovalPut,
    GrantSpend,
    OperationPut,
    RunChange,
)
from outlast.testing.simulation.bodies import Bodies
from outlast.testing.simulation.model import Check, Request, Run

OUTCOMES = (
    *(StepCompleted, StepFailed, EffectCompleted, EffectFailed, EffectRefused),
    *(TimerFired, ApprovalDecided, ApprovalExpired),
)
_SAYS: dict[str, tuple[type[Entry], ...]] = {
    "signal": (MessageReceived,),
    "cancel": (CancelRequested,),
    "decision": (ApprovalDecided,),
    "resolution": (
        *(EffectCompleted, EffectFailed, EffectCleared),
        *(StepCompleted, StepFailed),
    ),
}
"""What stands in the journal for a consumed message of each kind, if no alarm does."""


class Written:
    """Looks at changes that were applied, and notes them.

    Args:
        check: Reports what does not hold.
        bodies: What is known of attempts.
    """

    def __init__(self, check: Check, bodies: Bodies) -> None:
        self._check = check
        self._check_quiet = bodies.check_quiet
        self._check_rested = bodies.check_rested
        self.knows_keys = True
        """Whether an effect's key follows from all its arguments as the journal writes them: there is no `key_on`, and no argument
        that the journal writes in another way than the hash (a time with microseconds, say)."""

    def take(self, run: Run, change: RunChange, now: datetime) -> None:
        """Look at all parts of a change; its rows are in the journal.

        Args:
            now: The store's time.
        """
        for row in change.entries:
            self._entry(run, change, from_row(row))
        self._consume(run, change)
        self._approvals(run, change, now)
        for act in change.operations:
            if isinstance(act, OperationPut):
                self._put(run, change, act)
            else:
                run.failures.pop(act.operation, None)
                run.resting.pop(act.operation, None)
        settled = {getattr(from_row(row), "operation", "") for row in change.entries} & run.outcomes
        left = settled & run.failures.keys()
        self._check(not left, 0, f"the rows of {left} are left behind", run=change.run)

    def _put(self, run: Run, change: RunChange, row: OperationPut) -> None:
        """A failure is recorded with the time of the next attempt; without one, that attempt begins."""
        known = run.failures.get(row.operation, 0)
        right = known + 1 if row.due_at else known
        self._check(
            row.failures == right,
            1,
            f"{row.failures} attempts are recorded, and {right} have failed",
            run=change.run,
            at=row.operation,
        )
        run.failures[row.operation] = row.failures
        if row.due_at:
            run.resting[row.operation] = row.due_at
        else:
            self._check_rested(run, change.run, row.operation)

    def _entry(self, run: Run, change: RunChange, entry: Entry) -> None:
        at = getattr(entry, "operation", "")
        if isinstance(entry, OUTCOMES):
            self._check(
                at not in run.outcomes,
                1,
                f"a second outcome: {type(entry).__name__}",
                run=change.run,
                at=at,
            )
            run.outcomes.add(at)
            run.doubts.discard(at)
        match entry:
            case EffectIntended():
                self._intended(run, change, entry)
            case EffectCleared():
                run.doubts.discard(at)
                run.risky.pop(at, None)
            case EffectCompleted() | EffectFailed() | EffectInDoubt() | EffectRefused():
                self._settled(run, change, entry)
            case MessageReceived():
                self._received(run, change, entry)
            case ApprovalDecided() | ApprovalExpired():
                self._answered(run, change, entry)
            case _:
                pass

    def _settled(
        self,
        run: Run,
        change: RunChange,
        entry: EffectCompleted | EffectFailed | EffectInDoubt | EffectRefused,
    ) -> None:
        at = entry.operation
        if isinstance(entry, EffectRefused):
            holds, invariant, what = at not in run.intents, 6, "refused after its intent"
        else:
            holds, invariant, what = at in run.intents, 1, "an effect without an intent"
        self._check(holds, invariant, what, run=change.run, at=at)
        says = isinstance(entry, EffectInDoubt) or getattr(entry, "source", "") == "probe"
        if says:
            self._check_quiet(change.run, at, entry.name)
        if isinstance(entry, EffectCompleted):
            run.done.add(at)
        elif isinstance(entry, EffectInDoubt):
            self._doubted(run, change, at)

    def _answered(
        self, run: Run, change: RunChange, entry: ApprovalDecided | ApprovalExpired
    ) -> None:
        request = run.approvals.get(entry.approval_id)
        state = "unknown" if request is None else request.state
        if isinstance(entry, ApprovalDecided):
            said = "approved" if entry.approved else "denied"
            holds, invariant = state == said, 6
        else:
            said, invariant = "expired", 5
            closes = ApprovalExpire(entry.approval_id) in change.approvals
            holds = closes and state in ("pending", "expired")
        self._check(
            holds,
            invariant,
            f"{entry.approval_id} is said to be {said}, and is {state}",
            run=change.run,
            at=entry.operation,
        )

    def _doubted(self, run: Run, change: RunChange, at: str) -> None:
        run.doubts.add(at)
        self._check(
            at in run.attempted or at not in run.fresh,
            1,
            "in doubt, and no attempt of it was ever made",
            run=change.run,
            at=at,
        )

    def _intended(self, run: Run, change: RunChange, intent: EffectIntended) -> None:
        at = intent.operation
        self._check(
            at not in run.intents and at not in run.outcomes,
            1,
            f"effect {intent.name} was intended twice",
            run=change.run,
            at=at,
        )
        key = run.key_of(change.run, intent)
        holds = intent.key == key or not self.knows_keys
        self._check(holds, 3, f"its key is not {key}", run=change.run, at=at)
        run.intents[at] = intent
        run.fresh.add(at)
        covered = any(
            cover.effect == intent.name
            for request in run.approvals.values()
            for cover in request.put.covers
        )
        self._check(
            intent.grant is not None or not covered,
            6,
            f"effect {intent.name} was intended uncovered, and an approval speaks of it",
            run=change.run,
            at=at,
        )
        spends = [one for one in change.spends if one.operation == at]
        named = [] if intent.grant is None else [(intent.grant.approval_id, intent.grant.cover)]
        self._check(
            [(one.approval_id, one.cover) for one in spends] == named,
            6,
            "the approval that the intent names is not the one that is spent",
            run=change.run,
            at=at,
        )

    def _received(self, run: Run, change: RunChange, entry: MessageReceived) -> None:
        item = run.inbox.get((run.generation, entry.message_id))
        if item is None or entry.message_id not in change.consumed:
            self._check(
                False, 5, f"message {entry.message_id} was received and never sent", run=change.run
            )
            return
        self._check(
            item.number > run.last_signal,
            5,
            f"message {entry.message_id} came out of its order",
            run=change.run,
        )
        run.last_signal = item.number

    def _consume(self, run: Run, change: RunChange) -> None:
        kinds: Counter[str] = Counter()
        for message_id in change.consumed:
            item = run.inbox.get((run.generation, message_id))
            self._check(
                item is not None and not item.consumed,
                5,
                f"message {message_id} was delivered twice, or never accepted",
                run=change.run,
            )
            if item is not None:
                item.consumed = True
                # The end of a task may be a failed attempt, of which the journal says nothing; see `task`.
                kinds[item.kind] += not message_id.startswith("task/")
        said = [from_row(row) for row in change.entries]
        missing = sum(
            max(0, count - sum(isinstance(one, _SAYS[kind]) for one in said))
            for kind, count in kinds.items()
            if count
        )
        self._check(
            missing <= sum(isinstance(one, AlarmRaised) for one in said),
            5,
            f"messages were consumed, and nothing says what they said: {dict(kinds)}",
            run=change.run,
        )

    def _approvals(self, run: Run, change: RunChange, now: datetime) -> None:
        for act in change.approvals:
            if isinstance(act, ApprovalPut):
                known = act.approval_id in run.approvals
                self._check(not known, 6, f"{act.approval_id} was asked twice", run=change.run)
                run.approvals[act.approval_id] = Request(act)
                continue
            request = run.approvals[act.approval_id]
            if request.state != "pending":
                continue
            if isinstance(act, ApprovalExpire):
                self._check(
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
        self._check(
            held,
            6,
            f"{spend.approval_id} was used, and does not hold",
            run=change.run,
            at=spend.operation,
        )
        if request is None:
            return
        former = request.spent.setdefault(spend.cover, spend.operation)
        self._check(
            former == spend.operation,
            6,
            f"{spend.approval_id} was spent twice: to {former} too",
            run=change.run,
            at=spend.operation,
        )
