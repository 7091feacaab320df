"""What a run's owner means to write, until it is written; and how proposals become one change.

Order inside a change: markers of patches and sagas, of which the workflow knows already; then intents, so that no earlier turn of the same change can have given their effect up; then outcomes;
then messages and due timers by the store's time, messages first at a tie; then requests, answers, rows and the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Literal

import msgspec

from outlast.effects.standing import OUTCOMES
from outlast.journal.entry import (
    NO_OPERATION,
    CancelRequested,
    ChildRefused,
    ChildStarted,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    Entry,
    EntryRow,
    MessageAnswered,
    MessageReceived,
    OperationId,
    Patched,
    PauseRequested,
    ResumeRequested,
    RunEnded,
    SagaAborted,
    SagaEnded,
    StampedRow,
    UpdateReceived,
    to_row,
)
from outlast.replay.command import IntendEffect
from outlast.store.beat import BEAT
from outlast.store.change import (
    Answer,
    Applied,
    ApprovalExpire,
    ApprovalPut,
    ApprovalWithdraw,
    GrantSpend,
    HeadUpdate,
    OperationDrop,
    OperationPut,
    OutboxItem,
    Permit,
    Refused,
    RunChange,
    RunHead,
    TaskDrop,
    TaskPut,
    WorkerId,
    digest_of,
)
from outlast.store.sticky import StickyRow


class Rank(IntEnum):
    """The place of a proposal inside a change."""

    MARK = -1
    INTENT = 0
    OUTCOME = 1
    ARRIVAL = 2
    REQUEST = 3
    ROW = 4
    END = 5


@dataclass(frozen=True, slots=True)
class Unstuck:
    """What is found out again when a decision that answers a request does not stick any more.

    Args:
        sticky: The decision.
        is_counted: It answers so many requests, and no more.
        command: The effect for which the request is made.
    """

    sticky: str
    is_counted: bool
    command: IntendEffect


def unstuck_of(row: StickyRow, command: IntendEffect) -> Unstuck:
    """Return what is found out again when a decision does not answer the request that is made for an effect."""
    return Unstuck(row.sticky_id, row.uses is not None, command)


@dataclass(slots=True, eq=False)
class Proposal:
    """A part of a change.

    Args:
        entry: What is appended; none for a mere row.
        guard: An operation that must still be open when the change is made; otherwise the proposal is dropped.
        at: For arrivals: when it came, or came due.
        answer: To an update.
        next: What the next generation begins with, where this is the end of one.
        task: What is written of the task of a remote step.
        yields: Gives way to an outcome from outside that came by the time it is written.
        whole: What it is a part of, where the rest means nothing beside what else is in the change.
        spends: Of an intent: the covers that it spends, each of another approval.
        permit: Of an intent, or of an attempt that is announced: on what it rests that the effect may begin.
        unstuck: Of a request that is answered by a decision which sticks, and of that answer.
        done: Resolved with the verdict once the change is applied and delivered, or this part is refused; cancelled when dropped.
    """

    rank: Rank
    entry: Entry | None = None
    guard: OperationId = NO_OPERATION
    row: OperationPut | OperationDrop | None = None
    approval: ApprovalPut | ApprovalExpire | ApprovalWithdraw | None = None
    spends: tuple[GrantSpend, ...] = ()
    permit: Permit | None = None
    unstuck: Unstuck | None = None
    consumed: str = ""
    head: HeadUpdate | None = None
    at: datetime | None = None
    next: tuple[EntryRow, ...] = ()
    outbox: OutboxItem | None = None
    yields: bool = False
    done: asyncio.Future[Applied | Refused] | None = None
    answer: Answer | None = None
    task: TaskPut | TaskDrop | None = None
    whole: Proposal | None = None

    def settle(self, verdict: Applied | Refused) -> None:
        """Tell who waits."""
        if self.done is not None and not self.done.done():
            self.done.set_result(verdict)

    def drop(self) -> None:
        """Tell who waits that nothing will be written."""
        if self.done is not None:
            self.done.cancel()

    def read_only(self) -> Proposal:
        """Return the part of it which says that its message was read."""
        return replace(self, guard=NO_OPERATION, row=None, task=None, whole=self.whole or self)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the run has seen, and its journal does not hold yet.

    Args:
        stamped: The entry's row, with the time that the run has seen.
    """

    proposal: Proposal
    stamped: StampedRow


_GO_ON = (ResumeRequested, CancelRequested)
"""What ends a pause."""

_TOLD = (ChildStarted, ChildRefused, RunEnded, MessageAnswered)
"""What the relay tells."""


_KEPT = (EffectCompleted, EffectFailed)
"""Outcomes that are told of also when they come second, from wherever."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """What goes into the next change, and what waits for the one after.

    Args:
        extra: Outcomes, from outside or of effects, for operations that have one in this change already.
        needless: What nobody needs once the change is written: it gives way to an outcome in it.
    """

    now: list[Proposal]
    later: list[Proposal]
    extra: list[Proposal]
    needless: list[Proposal]

    def drop(self) -> None:
        """Tell who waits that nothing will be written of what is needless: the change was."""
        for one in self.needless:
            one.drop()


def sift(proposals: Sequence[Proposal], is_open: Callable[[OperationId], bool]) -> Sifted:
    """Choose what is written next: nothing for operations that were given up, one outcome an operation.

    A change spends one cover of an approval at most, and one use of a decision that sticks, so that a refusal of the store names one effect. What is chosen for a change that
    is refused goes back as it was: the proposals themselves are left as they are.
    """
    now: list[Proposal] = []
    later: list[Proposal] = []
    extra: list[Proposal] = []
    settled: dict[OperationId, Entry] = {}
    spent: set[str] = set()
    used: dict[str, OperationId] = {}
    needless = _answered(proposals)
    for proposal in _wanted([one for one in proposals if one not in needless], is_open):
        if proposal.spends:
            approvals = {one.approval_id for one in proposal.spends}
            if approvals & spent:
                later.append(proposal)
                continue
            spent |= approvals
        if _is_second_use(proposal, used):
            later.append(proposal)
            continue
        if isinstance(proposal.entry, _TOLD) and proposal.entry.operation in settled:
            # The word of its end was faster than that of its start, say: there is nothing left that it could tell.
            now.append(replace(proposal, entry=None, row=None, whole=proposal.whole or proposal))
            continue
        if isinstance(proposal.entry, (*OUTCOMES, EffectInDoubt)):
            former = settled.get(proposal.entry.operation)
            if former is not None:
                place = _place_of_second(proposal, former)
                {"later": later, "extra": extra, "needless": needless}[place].append(proposal)
                continue
            if not isinstance(proposal.entry, EffectInDoubt):
                settled[proposal.entry.operation] = proposal.entry
        now.append(proposal)
    rows = _rows_of_settled(now, settled)
    later += [one for one in rows if not one.consumed]
    now = [one.read_only() if one in rows else one for one in now if one not in later]
    return Sifted(now, later, extra, needless)


def _is_second_use(proposal: Proposal, used: dict[str, OperationId]) -> bool:
    """Whether a decision that answers so many requests answers another one in this change. Adds to `used`."""
    unstuck = proposal.unstuck
    if unstuck is None or not unstuck.is_counted:
        return False
    return used.setdefault(unstuck.sticky, proposal.guard) != proposal.guard


def _place_of_second(proposal: Proposal, former: Entry) -> Literal["later", "extra", "needless"]:
    """Return where an outcome, or a doubt, goes whose operation has an outcome in the same change."""
    entry = proposal.entry
    if isinstance(former, EffectCleared) and isinstance(entry, EffectCompleted):
        if entry.source == "late":
            # It happened, whoever has just said that it did not: that counts before another attempt begins.
            return "later"
        return "extra"
    if isinstance(entry, EffectInDoubt):
        # What became of it is known.
        return "needless"
    return "extra" if proposal.consumed or isinstance(entry, _KEPT) else "needless"


def _wanted(
    proposals: Sequence[Proposal], is_open: Callable[[OperationId], bool]
) -> list[Proposal]:
    """Return what is left of the proposals without what was given up: of a message about that, that it was read."""
    wanted: list[Proposal] = []
    for one in proposals:
        if not one.guard or is_open(one.guard):
            wanted.append(one)
        elif one.consumed:
            wanted.append(one.read_only())
        else:
            one.drop()
    return wanted


def _answered(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Return the proposals that give way to an answer among them."""
    answered = {
        one.entry.operation for one in proposals if one.consumed and isinstance(one.entry, OUTCOMES)
    }
    return [one for one in proposals if one.yields and one.guard in answered]


def _rows_of_settled(now: list[Proposal], settled: Collection[OperationId]) -> list[Proposal]:
    """Return the rows that must not be written beside the outcome of their operation, which removes its row: they would stay."""
    return [one for one in now if one.rank is Rank.ROW and one.guard in settled]


ASK_AGAIN = frozenset({"unauthorised", "aged", "stopped"})
"""The words by which the store says that what was found out about an effect is to be found out again."""


STUCK = "sticky"
"""The word by which the store says that a decision does not answer a request."""


def is_refused(proposal: Proposal, refused: Refused, now: datetime | None = None) -> bool:
    """Whether this is a part of a change that the store refused: of permits, all that rest on the same, or are too old as well.

    Args:
        now: The store's time; without it, none is held to be too old but the one that is named.
    """
    if refused.reason in ASK_AGAIN:
        return proposal.permit is not None and _rests_on(proposal.permit, refused, now)
    if refused.reason == STUCK:
        return proposal.unstuck is not None and proposal.unstuck.sticky == refused.part
    if refused.reason == "message":
        return bool(proposal.consumed) and refused.part in {"", proposal.consumed}
    if refused.reason == "mail":
        return proposal.rank is Rank.END
    if refused.reason == BEAT:
        row = proposal.row
        return row is not None and refused.part == row.operation and row.beats is not None
    if refused.reason == "task":
        return proposal.task is not None and refused.part == proposal.task.operation
    if proposal.spends:
        return any(refused.part in {one.approval_id, one.operation} for one in proposal.spends)
    if isinstance(proposal.approval, ApprovalExpire):
        return refused.part == proposal.approval.approval_id
    return False


def _rests_on(permit: Permit, refused: Refused, now: datetime | None) -> bool:
    if refused.reason == "aged":
        return permit.operation == refused.part or (now is not None and _is_aged(permit, now))
    guards = permit.authority if refused.reason == "unauthorised" else permit.stops
    return any(one.name == refused.part for one in guards)


def _is_aged(permit: Permit, now: datetime) -> bool:
    """Whether what was found out is too old to rest on, or younger than now: a clock that was set back proves nothing."""
    return not timedelta(0) <= now - permit.checked_at <= permit.within


def in_order(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Return the proposals in the order of their entries."""

    def key(proposal: Proposal) -> tuple[int, float, int]:
        at = proposal.at.timestamp() if proposal.at else 0.0
        is_message = isinstance(proposal.entry, MessageReceived | UpdateReceived)
        return proposal.rank, at, 0 if is_message else 1

    return sorted(proposals, key=key)


_TOGETHER: dict[type[Entry], str] = {
    MessageReceived: "message",
    UpdateReceived: "message",
    Patched: "marker",
    SagaAborted: "marker",
    SagaEnded: "marker",
}
"""Consecutive entries of one of these sorts are one turn."""


def rows_of(proposals: Sequence[Proposal], *, seq: int, turn: int) -> tuple[EntryRow, ...]:
    """Return the entry rows: consecutive messages are one turn, and so are markers; any other entry is a turn.

    Args:
        seq: Of the first row.
        turn: Of the first row.
    """
    rows: list[EntryRow] = []
    former = ""
    for proposal in proposals:
        if proposal.entry is None:
            continue
        kind = _TOGETHER.get(type(proposal.entry), "")
        if rows and not (kind and kind == former):
            turn += 1
        former = kind
        rows.append(to_row(proposal.entry, seq + len(rows), turn))
    return tuple(rows)


def change_of(
    proposals: Sequence[Proposal],
    head: RunHead,
    *,
    worker: WorkerId,
    turn: int,
    seen: Sequence[Seen] = (),
) -> RunChange:
    """Return the one change that writes all proposals, which are in order.

    Args:
        turn: Of the first entry.
        seen: What goes before them.
    """
    rows = rows_of(proposals, seq=head.next_seq + len(seen), turn=turn)
    if seen:
        rows = (*(one.stamped.row for one in seen), *rows)
        proposals = [*(one.proposal for one in seen), *proposals]
    approvals = tuple(one.approval for one in proposals if one.approval is not None)
    change = RunChange(
        run=head.run,
        worker=worker,
        epoch=head.epoch,
        version=head.version,
        entries=rows,
        head=next((one.head for one in proposals if one.head is not None), None),
        operations=tuple(one.row for one in proposals if one.row is not None),
        consumed=tuple(one.consumed for one in proposals if one.consumed),
        outbox=tuple(one.outbox for one in proposals if one.outbox is not None),
        approvals=approvals,
        spends=tuple(spend for one in proposals for spend in one.spends),
        answers=tuple(one.answer for one in proposals if one.answer is not None),
        next=next((one.next for one in proposals if one.next), ()),
        tasks=tuple(one.task for one in proposals if one.task is not None),
        hold=_hold_of(proposals),
        times=tuple(one.stamped.at for one in seen),
        permits=tuple(one.permit for one in proposals if one.permit is not None),
    )
    return msgspec.structs.replace(change, digest=digest_of(change))


def change_of_outcomes(
    proposals: Sequence[Proposal], head: RunHead, *, worker: WorkerId, turn: int
) -> RunChange:
    """Return the one change that writes proposals which are entries and nothing else: what `change_of` returns of them."""
    change = RunChange(
        run=head.run,
        worker=worker,
        epoch=head.epoch,
        version=head.version,
        entries=rows_of(proposals, seq=head.next_seq, turn=turn),
    )
    return msgspec.structs.replace(change, digest=digest_of(change))


def _hold_of(proposals: Sequence[Proposal]) -> bool | None:
    """Return whether what is written holds the run's tasks, or lets them be taken again; None when it does neither."""
    words = [one.entry for one in proposals if isinstance(one.entry, (PauseRequested, *_GO_ON))]
    return isinstance(words[-1], PauseRequested) if words else None
