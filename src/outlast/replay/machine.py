"""The replay machine: committed entries go in, turn by turn; commands come out. It does no I/O and knows no clock.

Live and in replay it computes the same, since it sees only what was committed, or will be just so. What the workflow asks for
while a turn is delivered becomes a pending command; the entry that settles it removes it. `take_commands` hands out what is left, after
the whole journal.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol, assert_never
from uuid import UUID

from msgspec import Raw
from msgspec.structs import replace

from outlast.errors import (
    DecodeError,
    ForbiddenInWorkflowError,
    OutlastError,
    QueryError,
)
from outlast.journal.entry import (
    Accepted,
    AlarmRaised,
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    Cancelled,
    CancelRequested,
    ChildRefused,
    ChildRequested,
    ChildStarted,
    Completed,
    ContinuedAsNew,
    ContinueSuggested,
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    Failed,
    Forked,
    LeftOut,
    MessageAnswered,
    MessageReceived,
    MessageSent,
    OperationId,
    Parent,
    Patched,
    PauseRequested,
    Published,
    ResumeRequested,
    RunEnded,
    RunName,
    RunTimedOut,
    SagaAborted,
    SagaEnded,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
    UpdateAnswered,
    UpdateReceived,
    WatchRequested,
)
from outlast.journal.failure import Failure, capture, rebuild, tell
from outlast.journal.place import place_of
from outlast.journal.prefix import intent_left_out, is_silent
from outlast.replay.agenda import Agenda
from outlast.replay.approval import Approvals
from outlast.replay.command import (
    Command,
    Finish,
    RunStep,
    StartTimer,
    later,
)
from outlast.replay.condition import Conditions
from outlast.replay.context import (
    ApprovalRequest,
    ChildRequest,
    EffectRequest,
    Handler,
    MessageRequest,
    OpenSaga,
    Request,
    RunInfo,
    StepRequest,
    WatchRequest,
    current_context,
)
from outlast.replay.effects import Effects
from outlast.replay.ending import Outcome, cancelled, ended_by, word_of
from outlast.replay.entropy import RunRandom
from outlast.replay.handler import Handlers
from outlast.replay.ledger import EffectLedger
from outlast.replay.loop import TimerHandle, WorkflowLoop
from outlast.replay.mailbox import Mailbox
from outlast.replay.operation import (
    ApprovalOperation,
    EffectOperation,
    Operation,
    StepOperation,
    TimerOperation,
    operation_id,
)
from outlast.replay.other_run import OtherRuns
from outlast.replay.patch import Patches
from outlast.replay.publication import Publications
from outlast.replay.query import Queries, QueryHandler
from outlast.replay.roll import outcome_in, roll_over
from outlast.replay.saga import Sagas
from outlast.replay.task import WorkflowFuture


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
        self._name = RunName(run_id, generation)
        self._loop = WorkflowLoop(self)
        self._context = contextvars.Context()
        self._context.run(current_context.set, self)
        self._started: Started | None = None
        self.parent: Parent | None = None
        """The operation that started the run, of which its end is told."""
        self._started_at: datetime | None = None
        self._now: datetime | None = None
        self._root: asyncio.Task[Any] | None = None
        self._ledger = EffectLedger(run_id, lambda: self._now)
        self._agenda = Agenda(run_id, self._ledger)
        self.mailbox = Mailbox(self._loop)
        """The messages that nobody took, and those that are waited for; for looking at."""
        self._handlers = Handlers(self._loop, self._agenda, self.mailbox, run_id)
        self._conditions = Conditions(self._loop)
        self._publications = Publications(self._agenda)
        self.published = self._publications.values
        """The last value that was published under each name."""
        self._queries = Queries(self._loop, self._context, run_id)
        self.patches = Patches()
        """Where the code was patched, and what it was told there."""
        self._agenda.aside = self.patches.describe
        self._agenda.raised = self._raised
        self._more = False
        self.is_heard = False
        """Whether what the code logs is news: set while that is delivered which nobody has delivered before."""
        self._suggested = False
        self._approvals = Approvals(self._agenda, self._ledger)
        self._others = OtherRuns(self._loop, self._agenda, self._name)
        self._sagas = Sagas(
            self._loop, self._agenda, self._ledger, self.perform, self._handlers.misfits
        )
        self._effects = Effects(
            self._loop, self._agenda, self._ledger, self._sagas, lambda: self._now, self._ask
        )
        self._draws: dict[str, int] = {}
        self._fate: Outcome | None = None
        self._outcome: Outcome | None = None
        self._finish_given = False
        self._closed: Outcome | None = None
        self._stopped_by: CancelRequested | RunTimedOut | None = None

    # What the worker asks

    @property
    def begun(self) -> bool:
        """Whether the body was started: the run was taken up once."""
        return self._root is not None

    @property
    def would_undo(self) -> list[OperationId]:
        """The outermost sagas that would undo something if the run ended now."""
        return self._sagas.would_undo

    @property
    def closed(self) -> Outcome | None:
        """The recorded end of the run, or of this generation."""
        return self._closed

    @property
    def outcome(self) -> Outcome | None:
        """What the run came to, recorded or not: body and handlers have ended."""
        return self._outcome

    @property
    def in_doubt(self) -> dict[OperationId, str]:
        """Effects that wait for an operator, each with the reason."""
        return self._effects.in_doubt

    @property
    def stuck(self) -> bool:
        """Whether a compensation has given up, and waits for an operator."""
        return self._effects.stuck

    @property
    def unsettled(self) -> list[OperationId]:
        """Effects that are intended, and have neither an outcome nor a doubt."""
        return self._effects.unsettled

    def waiting_for_others(self) -> bool:
        """Whether somebody outside can still move the run: it waits for more than the outcomes of what it has begun."""
        return bool(self.mailbox.awaited) or any(self.handled)

    @property
    def handled(self) -> tuple[list[str], list[str]]:
        """Names of the signals and of the updates that have a handler."""
        return self._handlers.signals, self._handlers.updates

    @property
    def overtaken(self) -> int:
        """How many messages were being handled when the body came to its end."""
        return self._handlers.overtaken

    def unhandled(self) -> list[Entry]:
        """Return what was delivered and nobody took, in the order in which it came: it belongs to the next generation."""
        return self._handlers.unhandled()

    @property
    def pinned(self) -> int:
        """How many tasks refused to end when the run was evicted."""
        return len(self._loop.pinned)

    def find(self, operation: OperationId) -> Operation | None:
        """Return an open operation, to be looked at and not changed."""
        return self._agenda.find(operation)

    def asks(self, approval_id: str) -> ApprovalOperation | EffectOperation | None:
        """Return the open operation that waits for a decision on that request, to be looked at and not changed."""
        found = self._agenda.find(self._agenda.asked.get(approval_id, OperationId("")))
        is_asking = isinstance(found, ApprovalOperation | EffectOperation)
        return found if is_asking and found.asking.is_of(approval_id) else None

    def is_open(self, operation: OperationId) -> bool:
        """Whether the operation still waits for its outcome."""
        return self._agenda.find(operation) is not None

    def foresee(self, entries: Iterable[Entry]) -> None:
        """Note what entries that are about to be delivered say of the code: patches' markers, what was accepted, and rejected."""
        for entry in entries:
            if isinstance(entry, Patched):
                self.patches.foresee(entry)
            elif isinstance(entry, Accepted) and entry.entry is not None:
                self._effects.accepted.add(entry.entry)
            elif isinstance(entry, UpdateAnswered):
                self._handlers.foresee(entry)

    def deliver(self, turn: Sequence[Entry], at: datetime, *, more: bool = False) -> None:
        """Deliver one turn, and let the workflow run until it waits.

        Args:
            turn: The entries of one turn, in order.
            at: When they were committed.
            more: It was written before now, and so were turns that are delivered after it: other code may have written them.

        Raises:
            NonDeterminismError: The code does not ask for what the entries answer.
            DecodeError: A recorded value does not fit the type that the code names.
        """
        self._now = max(at, self._now) if self._now else at
        self._more = more
        for entry in turn:
            self._apply(entry)
            self._agenda.position += 1
        self.mailbox.wake()
        # Workflow code cannot see an intent, a marker or an answer. If one let code run (a condition over the time, say), that
        # code could give up an effect whose intent is the next entry of the same commit. A pause is none of its business.
        if not all(is_silent(entry) for entry in turn):
            self._run()

    def take_commands(self) -> list[Command]:
        """Return the commands that were not returned before, in the order in which they were given."""
        commands: list[Command] = [
            *self.patches.take(),
            *self._sagas.take(),
            *self._agenda.take(),
        ]
        is_at_its_end = self._outcome is not None and not self._finish_given
        if is_at_its_end and not (self._agenda.effects() or self._agenda.unsent()):
            assert self._outcome is not None
            self._finish_given = True
            # What went on until now, an operator's undoing say, counts too.
            self._outcome = self._with_verdict(self._outcome)
            commands.append(Finish(outcome=self._outcome))
        return commands

    def query(self, name: str, value: bytes) -> bytes:
        """Answer a question from where the run stands; nothing of it is changed.

        Args:
            value: As JSON.

        Returns: The answer as JSON.

        Raises:
            QueryError: There is no answer.
        """
        if self._root is None:
            raise QueryError(
                "no worker has taken the run up yet",
                reason="not_begun",
                run=self._run_id,
                hint="ask again when it has begun: `outlast runs explain` says what it waits for",
            )
        return self._queries.answer(name, value)

    def evict(self) -> None:
        """Take the run out of memory: end every task without letting it act. The machine is of no use afterwards."""
        self._loop.evict()
        self._agenda.clear()
        self.patches.clear()
        self._sagas.clear()
        self._finish_given = True

    # What workflow code asks (the Context protocol)

    def info(self) -> RunInfo:
        """Return what is known about the run."""
        assert self._started_at is not None
        parent = self.parent
        return RunInfo(
            tenant=self._tenant,
            run_id=self._name.run_id,
            workflow=self._program.name,
            generation=self._name.generation,
            started_at=self._started_at,
            entries=self._agenda.position,
            continue_suggested=self._suggested,
            parent=parent.run_id if parent else "",
        )

    def now(self) -> datetime:
        """Return the time of the entry that was delivered last."""
        assert self._now is not None
        return self._now

    def random(self) -> RunRandom:
        """Return a fresh generator, the same one in every replay."""
        self._loop.check_replayed("draw from the run's randomness")
        assert self._started is not None
        path = self._loop.current_path()
        self._draws[path] = count = self._draws.get(path, 0) + 1
        return RunRandom(self._started.seed, f"{path}/{count}")

    def uuid4(self) -> UUID:
        """Return a random UUID, the same one in every replay."""
        return self.random().uuid4()

    def perform(self, request: Request) -> asyncio.Future[Any]:
        """Begin an operation of the current task and return the future of its outcome."""
        self._loop.check_acting("begin an operation")
        future: WorkflowFuture[Any] = self._loop.create_future()
        if self._loop.evicting:
            return future
        operation = self._next_operation()
        future.on_cancel = lambda: self._agenda.abandon(operation)
        match request:
            case StepRequest():
                self._begin_step(operation, request, future)
            case EffectRequest():
                self._effects.begin(operation, request, future)
            case ApprovalRequest():
                self._approvals.begin(operation, request, future, self._name.generation)
            case ChildRequest() | MessageRequest() | WatchRequest():
                self._others.begin(operation, request, future)
            case _:
                assert_never(request)
        return future

    def enter_saga(self) -> OpenSaga:
        """Begin a saga around the code that runs, up to where that leaves it."""
        self._loop.check_acting("begin a saga")
        operation = OperationId("") if self._loop.evicting else self._next_operation()
        return self._sagas.open(operation)

    def on_query(self, name: str, handler: QueryHandler) -> None:
        """Answer the queries of this name."""
        self._loop.check_acting("register a handler")
        if not self._loop.evicting:
            self._queries.register(name, handler)

    def publish(self, name: str, value: Raw) -> None:
        """Have a value recorded under this name, for whoever looks on from outside."""
        self._loop.check_acting("publish a value")
        if not self._loop.evicting:
            self._publications.publish(self._next_operation(), name, value)

    def patched(self, name: str, *, deprecated: bool = False) -> bool:
        """Return whether the code goes on as changed at this patch."""
        if self._loop.evicting:
            return self.patches.answers.get(name, False)
        if name not in self.patches.answers:
            self._loop.check_replayed(f"ask patched({name!r}) before the workflow has")
        return self.patches.ask(name, deprecated=deprecated, more=self._more)

    def continue_as_new(self, name: str, arguments: bytes) -> NoReturn:
        """End this generation, and let the run go on as this workflow with these arguments."""
        self._sagas.check_none("continue_as_new was called", run_id=self._name.run_id)
        roll_over(name, arguments, path=self._loop.current_path(), run_id=self._name.run_id)

    async def receive(self, name: str, decode: Callable[[bytes], Any]) -> Any:
        """Wait for the next message of that name; for one that does not fit, other code has to come."""
        self._handlers.check_receiver(name)
        message = await self.mailbox.receive(name)
        try:
            return decode(bytes(message.value))
        except DecodeError as error:
            self._handlers.misfits(error)
        return await self._loop.create_future()

    def handle(self, handler: Handler) -> None:
        """Handle the messages of a name, those that came before first."""
        self._handlers.add(handler)

    def handlers_finished(self) -> bool:
        """Return whether nothing is being handled."""
        return self._handlers.finished

    async def wait_condition(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate` is true; it is looked at after all messages of a turn were handled."""
        await self._conditions.wait(predicate)

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
        due = later(self._now, delay_seconds)
        self._agenda.open(
            TimerOperation(operation, handle),
            StartTimer(operation=operation, due=due, armed_at=self._now),
        )

    def cancel_timer(self, handle: TimerHandle) -> None:
        """Forget a timer that was cancelled before it came due."""
        self._agenda.abandon(handle.operation)

    # Operations begin

    def _next_operation(self) -> OperationId:
        return operation_id(*self._loop.next_operation())

    def _begin_step(
        self, operation: OperationId, request: StepRequest, future: WorkflowFuture[Any]
    ) -> None:
        scheduled_at = self._now if request.has_deadline else None
        self._agenda.open(
            StepOperation(operation, request, future, scheduled_at),
            RunStep(
                operation=operation,
                name=request.name,
                arguments=request.arguments,
                scheduled_at=scheduled_at,
            ),
        )

    def _ask(self, request: ApprovalRequest) -> tuple[WorkflowFuture[Any], Callable[[], None]]:
        """Ask a person on the run's own account; return the future of the grant, and what takes the request back."""
        operation, answer = self._next_operation(), self._loop.create_future()
        self._approvals.begin(operation, request, answer, self._name.generation)
        return answer, lambda: self._agenda.abandon(operation)

    # Entries arrive

    def _apply(self, entry: Entry) -> None:  # noqa: C901 - one arm a kind; the union is closed
        match entry:
            case Started():
                self._started, self.parent = entry, entry.parent or None
                name, is_fork = entry.known_as or self._name, bool(entry.effects)
                self._know_as(name, is_fork=is_fork and entry.known_as is None)
                self._sagas.undoes_inherited = entry.effects == "same_key" and entry.is_last
            case Taken():
                self._begin_run()
            case StepCompleted() | StepFailed():
                self._apply_step(entry)
            case EffectIntended():
                self._effects.intended(entry)
            case EffectCompleted() | EffectFailed() | EffectRefused() | EffectCompensating():
                self._effects.settled(entry)
            case EffectInDoubt():
                self._effects.doubted(entry)
            case EffectCleared():
                self._effects.cleared(entry)
            case SagaAborted() | SagaEnded():
                self._sagas.settle(entry)
            case TimerFired():
                timer = self._agenda.expect(entry.operation, TimerOperation)
                if timer is not None:
                    self._agenda.close(timer.operation)
                    self._loop.fire(timer.handle)
            case MessageReceived() | UpdateReceived():
                self._handlers.deliver(entry)
            case UpdateAnswered():
                self._handlers.answered(entry)
            case (
                ApprovalRequested()
                | ApprovalVoted()
                | ApprovalEdited()
                | ApprovalDecided()
                | ApprovalExpired()
            ):
                self._apply_asking(entry)
            case CancelRequested():
                self._stopped_by = self._stopped_by or entry
                self._handlers.cancelled = True
                self._cancel_code("the run was cancelled")
                if self._root is not None and self._root.done():
                    # What is waited for, because a saga is open there, may have taken its first cancel back.
                    self._sagas.cancel(again=True)
                self._stay()
            case RunTimedOut():
                self._stopped_by = self._stopped_by or entry
                self._handlers.out_of_time = self._out_of_time()
                self._cancel_code(self._out_of_time())
            case (
                ChildRequested()
                | ChildStarted()
                | ChildRefused()
                | RunEnded()
                | MessageSent()
                | WatchRequested()
                | MessageAnswered()
            ):
                self._others.apply(entry)
            case AlarmRaised() | Accepted() | PauseRequested() | ResumeRequested():
                pass
            case Published():
                self._publications.settle(entry)
            case Forked():
                self.parent = entry.parent
                self._know_as(entry.known_as, is_fork=True)
                self._effects.forked()
            case LeftOut():
                if intent_left_out(entry):
                    self._effects.left_out(entry)
            case ContinueSuggested():
                self._suggested = True
            case Patched():
                self._apply_marker(entry)
            case Completed() | Failed() | Cancelled() | ContinuedAsNew():
                self._apply_end(entry)
            case _:
                assert_never(entry)

    def _apply_asking(
        self,
        entry: ApprovalRequested
        | ApprovalVoted
        | ApprovalEdited
        | ApprovalDecided
        | ApprovalExpired,
    ) -> None:
        found = self._agenda.find(entry.operation)
        asks = self._effects if isinstance(found, EffectOperation) else self._approvals
        match entry:
            case ApprovalRequested():
                asks.requested(entry)
            case ApprovalVoted():
                if isinstance(found, ApprovalOperation | EffectOperation):
                    found.asking.voted(entry)
            case ApprovalEdited():
                asks.edited(entry, self._name)
            case ApprovalDecided() | ApprovalExpired():
                asks.decided(entry, self._name)

    def _know_as(self, name: RunName, *, is_fork: bool) -> None:
        """Tell the code this name of the run from here on: the entries that a fork keeps were written under its origin's."""
        self._name = name
        self._ledger.run_id = name.run_id
        self._others.know_as(name, is_fork=is_fork)

    def _begin_run(self) -> None:
        if self._started_at is not None:
            return
        assert self._started is not None
        self._started_at = self._now
        # Decoded here and not in the task: arguments that do not fit are for an operator, and no failure of the run.
        body = self._program.start(bytes(self._started.arguments))
        self._root = self._loop.spawn(body, name=self._name.run_id, context=self._context)
        self._handlers.body = self._root

    def _out_of_time(self) -> str:
        assert self._started is not None
        return f"the run was not done within {self._started.timeout}"

    def _apply_step(self, entry: StepCompleted | StepFailed) -> None:
        step = self._agenda.expect(entry.operation, StepOperation, entry.name)
        if step is None:
            return
        self._agenda.close(step.operation)
        if isinstance(entry, StepFailed):
            _set_failure(step.future, entry.failure, step.request.raises)
        elif not step.future.done():
            step.future.set_result(step.request.decode(bytes(entry.value)))

    def _apply_marker(self, entry: Patched) -> None:
        if not self.patches.settle(entry):
            raise self._agenda.mismatch(
                f"the journal holds the marker of patch {entry.name!r}, and the code has not asked for it",
                recorded=f"patch {entry.name}",
                asked=f"no patch; open: {self._agenda.describe()}",
                hint=f"keep outlast.patched({entry.name!r}) where it was asked; once no open run lacks the marker, "
                f"outlast.deprecate_patch({entry.name!r}) may stand there instead",
            )

    def _stay(self) -> None:
        """Let a run that would have gone on in a new generation stop with this one: it was cancelled."""
        if isinstance(self._fate, ContinuedAsNew):
            self._fate = cancelled()
            self._handlers.close(word_of(self._fate))
        if isinstance(self._outcome, ContinuedAsNew):
            self._outcome = self._fate

    def _apply_end(self, entry: Outcome) -> None:
        if type(self._outcome) is not type(entry):
            code = "still waits" if self._outcome is None else word_of(self._outcome)
            raise self._agenda.mismatch(
                f"the journal says that the run {word_of(entry)}, and the code {code}",
                recorded=word_of(entry),
                asked=f"{code}; open: {self._agenda.describe()}",
            )
        self._closed = entry
        self._finish_given = True

    # Running

    def _run(self) -> None:
        if self._root is None or self._outcome is not None:
            return
        try:
            self._run_until_idle()
            while not self._loop.errors and self._settle(self._root):
                self._run_until_idle()
        except ForbiddenInWorkflowError as error:
            # It spins: nothing of it can go on, not even what would undo something.
            self._end_code(Failed(failure=capture(error)))
            return
        except SystemExit as error:
            # `sys.exit()` must end the run and not the worker.
            self._loop.errors.append(error)
        if self._loop.errors:
            self._break(Failed(failure=capture(self._loop.errors[0])))
        elif self._fate is not None and self._root.done() and self._handlers.ended:
            self._end_when_undone(self._fate)

    def _break(self, fate: Failed) -> None:
        """End the code after an error that is nobody's to catch; before that, it undoes what its sagas did."""
        if self._fate is None or isinstance(self._fate, Completed | ContinuedAsNew):
            self._fate = fate
        try:
            if self._sagas.at_stake and self._cancel_code(None, again=False):
                self._run_until_idle()
            self._end_when_undone(self._fate)
        except (ForbiddenInWorkflowError, SystemExit):
            self._end_code(self._fate)

    def _end_when_undone(self, fate: Outcome) -> None:
        """End the code, unless a saga is open somewhere whose doings would stay: its task is cancelled first, and undoes them."""
        while self._sagas.at_stake and self._sagas.cancel():
            self._run_until_idle()
        if not (self._sagas.at_stake and self._agenda.waits):
            self._end_code(fate)

    def _settle(self, root: asyncio.Task[Any]) -> bool:
        """Note how body and handlers ended; True when that cancels what still runs.

        A run comes to what its body comes to, unless a handler of a signal fails before: the first failure counts. What is being
        handled when the body returns goes on as long as anything can wake it; a failure cancels body and handlers, once.
        """
        ends: list[Outcome] = []
        if root.done() and not self._handlers.closed:
            ends.append(self._outcome_of(root))
        error = self._handlers.settle()
        if error is not None:
            ends.append(ended_by(error))
        for end in ends:
            if self._fate is None or isinstance(self._fate, Completed | ContinuedAsNew):
                self._fate = end
        if root.done() and self._fate is not None:
            self._handlers.close(word_of(self._fate))
        failed = any(not isinstance(end, Completed | ContinuedAsNew) for end in ends)
        if failed and self._cancel_code(None, again=False):
            return True
        stuck = root.done() and not self._handlers.ended and not self._agenda.waits
        return stuck and self._handlers.give_up()

    def _cancel_code(self, message: str | None, *, again: bool = True) -> bool:
        """Cancel body and handlers, wherever they wait; intended effects are settled first. True when there is anything to cancel.

        Args:
            message: Of the `CancelledError` that the code sees.
            again: Also what was asked to stop already, and is cleaning up.
        """
        root = self._root
        cancels = root is not None and not root.done() and (again or not root.cancelling())
        if root is not None and cancels:
            root.cancel(message)
        return self._handlers.cancel(message, again=again) or cancels

    def _run_until_idle(self) -> None:
        self._loop.run_until_idle()
        fired = True
        while self._conditions and fired:
            fired = False

            def look() -> None:
                nonlocal fired
                fired = self._conditions.fire()

            self._loop.call_soon(look, context=self._context)
            self._loop.run_until_idle()

    def _raised(self) -> str:
        """Return what the code failed with, and where in it; an empty string when it has not failed."""
        end = self._outcome or self._fate
        if not isinstance(end, Failed):
            return ""
        place = place_of(end.failure)
        return tell(end.failure).removesuffix(": ") + (f" at {place}" if place else "")

    def _end_code(self, outcome: Outcome) -> None:
        self._outcome = outcome = self._with_verdict(outcome)
        self._handlers.end(word_of(outcome))
        self._conditions.clear()
        self._loop.close()
        self._agenda.abandon_all()

    def _with_verdict(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Failed | Cancelled):
            return replace(outcome, compensation=self._sagas.verdict())
        return outcome

    def _outcome_of(self, root: asyncio.Task[Any]) -> Outcome:
        """Judge how the body has come to its end."""
        if root.cancelled() and isinstance(self._stopped_by, RunTimedOut):
            return Failed(failure=capture(TimeoutError(self._out_of_time())))
        if root.cancelled():
            return cancelled()
        error = root.exception()
        if error is not None:
            return outcome_in(error) or ended_by(error)
        try:
            return Completed(value=Raw(self._program.encode(root.result())))
        except OutlastError as refused:
            return Failed(failure=capture(refused))


def _set_failure(
    future: asyncio.Future[Any], failure: Failure, raises: tuple[type[BaseException], ...]
) -> None:
    if not future.done():
        future.set_exception(rebuild(failure, raises))
