"""What must hold of each change that a run's owner has written: its entries, its messages, and the grants that it spends."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from outlast.journal.entry import (
    Accepted,
    AlarmRaised,
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    CancelRequested,
    ChildRefused,
    ChildStarted,
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    MessageAnswered,
    MessageReceived,
    PauseRequested,
    Published,
    ResumeRequested,
    RunEnded,
    StepCompleted,
    StepFailed,
    TimerFired,
    UpdateAnswered,
    UpdateReceived,
    from_row,
)
from outlast.store.change import (
    OTHER_RUN,
    SAGA,
    ApprovalExpire,
    ApprovalPut,
    GrantSpend,
    OperationPut,
    RunChange,
)
from outlast.testing.simulation.bodies import Bodies
from outlast.testing.simulation.forked import call_of, check_known, is_known, is_told_by_fork
from outlast.testing.simulation.model import Check, Request, Run

OUTCOMES = (
    *(StepCompleted, StepFailed, EffectCompleted, EffectFailed, EffectRefused),
    EffectCompensating,
    *(TimerFired, ApprovalDecided, ApprovalExpired),
    *(ChildRefused, RunEnded, MessageAnswered),
)
_TOLD = (ChildStarted, ChildRefused, RunEnded, MessageAnswered)
"""What other runs have told."""
_SAYS: dict[str, tuple[type[Entry], ...]] = {
    "signal": (MessageReceived,),
    "update": (UpdateReceived,),
    "cancel": (CancelRequested,),
    "pause": (PauseRequested,),
    "resume": (ResumeRequested,),
    "decision": (ApprovalDecided, ApprovalVoted, ApprovalEdited),
    "accept": (Accepted,),
    "resolution": (
        *(EffectCompleted, EffectFailed, EffectCleared, EffectCompensating),
        *(StepCompleted, StepFailed),
    ),
    "outcome": (
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
        self._check_said = bodies.check_said
        self._check_silent = bodies.check_silent
        self.knows_keys = True
        """Whether an effect's key follows from all its arguments as the journal writes them: there is no `key_on`, and no argument
        that the journal writes in another way than the hash (a time with microseconds, say)."""
        self.knows_order = True
        """Whether effects are intended in the order in which they are called: nobody is asked about one whose code asks no person."""

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
                self._hear(run, change, act, now)
                self._put(run, change, act)
            else:
                run.others.discard(act.operation)
                run.failures.pop(act.operation, None)
                run.named.pop(act.operation, None)
                run.resting.pop(act.operation, None)
                run.handed_out.discard(act.operation)
                run.listening.pop(act.operation, None)
                run.progress.pop(act.operation, None)
        settled = {getattr(from_row(row), "operation", "") for row in change.entries} & run.outcomes
        left = settled & (run.failures.keys() | run.others)
        self._check(not left, 0, f"the rows of {left} are left behind", run=change.run)

    def _hear(self, run: Run, change: RunChange, row: OperationPut, now: datetime) -> None:
        """A step is handed out, or was for long enough."""
        former = run.listening.get(row.operation)
        if row.awaits:
            run.listening[row.operation] = row
            return
        run.listening.pop(row.operation, None)
        if former is not None and row.failures > former.failures:
            self._check_silent(change.run, former, now)

    def _put(self, run: Run, change: RunChange, row: OperationPut) -> None:
        """A failure is recorded with the time of the next attempt; without one, that attempt begins, or is under way.

        Of what was handed out the time is another one, and no attempt is under way. With the run given back the time alone may be
        written, of an effect that nobody has begun since it was last settled. Another run has a row too.
        """
        if row.kind == SAGA:
            # In place of the row of an effect that is being undone.
            for known in (run.failures, run.named, run.resting, run.progress):
                known.pop(row.operation, None)
            return
        if row.kind in OTHER_RUN:
            self._check(
                row.operation not in run.others,
                0,
                "another run was asked twice",
                run=change.run,
                at=row.operation,
            )
            run.others.add(row.operation)
            return
        known = run.failures.get(row.operation, 0)
        if any(
            isinstance(entry, EffectCleared) and entry.operation == row.operation
            for entry in map(from_row, change.entries)
        ):
            # Of a compensation that had given up none counts any more.
            known = min(known, row.failures)
        rests = row.due_at is not None and not row.awaits
        right = known + 1 if rests else known
        if rests and row.failures == known:
            released = change.head is not None and change.head.release
            self._check(
                released, 1, "it rests, and has not failed", run=change.run, at=row.operation
            )
            self._check_quiet(change.run, row.operation, row.name)
            right = known
        self._check(
            row.failures == right,
            1,
            f"{row.failures} attempts are recorded, and {right} have failed",
            run=change.run,
            at=row.operation,
        )
        run.failures[row.operation], run.named[row.operation] = row.failures, row.name
        run.progress[row.operation] = row.progress
        (run.handed_out.add if row.awaits else run.handed_out.discard)(row.operation)
        if rests and row.due_at:
            run.resting[row.operation] = row.due_at
            self._check_said(change, row)
        else:
            self._check_rested(run, change.run, row.operation)

    def _entry(self, run: Run, change: RunChange, entry: Entry) -> None:
        at = getattr(entry, "operation", "")
        if isinstance(entry, OUTCOMES):
            # One operation may ask several times.
            what = getattr(entry, "approval_id", at)
            self._check(
                what not in run.outcomes,
                1,
                f"a second outcome: {type(entry).__name__}",
                run=change.run,
                at=at,
            )
            run.outcomes.add(what)
            run.doubts.discard(at)
        match entry:
            case PauseRequested():
                run.paused = True
            case TimerFired():
                what = "a timer fires while the run is paused"
                self._check(not run.paused, 0, what, run=change.run, at=at)
            case ResumeRequested() | CancelRequested():
                run.paused = False
            case EffectIntended():
                self._intended(run, change, entry)
            case EffectCleared():
                run.doubts.discard(at)
                run.risky.pop(at, None)
            case EffectCompleted() | EffectFailed() | EffectInDoubt() | EffectRefused():
                self._settled(run, change, entry)
            case MessageReceived() | UpdateReceived():
                self._received(run, change, entry)
            case UpdateAnswered():
                self._told(run, change, entry)
            case ApprovalDecided() | ApprovalExpired():
                self._answered(run, change, entry)
            case Published():
                again = at in run.published
                self._check(not again, 1, "published a second time", run=change.run, at=at)
                run.published.add(at)
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
        if isinstance(entry, EffectCompleted | EffectFailed) and entry.source == "fork":
            check_known(self._check, run, change, entry)
        if isinstance(entry, EffectCompleted):
            run.done.add(at)
        elif isinstance(entry, EffectInDoubt):
            self._doubted(run, change, at)

    def _answered(
        self, run: Run, change: RunChange, entry: ApprovalDecided | ApprovalExpired
    ) -> None:
        request = run.approvals.get(entry.approval_id) or _put_with(change, entry.approval_id)
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
        # Or of an equal call before it, which failed and may have happened.
        used = {run.intents[one].key for one in run.attempted if one in run.intents}
        # Of a compensation that may not be made, somebody has to be told.
        is_forbidden = bool(run.intents[at].compensates) and any(
            (row.kind, row.operation) == ("effect_intended", at) for row in change.entries
        )
        self._check(
            run.intents[at].key in used or at not in run.fresh or is_forbidden or run.restored,
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
        known = is_known(change, at)
        holds = intent.key == key or known or not self.knows_keys
        self._check(holds, 3, f"its key is not {key}", run=change.run, at=at)
        run.intents[at] = intent
        if run.forked is not None and call_of(intent) in run.forked.unknown:
            run.risky[at] = run.forked.since
        else:
            run.fresh.add(at)
        covered = any(
            cover.effect == intent.name
            for request in run.approvals.values()
            if not _is_by_engine(request.put)
            for cover in request.put.covers
        )
        self._check(
            # The yes to an effect is the yes to what undoes it.
            bool(intent.grant or intent.asked)
            or not (covered and self.knows_order)
            or known
            or bool(intent.compensates),
            6,
            f"effect {intent.name} was intended uncovered, and an approval speaks of it",
            run=change.run,
            at=at,
        )
        spends = [one for one in change.spends if one.operation == at]
        named = [] if intent.grant is None else [(intent.grant.approval_id, intent.grant.cover)]
        named += [(one, 0) for one in intent.asked]
        self._check(
            [(one.approval_id, one.cover) for one in spends] == named,
            6,
            "the approval that the intent names is not the one that is spent",
            run=change.run,
            at=at,
        )

    def _told(self, run: Run, change: RunChange, entry: UpdateAnswered) -> None:
        """An update that was taken in has one answer, in the journal and, with it, in its row; a fork has no rows of those it kept."""
        has_row = run.forked is None or entry.message_id not in run.forked.elsewhere
        self._check(
            entry.message_id in run.asked,
            5,
            f"an answer to {entry.message_id}, which has one already or was never taken in",
            run=change.run,
        )
        run.asked.discard(entry.message_id)
        self._check(
            [one.message_id for one in change.answers].count(entry.message_id) == has_row,
            5,
            f"the answer to {entry.message_id} is kept from its sender",
            run=change.run,
        )

    def _received(
        self, run: Run, change: RunChange, entry: MessageReceived | UpdateReceived
    ) -> None:
        if isinstance(entry, UpdateReceived):
            run.asked.add(entry.message_id)
        item = run.inbox.get((run.incarnation, entry.message_id))
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
            item = run.inbox.get((run.incarnation, message_id))
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
        told = sum(isinstance(one, _TOLD) and not is_told_by_fork(run, one) for one in said)
        self._check(
            told <= kinds.pop("outcome", 0),
            5,
            "another run is said to have told something, and has not",
            run=change.run,
        )
        missing = sum(
            max(0, count - sum(_says(one, kind) for one in said))
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
                run.approvals[act.approval_id] = _request_of(act)
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


def _is_by_engine(put: ApprovalPut) -> bool:
    """Whether the engine itself has asked, about one call of an effect: then other calls of that effect need no approval."""
    return bool(msgspec.json.decode(put.body).get("source"))


def _request_of(put: ApprovalPut) -> Request:
    request = Request(put)
    if put.votes:
        request.vote(len(put.votes))
    return request


def _put_with(change: RunChange, approval_id: str) -> Request | None:
    """Return a request that is put by the change itself, with all the votes that it needs."""
    puts = (one for one in change.approvals if isinstance(one, ApprovalPut))
    return next((_request_of(one) for one in puts if one.approval_id == approval_id), None)


def _says(entry: Entry, kind: str) -> bool:
    """Whether an entry says what a message of that kind said."""
    is_asked_again = isinstance(entry, ApprovalRequested) and entry.again == "unfit"
    return isinstance(entry, _SAYS[kind]) or (kind == "decision" and is_asked_again)
