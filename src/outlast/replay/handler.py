"""Handlers of messages: who handles which name, what waits for a handler, and what is being handled.

Guards these promises: the messages of a name reach its handler in the order of the journal, each once; a task's path is the
message's own place in the journal (`m3`), so that no other message, and no later handler, shifts it; an update has one answer, and
none is left without one when the run has ended; what is begun is not carried over to a new generation, and what is not begun is.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct

from outlast.errors import (
    DecodeError,
    DefinitionError,
    ForbiddenInWorkflowError,
    OutlastError,
    RunConflictError,
    RunError,
)
from outlast.journal.entry import (
    Entry,
    MessageReceived,
    OperationId,
    UpdateAnswered,
    UpdateReceived,
)
from outlast.journal.failure import capture
from outlast.replay.agenda import Agenda
from outlast.replay.command import AnswerUpdate
from outlast.replay.context import Handler, SignalHandler, UpdateHandler
from outlast.replay.ending import CONTINUED
from outlast.replay.loop import Look, WorkflowLoop
from outlast.replay.mailbox import Mailbox
from outlast.replay.operation import UpdateOperation
from outlast.replay.roll import outcome_in
from outlast.replay.scope import outside_sagas
from outlast.replay.task import TaskPath

H = TypeVar("H", SignalHandler, UpdateHandler)


class _Registered(Struct, Generic[H], frozen=True):
    """A handler, and the context in which the workflow named it: each message is handled in a copy of that."""

    handler: H
    context: contextvars.Context


class Handlers:
    """The handlers of one run.

    Args:
        loop: Runs them, each message as a task of its own.
        agenda: Holds the updates that have no answer yet.
        mailbox: Holds the signals that have no handler.
        run_id: For messages.
    """

    def __init__(self, loop: WorkflowLoop, agenda: Agenda, mailbox: Mailbox, run_id: str) -> None:
        self._loop = loop
        self._agenda = agenda
        self._mailbox = mailbox
        self._run_id = run_id
        self._count = 0
        self._signals: dict[str, _Registered[SignalHandler]] = {}
        self._updates: dict[str, _Registered[UpdateHandler]] = {}
        self._early: dict[str, list[UpdateOperation]] = {}
        self._unanswered: dict[str, UpdateOperation] = {}
        self._rejections: dict[str, UpdateAnswered] = {}
        self._running: dict[asyncio.Task[Any], UpdateOperation | None] = {}
        self._done: list[asyncio.Task[Any]] = []
        self._misfit: OutlastError | None = None
        self._ended_as = ""
        self._is_given_up = False
        self._is_left = False
        self.cancelled = False
        """The run was asked to stop."""
        self.body: asyncio.Task[Any] | None = None
        """The task of the workflow's own code."""
        self.out_of_time = ""
        """Why the run was stopped, when its time was over."""
        self.overtaken = 0
        """How many messages were being handled when the body came to its end: what it came to knows nothing of what they still do."""

    @property
    def signals(self) -> list[str]:
        """Names of the signals that have a handler."""
        return list(self._signals)

    @property
    def updates(self) -> list[str]:
        """Names of the updates that have a handler."""
        return list(self._updates)

    @property
    def closed(self) -> bool:
        """Whether the body has ended: what is being handled goes on, and nothing more is begun."""
        return bool(self._ended_as)

    @property
    def ended(self) -> bool:
        """Whether no handler is waited for."""
        return self._is_left or not self._running

    @property
    def finished(self) -> bool:
        """Whether nothing is being handled."""
        return all(task.done() for task in self._running)

    def add(self, handler: Handler) -> None:
        """Let the workflow handle the messages of a name, and begin with those that came before.

        Raises:
            DefinitionError: The name has a handler, or its messages are received.
            ForbiddenInWorkflowError: Called by what may only look.
        """
        if self._loop.evicting:
            return
        self._loop.check_acting("register a handler")
        if handler.name in (self._signals if isinstance(handler, SignalHandler) else self._updates):
            raise self._twice(handler, "is given a handler twice")
        # A message may come when the saga is over in which its handler was named.
        context = outside_sagas(contextvars.copy_context())
        if isinstance(handler, SignalHandler):
            self._add_signal(handler, context)
        else:
            self._add_update(handler, context)

    def _add_signal(self, handler: SignalHandler, context: contextvars.Context) -> None:
        if handler.name in self._mailbox.received:
            raise self._twice(handler, "is received, and is given a handler too")
        registered = self._signals[handler.name] = _Registered(handler, context)
        if not self.closed:
            for number, message in self._mailbox.take_all(handler.name):
                self._begin_signal(number, message, registered)

    def _add_update(self, handler: UpdateHandler, context: contextvars.Context) -> None:
        registered = self._updates[handler.name] = _Registered(handler, context)
        if not self.closed:
            for update in self._early.pop(handler.name, ()):
                self._begin_update(update, registered)

    def check_receiver(self, name: str) -> None:
        """Return when a signal may be received.

        Raises:
            DefinitionError: It has a handler.
        """
        if name in self._signals:
            raise self._twice(self._signals[name].handler, "has a handler, and is received too")

    def foresee(self, answer: UpdateAnswered) -> None:
        """Note an answer that the journal holds, delivered or not. A rejection stands, whatever the code would say now."""
        if answer.rejected:
            self._rejections[answer.message_id] = answer

    def misfits(self, error: OutlastError) -> None:
        """Note that something recorded does not fit, a signal say: it fitted what the code said then, so it is for code that fits.

        It is no failure of the run; `settle` raises it.
        """
        self._misfit = self._misfit or error

    def deliver(self, message: MessageReceived | UpdateReceived) -> None:
        """Hand the next message of the journal to its handler, or let it wait."""
        self._count += 1
        if isinstance(message, UpdateReceived):
            self._deliver_update(message)
            return
        registered = self._signals.get(message.name)
        if registered is None or self.closed:
            self._mailbox.put(message, self._count)
        else:
            self._begin_signal(self._count, message, registered)

    def answered(self, entry: UpdateAnswered) -> None:
        """See that an answer is recorded.

        Raises:
            NonDeterminismError: The code gives another kind of answer, or none.
        """
        update = self._unanswered.get(entry.message_id)
        given = update.answer if update is not None else None
        if update is None or given is None or _word(given) != _word(entry):
            code = "never got it" if update is None else "still handles it"
            raise self._agenda.mismatch(
                f"the journal holds an answer to the update {entry.name!r} that the code does not give",
                recorded=f"{_word(entry)} {entry.message_id}",
                asked=code if given is None else _word(given),
                operation=OperationId("") if update is None else update.operation,
            )
        del self._unanswered[entry.message_id]
        self._rejections.pop(entry.message_id, None)
        self._agenda.close(update.operation)

    def cancel(self, message: str | None = None, *, again: bool) -> bool:
        """Cancel what is being handled; True when there is anything to cancel.

        Args:
            message: Of the `CancelledError` that handlers see.
            again: Also what was asked to stop already, and is cleaning up.
        """
        told = [task for task in self._running if again or not task.cancelling()]
        for task in told:
            task.cancel(message)
        return bool(told)

    def settle(self) -> BaseException | None:
        """Take in how handlers ended; return the first exception of a signal's handler. To be called when the loop is idle.

        An update without a handler waits while steps or effects go on, behind which one may be named. When the run comes to rest it is
        rejected: nobody can say whether it ever gets one, and its sender waits.

        Raises:
            DecodeError: A recorded signal, or what a saga has recorded, does not fit the type that the code names.
            NonDeterminismError: What a saga has recorded does not fit the code.
        """
        if self._misfit is not None:
            raise self._misfit
        if self._early and not self._agenda.works and not self._is_for_the_next():
            self._reject_early()
        first: BaseException | None = None
        done, self._done = self._done, []
        for task in done:
            update = self._running.pop(task)
            if update is not None:
                answer = self._answer_of(task, update.message)
                if answer is not None:
                    self._answer(update, answer)
            elif not task.cancelled():
                first = first or task.exception()
        return first

    def unhandled(self) -> list[Entry]:
        """Return the messages that were delivered and nobody took, in the order in which they came."""
        handled = {update.operation for update in self._running.values() if update is not None}
        found: list[tuple[int, Entry]] = list(self._mailbox.unread)
        found.extend(
            (update.number, update.message)
            for update in self._unanswered.values()
            if update.answer is None and update.operation not in handled
        )
        return [message for _, message in sorted(found, key=lambda pair: pair[0])]

    def close(self, ended_as: str) -> None:
        """Begin nothing more: the body has ended. Updates that nobody handles are rejected, or are for the next generation.

        Args:
            ended_as: How, in a word, as `completed`.
        """
        if self.closed and (self._ended_as != CONTINUED or ended_as == CONTINUED):
            return
        if not self.closed:
            self.overtaken = sum(not task.done() for task in self._running)
        self._ended_as = ended_as
        if ended_as != CONTINUED:
            self._reject_unheard()
        self._early.clear()

    def _reject_early(self) -> None:
        early, self._early = self._early, {}
        for update in itertools.chain(*early.values()):
            self._answer(update, self._unknown(update.message))

    def _reject_unheard(self) -> None:
        handled = {update.operation for update in self._running.values() if update is not None}
        for update in self._unanswered.values():
            if update.answer is None and update.operation not in handled:
                self._answer(update, self._unheard(update.message))

    def give_up(self) -> bool:
        """Cancel what nothing can wake any more, once; what waits on after that is left. True when code is to run for it."""
        if not self._is_given_up:
            self._is_given_up = True
            return self.cancel(again=True)
        self._is_left = True
        return False

    def end(self, ended_as: str) -> None:
        """Answer every update that is left: no code of the run runs any more.

        Args:
            ended_as: How the run ended, in a word.
        """
        # Of what ended last, the loop may not have told any more.
        self._done = [task for task in self._running if task.done()]
        self.settle()
        self.close(ended_as)
        for update in self._running.values():
            if update is not None:
                self._answer(update, _failed(update.message, self._interrupted(ended_as)))

    # One message

    def _deliver_update(self, message: UpdateReceived) -> None:
        update = UpdateOperation(OperationId(f"m{self._count}"), self._count, message)
        self._unanswered[message.message_id] = update
        self._agenda.open(update)
        registered = self._updates.get(message.name)
        rejection = self._rejections.get(message.message_id)
        if self._ended_as == CONTINUED:
            return
        if rejection is not None and (self.closed or registered is None):
            self._answer(update, rejection)
        elif self.closed:
            self._answer(update, self._unheard(message))
        elif registered is None:
            self._early.setdefault(message.name, []).append(update)
        else:
            self._begin_update(update, registered)

    def _begin_signal(
        self, number: int, message: MessageReceived, registered: _Registered[SignalHandler]
    ) -> None:
        work = self._signal(registered.handler, message, number)
        self._running[self._spawn(work, f"m{number}", registered.context)] = None

    def _begin_update(
        self, update: UpdateOperation, registered: _Registered[UpdateHandler]
    ) -> None:
        work = self._update(registered.handler, update.message)
        self._running[self._spawn(work, update.operation, registered.context)] = update

    def _spawn(
        self, work: Coroutine[Any, Any, Any], path: str, context: contextvars.Context
    ) -> asyncio.Task[Any]:
        task = self._loop.spawn(work, TaskPath(path), context=context.copy())
        task.add_done_callback(self._done_with)
        return task

    def _done_with(self, task: asyncio.Task[Any]) -> None:
        self._done.append(task)

    def _is_for_the_next(self) -> bool:
        """Whether the body has gone on in a new generation: what has not begun by then is handled there, with what it says there."""
        body = self.body
        if body is None or not body.done() or body.cancelled():
            return False
        error = body.exception()
        return error is not None and outcome_in(error) is not None

    async def _signal(self, handler: SignalHandler, message: MessageReceived, number: int) -> None:
        if self._is_for_the_next():
            self._mailbox.put(message, number)
            return
        try:
            value = handler.decode(bytes(message.value))
        except DecodeError as error:
            self.misfits(error)
            return
        await _result_of(handler.call(value))

    async def _update(
        self, handler: UpdateHandler, message: UpdateReceived
    ) -> UpdateAnswered | None:
        if self._is_for_the_next():
            return None
        try:
            value = handler.decode(bytes(message.value))
            self._validate(handler, value)
        except Exception as error:  # noqa: BLE001 - whatever a validator raises is its no
            return _failed(message, error, rejected=True)
        if message.message_id in self._rejections:
            return self._rejections[message.message_id]
        result = await _result_of(handler.call(value))
        encoded = Raw(handler.encode(result))
        return UpdateAnswered(message.message_id, message.name, value=encoded)

    def _validate(self, handler: UpdateHandler, value: Any) -> None:
        if handler.validate is None:
            return
        look = Look(
            f"the validator of update {handler.name!r}",
            "it may look at what the workflow knows, and return or raise; act in the handler",
            replayed=True,
        )
        with self._loop.looking(look):
            found = handler.validate(value)
        if look.acted:
            raise ForbiddenInWorkflowError(
                f"{look.who} tried to act, and went on when that was refused", hint=look.hint
            )
        if isinstance(found, Coroutine):
            found.close()
            raise DefinitionError(
                f"the validator of update {handler.name!r} returned a coroutine",
                run=self._run_id,
                hint="a validator is a plain function: it returns, or raises to say no",
            )

    def _answer_of(self, task: asyncio.Task[Any], message: UpdateReceived) -> UpdateAnswered | None:
        """Return what came of an update; None where it was not begun, and is for the next generation."""
        rejection = self._rejections.get(message.message_id)
        if rejection is not None:
            # The validator was asked all the same: what it draws or notes is then as it was.
            return rejection
        if task.cancelled():
            return _failed(message, asyncio.CancelledError(self._why()), cancelled=self.cancelled)
        error = task.exception()
        return task.result() if error is None else _failed(message, error)

    def _why(self) -> str:
        if self.cancelled:
            return "the run was cancelled"
        if self.out_of_time:
            return self.out_of_time
        if self._is_given_up:
            return f"the workflow {_verb(self._ended_as)}, and nothing was left that could wake the handler"
        return "the handler was cancelled"

    def _answer(self, update: UpdateOperation, answer: UpdateAnswered) -> None:
        update.answer = answer
        self._agenda.command(AnswerUpdate(operation=update.operation, answer=answer))

    def _unknown(self, message: UpdateReceived) -> UpdateAnswered:
        known = ", ".join(map(repr, sorted(self._updates))) or "no update at all"
        error = RunConflictError(
            f"the workflow has no handler for update {message.name!r}; it handles {known}",
            run=self._run_id,
            hint="nothing of it was done; name its handler before the first await of the workflow: outlast.on_update(update, handler)",
        )
        return _failed(message, error, rejected=True)

    def _unheard(self, message: UpdateReceived) -> UpdateAnswered:
        error = RunConflictError(
            f"the workflow {_verb(self._ended_as)} before it handled the update",
            run=self._run_id,
            hint="nothing of it was done; send it to a run that is open",
        )
        return _failed(message, error, rejected=True)

    def _interrupted(self, ended_as: str) -> RunError:
        return RunError(
            f"the run {_verb(ended_as)} while it handled the update",
            run=self._run_id,
            hint="part of it may have been done; see the run's journal",
        )

    def _twice(self, handler: Handler, what: str) -> DefinitionError:
        kind = "signal" if isinstance(handler, SignalHandler) else "update"
        return DefinitionError(
            f"{kind} {handler.name!r} {what}",
            run=self._run_id,
            hint="a name has one handler, named once, or is received; a message can go to one place only",
        )


def _failed(
    message: UpdateReceived,
    error: BaseException,
    *,
    rejected: bool = False,
    cancelled: bool = False,
) -> UpdateAnswered:
    return UpdateAnswered(
        message.message_id,
        message.name,
        failure=capture(error),
        rejected=rejected,
        cancelled=cancelled,
    )


def _verb(ended_as: str) -> str:
    return "was cancelled" if ended_as == "cancelled" else ended_as


def _word(answer: UpdateAnswered) -> str:
    if answer.failure is None:
        return "completed"
    return "rejected" if answer.rejected else "cancelled" if answer.cancelled else "failed"


async def _result_of(returned: Any) -> Any:
    """Return what a handler returned, or what the coroutine that it returned comes to."""
    return await returned if inspect.isawaitable(returned) else returned
