"""Sagas: what was done inside one is undone, newest first, when its body raises.

Guards these promises: nothing is undone while it is not known what became of it; what was done is undone once, whoever of several
nested sagas comes to it; nothing new begins in a saga that is being undone; and no cancel reaches the task that undoes.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from outlast.errors import (
    ForbiddenInWorkflowError,
    OutlastError,
    RepeatedEffectError,
    SagaClosedError,
)
from outlast.journal.entry import (
    NO_OPERATION,
    Compensation,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    Entry,
    OperationId,
    SagaAborted,
    SagaEnded,
)
from outlast.journal.failure import capture
from outlast.replay.agenda import Agenda
from outlast.replay.command import NoteSaga
from outlast.replay.context import EffectRequest
from outlast.replay.ledger import EffectLedger, kind_of
from outlast.replay.loop import WorkflowLoop
from outlast.replay.operation import EffectOperation
from outlast.replay.scope import (
    TO_UNDO,
    Act,
    Fate,
    Scope,
    current_saga,
    open_saga,
    outside_sagas,
    still_open,
)
from outlast.replay.task import TaskPath, WorkflowFuture

Note: TypeAlias = SagaAborted | SagaEnded
"""What is recorded of a saga."""


class Saga:
    """A saga as the code sees that runs in it."""

    def __init__(self, sagas: Sagas, scope: Scope, token: contextvars.Token[Scope | None]) -> None:
        self._sagas = sagas
        self._scope = scope
        self._token = token

    def leave(self, error: BaseException | None) -> asyncio.Future[Any] | None:
        """End it; see `OpenSaga.leave`."""
        with contextlib.suppress(ValueError):  # an exit stack has carried it into another task
            current_saga.reset(self._token)
        return self._sagas.leave(self._scope, error)


class Sagas:
    """The sagas of one run.

    Args:
        loop: Runs the tasks that undo.
        agenda: Holds the effects; says of a mismatch what the code is at.
        ledger: Told what was undone: an equal call is another one then.
        perform: Begins a compensation in the current task.
        misfits: Told why other code has to come.
    """

    def __init__(
        self,
        loop: WorkflowLoop,
        agenda: Agenda,
        ledger: EffectLedger,
        perform: Callable[[EffectRequest], asyncio.Future[Any]],
        misfits: Callable[[OutlastError], None],
    ) -> None:
        self._loop = loop
        self._agenda = agenda
        self._ledger = ledger
        self._perform = perform
        self._misfits = misfits
        self._scopes: dict[Scope, None] = {}
        self._unsure: dict[Scope, None] = {}
        """Outermost sagas inside which something was given up that may have happened."""
        self._notes: deque[Note] = deque()
        self._untaken: deque[Note] = deque()
        self._has_undone = False
        self._has_left_standing = False
        self.refuse_held: (
            Callable[[Scope, Callable[[str, OperationId], Exception]], None] | None
        ) = None
        """Refuses the calls of a saga that wait for a person's yes."""
        self.undoes_inherited = False
        """Whether the run, a fork, takes the place of its origin, which is over: what that has done is its own then."""

    # What the machine asks

    @property
    def at_stake(self) -> list[Scope]:
        """The sagas that have not come to their end, and inside which something would be left as it is if the run ended now."""
        return [one for one in self._scopes if any(act.is_at_stake for act in one.within)]

    def cancel(self, *, again: bool = False) -> bool:
        """Cancel the code of what is at stake, but for what is being undone; True when there is any to cancel.

        Args:
            again: Also what was cancelled before.
        """
        tasks: dict[asyncio.Task[Any], None] = {}
        for scope in self.at_stake:
            task = scope.task
            if task is None or scope.is_aborted or task.done():
                continue
            if again or not task.cancelling():
                tasks[task] = None
        for task in tasks:
            task.cancel()
        return bool(tasks)

    def verdict(self) -> Compensation:
        """Return whether what the sagas did was undone; what is at stake now will not be."""
        if self._has_left_standing or self.at_stake:
            return "partly compensated"
        return "compensated" if self._has_undone else ""

    @property
    def would_undo(self) -> list[OperationId]:
        """The outermost sagas that would undo something if they were aborted now."""
        roots = dict.fromkeys(one.root for one in self.at_stake)
        return [one.operation for one in roots if any(self._is_own(act) for act in one.acts)]

    def check(self, request: EffectRequest, scope: Scope | None, operation: OperationId) -> None:
        """Return when an effect may begin in a saga.

        Raises:
            SagaClosedError: It is being undone, or one around it.
        """
        if scope is not None:
            self._check_open(scope, request.name, operation)

    def check_twin(
        self, twin: EffectOperation, scope: Scope | None, operation: OperationId
    ) -> None:
        """Return when an equal call may take the outcome of the one that is open: what one saga undoes, no other code may rely on.

        Raises:
            RepeatedEffectError: They are not in the same saga.
        """
        if twin.request.undo is not None and still_open(twin.scope) is not scope:
            raise RepeatedEffectError(
                f"an equal call is under way in another saga, as {twin.operation}, and may be undone there",
                operation=operation,
                step=twin.request.name,
                hint="make both calls in the block of the same saga; or wait for the first, and use its result",
            )

    def check_unknown(
        self, request: EffectRequest, number: int, scope: Scope | None, operation: OperationId
    ) -> None:
        """Return when a call may have the key of one that failed and may have happened: no saga will undo that one.

        Raises:
            RepeatedEffectError: Another saga, which has not ended, would.
        """
        root = None if scope is None else scope.root
        others = (one for one in self._unsure if one is not root)
        for act in (act for other in others for act in other.unknown):
            is_open = act.compensation and act.fate in (Fate.UNKNOWN, Fate.UNDOING)
            if is_open and _is_same(act, kind_of(request), number):
                raise RepeatedEffectError(
                    f"an equal call in another saga may have happened, as {act.operation}, and may be undone there",
                    operation=operation,
                    step=request.name,
                    hint="make the call when that saga has ended, or inside it",
                )

    def check_none(self, what: str, *, run_id: str) -> None:
        """Return when no saga is open that holds anything to undo.

        Raises:
            ForbiddenInWorkflowError: One is.
        """
        if self.at_stake:
            saga = self.at_stake[0].operation
            raise ForbiddenInWorkflowError(
                f"{what} inside the saga at {saga}, whose effects could not be undone any more",
                run=run_id,
                operation=saga,
                hint="let its body return first",
            )

    def enlist(self, effect: EffectOperation, intent: EffectIntended | None) -> None:
        """Note an effect that is intended; without its intent, one whose intent a fork makes anew."""
        act, scope = effect.act, effect.scope
        if scope is None:
            return
        if act is None:
            act = effect.act = Act(effect.operation, scope, effect.request.undo)
            act.kind, act.number = kind_of(effect.request), effect.number
            root, act.place = scope.root, len(scope.root.acts)
            root.acts.append(act)
            root.kinds.setdefault(act.kind, []).append(act)
        if intent is not None:
            act.compensation = intent.compensation
            act.arguments, act.key = bytes(intent.effective), intent.key

    def settle_act(self, act: Act, end: Entry) -> None:
        """Take in what became of an effect."""
        match end:
            case EffectCompleted():
                act.is_inherited = end.source == "fork"
                self._supersede(act)
                act.become(Fate.STANDING, bytes(end.value))
            case EffectFailed(unknown=True):
                self._supersede(act)
                act.become(Fate.UNKNOWN)
                act.scope.root.unknown.append(act)
                if act.scope.root.open_count:
                    self._unsure[act.scope.root] = None
            case _:
                act.become(Fate.VOID)

    def _supersede(self, act: Act) -> None:
        """Let what was not known of equal calls under the same key be known by this one: a receiver has done it once for all of them."""
        root = act.scope.root
        same = [one for one in root.unknown if _is_same(one, act.kind, act.number)]
        for one in same:
            root.unknown.remove(one)
            if one.fate is Fate.UNKNOWN:
                one.become(Fate.VOID)

    def forked(self) -> None:
        """Take in that what was done until now was done by the origin of a fork."""
        for scope in self._scopes:
            for act in scope.root.acts:
                act.is_inherited = act.fate is not Fate.OPEN

    def settle(self, entry: Note) -> None:
        """Take in that something was recorded of a saga.

        Raises:
            NonDeterminismError: The code comes to something else, or to nothing.
        """
        note = self._notes[0] if self._notes else None
        if note is None or _word(note) != _word(entry):
            raise self._agenda.mismatch(
                f"the journal says that {_word(entry)}, and the code does not",
                recorded=_word(entry),
                asked="nothing of the kind" if note is None else _word(note),
                operation=entry.operation,
            )
        self._notes.popleft()
        if self._untaken and self._untaken[0] is note:
            self._untaken.popleft()

    def take(self) -> list[NoteSaga]:
        """Return what is to be recorded and was not returned before."""
        notes = [NoteSaga(entry=note) for note in self._untaken]
        self._untaken.clear()
        return notes

    def clear(self) -> None:
        """Forget what is to be recorded: the run leaves memory."""
        self._untaken.clear()

    # What workflow code asks, through `outlast.saga`

    def open(self, operation: OperationId) -> Saga:
        """Begin a saga inside the one around the code that runs, and let that code be in it.

        Raises:
            SagaClosedError: That one is being undone.
        """
        parent = open_saga()
        if parent is not None:
            self._check_open(parent, "a saga", operation)
        scope = Scope(operation, parent, asyncio.current_task(self._loop))
        self._scopes[scope] = None
        return Saga(self, scope, current_saga.set(scope))

    def leave(self, scope: Scope, error: BaseException | None) -> asyncio.Future[Any] | None:
        """End a saga; return the future of its undoing, which no cancel reaches, where there is anything to undo or to wait for.

        Args:
            error: What its body raised.
        """
        if self._loop.evicting or not self._loop.is_running():
            # The run leaves memory, in order or by being forgotten: that is no exception of the body's.
            return None
        if error is None:
            self._keep(scope)
            return None
        scope.is_aborted = True
        self._refuse_unintended(scope)
        acts = scope.within
        if not acts:
            self._end(scope)
            return None
        self._note(SagaAborted(scope.operation, capture(error)))
        done: WorkflowFuture[Any] = self._loop.create_future()
        done.uncancellable = True
        context = outside_sagas(contextvars.copy_context())
        path = TaskPath(f"{scope.operation}u")
        task = self._loop.spawn(self._unwind(scope, acts, done), path, context=context)
        task.uncancellable = True
        return done

    def _keep(self, scope: Scope) -> None:
        scope.has_left = True
        self._close(scope)

    def _close(self, scope: Scope) -> None:
        """Note that nothing more comes of a saga; with the last one inside an outermost one, what stands there stands for good."""
        del self._scopes[scope]
        root = scope.root
        root.open_count -= 1
        if root.open_count or not root.has_left:
            return
        if any(act.compensation for act in root.acts):
            self._note(SagaEnded(root.operation, "kept"))
        self._forget(root)

    def _forget(self, root: Scope) -> None:
        root.forget()
        self._unsure.pop(root, None)

    def _is_own(self, act: Act) -> bool:
        """Whether something is at stake that this run would undo."""
        return act.is_at_stake and (self.undoes_inherited or not act.is_inherited)

    def _refuse_unintended(self, scope: Scope) -> None:
        """Let nothing begin any more that has not begun."""

        def closed(name: str, operation: OperationId) -> Exception:
            return self._closed(scope, name, operation)

        for effect in self._agenda.effects():
            if effect.bound:
                continue
            inside, is_wanted = effect.withdraw(scope)
            if inside and not is_wanted:
                self._agenda.refuse(effect, closed(effect.request.name, effect.operation))
            for future in inside:
                if not future.done():
                    future.set_exception(closed(effect.request.name, effect.operation))
        if self.refuse_held is not None:
            self.refuse_held(scope, closed)

    # Undoing

    async def _unwind(self, scope: Scope, acts: list[Act], done: WorkflowFuture[Any]) -> None:
        for act in acts:
            while act.fate is Fate.OPEN:
                await self._change_of(act)
        for act in reversed(acts):
            while act.fate is Fate.UNDOING:
                await self._change_of(act)
            if act.compensation and act.fate in TO_UNDO:
                await self._undo(act)
        whole = all(act.fate is not Fate.ABANDONED for act in acts)
        self._note(SagaEnded(scope.operation, "compensated" if whole else "partly compensated"))
        self._end(scope)
        done.set_result(whole)

    def _end(self, scope: Scope) -> None:
        scope.is_undone = True
        if scope.parent is None:
            self._forget(scope)
        self._close(scope)

    async def _undo(self, act: Act) -> None:
        act.fate = Fate.UNDOING
        is_origins = act.is_inherited and not self.undoes_inherited
        try:
            request = self._request(act)
        except OutlastError as error:
            if is_origins:
                self.undone(act, whole=False)
                return
            self._misfits(error)
            await self._loop.create_future()
            return
        if self._claim(act, request):
            # The workflow has undone it itself.
            self.undone(act, whole=True)
            return
        if is_origins:
            self.undone(act, whole=False)
            return
        try:
            await self._perform(request)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - an operator gave it up
            self.undone(act, whole=False)
        else:
            self.undone(act, whole=True)

    def _claim(self, act: Act, request: EffectRequest) -> bool:
        """Whether the workflow has made an equal call of a compensation itself, later and in the same saga: it counts as that, once."""
        for one in act.scope.root.kinds.get(kind_of(request), ()):
            inside = one.scope.is_within(act.scope) or act.scope.is_within(one.scope)
            is_later = one.place > act.place and one.fate is Fate.STANDING
            if inside and is_later and not one.counts:
                one.counts = True
                return True
        return False

    def compensate(self, effect: EffectOperation, entry: EffectCompensating) -> EffectRequest:
        """Return the call that undoes an effect in doubt, which an operator has asked for.

        Raises:
            NonDeterminismError: The code declares another one, or none.
            DecodeError: It does not take what was recorded.
        """
        assert effect.intent is not None
        act = effect.act
        if act is None:
            scope = Scope(NO_OPERATION, None, None)
            act = effect.act = Act(effect.operation, scope, effect.request.undo)
        act.compensation = effect.intent.compensation
        act.arguments, act.key = bytes(effect.intent.effective), effect.intent.key
        act.become(Fate.UNDOING, bytes(entry.value))
        return self._request(act)

    def undone(self, act: Act, *, whole: bool) -> None:
        """Note that something was undone, or that it was left as it is."""
        if whole:
            self._has_undone = True
            self._ledger.undone(act.operation)
        else:
            self._has_left_standing = True
        act.become(Fate.UNDONE if whole else Fate.ABANDONED)

    def _request(self, act: Act) -> EffectRequest:
        """Return the call that undoes something.

        Raises:
            NonDeterminismError: The code undoes it by another effect than was intended, or not at all.
            DecodeError: Today's types do not take what was recorded.
        """
        undo = act.undo
        if undo is None or undo.name != act.compensation:
            raise self._agenda.mismatch(
                f"the effect at {act.operation} was to be undone by {act.compensation!r}, and the code declares "
                + ("nothing for it" if undo is None else repr(undo.name)),
                recorded=f"compensate={act.compensation}",
                asked="none" if undo is None else f"compensate={undo.name}",
                operation=act.operation,
                hint=f"deploy code whose effect says compensate={act.compensation}: what was begun under it is undone by it",
            )
        request = undo.bind(act.arguments, act.value)
        return replace(request, compensates=act.operation, undoes_key=act.key, purpose=None)

    def _change_of(self, act: Act) -> asyncio.Future[Any]:
        future: WorkflowFuture[Any] = self._loop.create_future()
        act.waiting.append(future)
        return future

    def _note(self, entry: Note) -> None:
        self._notes.append(entry)
        self._untaken.append(entry)

    def _check_open(self, scope: Scope, name: str, operation: OperationId) -> None:
        closed = scope.closed_by
        if closed is not None:
            raise self._closed(closed, name, operation)

    def _closed(self, scope: Scope, name: str, operation: OperationId) -> SagaClosedError:
        return SagaClosedError(
            f"{name} was not begun: the saga at {scope.operation} is being undone",
            step=name,
            operation=operation,
            hint="a part of the saga has failed; let the exception pass, so that this part ends too",
        )


def _is_same(act: Act, kind: tuple[str, str], number: int) -> bool:
    """Whether an effect has the key of that call."""
    return (act.kind, act.number) == (kind, number)


def _word(entry: Note) -> str:
    what = "was aborted" if isinstance(entry, SagaAborted) else f"ended {entry.outcome}"
    return f"the saga at {entry.operation} {what}"
