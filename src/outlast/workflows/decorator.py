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
from outlast.workflows.placement import Placement
from outlast.workflows.registry import declare

P = ParamSpec("P")
R = TypeVar("R")


@overload
def workflow(function: Callable[P, Awaitable[R]], /) -> Workflow[P, R]: ...
@overload
def workflow(*, name: str = ...) -> Callable[[Callable[P, Awaitable[R]]], Workflow[P, R]]: ...
def workflow(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """Make an `async def` function a workflow.

    Args:
        name: Under which runs are stored; the function's own by default. Renaming it is a change like any other.

    Raises:
        DefinitionError: It is not async, is a generator, or lacks an annotation.
        ForbiddenInWorkflowError: Its source uses a clock, randomness or I/O.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        return declare(Workflow(function, name))

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
    queue: str = ...,
    schedule_to_start_timeout: timedelta | None = ...,
) -> _StepDecorator: ...
def step(  # noqa: PLR0913 - each one is a sentence of the declaration
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    retry: RetryPolicy | None = None,
    start_to_close_timeout: timedelta | None = None,
    raises: tuple[type[BaseException], ...] = (),
    queue: str = "",
    schedule_to_start_timeout: timedelta | None = None,
) -> Any:
    """Make a function a step: its outcome is journaled, and it may run again if it was not.

    Args:
        name: Under which outcomes are stored; the function's own by default.
        retry: Retries without end by default, with growing waits up to 100 s; programming errors are never retried.
        start_to_close_timeout: How long one attempt may take; no limit by default.
        raises: Exception types that reach the workflow as themselves; others arrive as `StepFailedError`.
        queue: Run it in any worker that serves this queue (`outlast worker MODULE --queue gpu`, `outlast.open(queues=["gpu"])`); by
            default in the worker that has the run. That worker needs the step registered, and not the workflow.
        schedule_to_start_timeout: How long an attempt may wait for a worker of the queue; then the step fails with `TimeoutError`, and
            is not tried again. No limit by default.

    Raises:
        DefinitionError: It is a generator, or lacks an annotation.

    Example:
        ```python
        import asyncio
        from datetime import timedelta

        import outlast

        @outlast.step(queue="gpu", schedule_to_start_timeout=timedelta(minutes=5))
        def render(scene: str) -> str:
            return f"picture of {scene}"

        @outlast.workflow
        async def illustrate(scene: str) -> str:
            return await render(scene)

        async def main() -> None:
            async with outlast.open("memory://", queues=["gpu"]) as app:
                assert await app.run(illustrate("a harbour"), id="scene-1") == "picture of a harbour"

        asyncio.run(main())
        ```
    """

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        policy = RetryPolicy() if retry is None else retry
        options = AttemptOptions(policy, start_to_close_timeout, raises)
        placement = Placement(queue, schedule_to_start_timeout)
        return declare(Step(function, name, options, placement))

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
