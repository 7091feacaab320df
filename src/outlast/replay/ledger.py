"""Which effects of a run are equal, and which grants cover them: a view of the journal that decides nothing on its own.

Guards two promises: an equal call is never a second purpose unless the effect says so, and a covered action happens once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from typing import Any, TypeVar, cast

import msgspec

from outlast.errors import (
    ApprovalError,
    ApprovalMismatchError,
    ApprovalSpentError,
    RepeatedEffectError,
)
from outlast.journal.asking import Vote
from outlast.journal.entry import (
    ENTRY_NESTING,
    ApprovalDecided,
    ApprovalRequested,
    Cover,
    GrantUse,
    OperationId,
)
from outlast.journal.parse import NotJsonError, parse
from outlast.replay.asking import Asking
from outlast.replay.context import EffectRequest, FirstCall
from outlast.replay.number import EqualCalls
from outlast.replay.operation import EffectOperation
from outlast.replay.purpose import Purposes

C = TypeVar("C")


class EditedCall(msgspec.Struct, frozen=True):
    """What an approver made of a covered call.

    Args:
        action_sha256: Of the call as it was asked for.
        arguments: JSON object of the arguments that it has now, by parameter name.
    """

    effect: str
    action_sha256: str
    arguments: str


class Grant(msgspec.Struct, frozen=True):
    """A person's yes, or that of several.

    Args:
        by: Who; of several, the last one.
        reason: What they said.
        subject_sha256: The hash of what they saw.
        use_by: Covered effects begin before this.
        votes: Who has said yes.
        edits: What approvers made of covered calls: see `edited`.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def ask() -> str:
            grant: outlast.Grant = await outlast.approval("ship?", role="boss", expires_in=timedelta(hours=1))
            return grant.reason

        async with outlast.open("memory://") as app:
            handle = await app.start(ask(), id="a")
            while not (asked := await app.approvals.list()):
                await asyncio.sleep(0.01)
            await app.approvals.approve("a", asked[0].approval_id, seen_sha256=asked[0].subject_sha256, reason="go on")
            assert await handle.result() == "go on"
        ```
    """

    approval_id: str
    by: str
    reason: str
    subject_sha256: str
    decided_at: datetime
    use_by: datetime
    votes: tuple[Vote, ...] = ()
    edits: tuple[EditedCall, ...] = ()

    def edited(self, call: C) -> C:
        """Return a covered call as the approver wants it: that is what the yes covers. The same call where nobody has changed it.

        Args:
            call: As it was given in `covers=`; a call like it will do.

        Raises:
            DecodeError: What the approver made of it does not fit the effect as it is now.

        Example:
            ```python
            import asyncio
            from datetime import timedelta
            import outlast

            @outlast.effect(idempotent=True)
            async def refund(amount: int) -> str:
                return f"refunded {amount}"

            @outlast.workflow
            async def careful(amount: int) -> str:
                call = refund(amount)
                grant = await outlast.approval("refund?", covers=[call], role="boss", expires_in=timedelta(hours=1), edits="yes")
                return await grant.edited(call)

            async with outlast.open("memory://") as app:
                handle = await app.start(careful(10), id="a")
                while not (asked := await app.approvals.list()):
                    await asyncio.sleep(0.01)
                await app.approvals.approve("a", asked[0].approval_id, seen_sha256=asked[0].subject_sha256)
                assert await handle.result() == "refunded 10"
            ```
        """
        found: Any = call
        effect: Any = found.callee
        cover, _ = effect.cover(found)
        for one in self.edits:
            if (one.effect, one.action_sha256) == (cover.effect, cover.action_sha256):
                args, kwargs = effect.arguments.decode(one.arguments.encode())
                return cast("C", effect(*args, **kwargs))
        return call


def grant_of(
    entry: ApprovalDecided,
    requested: ApprovalRequested,
    asking: Asking,
    covers: tuple[Cover, ...],
) -> Grant:
    """Return the grant that a yes gives.

    Args:
        asking: Of the operation, after that.
        covers: As the code asked for them.
    """
    edits = tuple(
        EditedCall(covers[place].effect, covers[place].action_sha256, arguments.decode())
        for place, arguments in sorted(asking.edits.items())
        if place < len(covers)
    )
    return Grant(
        approval_id=entry.approval_id,
        by=entry.by,
        reason=entry.reason,
        subject_sha256=entry.subject_sha256,
        decided_at=entry.decided_at,
        use_by=requested.use_by,
        votes=asking.votes,
        edits=edits,
    )


def match_sha256(cover: Cover) -> str:
    """Return the hash by which a store compares a cover: of the exact action, or of the pattern's effect and fields."""
    if cover.action_sha256:
        return cover.action_sha256
    pattern = [cover.effect, sorted(cover.where.items())]
    return hashlib.sha256(msgspec.json.encode(pattern)).hexdigest()


class _Cover(msgspec.Struct):
    """One cover of one request, what its approver saw, and which operation spent it.

    Args:
        is_second: It was asked because the call has the purpose of an earlier one: it permits nothing else.
        number: Which one of the run's covers, in the order in which they were asked.
    """

    approval_id: str
    index: int
    cover: Cover
    subject: bytes = b"{}"
    is_second: bool = False
    number: int = 0
    spent_by: OperationId | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the approver saw; of a pattern, its fields."""
        try:
            shown: Any = parse(self.subject, nesting=ENTRY_NESTING)
            found = shown["covers"][self.index]["arguments"]
        except (NotJsonError, LookupError, TypeError):
            return {}
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class EffectLedger:
    """The equal calls and the covers of one run.

    Args:
        now: Returns the run's time.
    """

    def __init__(self, run_id: str, now: Callable[[], datetime | None] = lambda: None) -> None:
        self.run_id = run_id
        """As the run's code knows it; for messages."""
        self._now = now
        self._purposes = Purposes()
        self._calls: dict[tuple[str, str], EqualCalls] = {}
        self._open: dict[tuple[str, str], EffectOperation] = {}
        # What may be undone: what succeeded, and what failed and may have happened.
        self._ended: dict[OperationId, tuple[EqualCalls, int]] = {}
        self._undoings: dict[OperationId, tuple[EqualCalls, OperationId]] = {}
        # By effect and hash, so that a run with thousands of approvals finds its cover at once; patterns have no hash.
        self._covers: dict[tuple[str, str], list[_Cover]] = {}
        self._taken: dict[OperationId, list[_Cover]] = {}
        self._count = 0
        self._covered: set[str] = set()
        self._approved: set[str] = set()

    def open_twin(self, request: EffectRequest) -> EffectOperation | None:
        """Return the equal call that is in flight; a compensation joins none, and none joins it."""
        if request.compensates:
            return None
        return self._open.get(kind_of(request))

    def number(self, request: EffectRequest, operation: OperationId) -> int:
        """Return which equal call this one is: the least number that none has used, or has now.

        Raises:
            RepeatedEffectError: An equal call succeeded, was not undone, and the effect does not say `repeats=True`. A compensation is
                made all the same: it has another purpose, and a number of its own.
        """
        calls = self._calls.get(kind_of(request))
        if calls is None:
            return 1
        if calls.standing and not (request.repeats or request.compensates):
            raise RepeatedEffectError(
                f"an equal call of this effect already succeeded in this run, as {calls.last}, and was not made again",
                run=self.run_id,
                operation=operation,
                step=request.name,
                hint="use the first call's result; if a second one is meant, declare @effect(repeats=True)",
            )
        return calls.least()

    def opened(self, effect: EffectOperation) -> None:
        """Remember that a call is in flight, under the number that `number` gave it just now."""
        kind = kind_of(effect.request)
        calls = self._calls.setdefault(kind, EqualCalls())
        calls.take(effect.number)
        calls.forget_undoings()
        if effect.number in calls.used_at:
            effect.used_at, effect.is_repeated = calls.used_at[effect.number], True
        if not effect.request.compensates:
            self._open[kind] = effect
        self._purposes.opened(effect)

    def first_of_purpose(self, request: EffectRequest) -> FirstCall | None:
        """Return the call that stands in the way of this one, since both have the same purpose; None when nothing does.

        What somebody has approved just so is in nobody's way.
        """
        first = self._purposes.first(request, self._now())
        return None if first is None or self.is_approved(request) else first

    def settled(
        self, effect: EffectOperation, *, succeeded: bool = False, unknown: bool = False
    ) -> None:
        """Remember how a call ended. A cover reserved for a call that was never intended is free again.

        Args:
            unknown: It failed, and may have happened: an equal call has its number, until it is undone.
        """
        operation, number = effect.operation, effect.number
        calls = self._calls[kind_of(effect.request)]
        if not effect.request.compensates:
            del self._open[kind_of(effect.request)]
        if effect.intent is not None:
            calls.used_at.pop(number, None)
        if unknown:
            calls.used_at[number] = effect.used_at
        if succeeded:
            calls.standing[operation] = number
        elif effect.request.compensates:
            # Of what undoes something no other call ever has the key, not even after an end that is known.
            calls.burn(number)
        else:
            calls.give_back(number)
        if succeeded or unknown:
            self._ended[operation] = calls, number
        if succeeded and effect.request.compensates:
            self._undoings[effect.request.compensates] = calls, operation
        self._purposes.settled(effect, self._now(), succeeded=succeeded, unknown=unknown)
        for taken in self._taken.pop(operation, ()):
            if not effect.bound:
                taken.spent_by = None

    def undone(self, operation: OperationId) -> None:
        """Remember that what a settled operation did, or may have done, was undone.

        An equal call is another one from now on: it is not refused, and has another number, since a receiver would answer the old key
        with the result of what was undone.
        """
        if operation not in self._ended:
            return
        calls, number = self._ended.pop(operation)
        calls.standing.pop(operation, None)
        calls.burn(number)
        undoing = self._undoings.pop(operation, None)
        if undoing is not None:
            calls.undoings.append(undoing)
        self._purposes.undone(operation)

    def asked(
        self,
        approval_id: str,
        covers: tuple[Cover, ...],
        subject: bytes = b"{}",
        *,
        demands: bool = True,
    ) -> None:
        """Remember what a request covers.

        Args:
            subject: What is shown, with the covers' arguments; for the words of a refusal only.
            demands: From now on these effects need a cover.
        """
        for index, cover in enumerate(covers):
            key = cover.effect, cover.action_sha256
            self._count += 1
            known = _Cover(
                approval_id, index, cover, subject, is_second=not demands, number=self._count
            )
            self._covers.setdefault(key, []).append(known)
            if demands:
                self._covered.add(cover.effect)

    def approved(self, approval_id: str) -> None:
        """Remember that a request was granted."""
        self._approved.add(approval_id)

    def find_cover(
        self, request: EffectRequest, operation: OperationId
    ) -> tuple[GrantUse | None, str]:
        """Return the cover that this call spends, and the hash that the store will compare.

        Returns: `(None, "")` when there is none, and no approval of the run demands one of this effect.

        Raises:
            ApprovalMismatchError: Approvals speak of the effect, and none that was granted covers this call.
            ApprovalSpentError: The only covers that fit were spent by other operations.
        """
        if request.compensates:
            # What undoes something is covered by the yes to what it undoes.
            return None, ""
        fitting = list(self._fitting(request))
        own = [one for one in fitting if not one.is_second]
        free = next((one for one in own if one.spent_by is None), None)
        if free is None and request.name in self._covered:
            alike = (one for one in self._alike(request) if not one.is_second)
            free = next((one for one in alike if one.spent_by is None), None)
        if free is None and request.name in self._covered:
            spent_by = own[-1].spent_by if own else None
            raise self._uncovered(request, operation, spent_by)
        second: _Cover | None = None
        if free is None or not free.cover.action_sha256:
            # A yes to exactly this call is one to its purpose, too.
            second = next((one for one in fitting if one.is_second and one.spent_by is None), None)
        taken = [one for one in (free, second) if one is not None]
        for one in taken:
            one.spent_by = operation
        if not taken:
            return None, ""
        self._taken[operation] = taken
        return GrantUse(taken[0].approval_id, taken[0].index), match_sha256(taken[0].cover)

    def second(self, operation: OperationId) -> str:
        """Return the request that this call spends beside the cover of `find_cover`: since it is the second one of its purpose."""
        return next((one.approval_id for one in self._taken.get(operation, [])[1:]), "")

    def is_approved(self, request: EffectRequest) -> bool:
        """Whether somebody has said yes to exactly this call, and it was not made since."""
        return any(one.cover.action_sha256 and not one.spent_by for one in self._fitting(request))

    def _fitting(self, request: EffectRequest) -> Iterator[_Cover]:
        """Return the granted covers that fit a call: those of exactly this call, then patterns; the newest lives longest."""
        exact = self._covers.get((request.name, request.action_sha256), [])
        patterns = self._covers.get((request.name, ""), [])
        for one in chain(reversed(exact), reversed(patterns)):
            where = one.cover.where.items()
            is_theirs = one.cover.agent in ("", request.agent)
            if (
                is_theirs
                and one.approval_id in self._approved
                and all(request.fields.get(name) == value for name, value in where)
            ):
                yield one

    def _alike(self, request: EffectRequest) -> Iterator[_Cover]:
        """Yield the covers of calls that the code of then wrote otherwise, and that mean this one, the newest first.

        Whether such a cover still lets the call begin the store says, by its hash. What has begun, has.
        """
        others = [
            one
            for (name, action_sha256), found in self._covers.items()
            if name == request.name and action_sha256 not in ("", request.action_sha256)
            for one in found
            if one.approval_id in self._approved and one.cover.agent in ("", request.agent)
        ]
        called = {name: msgspec.json.decode(value) for name, value in request.fields.items()}
        for one in sorted(others, key=lambda one: one.number, reverse=True):
            shown = one.arguments()
            # What is shown of some values is not how they are stored; and what was added since is shown of none.
            is_same = bool(shown) and not _differences(shown, called)
            if is_same or request.same_arguments(msgspec.json.encode(shown)):
                yield one

    def _uncovered(
        self, request: EffectRequest, operation: OperationId, spent_by: OperationId | None
    ) -> ApprovalError:
        if spent_by is not None:
            return ApprovalSpentError(
                f"the approval that covers this call was spent by operation {spent_by}",
                run=self.run_id,
                operation=operation,
                step=request.name,
                hint="one approval lets each covered action happen once; ask again for another",
            )
        return ApprovalMismatchError(
            f"this call of {request.name} is not what an approval of this run covers; {self._nearest(request)}",
            run=self.run_id,
            operation=operation,
            step=request.name,
            hint="call the effect with exactly the approved arguments, or ask for an approval that covers these",
        )

    def _nearest(self, request: EffectRequest) -> str:
        """Return how the call differs from the cover that is most like it: granted ones first, then the newest."""
        called = {name: msgspec.json.decode(value) for name, value in request.fields.items()}
        of_effect = [
            one
            for (name, _), found in self._covers.items()
            if name == request.name
            for one in found
        ]
        granted = [one for one in of_effect if one.approval_id in self._approved]
        told = [
            (_differences(one.arguments(), called), one) for one in reversed(granted or of_effect)
        ]
        differing, cover = min(told, key=lambda pair: len(pair[0]))
        if not granted:
            return f"approval {cover.approval_id}, which speaks of it, was not granted"
        if not differing:
            return f"approval {cover.approval_id} was given to an action that is no longer this one"
        more = f" and {len(differing) - _DIFFERENCES} more" if len(differing) > _DIFFERENCES else ""
        return (
            f"approval {cover.approval_id} differs in {'; '.join(differing[:_DIFFERENCES])}{more}"
        )


def kind_of(request: EffectRequest) -> tuple[str, str]:
    """Return what equal calls have in common."""
    return request.name, request.payload_sha256


_DIFFERENCES = 3
"""How many fields a refusal names."""

_VALUE_LENGTH = 60


def _differences(approved: dict[str, Any], called: dict[str, Any]) -> list[str]:
    names = [name for name in approved if approved[name] != called.get(name, msgspec.UNSET)]
    return [
        f"{name}: approved {_short(approved[name])}, called with {_short(called[name]) if name in called else 'nothing'}"
        for name in names
    ]


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]}…"
