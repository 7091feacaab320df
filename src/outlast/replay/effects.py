"""The effects of one run: begun, asked for, intended, in doubt, settled, and had undone by an operator.

Guards these rules: an equal call takes the outcome of the one that is open; what runs is what was intended; and whoever waits for an
effect hears of its end in the order in which the calls were made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec import Raw

from outlast.errors import (
    DecodeError,
    EffectCompensatedError,
    OutlastError,
    RepeatedEffectError,
    SagaClosedError,
)
from outlast.journal.entry import (
    NO_OPERATION,
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    LeftOut,
    OperationId,
    RunName,
)
from outlast.journal.failure import Failure, capture, rebuild
from outlast.replay.agenda import Agenda
from outlast.replay.asking import Remake, approval_id, edited, escalated, not_granted
from outlast.replay.command import Abandon, AwaitDecision, IntendEffect, SettleEffect
from outlast.replay.context import ApprovalRequest, EffectRequest
from outlast.replay.ledger import EffectLedger
from outlast.replay.loop import WorkflowLoop
from outlast.replay.operation import EffectOperation
from outlast.replay.purpose import Seconds
from outlast.replay.saga import Sagas
from outlast.replay.scope import Scope, open_saga, still_open
from outlast.replay.task import WorkflowFuture


class Effects:
    """The effects of one run.

    Args:
        ledger: Knows which calls are equal, and which grants cover them.
        sagas: Undo what was done inside them.
        now: The run's time.
        ask: Asks a person; returns the future of the answer, and what takes the question back.
    """

    def __init__(
        self,
        loop: WorkflowLoop,
        agenda: Agenda,
        ledger: EffectLedger,
        sagas: Sagas,
        now: Callable[[], datetime | None],
        ask: Callable[[ApprovalRequest], tuple[WorkflowFuture[Any], Callable[[], None]]],
    ) -> None:
        self._loop = loop
        self._agenda = agenda
        self._ledger = ledger
        self._sagas = sagas
        self._now = now
        self._seconds = Seconds(self._begin_held, ask)
        self._sagas.refuse_held = self._seconds.refuse
        self._compensating: dict[OperationId, tuple[EffectOperation, EffectCompensating]] = {}
        self.accepted: set[int] = set()
        """Positions of intents whose arguments may differ from what the code asks."""

    # For looking at

    @property
    def in_doubt(self) -> dict[OperationId, str]:
        """Effects that wait for an operator, each with the reason."""
        return {
            effect.operation: effect.in_doubt
            for effect in self._agenda.effects()
            if effect.in_doubt
        }

    @property
    def stuck(self) -> bool:
        """Whether a compensation has given up, and waits for an operator."""
        return any(effect.is_stuck for effect in self._agenda.effects())

    @property
    def unsettled(self) -> list[OperationId]:
        """Effects that are intended, and have neither an outcome nor a doubt."""
        effects = self._agenda.effects()
        return [one.operation for one in effects if one.intent and not one.in_doubt]

    # Calls

    def begin(
        self, operation: OperationId, request: EffectRequest, future: WorkflowFuture[Any]
    ) -> None:
        """Begin a call; whoever makes it waits for the future."""
        self._begin(operation, request, future, None if request.compensates else open_saga())

    def _begin(
        self,
        operation: OperationId,
        request: EffectRequest,
        future: WorkflowFuture[Any],
        scope: Scope | None,
    ) -> None:
        try:
            self._sagas.check(request, scope, operation)
            twin = self._ledger.open_twin(request)
            if twin is not None:
                self._sagas.check_twin(twin, scope, operation)
                _check_agent(twin, request, operation)
                future.uncancellable = twin.bound
                future.on_cancel = lambda: self._agenda.abandon(twin.operation)
                twin.followers.append((future, scope))
                return
            number = self._ledger.number(request, operation)
            if not request.compensates:
                self._sagas.check_unknown(request, number, scope, operation)
            if first := self._ledger.first_of_purpose(request):
                self._seconds.hold(operation, request, future, first, scope)
                return
            grant, match = self._ledger.find_cover(request, operation)
        except OutlastError as error:
            future.set_exception(error)
            return
        effect = EffectOperation(operation, request, future, number, grant, match, scope=scope)
        effect.second = self._ledger.second(operation)
        effect.scheduled_at = self._now() if request.has_deadline else None
        self._open_effect(effect)

    def _open_effect(self, effect: EffectOperation) -> None:
        self._ledger.opened(effect)
        self._agenda.open(effect, _intending(effect))

    def _begin_held(
        self,
        operation: OperationId,
        request: EffectRequest,
        future: WorkflowFuture[Any],
        scope: Scope | None,
    ) -> None:
        """Begin an effect that had to wait for a person's yes, in the saga in which it was asked for."""
        future.on_cancel = lambda: self._agenda.abandon(operation)
        self._begin(operation, request, future, still_open(scope))

    # Entries

    def intended(self, entry: EffectIntended) -> None:
        """Take in that an effect may happen from now on.

        Raises:
            NonDeterminismError: The code asks for something else.
        """
        effect = self._agenda.expect_effect(entry.operation, entry.name)
        is_other = bool(entry.requested_sha256)
        self._check_arguments(effect, entry.requested, entry.effective, is_other=is_other)
        effect.intended(entry, self._now())
        self._sagas.enlist(effect, entry)
        self._command_settle(effect)

    def _check_arguments(
        self, effect: EffectOperation, requested: Raw, effective: Raw, *, is_other: bool
    ) -> None:
        """Return when recorded arguments are those of today's call: what runs is what was asked for, as an approver or a hook left it.

        Args:
            is_other: What runs may be something else than what was asked for.

        Raises:
            NonDeterminismError: They are not, or today's types do not take them, and nobody has accepted that.
        """
        if self._agenda.position in self.accepted:
            return
        request = effect.request
        for recorded, is_same in ((bytes(requested), True), (bytes(effective), not is_other)):
            if request.same_arguments(recorded) or (not is_same and _takes(request, recorded)):
                continue
            raise self._agenda.mismatch(
                f"the journal holds the effect {request.name!r} with other arguments",
                recorded=recorded.decode(errors="replace"),
                asked=request.arguments.decode(errors="replace"),
                operation=effect.operation,
                hint="deploy the code that began the run; or, where the recorded arguments may stand, "
                f"`outlast runs accept {self._ledger.run_id} --entry {self._agenda.position} --reason TEXT`",
            )

    # Entries of requests to people

    def requested(self, entry: ApprovalRequested) -> None:
        """Take in that a person was asked about an effect.

        Raises:
            NonDeterminismError: The code calls it with other arguments.
        """
        effect = self._agenda.expect(entry.operation, EffectOperation, None)
        if effect is None:
            # Given up in an earlier turn of the same commit: nobody should be asked.
            self._agenda.command(Abandon(operation=entry.operation, approval_id=entry.approval_id))
            return
        self._check_arguments(effect, entry.requested, entry.effective, is_other=True)
        effect.asking.requested(entry)
        self._agenda.asked[entry.approval_id] = entry.operation
        self._agenda.command(
            AwaitDecision(
                operation=entry.operation,
                approval_id=entry.approval_id,
                expires_at=entry.expires_at,
            )
        )

    def edited(self, entry: ApprovalEdited, name: RunName) -> None:
        """Take in that somebody wants something else of an effect: that is asked instead."""
        effect = self._agenda.expect(entry.operation, EffectOperation, None)
        former = None if effect is None else effect.asking.edited(entry)
        if effect is None or former is None:
            return
        new_id = approval_id(entry.operation, name.generation, effect.asking.count)
        self._agenda.command(edited(former, entry, _remake_of(effect.request), new_id))

    def decided(self, entry: ApprovalDecided | ApprovalExpired, name: RunName) -> None:
        """Take in what became of a request: the effect may be intended, somebody else is asked, or it is refused.

        Raises:
            NonDeterminismError: The code asks for something else there, or for nothing.
        """
        effect = self._agenda.expect(entry.operation, EffectOperation, None)
        if effect is None:
            return
        asking, requested = effect.asking, effect.asking.current
        if requested is None or requested.approval_id != entry.approval_id:
            raise self._agenda.mismatch(
                "the journal holds a decision on what was never asked",
                recorded=f"decision on {entry.approval_id}",
                asked=self._agenda.describe(),
                operation=entry.operation,
            )
        if isinstance(entry, ApprovalDecided) and entry.approved:
            asking.granted_by(entry)
            if effect.scheduled_at is not None:
                # Nobody's answer takes of the time that the attempts have.
                effect.scheduled_at = self._now()
            self._agenda.command(_intending(effect))
            return
        if isinstance(entry, ApprovalExpired):
            command = escalated(
                requested, approval_id(entry.operation, name.generation, asking.count)
            )
            if command is not None:
                self._agenda.command(command)
                return
        error = not_granted(entry, requested, name.run_id)
        error.step = effect.request.name
        self.settled(EffectRefused(entry.operation, effect.request.name, capture(error)))

    def doubted(self, entry: EffectInDoubt) -> None:
        """Take in that somebody must say what became of an effect."""
        effect = self._agenda.expect_effect(entry.operation, entry.name)
        effect.doubted(entry, self._agenda.position)
        self._agenda.silence(entry.operation)

    def cleared(self, entry: EffectCleared) -> None:
        """Take in that an effect did not happen, and is attempted again."""
        effect = self._agenda.expect_effect(entry.operation, entry.name)
        effect.clear(self._now())
        self._command_settle(effect)

    def forked(self) -> None:
        """Take in that what was done until now was done by the origin of a fork, which undoes itself what it was about to undo.

        What people have said yes to, they said to the origin: they are asked again.
        """
        for effect in self._agenda.effects():
            if effect.asking.granted and effect.intent is None:
                effect.asking.void()
                if not effect.asking.waits:
                    self._agenda.command(_intending(effect))
        self._sagas.forked()
        if self._sagas.undoes_inherited:
            return
        for effect in self._agenda.effects():
            if effect.request.compensates:
                self._agenda.refuse(effect, _left_to_origin(effect))
                self._compensated(effect.operation, succeeded=False)

    def left_out(self, entry: LeftOut) -> None:
        """Take in that the origin of a fork had intended an effect there, which the fork will."""
        effect = self._agenda.expect_effect(entry.operation, entry.name)
        effect.bind()
        self._sagas.enlist(effect, None)

    def _command_settle(self, effect: EffectOperation) -> None:
        assert effect.intent is not None
        self._agenda.command(
            SettleEffect(
                operation=effect.operation,
                name=effect.request.name,
                intent=effect.intent,
                scheduled_at=effect.scheduled_at,
                undoes_key=effect.request.undoes_key,
                used_at=effect.used_at,
                is_repeated=effect.is_repeated,
            )
        )

    def settled(
        self, entry: EffectCompleted | EffectFailed | EffectRefused | EffectCompensating
    ) -> None:
        """Take in what became of an effect, and tell everybody who waits for it."""
        effect = self._agenda.expect(entry.operation, EffectOperation, entry.name)
        if effect is None:
            return
        self._agenda.close(effect.operation)
        succeeded = isinstance(entry, EffectCompleted)
        unknown = isinstance(entry, EffectCompensating) or getattr(entry, "unknown", False)
        self._ledger.settled(effect, succeeded=succeeded, unknown=unknown)
        if isinstance(entry, EffectCompensating):
            self._compensate(effect, entry)
            return
        for future in effect.futures():
            if not isinstance(entry, EffectCompleted):
                _set_failure(future, entry.failure, effect.request.raises)
            elif not future.done():
                future.set_result(effect.request.decode(bytes(entry.value)))
        if effect.act is not None:
            self._sagas.settle_act(effect.act, entry)
        self._compensated(effect.operation, succeeded=succeeded)

    def _compensate(self, effect: EffectOperation, entry: EffectCompensating) -> None:
        """Begin what undoes an effect that was in doubt; whoever waits for that hears when it is undone, and the run does not end before."""
        self._ledger.undone(effect.operation)
        request = self._sagas.compensate(effect, entry)
        operation = OperationId(f"{effect.operation}c")
        number = self._ledger.number(request, operation)
        future: WorkflowFuture[Any] = self._loop.create_future()
        future.add_done_callback(_retrieve)
        self._compensating[operation] = effect, entry
        self._open_effect(EffectOperation(operation, request, future, number, None, ""))

    def _compensated(self, operation: OperationId, *, succeeded: bool) -> None:
        """Tell that what an operator has had undone is undone, or was left as it is."""
        found = self._compensating.pop(operation, None)
        if found is None:
            return
        effect, entry = found
        assert effect.act is not None
        self._sagas.undone(effect.act, whole=succeeded)
        for future in effect.futures():
            if not future.done():
                future.set_exception(self._undone_by(entry, succeeded=succeeded))

    def _undone_by(self, entry: EffectCompensating, *, succeeded: bool) -> EffectCompensatedError:
        said = f": {entry.reason}" if entry.reason else ""
        by = entry.by or "an operator"
        done = "had it undone" if succeeded else "had it undone, which was given up"
        return EffectCompensatedError(
            f"it was in doubt whether it happened, and {by} {done}{said}",
            run=self._ledger.run_id,
            operation=entry.operation,
            step=entry.name,
            hint="an equal call is another one, with another key",
        )


def _intending(effect: EffectOperation) -> IntendEffect:
    """Return the command to have an effect intended, with all that people have granted for it until now."""
    request, undo, asking = effect.request, effect.request.undo, effect.asking
    second = (effect.second,) if effect.second else ()
    return IntendEffect(
        operation=effect.operation,
        name=request.name,
        arguments=request.arguments,
        payload_sha256=request.payload_sha256,
        action_sha256=request.action_sha256,
        match_sha256=effect.match_sha256,
        number=effect.number,
        grant=effect.grant,
        scheduled_at=effect.scheduled_at,
        compensation=undo.name if undo else "",
        needs_result=undo is not None and undo.needs_result,
        saga=effect.scope.root.operation if effect.scope else NO_OPERATION,
        compensates=request.compensates,
        asked=(*second, *asking.granted),
        effective=asking.effective,
        agent=request.agent,
    )


def _takes(request: EffectRequest, effective: bytes) -> bool:
    """Whether an effect can be called with arguments that were recorded."""
    if request.remake is None:
        return request.same_arguments(effective)
    try:
        request.remake(effective)
    except OutlastError:
        return False
    return True


def _remake_of(request: EffectRequest) -> Remake | None:
    """Return what an edit makes of the one call that a request for an effect covers."""
    make = request.remake
    if make is None:
        return None

    def remake(place: int, arguments: bytes) -> EffectRequest:
        if place != 0:
            raise DecodeError(f"it covers one call, and none at place {place}")
        return make(arguments)

    return remake


def _check_agent(twin: EffectOperation, request: EffectRequest, operation: OperationId) -> None:
    """Return when an equal call may take the outcome of the one that is open: what one agent may do says nothing of another.

    Raises:
        RepeatedEffectError: They are called in the names of two.
    """
    if twin.request.agent != request.agent:
        whose = twin.request.agent or "no agent"
        raise RepeatedEffectError(
            f"an equal call is under way in the name of {whose}, as {twin.operation}",
            operation=operation,
            step=request.name,
            hint="wait for that call, and use its result",
        )


def _left_to_origin(effect: EffectOperation) -> SagaClosedError:
    return SagaClosedError(
        f"{effect.request.name} was not begun: the run is a fork, and its origin undoes {effect.request.compensates}",
        step=effect.request.name,
        operation=effect.operation,
        hint="nothing needs to be done; `outlast runs explain` of the origin says what became of it",
    )


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Look at how a future ended that nobody waits for."""
    if not future.cancelled():
        future.exception()


def _set_failure(
    future: asyncio.Future[Any], failure: Failure, raises: tuple[type[BaseException], ...]
) -> None:
    if not future.done():
        future.set_exception(rebuild(failure, raises))
