"""Which calls of an effect have the same purpose although their keys differ, as the effect's `same_as` says.

Guards one promise: while the first of them may have happened, a second one is not made unless a person has said so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from outlast.errors import SamePurposeError
from outlast.journal.entry import OperationId
from outlast.replay.context import ApprovalRequest, EffectRequest, FirstCall
from outlast.replay.scope import Scope
from outlast.replay.task import WorkflowFuture

if TYPE_CHECKING:
    from outlast.replay.operation import EffectOperation

IN_FLIGHT, IN_DOUBT, DONE, UNKNOWN = (
    "in flight",
    "in doubt",
    "done",
    "failed, and may have happened",
)


class _Calls(Struct):
    """The calls of one purpose, each list in the order of time."""

    open: dict[OperationId, EffectOperation] = field(
        default_factory=dict[OperationId, "EffectOperation"]
    )
    done: dict[OperationId, tuple[EffectRequest, datetime | None]] = field(
        default_factory=dict[OperationId, "tuple[EffectRequest, datetime | None]"]
    )
    unknown: dict[str, tuple[OperationId, EffectRequest, datetime | None]] = field(
        default_factory=dict[str, "tuple[OperationId, EffectRequest, datetime | None]"]
    )
    """By payload: an equal call has the same key, and finds out what became of it."""


class Purposes:
    """The calls of one run whose effect says what makes two of them the same purpose."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], _Calls] = {}
        self._settled: dict[OperationId, EffectRequest] = {}

    def first(self, request: EffectRequest, now: datetime | None) -> FirstCall | None:
        """Return the call whose purpose a new one has too; None for none, and for what an earlier one no longer stands in the way of."""
        calls = self._calls.get(_purpose(request)) if _counts(request) else None
        if calls is None:
            return None
        for effect in calls.open.values():
            state = IN_DOUBT if effect.in_doubt else IN_FLIGHT
            return FirstCall(effect.operation, state, effect.request.arguments)
        for operation in reversed(calls.done):
            former, at = calls.done[operation]
            if _is_within(request, at, now):
                return FirstCall(operation, DONE, former.arguments)
            break
        for payload in reversed(calls.unknown):
            operation, former, at = calls.unknown[payload]
            if payload != request.payload_sha256 and _is_within(request, at, now):
                return FirstCall(operation, UNKNOWN, former.arguments)
        return None

    def opened(self, effect: EffectOperation) -> None:
        """Remember that a call is in flight."""
        if _counts(effect.request):
            calls = self._calls.setdefault(_purpose(effect.request), _Calls())
            calls.open[effect.operation] = effect

    def settled(
        self, effect: EffectOperation, at: datetime | None, *, succeeded: bool, unknown: bool
    ) -> None:
        """Remember how a call ended, and when."""
        request = effect.request
        if not _counts(request):
            return
        calls = self._calls[_purpose(request)]
        del calls.open[effect.operation]
        if effect.intent is not None:
            calls.unknown.pop(request.payload_sha256, None)
        if succeeded:
            calls.done[effect.operation] = request, at
        elif unknown:
            calls.unknown[request.payload_sha256] = effect.operation, request, at
        if succeeded or unknown:
            self._settled[effect.operation] = request

    def undone(self, operation: OperationId) -> None:
        """Forget a call of which nothing is left."""
        request = self._settled.pop(operation, None)
        if request is None:
            return
        calls = self._calls[_purpose(request)]
        calls.done.pop(operation, None)
        known = calls.unknown.get(request.payload_sha256)
        if known is not None and known[0] == operation:
            del calls.unknown[request.payload_sha256]


class _Held(Struct):
    """Equal calls that wait for a person's yes.

    Args:
        take_back: Takes the question back.
    """

    calls: list[tuple[OperationId, EffectRequest, WorkflowFuture[Any], Scope | None]]
    take_back: Callable[[], None]


class Seconds:
    """Second calls of one purpose: refused, or held until a person has said yes to exactly that call.

    Args:
        begin: Makes a call, now that it may be made.
        ask: Asks a person; returns the future of the answer, and what takes the question back.
    """

    def __init__(
        self,
        begin: Callable[[OperationId, EffectRequest, WorkflowFuture[Any], Scope | None], None],
        ask: Callable[[ApprovalRequest], tuple[WorkflowFuture[Any], Callable[[], None]]],
    ) -> None:
        self._begin = begin
        self._ask = ask
        self._held: dict[tuple[str, str], _Held] = {}

    def hold(
        self,
        operation: OperationId,
        request: EffectRequest,
        future: WorkflowFuture[Any],
        first: FirstCall,
        scope: Scope | None,
    ) -> None:
        """Let a person say whether a call is made; of equal ones that are held at once, only the first asks.

        Args:
            scope: The saga in which it is.

        Raises:
            SamePurposeError: Nobody may say so.
        """
        assert request.purpose is not None
        if request.purpose.ask is None:
            raise _refused(operation, request, first)
        kind = request.name, request.payload_sha256
        held = self._held.get(kind)
        if held is None:
            answer, take_back = self._ask(request.purpose.ask(first))
            held = self._held[kind] = _Held([], take_back)
            answer.add_done_callback(lambda answered: self._decided(kind, answered))
        held.calls.append((operation, request, future, scope))
        future.on_cancel = lambda: self._give_up(kind)

    def _decided(self, kind: tuple[str, str], answered: asyncio.Future[Any]) -> None:
        held = self._held.pop(kind, None)
        if held is None or answered.cancelled():
            return
        error = answered.exception()
        for operation, request, future, scope in held.calls:
            if future.done():
                continue
            if error is None:
                self._begin(operation, request, future, scope)
            else:
                # One exception is raised in one place: each keeps a traceback of its own.
                future.set_exception(copy(error))

    def refuse(self, scope: Scope, why: Callable[[str, OperationId], Exception]) -> None:
        """Let the calls inside a saga fail that wait for an answer: nothing begins in it any more."""
        for kind, held in list(self._held.items()):
            for operation, request, future, at in held.calls:
                if at is not None and at.is_within(scope) and not future.done():
                    future.set_exception(why(request.name, operation))
            self._give_up(kind)

    def _give_up(self, kind: tuple[str, str]) -> None:
        """Take the question back when nobody waits for the answer any more."""
        held = self._held.get(kind)
        if held is not None and all(one[2].done() for one in held.calls):
            del self._held[kind]
            held.take_back()


def _counts(request: EffectRequest) -> bool:
    """Whether the call has a purpose of its own: what is undone has that of what it undoes."""
    return request.purpose is not None and not request.compensates


def _purpose(request: EffectRequest) -> tuple[Any, ...]:
    assert request.purpose is not None
    return (request.name, *request.purpose.values)


def _is_within(request: EffectRequest, at: datetime | None, now: datetime | None) -> bool:
    """Whether a call that ended then is still in the way of this one."""
    assert request.purpose is not None
    within = request.purpose.within
    return within is None or at is None or now is None or now - at < within


def _refused(operation: OperationId, request: EffectRequest, first: FirstCall) -> SamePurposeError:
    assert request.purpose is not None
    names = ", ".join(name for name, _ in request.purpose.values)
    return SamePurposeError(
        f"operation {first.operation} has the same purpose (the same {names}) and is {first.state}; this call was not made",
        first=first.operation,
        state=first.state,
        operation=operation,
        step=request.name,
        hint=_HINTS[first.state],
    )


_ASK = (
    "if a second one is meant, let a person say so: `outlast.approval(…, covers=[…])` of exactly this call before it, or role= and "
    "expires_in= in the effect's SameAs"
)
_HINTS = {
    IN_FLIGHT: f"wait for the first call's result; {_ASK}",
    IN_DOUBT: f"somebody has to find out what became of the first one, and say so by `outlast runs resolve`; {_ASK}",
    DONE: f"use the first call's result; {_ASK}",
    UNKNOWN: f"make the first call again, with equal arguments: it has the same key, so its receiver does it once; {_ASK}",
}
