"""The three decorators, with and without arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, overload

from outlast.effects.intent import SETTLE
from outlast.effects.retry import RetryPolicy
from outlast.workflows.definition import (
    AttemptOptions,
    Effect,
    EffectOptions,
    Step,
    Workflow,
    once_unless,
)
from outlast.workflows.registry import declare

P = ParamSpec("P")
R = TypeVar("R")


@overload
def workflow(function: Callable[P, Awaitable[R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *, name: str = ..., timeout: timedelta | None = ...
) -> Callable[[Callable[P, Awaitable[R]]], Workflow[P, R]]: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    timeout: timedelta | None = None,
) -> Any:
    """Make an `async def` function a workflow.

    Args:
        name: Under which runs are stored; the function's own by default. Renaming it is a change like any other.
        timeout: How long a run may take, from its start on; no limit by default. A start may say otherwise. When it is over, the
            body is cancelled as by `RunHandle.cancel`, cleans up, and the run fails with a `TimeoutError`.

    Raises:
        DefinitionError: It is not async, is a generator, or lacks an annotation; or the timeout is no length of time.
        ForbiddenInWorkflowError: Its source uses a clock, randomness or I/O.

    Example:
        ```python
        import asyncio
        from datetime import timedelta

        import outlast

        answer = outlast.Signal("answer", str)


        @outlast.workflow(timeout=timedelta(milliseconds=50))
        async def ask(question: str) -> str:
            return await outlast.receive(answer)


        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(ask("ready?"), id="question-1")
                try:
                    await handle.result()
                except outlast.WorkflowFailedError as failed:
                    assert isinstance(failed.__cause__, TimeoutError)  # nobody answered in time


        asyncio.run(main())
        ```
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        return declare(Workflow(function, name, timeout))

    return decorate if function is None else decorate(function)


@overload
def step(function: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str = ...,
    retry: RetryPolicy | None = ...,
    start_to_close_timeout: timedelta | None = ...,
    raises: tuple[type[BaseException], ...] = ...,
) -> _StepDecorator: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    retry: RetryPolicy | None = None,
    start_to_close_timeout: timedelta | None = None,
    raises: tuple[type[BaseException], ...] = (),
) -> Any:
    """Make a function a step: its outcome is journaled, and it may run again if it was not.

    Args:
        name: Under which outcomes are stored; the function's own by default.
        retry: Retries without end by default, with growing waits up to 100 s; programming errors are never retried.
        start_to_close_timeout: How long one attempt may take; no limit by default.
        raises: Exception types that reach the workflow as themselves; others arrive as `StepFailedError`.

    Raises:
        DefinitionError: It is a generator, or lacks an annotation.
    """

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        policy = RetryPolicy() if retry is None else retry
        options = AttemptOptions(policy, start_to_close_timeout, raises)
        return declare(Step(function, name, options))

    return decorate if function is None else decorate(function)


@overload
def effect(function: Callable[P, Awaitable[R]], /) -> Effect[P, R]: ...
@overload
def effect(function: Callable[P, R], /) -> Effect[P, R]: ...
@overload
def effect(
    *,
    name: str = ...,
    idempotent: bool = ...,
    probe: Callable[..., Any] | None = ...,
    retry: RetryPolicy | None = ...,
    start_to_close_timeout: timedelta | None = ...,
    settle: timedelta = ...,
    raises: tuple[type[BaseException], ...] = ...,
    not_applied: tuple[type[BaseException], ...] = ...,
    repeats: bool = ...,
    key_on: tuple[str, ...] = ...,
    version: str = ...,
) -> _EffectDecorator: ...
def effect(  # noqa: PLR0913 - each one is a sentence of the declaration
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    idempotent: bool = False,
    probe: Callable[..., Any] | None = None,
    retry: RetryPolicy | None = None,
    start_to_close_timeout: timedelta | None = None,
    settle: timedelta = SETTLE,
    raises: tuple[type[BaseException], ...] = (),
    not_applied: tuple[type[BaseException], ...] = (),
    repeats: bool = False,
    key_on: tuple[str, ...] = (),
    version: str = "",
) -> Any:
    """Make a function an effect: it changes the world, so it is intended before it happens, and it happens once.

    Args:
        name: Part of the idempotency key; the function's own by default.
        idempotent: The receiver answers `outlast.idempotency_key()` with the first result, so it is called again after an
            unknown outcome.
        probe: Asked after an unknown outcome, with the same arguments; answers `Applied(value)`, `NotApplied()` or `Unknown(why)`.
        retry: For idempotent and probed effects, without end by default; one attempt for others.
        start_to_close_timeout: How long one attempt may take; required unless idempotent.
        settle: How much longer than that an attempt can act.
        raises: Exception types that reach the workflow as themselves.
        not_applied: Exception types that prove that nothing happened.
        repeats: An equal call after a success is another effect, with a key of its own.
        key_on: The parameters that make the key; all by default.
        version: Part of what an approval binds to.

    Raises:
        DefinitionError: The declaration cannot keep its promise.
    """

    def decorate(function: Callable[..., Any]) -> Effect[..., Any]:
        rules = EffectOptions(idempotent, probe, settle, not_applied, repeats, key_on, version)
        options = AttemptOptions(once_unless(rules, retry), start_to_close_timeout, raises)
        return declare(Effect(function, name, options, rules))

    return decorate if function is None else decorate(function)


class _StepDecorator:
    """How a type checker sees `@step(…)`: async and plain functions alike."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Decorate."""
        raise NotImplementedError


class _EffectDecorator:
    """How a type checker sees `@effect(…)`: async and plain functions alike."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Effect[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Effect[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Decorate."""
        raise NotImplementedError
