"""What a workflow can ask of other runs: start one as its child, and send to, cancel or wait for one that is there.

Whatever is asked is recorded first and carried out then, so that it happens once, also when every process dies in between.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, get_args, overload

import msgspec
from msgspec.structs import replace

from outlast.effects.key import check_run_id, child_id
from outlast.errors import DefinitionError
from outlast.journal.entry import NO_OPERATION, OperationId, RunName
from outlast.journal.parse import read
from outlast.replay.context import (
    Child,
    ChildRequest,
    Context,
    MessageRequest,
    WatchRequest,
    context,
)
from outlast.workflows.call import Call
from outlast.workflows.definition import Workflow
from outlast.workflows.message import Signal, encoded
from outlast.workflows.timeout import run_seconds

R = TypeVar("R")
T = TypeVar("T")

ParentClose: TypeAlias = Literal["terminate", "cancel", "abandon"]
"""What the end of a run, however it comes, means to a child that is still open: it is ended without clean-up; it is asked to stop; or
it goes on."""


def run_child(
    call: Call[R],
    *,
    id: str | None = None,
    parent_close: ParentClose = "terminate",
    timeout: timedelta | None = None,
) -> Call[R]:
    """Start a run as a child of this one, and return its result when it is awaited.

    Like a step it begins when it is awaited or handed to a task. Cancelling the wait cancels the child, and the wait ends when the child
    has ended; `asyncio.shield` keeps it.

    Example:
        ```python
        import asyncio
        import outlast

        @outlast.workflow
        async def double(number: int) -> int:
            return 2 * number

        @outlast.workflow
        async def total(numbers: list[int]) -> int:
            children = [outlast.run_child(double(number)) for number in numbers]
            return sum(await asyncio.gather(*children))

        async def main() -> None:
            async with outlast.open("memory://") as app:
                assert await app.run(total([1, 2, 3]), id="t-1") == 12

        asyncio.run(main())
        ```

    Args:
        call: Of a workflow, as `double(4)`.
        id: Of the child; by default made of this run's id and the operation, as `t-1/r:1`. One of your own comes from the event that
            triggers the work; in a fork the fork's id is put after it, since the origin's child has the other.
        parent_close: What the end of this run means to the child if it is still open: `terminate`, `cancel` or `abandon`.
        timeout: How long the child may take, from its start on; as long as its `@workflow(timeout=…)` says by default. Then it is
            cancelled, cleans up, and fails with `TimeoutError`.

    Raises:
        WorkflowFailedError: Awaited: the child raised; the cause is that exception.
        RunCancelledError: Awaited: it was cancelled by somebody else, or an approval expired.
        RunTerminatedError: Awaited: it was terminated.
        RunConflictError: Awaited: its id is taken by a run that this call did not start.
        DefinitionError: It is no call of a workflow, the id cannot be one, or the timeout is no length of time.
    """
    current = context("outlast.run_child")
    request = _request(current, call, id, parent_close, timeout, "outlast.run_child")
    child = _ChildCall(current, request)
    return Call(child, call.args, call.kwargs)


async def start_child(
    call: Call[R],
    *,
    id: str | None = None,
    parent_close: ParentClose = "terminate",
    timeout: timedelta | None = None,  # noqa: ASYNC109 - the child's, by the store's clock
) -> ChildHandle[R]:
    """Start a run as a child of this one, and return a handle once it exists.

    Example:
        ```python
        import asyncio
        import outlast

        go = outlast.Signal("go", str)

        @outlast.workflow
        async def echo() -> str:
            return await outlast.receive(go)

        @outlast.workflow
        async def caller() -> str:
            child = await outlast.start_child(echo())
            await child.send(go, "hello")
            return await child.result()

        async def main() -> None:
            async with outlast.open("memory://") as app:
                assert await app.run(caller(), id="c-1") == "hello"

        asyncio.run(main())
        ```

    Args:
        call: Of a workflow.
        id: Of the child; see `run_child`.
        parent_close: What the end of this run means to the child if it is still open.
        timeout: How long the child may take; see `run_child`.

    Raises:
        RunConflictError: Its id is taken by a run that this call did not start.
        DefinitionError: It is no call of a workflow, the id cannot be one, or the timeout is no length of time.
    """
    current = context("outlast.start_child")
    request = _request(current, call, id, parent_close, timeout, "outlast.start_child")
    return ChildHandle(current, await current.perform(replace(request, awaits="start")))


class ChildHandle(Generic[R]):
    """A child, as its parent sees it. Made by `start_child`.

    Example:
        ```python
        import asyncio
        import outlast

        @outlast.workflow
        async def patient() -> str:
            try:
                await outlast.sleep(3600)
            except asyncio.CancelledError:
                return "stopped"
            return "done"

        @outlast.workflow
        async def boss() -> str:
            child = await outlast.start_child(patient(), id="the-patient")
            await child.cancel("enough")
            return f"{child.id}: {await child.result()}"

        async def main() -> None:
            async with outlast.open("memory://") as app:
                assert await app.run(boss(), id="b-1") == "the-patient: stopped"

        asyncio.run(main())
        ```
    """

    def __init__(self, current: Context, child: Child) -> None:
        self._context = current
        self._child = child

    @property
    def id(self) -> str:
        """The child's id."""
        return self._child.run_id

    async def result(self) -> R:
        """Wait for the child's end, and return what it returned; may be asked again.

        Cancelling the wait cancels the child; see `run_child`.

        Raises:
            WorkflowFailedError: The child raised; the cause is that exception.
            RunCancelledError: It was cancelled, or an approval expired.
            RunTerminatedError: It was terminated.
        """
        return await self._child.ended()

    async def cancel(self, reason: str = "") -> None:
        """Ask the child to stop and clean up; return when the request is in its inbox. No error when it has ended by then."""
        await self._context.perform(
            _cancel(self._context, self.id, reason, child=self._child.operation)
        )

    @overload
    async def send(self, signal: Signal[None]) -> None: ...
    @overload
    async def send(self, signal: Signal[T], value: T) -> None: ...
    @overload
    async def send(self, signal: str, value: Any = ...) -> None: ...
    async def send(self, signal: Signal[Any] | str, value: Any = None) -> None:
        """Send the child a message; return when its inbox has taken it.

        Raises:
            EncodeError: The value does not fit the signal's type.
            RunConflictError: The child has ended.
        """
        await self._context.perform(_signal(self.id, signal, value, child=self._child.operation))


class ExternalRun(Generic[R]):
    """Another run of the tenant, as a workflow sees it. Made by `run_handle`.

    Example:
        ```python
        import asyncio
        import outlast

        part = outlast.Signal("part", int)

        @outlast.workflow
        async def collector() -> int:
            return await outlast.receive(part)

        @outlast.workflow
        async def supplier(number: int) -> int:
            run = outlast.run_handle("collector-1", collector)
            await run.send(part, number)
            return await run.result()

        async def main() -> None:
            async with outlast.open("memory://") as app:
                await app.start(collector(), id="collector-1")
                assert await app.run(supplier(7), id="s-1") == 7

        asyncio.run(main())
        ```
    """

    def __init__(
        self, current: Context, run_id: str, workflow: Workflow[..., Any] | None = None
    ) -> None:
        self._context = current
        self._workflow = workflow
        self.id = run_id
        """The run's id."""

    async def result(self) -> R:
        """Wait for the run's end, and return what it returned; plain JSON data where the handle was made by id alone.

        Cancelling the wait leaves the run alone.

        Raises:
            WorkflowFailedError: The run raised; the cause is that exception.
            RunCancelledError: It was cancelled, or an approval expired.
            RunTerminatedError: It was terminated.
            RunNotFoundError: There is no such run.
            DefinitionError: It is the run that asks.
        """
        if self.id == self._context.info().run_id:
            raise DefinitionError(
                "the run waits for its own end, which cannot come before the wait is over",
                run=self.id,
                hint="wait for another run, or return what this one has",
            )
        return await self._context.perform(WatchRequest(self.id, self._decode))

    async def cancel(self, reason: str = "") -> None:
        """Ask the run to stop and clean up; return when the request is in its inbox. No error when it has ended by then.

        Raises:
            RunNotFoundError: There is no such run.
        """
        await self._context.perform(_cancel(self._context, self.id, reason))

    @overload
    async def send(self, signal: Signal[None]) -> None: ...
    @overload
    async def send(self, signal: Signal[T], value: T) -> None: ...
    @overload
    async def send(self, signal: str, value: Any = ...) -> None: ...
    async def send(self, signal: Signal[Any] | str, value: Any = None) -> None:
        """Send the run a message; return when its inbox has taken it.

        Raises:
            EncodeError: The value does not fit the signal's type.
            RunNotFoundError: There is no such run.
            RunConflictError: It has ended.
        """
        await self._context.perform(_signal(self.id, signal, value))

    def _decode(self, value: bytes) -> Any:
        if self._workflow is None:
            return read(value, f"the result of run {self.id}")
        return self._workflow.result.decode(value)


@overload
def run_handle(id: str) -> ExternalRun[Any]: ...
@overload
def run_handle(id: str, workflow: Workflow[..., R]) -> ExternalRun[R]: ...
def run_handle(id: str, workflow: Workflow[..., Any] | None = None) -> ExternalRun[Any]:
    """Return a handle of another run of this tenant, which exists or may exist, for use in this workflow.

    Example:
        ```python
        import asyncio
        import outlast

        @outlast.workflow
        async def first() -> str:
            return "from the first"

        @outlast.workflow
        async def second() -> str:
            return await outlast.run_handle("first-1", first).result()

        async def main() -> None:
            async with outlast.open("memory://") as app:
                await app.start(first(), id="first-1")
                assert await app.run(second(), id="second-1") == "from the first"

        asyncio.run(main())
        ```

    Args:
        workflow: Gives the result its type.

    Raises:
        DefinitionError: The id cannot be one.
    """
    return ExternalRun(context("outlast.run_handle"), check_run_id(id), workflow)


class _ChildCall:
    """A call of a workflow that is to be a child: what a `Call` needs of the function that was called."""

    kind = "child"

    def __init__(self, current: Context, request: ChildRequest) -> None:
        self._context = current
        self._request = request
        self.name = request.name

    def enter(self, context: Context, call: Call[Any]) -> Any:
        """Begin the operation in a workflow, and return the future of the child's result."""
        return context.perform(self._request)

    def outside(self, call: Call[Any]) -> Coroutine[Any, Any, Any]:
        """Raise: a child has a parent."""
        context("outlast.run_child")
        raise AssertionError("a context was found where there was none")


def _request(
    current: Context,
    call: Call[Any],
    id: str | None,
    parent_close: ParentClose,
    timeout: timedelta | None,
    what: str,
) -> ChildRequest:
    given: Any = call
    callee: Any = given.callee if isinstance(given, Call) else None
    if not isinstance(callee, Workflow):
        raise DefinitionError(
            f"{what} was given {given!r}, which is no call of a workflow",
            hint=f"call it: {what}({given.name}(…))"
            if isinstance(given, Workflow)
            else f"give what @workflow decorates, called: {what}(fix(finding))",
        )
    if parent_close not in get_args(ParentClose):
        raise DefinitionError(
            f"{what} was given parent_close={parent_close!r}",
            step=callee.name,
            hint="write 'terminate', 'cancel' or 'abandon'",
        )
    workflow = cast("Workflow[..., Any]", callee)
    seconds = run_seconds(timeout, what=f"{what} of {workflow.name}")
    call.use()
    return ChildRequest(
        name=workflow.name,
        identify=_identify(None if id is None else check_run_id(id), what),
        arguments=workflow.arguments.encode(call.args, call.kwargs),
        parent_close=parent_close,
        decode=workflow.result.decode,
        awaits="end",
        timeout_seconds=workflow.timeout_seconds if seconds is None else seconds,
        durability=workflow.durability,
        own_id=id or "",
        definition=workflow,
    )


def _identify(given: str | None, what: str) -> Callable[[RunName, str, bool], str]:
    def identify(run: RunName, operation: str, is_fork: bool) -> str:
        if given is None:
            run_id = child_id(run.run_id, run.generation, operation)
        else:
            # The origin of a fork has a child of that id, or may have one.
            run_id = f"{given}/{run.run_id}" if is_fork else given
        try:
            return check_run_id(run_id)
        except DefinitionError as error:
            raise DefinitionError(
                f"the id that {what} would give the child is too long: {len(run_id)} characters",
                run=run.run_id,
                operation=operation,
                hint="give one: id=…",
            ) from error

    return identify


def _signal(
    run_id: str, signal: Signal[Any] | str, value: Any, child: OperationId = NO_OPERATION
) -> MessageRequest:
    name, body = encoded(signal, value, what="signal")
    return MessageRequest(run_id, "signal", name, body, child)


def _cancel(
    current: Context, run_id: str, reason: str, child: OperationId = NO_OPERATION
) -> MessageRequest:
    by = {"by": f"run {current.info().run_id}", "reason": reason}
    return MessageRequest(run_id, "cancel", "", msgspec.json.encode(by), child)
