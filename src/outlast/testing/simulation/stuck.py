"""Whether a decision that sticks may answer what it answers, judged by what was written alone.

Like the judge of yeses it shares no rule with gate, store and machine: whom, what and how long a decision reaches is read from the request on
which it was made, and from what was said with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from outlast.journal.asking import Vote
from outlast.store.change import ApprovalPut, Decide, RevokeSticky, RunKey
from outlast.store.sticky import StickyPut
from outlast.testing.simulation.model import Check

_NEAR = ("no", "call", "turn", "run", "workflow")


@dataclass(frozen=True, slots=True)
class Place:
    """Of which life of which run of which workflow something is."""

    key: RunKey
    incarnation: int
    workflow: str


@dataclass(slots=True)
class _Stuck:
    """A decision.

    Args:
        shown: What the request showed on which it was made.
    """

    put: StickyPut
    vote: Vote
    place: Place
    role: str
    approved: bool
    shown: dict[str, Any]
    made_at: datetime
    used: int = 0
    is_revoked: bool = False

    def is_over(self, now: datetime) -> bool:
        """Whether its time has run out."""
        return self.put.expires_in is not None and now >= self.made_at + self.put.expires_in

    def is_used_up(self) -> bool:
        """Whether it has answered what it may."""
        return self.put.uses is not None and self.used >= self.put.uses

    def fits(self, place: Place, shown: dict[str, Any]) -> bool:
        """Whether it is about a call as a request shows it, made there."""
        if self.put.reach == "workflow":
            is_near = (place.key.tenant, place.workflow) == (
                self.place.key.tenant,
                self.place.workflow,
            )
        else:
            is_near = place == self.place
        if self.put.reach == "turn" and shown.get("turn", "") != self.shown.get("turn", ""):
            return False
        return is_near and self._is_like(shown)

    def _is_like(self, shown: dict[str, Any]) -> bool:
        mine, other = self.shown["subject"]["covers"], shown["subject"]["covers"]
        if len(other) != 1 or self.shown.get("server", "") != shown.get("server", ""):
            return False
        one, two = mine[0], other[0]
        names = ("effect", "kind", "version", "agent")
        if [one.get(name, "") for name in names] != [two.get(name, "") for name in names]:
            return False
        arguments: dict[str, Any] = two["arguments"]
        if self.put.action_sha256:
            return arguments == one["arguments"]
        same: dict[str, str] = json.loads(self.put.where)
        if any(arguments[name] != one["arguments"][name] for name in same):
            return False
        predicates: list[tuple[str, str, Any]] = json.loads(self.put.when)
        return all(_holds(*predicate, arguments) for predicate in predicates)


class StickyJudge:
    """Of one simulation."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self.counts = {"sticky": 0, "answered": 0, "sticky no": 0, "taken back": 0}
        """How often what happened."""
        self._known: dict[tuple[str, str], _Stuck] = {}

    def made(
        self, place: Place, change: Decide, put: ApprovalPut, shown: dict[str, Any], now: datetime
    ) -> None:
        """A decision on a request was taken that is to stick."""
        stuck, key = change.sticky, change.run
        if stuck is None:
            return
        says = partial(self._check, invariant=6, run=key, at=change.approval_id)
        says((key.tenant, stuck.sticky_id) not in self._known, what="one id sticks twice")
        says(not change.edit, what="an edit sticks")
        terms = put.terms
        may = (
            terms is not None and terms.quorum <= 1 and _is_near(stuck.reach, terms.sticky)
        ) or not change.approved
        says(may, what=f"{change.by} said yes to the {stuck.reach}, and the terms do not let them")
        vote = Vote(change.by, now, change.behalf, stuck.sticky_id, key.run_id, change.approval_id)
        self._known[key.tenant, stuck.sticky_id] = _Stuck(
            stuck, vote, place, put.role, change.approved, shown, now
        )
        self.counts["sticky" if change.approved else "sticky no"] += 1

    def revoked(self, change: RevokeSticky) -> None:
        """One was taken back."""
        self._known[change.tenant, change.sticky_id].is_revoked = True
        self.counts["taken back"] += 1

    def answered(
        self, place: Place, put: ApprovalPut, shown: dict[str, Any], now: datetime
    ) -> None:
        """A request was made with the yeses of decisions that stick."""
        says = partial(self._check, invariant=6, run=place.key, at=put.approval_id)
        for vote in put.votes:
            one = self._known.get((place.key.tenant, vote.sticky))
            says(one is not None, what=f"{vote.sticky} was never decided")
            if one is None:
                continue
            name = vote.sticky
            says(one.approved and vote == one.vote, what=f"{name} is no such yes")
            says(one.role == put.role, what=f"{name} is of {one.role}, and {put.role} is asked")
            says(one.fits(place, shown), what=f"{name} answers what it is not about")
            says(not one.is_revoked, what=f"{name} answers, and was taken back")
            says(not one.is_over(now), what=f"{name} answers, and its time is over")
            says(not one.is_used_up(), what=f"{name} answers, and is used up")
            terms = put.terms
            may = terms is not None and terms.quorum <= 1 and _is_near(one.put.reach, terms.sticky)
            says(may and not shown.get("preconditions"), what=f"{name} answers what asks each time")
            one.used += 1
            self.counts["answered"] += 1

    def begins(
        self, place: Place, at: str, votes: list[Vote], shown: dict[str, Any], now: datetime
    ) -> None:
        """An effect begins on a request that was answered so."""
        says = partial(self._check, invariant=6, run=place.key, at=at)
        for vote in votes:
            one = self._known.get((place.key.tenant, vote.sticky))
            revoked = one is None or one.is_revoked
            says(not revoked, what=f"it begins, and {vote.sticky} was taken back")
        for name, other in self._known.items():
            if name[0] != place.key.tenant or other.approved or other.is_revoked:
                continue
            outvoted = not other.is_over(now) and other.fits(place, shown)
            says(not outvoted, what=f"it begins on {votes}, and {name[1]} says no")


def _is_near(reach: str, farthest: str) -> bool:
    return _NEAR.index(reach) <= _NEAR.index(farthest)


def _holds(path: str, operator: str, value: Any, arguments: dict[str, Any]) -> bool:
    """Whether a predicate holds, of the few that are drawn."""
    if operator == "at_most":
        return arguments[path] <= value
    assert operator == "equals", operator
    return arguments[path] == value
