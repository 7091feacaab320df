"""What a run's journal says of requests to people, as far as it has to be asked again: who said yes, on what, and whether it was used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from outlast.journal.asking import Precondition
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalEdited,
    ApprovalRequested,
    ApprovalVoted,
    EffectIntended,
    Entry,
    OperationId,
)
from outlast.replay.command import IntendEffect


@dataclass(frozen=True, slots=True)
class _Grant:
    """A request, and who has said yes to it."""

    request: ApprovalRequested
    voters: dict[str, None] = field(default_factory=dict[str, None])


class Grants:
    """The requests of a run."""

    def __init__(self) -> None:
        self._grants: dict[str, _Grant] = {}
        self._used: set[str] = set()
        self._edited: set[OperationId] = set()

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        match entry:
            case ApprovalRequested():
                voters = dict.fromkeys(one.by for one in entry.votes)
                self._grants[entry.approval_id] = _Grant(entry, voters)
            case ApprovalVoted():
                self._voted(entry)
            case ApprovalDecided() if entry.approved:
                self._voted(entry)
            case ApprovalEdited():
                self._edited.add(entry.operation)
            case EffectIntended():
                self._used.update(_ids(entry))
            case _:
                pass

    def _voted(self, entry: ApprovalVoted | ApprovalDecided) -> None:
        if (grant := self._grants.get(entry.approval_id)) is not None:
            grant.voters[entry.by] = None

    def is_edited(self, operation: OperationId) -> bool:
        """Whether an approver has changed what an effect is called with."""
        return operation in self._edited

    def use_by(self, use: IntendEffect | EffectIntended) -> datetime | None:
        """Return until when an effect may begin; None where nothing was asked."""
        return min((one.request.use_by for one in self._of(_ids(use))), default=None)

    def voters(self, use: IntendEffect | EffectIntended) -> list[tuple[str, str]]:
        """Return who has said yes to an effect, each with the role in which they did."""
        found = [
            (who, one.request.role) for one in self._of(_ids(use)) for who in one.voters if who
        ]
        return list(dict.fromkeys(found))

    def sticky(self, use: IntendEffect | EffectIntended) -> list[str]:
        """Return the ids of the decisions that stick by which an effect was approved."""
        votes = [vote for one in self._of(_ids(use)) for vote in one.request.votes]
        return list(dict.fromkeys(vote.sticky for vote in votes if vote.sticky))

    def unused(self, command: IntendEffect) -> list[tuple[str, Precondition]]:
        """Return the facts on which its grants rest, each with the grant; not of one that was used: what it permitted may change them."""
        return [
            (one.request.approval_id, fact)
            for one in self._of(_ids(command))
            if one.request.approval_id not in self._used
            for fact in one.request.preconditions
        ]

    def is_used(self, approval_id: str) -> bool:
        """Whether an effect has begun on a grant."""
        return approval_id in self._used

    def _of(self, ids: Iterable[str]) -> Iterator[_Grant]:
        return (self._grants[one] for one in ids if one in self._grants)


def _ids(use: IntendEffect | EffectIntended) -> tuple[str, ...]:
    """Return the grants that an effect uses."""
    granted = () if use.grant is None else (use.grant.approval_id,)
    return (*granted, *use.asked)
