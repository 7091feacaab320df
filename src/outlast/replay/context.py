"""What workflow code can ask of whoever runs it. The replay machine is one answer; another engine could be a second.

The current context is found through a context variable that only workflow code ever sees set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn, Protocol, TypeAlias
from uuid import UUID

from msgspec import Raw, Struct

from outlast.errors import OutsideWorkflowError
from outlast.journal.asking import AskedFor, Precondition, Terms
from outlast.journal.entry import NO_OPERATION, Cover, Durability, OperationId, RunName
from outlast.replay.entropy import RunRandom
from outlast.replay.query import QueryHandler


class RunInfo(Struct, frozen=True):
    """What a workflow may know about its own run.

    Args:
        generation: From 1; one more for each re-use of the id, and for each `continue_as_new`.
        started_at: When a worker first took the run up.
        entries: How long the journal is now.
        parent: The id of the run that started this one as its child; empty for none.
        continue_suggested: The journal is long enough to go on in a new generation: see `continue_as_new`.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def age() -> float:
            about: outlast.RunInfo = outlast.info()
            await outlast.sleep(0.01)
            return (outlast.now() - about.started_at).total_seconds()

        async with outlast.open("memory://") as app:
            assert await app.run(age(), id="a") >= 0.01
        ```
    """

    tenant: str
    run_id: str
    workflow: str
    generation: int
    started_at: datetime
    entries: int
    continue_suggested: bool = False
    parent: str = ""


class StepRequest(Struct, frozen=True):
    """Run this step and give back its value.

    Args:
        arguments: JSON object of the bound arguments by parameter name.
        decode: Turns the recorded JSON into the annotated type.
        raises: Exception types that arrive as themselves.
        has_deadline: Whether time runs from now on, for all attempts together.
        definition: What was called; whoever carries it out compares it with what it knows under the name.
    """

    name: str
    arguments: bytes
    decode: Callable[[bytes], Any]
    raises: tuple[type[BaseException], ...]
    has_deadline: bool = False
    definition: object = None


class Undo(Struct, frozen=True):
    """How an effect is undone.

    Args:
        name: Of the effect that undoes it.
        needs_result: It takes what the effect returned.
        bind: Returns the call that undoes it, given its arguments and its result as JSON; raises `DecodeError` where today's types do not
            take them, or where the result is needed and there is none.
    """

    name: str
    needs_result: bool
    bind: Callable[[bytes, bytes | None], EffectRequest]


class FirstCall(Struct, frozen=True):
    """An earlier call of an effect, whose purpose another one has too.

    Args:
        state: What became of it: `in flight`, `in doubt`, `done`, or `failed, and may have happened`.
        arguments: JSON object, by parameter name.
    """

    operation: OperationId
    state: str
    arguments: bytes


class Purpose(Struct, frozen=True):
    """What makes two calls of an effect the same purpose, although their keys differ.

    Args:
        values: Canonical JSON of each argument that counts, with its name.
        within: How long after the end of a call another one has its purpose; None for as long as the run.
        ask: Returns what a person is asked about a second one; None where it is refused.
    """

    values: tuple[tuple[str, str], ...]
    within: timedelta | None
    ask: Callable[[FirstCall], ApprovalRequest] | None


class EffectRequest(Struct, frozen=True):
    """Let this effect happen, once.

    Args:
        payload_sha256: Hash of the arguments that make the idempotency key.
        action_sha256: Hash of name, version and all arguments: what an approval binds to.
        fields: Canonical JSON of each argument by parameter name: what a pattern is held against.
        repeats: Whether an equal call after a success is another effect rather than an error.
        same_arguments: Whether recorded arguments mean the same to today's types.
        has_deadline: Whether time runs from now on, for all attempts together.
        definition: As for `StepRequest`.
        compensates: Of a compensation: the operation that it undoes.
        undo: How it is undone.
        undoes_key: Of a compensation: the key of what it undoes.
        purpose: Where the effect says what makes two calls the same purpose.
        remake: Returns the same with other arguments, a JSON object by parameter name; raises `DecodeError` for those that do not fit.
        version: Part of what an approval binds to; empty for none.
        agent: In whose name it is called; empty for none.
    """

    name: str
    arguments: bytes
    payload_sha256: str
    action_sha256: str
    fields: Mapping[str, str]
    repeats: bool
    same_arguments: Callable[[bytes], bool]
    decode: Callable[[bytes], Any]
    raises: tuple[type[BaseException], ...]
    has_deadline: bool = False
    definition: object = None
    compensates: OperationId = NO_OPERATION
    undo: Undo | None = None
    undoes_key: str = ""
    purpose: Purpose | None = None
    remake: Callable[[bytes], EffectRequest] | None = None
    version: str = ""
    agent: str = ""


class ApprovalRequest(Struct, frozen=True):
    """Ask a person of this role.

    Args:
        subject: JSON of what is shown.
        subject_sha256: Hash of all that is shown.
        terms: How it is decided.
        same_subject: Whether a recorded subject, with its covers, means the same to today's types.
        demands: Whether every call of an effect that it covers needs a cover from now on.
        kind: Whether a yes is asked for, or an answer.
        preconditions: On what a yes rests.
        decode: Of a question: turns the answer's JSON into the type that is asked for.
        remake: Returns what is asked of the run for a covered call (its place, from 0) with other arguments (a JSON object by parameter
            name); raises `DecodeError` for those that do not fit. None where nothing can be edited.
    """

    subject: Raw
    subject_sha256: str
    covers: tuple[Cover, ...]
    terms: Terms
    same_subject: Callable[[bytes], bool]
    demands: bool = True
    kind: AskedFor = "approval"
    preconditions: tuple[Precondition, ...] = ()
    decode: Callable[[bytes], Any] | None = None
    remake: Callable[[int, bytes], EffectRequest] | None = None


class ChildRequest(Struct, frozen=True):
    """Start a run as a child of this one.

    Args:
        name: Of its workflow.
        identify: Returns its id, given this run's name, the operation that starts it, and whether this run is a fork; raises for one
            that cannot be an id.
        arguments: JSON object of the bound arguments by parameter name.
        parent_close: What the end of this run means to it: `terminate`, `cancel` or `abandon`.
        timeout_seconds: How long it may take; None without limit.
        decode: Turns the recorded JSON of its result into the annotated type.
        awaits: What `perform` returns the future of: the `start`, which gives a `Child`, or the `end`, which gives the result.
        durability: Of the child.
        own_id: The id that the workflow names, where it names one.
        definition: As for `StepRequest`.
    """

    name: str
    identify: Callable[[RunName, str, bool], str]
    arguments: bytes
    parent_close: str
    decode: Callable[[bytes], Any]
    awaits: Literal["start", "end"]
    timeout_seconds: float | None = None
    durability: Durability = "sync"
    own_id: str = ""
    definition: object = None


class MessageRequest(Struct, frozen=True):
    """Send a message to another run, and wait until its inbox has taken it.

    Args:
        kind: `signal` or `cancel`.
        name: Of the signal; empty for a cancel.
        value: JSON of the signal's value, or of who cancels and why.
        child: Only the run that this operation has started is meant.
    """

    run_id: str
    kind: str
    name: str
    value: bytes
    child: OperationId = NO_OPERATION


class WatchRequest(Struct, frozen=True):
    """Wait for the end of a run that something else has started.

    Args:
        decode: Turns the recorded JSON of its result into the annotated type.
    """

    run_id: str
    decode: Callable[[bytes], Any]


OtherRunRequest: TypeAlias = ChildRequest | MessageRequest | WatchRequest
"""What is asked of another run."""

Request: TypeAlias = StepRequest | EffectRequest | ApprovalRequest | OtherRunRequest


class Child(Protocol):
    """A child that exists."""

    @property
    def operation(self) -> OperationId:
        """The operation that started it."""
        ...

    @property
    def run_id(self) -> str:
        """Its id."""
        ...

    def ended(self) -> asyncio.Future[Any]:
        """Return a future of its result; a cancel of it is sent to the child, and it ends with the child."""
        ...


class SignalHandler(Struct, frozen=True):
    """What the workflow does with each signal of a name.

    Args:
        decode: Turns the recorded JSON into the signal's type.
        call: Plain or async, of one value.
    """

    name: str
    decode: Callable[[bytes], Any]
    call: Callable[[Any], Any]


class UpdateHandler(Struct, frozen=True):
    """What the workflow does with each update of a name.

    Args:
        decode: Turns the recorded JSON into the update's type.
        encode: Turns what `call` came to into JSON.
        call: Plain or async, of one value.
        validate: Raises to reject; may only look.
    """

    name: str
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    call: Callable[[Any], Any]
    validate: Callable[[Any], object] | None


Handler: TypeAlias = SignalHandler | UpdateHandler


class OpenSaga(Protocol):
    """A saga whose body runs."""

    def leave(self, error: BaseException | None) -> asyncio.Future[Any] | None:
        """End it; return the future of its undoing, where there is anything to undo or to wait for.

        That future cannot be cancelled, and tells whether all was undone.

        Args:
            error: What its body raised.
        """
        ...


class Context(Protocol):
    """The run as seen from inside."""

    @property
    def is_heard(self) -> bool:
        """Whether the code that runs is there for the first time, so that what it logs is news. For nothing else: no decision may rest on it."""
        ...

    def info(self) -> RunInfo:
        """Return what is known about the run."""
        ...

    def now(self) -> datetime:
        """Return the time of the entry that was delivered last."""
        ...

    def random(self) -> RunRandom:
        """Return a fresh generator, the same one in every replay."""
        ...

    def uuid4(self) -> UUID:
        """Return a random UUID, the same one in every replay."""
        ...

    def perform(self, request: Request) -> asyncio.Future[Any]:
        """Begin an operation of the current task and return the future of its outcome."""
        ...

    def enter_saga(self) -> OpenSaga:
        """Begin a saga around the code that runs, up to where that leaves it."""
        ...

    def on_query(self, name: str, handler: QueryHandler) -> None:
        """Answer the queries of this name."""
        ...

    def publish(self, name: str, value: Raw) -> None:
        """Have a value (JSON) recorded under this name, for whoever looks on from outside."""
        ...

    def patched(self, name: str, *, deprecated: bool = False) -> bool:
        """Return whether the code goes on as changed at this patch."""
        ...

    def continue_as_new(self, name: str, arguments: bytes) -> NoReturn:
        """End this generation, and let the run go on as this workflow with these arguments (JSON)."""
        ...

    def receive(self, name: str, decode: Callable[[bytes], Any]) -> Awaitable[Any]:
        """Wait for the next message of that name."""
        ...

    def handle(self, handler: Handler) -> None:
        """Handle the messages of a name, those that came before first."""
        ...

    def handlers_finished(self) -> bool:
        """Return whether no message is being handled."""
        ...

    def wait_condition(self, predicate: Callable[[], bool]) -> Awaitable[None]:
        """Wait until `predicate` is true; it is looked at after all messages of a turn were handled."""
        ...


current_context: ContextVar[Context] = ContextVar("outlast_context")


def context(name: str) -> Context:
    """Return the context of the running workflow.

    Args:
        name: The public function that needs it, for the error.

    Raises:
        OutsideWorkflowError: The caller is not workflow code.
    """
    found = current_context.get(None)
    if found is None:
        raise OutsideWorkflowError(
            f"{name} was called outside a workflow",
            hint="call it from the body of a @workflow function, or from a coroutine that one awaits; "
            "in a step, use ordinary Python instead",
        )
    return found
