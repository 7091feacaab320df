"""The replay machine: committed entries go in, turn by turn; commands come out. It does no I/O and knows no clock.

Live and in replay it computes the same thing, because it only ever sees what was committed. What the workflow asks for while a
turn is delivered becomes a pending command; the entry that settles it removes it again. `take_commands` hands out what is
left, and must not be called before the whole journal was delivered.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias, assert_never
from uuid import UUID

from msgspec import Raw

from outlast.errors import (
    ApprovalDeniedError,
    ApprovalExpiredError,
    ForbiddenInWorkflowError,
    OutlastError,
)
from outlast.journal.entry import (
    AlarmRaised,
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    Cancelled,
    CancelRequested,
    Completed,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    Failed,
    MessageReceived,
    OperationId,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
)
from outlast.journal.failure import Failure, capture, rebuild
from outlast.replay.agenda import Agenda
from outlast.replay.command import (
    Abandon,
    AwaitDecision,
    Command,
    Finish,
    IntendEffect,
    RequestApproval,
    RunStep,
    SettleEffect,
    StartTimer,
)
from outlast.replay.condition import Conditions
from outlast.replay.context import (
    ApprovalRequest,
    EffectRequest,
    Request,
    RunInfo,
    StepRequest,
    current_context,
)
from outlast.replay.entropy import RunRandom
from outlast.replay.ledger import EffectLedger, Grant
from outlast.replay.loop import TimerHandle, WorkflowLoop
from outlast.replay.mailbox import Mailbox
from outlast.replay.operation import (
    ApprovalOperation,
    EffectOperation,
    Operation,
    StepOperation,
    TimerOperation,
)
from outlast.replay.task import WorkflowFuture

Outcome: TypeAlias = Completed | Failed | Cancelled


class Program(Protocol):
    """The workflow as the machine sees it."""

    name: str

    def start(self, arguments: bytes) -> Coroutine[Any, Any, Any]:
        """Decode the arguments and return the body's coroutine."""
        ...

    def encode(self, value: Any) -> bytes:
        """Encode what the body returned."""
        ...


class Machine:
    """One run, in memory.

    Args:
        program: The workflow.
        tenant: Of the run.
        run_id: Of the run.
        generation: Of the journal that will be delivered.
    """

    def __init__(self, program: Program, *, tenant: str, run_id: str, generation: int = 1) -> None:
        self._program = program
        self._tenant = tenant
        self._run_id = run_id
        self._generation = generation
        self._loop = WorkflowLoop(self)
        self._context = contextvars.Context()
        self._context.run(current_context.set, self)
        self._started: Started | None = None
        self._started_at: datetime | None = None
        self._now: datetime | None = None
        self._delivered = 0
        self._root: asyncio.Task[Any] | None = None
        self._operations: dict[OperationId, Operation] = {}
        self._abandoned: set[OperationId] = set()
        self._commands: dict[OperationId, Command] = {}
        self._ledger = EffectLedger(run_id)
        self._approvals: dict[OperationId, ApprovalRequested] = {}
        self._mail: dict[str, deque[MessageReceived]] = {}
        self._receivers: dict[str, deque[asyncio.Future[None]]] = {}
        self._conditions: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._draws: dict[str, int] = {}
        self._outcome: Outcome | None = None
        self._finish_given = False
        self._closed: Outcome | None = None

    # What the worker asks

    @property
    def closed(self) -> Outcome | None:
        """The recorded end of the run."""
        return self._closed

    @property
    def outcome(self) -> Outcome | None:
        """What the body came to, recorded or not."""
        return self._outcome

    @property
    def in_doubt(self) -> dict[OperationId, str]:
        """Effects that wait for an operator, each with the reason."""
        return {
            effect.operation: effect.in_doubt
            for effect in self._operations.values()
            if isinstance(effect, EffectOperation) and effect.in_doubt
        }

    @property
    def awaited_signals(self) -> list[str]:
        """Names of the messages that the workflow waits for."""
        return [name for name, waiting in self._receivers.items() if waiting]

    @property
    def pinned(self) -> int:
        """How many tasks refused to end when the run was evicted."""
        return len(self._loop.pinned)

    def find(self, operation: OperationId) -> Operation | None:
        """Return an open operation, to be looked at and not changed."""
        return self._operations.get(operation)

    def is_open(self, operation: OperationId) -> bool:
        """Whether the operation still waits for its outcome."""
        return operation in self._operations

    def deliver(self, turn: Sequence[Entry], at: datetime) -> None:
        """Deliver one turn, and let the workflow run until it waits.

        Args:
            turn: The entries of one turn, in order.
            at: When they were committed.

        Raises:
            NonDeterminismError: The code does not ask for what the entries answer.
            DecodeError: A recorded value does not fit the type that the code names.
        """
        self._now = max(at, self._now) if self._now else at
        for entry in turn:
            self._apply(entry)
            self._delivered += 1
        self._run()

    def take_commands(self) -> list[Command]:
        """Return the commands that were not returned before, in the order in which they were given."""
        commands = list(self._commands.values())
        self._commands.clear()
        if self._outcome and not self._finish_given and self._closed is None and self._settled():
            self._finish_given = True
            commands.append(Finish(outcome=self._outcome))
        return commands

    def evict(self) -> None:
        """Take the run out of memory: end every task without letting it act. The machine is of no use afterwards."""
        self._loop.evict()
        self._commands.clear()
        self._operations.clear()

    # What workflow code asks (the Context protocol)

    def info(self) -> RunInfo:
        """Return what is known about the run."""
        self._refuse_when_evicting()
        assert self._started_at is not None
        return RunInfo(
            tenant=self._tenant,
            run_id=self._run_id,
            workflow=self._program.name,
            generation=self._generation,
            started_at=self._started_at,
            entries=self._delivered,
        )

    def now(self) -> datetime:
        """Return the time of the entry that was delivered last."""
        self._refuse_when_evicting()
        assert self._now is not None
        return self._now

    def random(self) -> RunRandom:
        """Return a fresh generator, the same one in every replay."""
        self._refuse_when_evicting()
        assert self._started is not None
        path = self._loop.current_path()
        self._draws[path] = count = self._draws.get(path, 0) + 1
        return RunRandom(self._started.seed, f"{path}/{count}")

    def uuid4(self) -> UUID:
        """Return a random UUID, the same one in every replay."""
        return self.random().uuid4()

    def perform(self, request: Request) -> asyncio.Future[Any]:
        """Begin an operation of the current task and return the future of its outcome."""
        future: WorkflowFuture[Any] = self._loop.create_future()
        if self._loop.evicting:
            return future
        operation = self._next_operation()
        match request:
            case StepRequest():
                self._begin_step(operation, request, future)
            case EffectRequest():
                self._begin_effect(operation, request, future)
            case ApprovalRequest():
                self._begin_approval(operation, request, future)
            case _:
                assert_never(request)
        return future

    async def receive(self, name: str, decode: Callable[[bytes], Any]) -> Any:
        """Wait for the next message of that name."""
        queue = self._mail.setdefault(name, deque())
        waiting = self._receivers.setdefault(name, deque())
        while not queue or waiting:
            future: asyncio.Future[None] = self._loop.create_future()
            waiting.append(future)
            try:
                await future
            except BaseException:
                # A receiver that leaves after it was woken passes the wake-up on, so that no message waits unseen.
                if future in waiting:
                    waiting.remove(future)
                elif queue and not self._loop.evicting:
                    self._wake_receiver(name)
                raise
            if queue:
                break
        return decode(bytes(queue.popleft().value))

    async def wait_condition(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate` is true; it is looked at after all messages of a turn were handled."""
        self._refuse_when_evicting()
        if predicate():
            return
        future: asyncio.Future[None] = self._loop.create_future()
        condition = (predicate, future)
        self._conditions.append(condition)
        try:
            await future
        finally:
            if condition in self._conditions:
                self._conditions.remove(condition)

    # What the loop asks (the LoopHost protocol)

    def time(self) -> float:
        """Return seconds since the run was taken up first."""
        if self._now is None or self._started_at is None:
            return 0.0
        return (self._now - self._started_at).total_seconds()

    def start_timer(self, delay_seconds: float, handle: TimerHandle) -> None:
        """Give a timer of the loop a durable identity."""
        assert self._now is not None
        operation = self._next_operation()
        handle.operation = operation
        due = self._now + timedelta(seconds=delay_seconds)
        self._operations[operation] = TimerOperation(operation, handle)
        self._commands[operation] = StartTimer(operation=operation, due=due)

    def cancel_timer(self, handle: TimerHandle) -> None:
        """Forget a timer that was cancelled before it came due."""
        self._abandon(handle.operation)

    # Operations begin

    def _next_operation(self) -> OperationId:
        path, number = self._loop.next_operation()
        return OperationId(f"{path}:{number}")

    def _begin_step(
        self, operation: OperationId, request: StepRequest, future: WorkflowFuture[Any]
    ) -> None:
        self._operations[operation] = StepOperation(operation, request, future)
        self._commands[operation] = RunStep(
            operation=operation, name=request.name, arguments=request.arguments
        )
        future.on_cancel = lambda: self._abandon(operation)

    def _begin_effect(
        self, operation: OperationId, request: EffectRequest, future: WorkflowFuture[Any]
    ) -> None:
        twin = self._ledger.open_twin(request)
        if twin is not None:
            future.uncancellable = twin.intent is not None
            future.on_cancel = lambda: self._abandon(twin.operation)
            twin.followers.append(future)
            return
        try:
            number = self._ledger.number(request, operation)
            grant, match = self._ledger.find_cover(request, operation)
        except OutlastError as error:
            future.set_exception(error)
            return
        effect = EffectOperation(operation, request, future, number, grant, match)
        self._ledger.opened(effect)
        self._operations[operation] = effect
        self._commands[operation] = IntendEffect(
            operation=operation,
            name=request.name,
            arguments=request.arguments,
            payload_sha256=request.payload_sha256,
            action_sha256=request.action_sha256,
            match_sha256=match,
            number=number,
            grant=grant,
        )
        future.on_cancel = lambda: self._abandon(operation)

    def _begin_approval(
        self, operation: OperationId, request: ApprovalRequest, future: WorkflowFuture[Any]
    ) -> None:
        approval_id = f"{self._generation}~{operation}"
        self._operations[operation] = ApprovalOperation(operation, request, future, approval_id)
        self._ledger.asked(approval_id, request.covers)
        self._commands[operation] = RequestApproval(
            operation=operation,
            approval_id=approval_id,
            role=request.role,
            subject=request.subject,
            subject_sha256=request.subject_sha256,
            covers=request.covers,
            expires_in=request.expires_in,
            use_within=request.use_within,
        )
        future.on_cancel = lambda: self._abandon(operation)

    def _abandon(self, operation: OperationId) -> None:
        """Forget what the workflow waits for no longer; an effect goes on once intended, or while an equal call waits for it."""
        found = self._operations.get(operation)
        if isinstance(found, EffectOperation) and (
            found.intent is not None or not all(one.done() for one in found.futures())
        ):
            return
        if found is not None:
            self._forget(found)

    def _forget(self, found: Operation) -> None:
        if isinstance(found, EffectOperation):
            self._ledger.settled(found, succeeded=False)
        operation = found.operation
        del self._operations[operation]
        self._abandoned.add(operation)
        untaken = self._commands.pop(operation, None) is not None
        asked = isinstance(found, ApprovalOperation) and found.requested
        if not untaken or asked:
            approval_id = found.approval_id if isinstance(found, ApprovalOperation) else ""
            self._commands[operation] = Abandon(operation=operation, approval_id=approval_id)

    # Entries arrive

    def _apply(self, entry: Entry) -> None:  # noqa: C901, PLR0912 - one arm a kind; the union is closed
        match entry:
            case Started():
                self._started = entry
            case Taken():
                self._begin_run()
            case StepCompleted():
                step = self._expect(entry.operation, StepOperation, entry.name)
                if step is not None:
                    self._settle(step.operation, step.future, step.request.decode, entry.value)
            case StepFailed():
                step = self._expect(entry.operation, StepOperation, entry.name)
                if step is not None:
                    self._fail(step.operation, step.future, entry.failure, step.request.raises)
            case EffectIntended():
                self._apply_intent(entry)
            case EffectCompleted():
                self._settle_effect(entry.operation, entry.name, entry.value)
            case EffectFailed() | EffectRefused():
                self._settle_effect(entry.operation, entry.name, entry.failure)
            case EffectInDoubt():
                effect = self._expect_effect(entry.operation, entry.name)
                effect.in_doubt = entry.why
                self._commands.pop(entry.operation, None)
            case EffectCleared():
                effect = self._expect_effect(entry.operation, entry.name)
                effect.in_doubt = ""
                self._command_settle(effect, cleared=True)
            case TimerFired():
                timer = self._expect(entry.operation, TimerOperation, "")
                if timer is not None:
                    self._close_operation(timer.operation)
                    self._loop.fire(timer.handle)
            case MessageReceived():
                self._mail.setdefault(entry.name, deque()).append(entry)
                self._wake_receiver(entry.name)
            case ApprovalRequested():
                self._apply_request(entry)
            case ApprovalDecided() | ApprovalExpired():
                self._apply_decision(entry)
            case CancelRequested():
                if self._root is not None and not self._root.done():
                    self._root.cancel()
            case AlarmRaised():
                pass
            case Completed() | Failed() | Cancelled():
                self._apply_end(entry)
            case _:
                assert_never(entry)

    def _begin_run(self) -> None:
        if self._started_at is not None:
            return
        assert self._started is not None
        self._started_at = self._now
        arguments = bytes(self._started.arguments)

        async def body() -> Any:
            return await self._program.start(arguments)

        self._root = self._loop.spawn(body(), name=self._run_id, context=self._context)

    def _apply_intent(self, entry: EffectIntended) -> None:
        effect = self._expect_effect(entry.operation, entry.name)
        if not effect.request.same_arguments(bytes(entry.requested)):
            raise self._mismatch(
                f"the journal holds the effect {entry.name!r} with other arguments",
                recorded=bytes(entry.requested).decode(errors="replace"),
                asked=effect.request.arguments.decode(errors="replace"),
                operation=entry.operation,
            )
        effect.intent = entry
        for future in effect.futures():
            if isinstance(future, WorkflowFuture):
                future.uncancellable = True
        self._command_settle(effect, cleared=False)

    def _command_settle(self, effect: EffectOperation, *, cleared: bool) -> None:
        assert effect.intent is not None
        self._commands[effect.operation] = SettleEffect(
            operation=effect.operation,
            name=effect.request.name,
            intent=effect.intent,
            cleared=cleared,
        )

    def _settle_effect(self, operation: OperationId, name: str, result: Raw | Failure) -> None:
        if operation in self._abandoned:
            return
        effect = self._expect_effect(operation, name)
        self._close_operation(operation)
        self._ledger.settled(effect, succeeded=not isinstance(result, Failure))
        for future in effect.futures():
            if isinstance(future, WorkflowFuture):
                future.uncancellable = False
            if isinstance(result, Failure):
                _set_failure(future, result, effect.request.raises)
            elif not future.done():
                future.set_result(effect.request.decode(bytes(result)))

    def _apply_request(self, entry: ApprovalRequested) -> None:
        self._approvals[entry.operation] = entry
        approval = self._expect(entry.operation, ApprovalOperation, "")
        if approval is None:
            # Cancelled in an earlier turn of the same commit: nobody waits, so nobody should be asked.
            self._commands[entry.operation] = Abandon(
                operation=entry.operation, approval_id=entry.approval_id
            )
            return
        if approval.request.subject_sha256 != entry.subject_sha256:
            raise self._mismatch(
                "the journal holds an approval request for something else",
                recorded=bytes(entry.subject).decode(errors="replace"),
                asked=bytes(approval.request.subject).decode(errors="replace"),
                operation=entry.operation,
            )
        approval.requested = True
        self._commands[entry.operation] = AwaitDecision(
            operation=entry.operation, approval_id=entry.approval_id, expires_at=entry.expires_at
        )

    def _apply_decision(self, entry: ApprovalDecided | ApprovalExpired) -> None:
        approval = self._expect(entry.operation, ApprovalOperation, "")
        if approval is None:
            return
        self._close_operation(entry.operation)
        requested = self._approvals[entry.operation]
        if isinstance(entry, ApprovalDecided) and entry.approved:
            self._ledger.approved(entry.approval_id)
            grant = Grant(
                approval_id=entry.approval_id,
                by=entry.by,
                reason=entry.reason,
                subject_sha256=entry.subject_sha256,
                decided_at=entry.decided_at,
                use_by=requested.use_by,
            )
            if not approval.future.done():
                approval.future.set_result(grant)
        elif not approval.future.done():
            approval.future.set_exception(self._not_granted(entry, requested))

    def _not_granted(
        self, entry: ApprovalDecided | ApprovalExpired, requested: ApprovalRequested
    ) -> OutlastError:
        if isinstance(entry, ApprovalExpired):
            return ApprovalExpiredError(
                f"nobody with the role {requested.role!r} decided before {requested.expires_at:%Y-%m-%d %H:%M:%S} UTC",
                stage="decide",
                run=self._run_id,
                operation=entry.operation,
                hint="start the run again with a new id, or give a longer expires_in",
            )
        return ApprovalDeniedError(
            f"denied by {entry.by}: {entry.reason or 'no reason given'}",
            by=entry.by,
            reason=entry.reason,
            run=self._run_id,
            operation=entry.operation,
            hint="nothing that the approval covers was done",
        )

    def _apply_end(self, entry: Outcome) -> None:
        if self._outcome is None:
            raise self._mismatch(
                "the journal says that the run has ended, and the code still waits",
                recorded=type(entry).__name__.lower(),
                asked=self._open_text(),
            )
        self._closed = entry
        self._finish_given = True

    def _wake_receiver(self, name: str) -> None:
        waiting = self._receivers.get(name)
        while waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    # Settling

    def _settle(
        self,
        operation: OperationId,
        future: asyncio.Future[Any],
        decode: Callable[[bytes], Any],
        value: Raw,
    ) -> None:
        self._close_operation(operation)
        if not future.done():
            future.set_result(decode(bytes(value)))

    def _fail(
        self,
        operation: OperationId,
        future: asyncio.Future[Any],
        failure: Failure,
        raises: tuple[type[BaseException], ...],
    ) -> None:
        self._close_operation(operation)
        _set_failure(future, failure, raises)

    def _close_operation(self, operation: OperationId) -> None:
        self._operations.pop(operation, None)
        self._commands.pop(operation, None)

    def _expect(self, operation: OperationId, kind: type[Any], name: str) -> Any:
        """Return the open operation that an entry speaks of, or None when the workflow abandoned it."""
        found = self._operations.get(operation)
        if found is None and operation in self._abandoned:
            return None
        asked_name = "" if found is None or not name else name_of(found)
        if not isinstance(found, kind) or (name and asked_name != name):
            wanted = kind.__name__.removesuffix("Operation").lower()
            raise self._mismatch(
                f"the journal answers {operation} and the code asks for something else there",
                recorded=f"{wanted} {name}".strip(),
                asked=describe(found) if found else f"nothing at {operation}; open: {self._open_text()}",
                operation=operation,
            )
        return found

    def _expect_effect(self, operation: OperationId, name: str) -> EffectOperation:
        found = self._expect(operation, EffectOperation, name)
        if found is None:
            raise self._mismatch(
                "the journal holds an effect that the code gave up before it was intended",
                recorded=f"effect {name}",
                asked="nothing: the call was cancelled",
                operation=operation,
            )
        return found

    def _mismatch(
        self, what: str, *, recorded: str, asked: str, operation: OperationId | None = None
    ) -> NonDeterminismError:
        return NonDeterminismError(
            f"{what}\n  journal entry {self._delivered}: {recorded}\n  code:             {asked}",
            run=self._run_id,
            operation=operation,
            hint="the workflow's code changed under a run in flight, or it decides by something that is not recorded; "
            "deploy the code that began the run, or keep decisions out of clocks, random values, sets and globals",
        )

    def _open_text(self) -> str:
        return ", ".join(describe(one) for one in self._operations.values()) or "nothing"

    # Running

    def _run(self) -> None:
        if self._root is None or self._outcome is not None:
            return
        try:
            self._run_until_idle()
        except ForbiddenInWorkflowError as spinning:
            self._end_body(Failed(failure=capture(spinning)))
            return
        if self._loop.errors:
            self._end_body(Failed(failure=capture(self._loop.errors[0])))
        elif self._root.done():
            self._end_body(self._outcome_of(self._root))

    def _run_until_idle(self) -> None:
        self._loop.run_until_idle()
        fired = True
        while self._conditions and fired:
            fired = False

            def look() -> None:
                nonlocal fired
                fired = self._fire_conditions()

            self._loop.call_soon(look, context=self._context)
            self._loop.run_until_idle()

    def _fire_conditions(self) -> bool:
        """Resolve the conditions that are true, in the order in which they were registered."""
        fired = False
        for condition in list(self._conditions):
            predicate, future = condition
            if future.done() or condition not in self._conditions:
                continue
            try:
                holds = predicate()
            except Exception as error:  # noqa: BLE001 - the author's predicate; its error belongs to who waits
                self._conditions.remove(condition)
                future.set_exception(error)
                fired = True
                continue
            if holds:
                self._conditions.remove(condition)
                future.set_result(None)
                fired = True
        return fired

    def _end_body(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._conditions.clear()
        self._loop.close()
        for found in list(self._operations.values()):
            if not (isinstance(found, EffectOperation) and found.intent is not None):
                self._forget(found)

    def _outcome_of(self, root: asyncio.Task[Any]) -> Outcome:
        if root.cancelled():
            return Cancelled(failure=capture(asyncio.CancelledError("the run was cancelled")))
        error = root.exception()
        if isinstance(error, ApprovalExpiredError):
            return Cancelled(failure=capture(error))
        if error is not None:
            return Failed(failure=capture(error))
        try:
            return Completed(value=Raw(self._program.encode(root.result())))
        except OutlastError as refused:
            return Failed(failure=capture(refused))

    def _settled(self) -> bool:
        return not any(isinstance(one, EffectOperation) for one in self._operations.values())

    def _refuse_when_evicting(self) -> None:
        if self._loop.evicting:
            raise RunEvicted


def _set_failure(
    future: asyncio.Future[Any], failure: Failure, raises: tuple[type[BaseException], ...]
) -> None:
    if future.done():
        return
    error = rebuild(failure, raises)
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error)
