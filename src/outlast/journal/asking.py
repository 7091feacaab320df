"""What a request to a person is made of, as it travels in entries, rows and decisions: terms, facts it rests on, votes, edits."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec import Raw, Struct

Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""An aware time: a naive one could be compared with no other."""

Edits: TypeAlias = Literal["no", "yes", "second"]
"""What an approver's edit is: refused; an approval of the edited action; or a new request, which somebody else has to approve."""

AskedFor: TypeAlias = Literal["approval", "question"]
"""Whether a yes is asked for, or an answer."""

Reach: TypeAlias = Literal["call", "turn", "run", "workflow"]
"""Where a decision sticks: to equal calls of the run, until the run is sent the next message, in the run, in every run of its workflow."""

Sticks: TypeAlias = Literal["no", "call", "turn", "run", "workflow"]
"""How far a yes may stick."""

REACHES: tuple[str, ...] = get_args(Sticks)
"""The nearest first."""

AskedBy: TypeAlias = Literal["", "declared", "policy", "purpose"]
"""Why an effect is asked for: its declaration, a policy, or that it is a second call of one purpose; empty for what code asks."""


class Rung(Struct, frozen=True):
    """Who is asked next, when nobody decided in time; the same role again is asked again.

    Args:
        expires_in: Time to decide, counted from the moment at which these are asked.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def ask() -> str:
            later = (outlast.Rung("boss", timedelta(milliseconds=50)),)
            try:
                await outlast.approval("ship?", role="maintainer", expires_in=timedelta(milliseconds=50), escalate=later)
            except outlast.ApprovalExpiredError as error:
                return error.message.partition(" decided")[0]
            return "shipped"

        async with outlast.open("memory://") as app:
            assert await app.run(ask(), id="a") == "nobody with the role 'boss'"
        ```
    """

    role: str
    expires_in: timedelta


class Terms(Struct, frozen=True, omit_defaults=True):
    """How a request is decided.

    Args:
        role: Who may decide; of the first rung.
        expires_in: Time to decide, counted from the request.
        use_within: Time to begin, counted from the request; of a later rung from the moment at which that is asked. None for the same
            instant at which the time to decide is over.
        quorum: So many persons have to say yes, each on the same hash. One no is enough.
        four_eyes: Whoever started the run may not say yes.
        edits: What an edit by an approver is.
        escalate: Who is asked after that, in order; the same role again is asked again.
        remind: How long after each asking those are reminded who have not decided.
        sticky: How far a yes may stick, so that it answers what is asked later, too.
    """

    role: str
    expires_in: timedelta
    use_within: timedelta | None = None
    quorum: int = 1
    four_eyes: bool = False
    edits: Edits = "no"
    escalate: tuple[Rung, ...] = ()
    remind: tuple[timedelta, ...] = ()
    sticky: Sticks = "no"

    def rung(self, number: int) -> Rung:
        """Return who is asked on a rung: 0 for the first."""
        return Rung(self.role, self.expires_in) if number == 0 else self.escalate[number - 1]

    def is_last(self, number: int) -> bool:
        """Whether nobody is asked after that rung."""
        return number >= len(self.escalate)

    def deadlines(self, number: int, asked_at: datetime) -> tuple[datetime, datetime]:
        """Return until when those of a rung decide, and until when what they permit begins."""
        expires_at = asked_at + self.rung(number).expires_in
        within = self.use_within
        return expires_at, expires_at if within is None else asked_at + within

    def may_stick(self, reach: Sticks) -> bool:
        """Whether a yes may stick so far."""
        return REACHES.index(reach) <= REACHES.index(self.sticky)

    def is_as_strict_as(self, other: Terms, rung: int = 0) -> bool:
        """Whether a yes on these terms is one on the others too.

        Args:
            rung: On which it was given.
        """
        return (
            (self.rung(rung).role == other.role or self._has_climbed_as(other, rung))
            and self.quorum >= other.quorum
            and self.four_eyes >= other.four_eyes
            and not (self.edits == "yes" and other.edits == "second")
        )

    def _has_climbed_as(self, other: Terms, rung: int) -> bool:
        """Whether the others, too, ask on that rung who was asked, and had asked the same before, each for no longer."""
        if rung > len(other.escalate):
            return False
        mine, theirs = [[one.rung(n) for n in range(rung + 1)] for one in (self, other)]
        return all(a.role == b.role for a, b in zip(mine, theirs, strict=True)) and all(
            a.expires_in >= b.expires_in for a, b in zip(mine[:-1], theirs[:-1], strict=True)
        )


class Precondition(Struct, frozen=True):
    """A fact on which a yes rests: what a step returned when the request was made.

    Args:
        name: As the author calls it.
        step: Name of the step that looks.
        arguments: JSON object of its arguments by parameter name.
        value: Canonical JSON of what it returned.
    """

    name: str
    step: str
    arguments: Raw
    value: Raw


class Vote(Struct, frozen=True, omit_defaults=True):
    """A yes of one person.

    Args:
        behalf: Whose delegate they were; empty for a role of their own. What a delegate says counts as said by both.
        sticky: The id of the decision that they made on an earlier request, and that answers this one, too.
        run: Of that request; so is `approval`.
    """

    by: str
    at: Moment
    behalf: str = ""
    sticky: str = ""
    run: str = ""
    approval: str = ""


class Edited(Struct, frozen=True):
    """What an approver wants one covered call to be.

    Args:
        cover: Which one, from 0.
        arguments: JSON object of its arguments by parameter name.
    """

    cover: int
    arguments: Raw


AskedAgain: TypeAlias = Literal["", "escalated", "edited", "changed", "unfit"]
"""Why a request follows another one of the same operation: nobody decided in time; an approver edited what is asked; its arguments are
not written as they were, by code that came since; or the answer, or the edit, did not fit."""
