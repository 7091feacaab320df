"""The three decorators, with and without arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, overload

from outlast.effects.intent import SETTLE
from outlast.effects.retry import RetryPolicy
from outlast.journal.entry import Durability
from outlast.policy.tool import ForeignTool
from outlast.workflows.definition import (
    AttemptOptions,
    Effect,
    EffectOptions,
    Step,
    Workflow,
    once_unless,
)
from outlast.workflows.placement import Placement
from outlast.workflows.purpose import SameAs
from outlast.workflows.registry import declare
from outlast.workflows.terms import Approval

P = ParamSpec("P")
R = TypeVar("R")


@overload
def workflow(function: Callable[P, Awaitable[R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str = ...,
    timeout: timedelta | None = ...,
    durability: Durability = ...,
    pin: bool = ...,
) -> Callable[[Callable[P, Awaitable[R]]], Workflow[P, R]]: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    timeout: timedelta | None = None,
    durability: Durability = "sync",
    pin: bool = False,
) -> Any:
    """Make an `async def` function a workflow.

    Args:
        name: Under which runs are stored; the function's own by default. Renaming it is a change like any other.
        timeout: How long a run may take, from its start on; no limit by default. A start may say otherwise. When it is over, the
            body is cancelled as by `RunHandle.cancel`, cleans up, and the run fails with a `TimeoutError`.
        durability: When the outcomes of a run's steps are written. A start may say otherwise.

            * `sync`: before the workflow sees them. A crash loses none.
            * `async`: while the workflow goes on. A crash loses those on their way to the store; their steps run again.
            * `exit`: when the run leaves memory or ends, and before anything leaves it. A crash loses all since then.

            In every mode effects, approvals, children, messages, answers and published values wait until all that came before them
            is written; so nobody outside ever sees what a crash can take back.
        pin: Only workers of the build that has begun a run move it: same sources of the modules that declare workflows, same Outlast.
            Others leave it alone, `blocked: pinned`, until `outlast runs accept RUN --any-build`. By default any worker moves it whose
            code fits its journal. A new generation begins with the build that takes it up.

    Raises:
        DefinitionError: It is not async, is a generator, or lacks an annotation; the timeout is no length of time, or there is no
            such durability.
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

        A run of many short steps, which may be done again, written once:

        ```python
        import outlast

        @outlast.step
        async def embed(word: str) -> list[float]:
            return [float(ord(letter)) for letter in word]

        @outlast.workflow(durability="exit")
        async def index(words: list[str]) -> int:
            return sum([len(await embed(word)) for word in words])

        async with outlast.open("memory://") as app:
            assert await app.run(index(["to", "be"]), id="words-1") == 4
        ```
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        return declare(Workflow(function, name, timeout, durability, pin=pin))

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
    schedule_to_close_timeout: timedelta | None = ...,
    heartbeat_timeout: timedelta | None = ...,
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
    schedule_to_close_timeout: timedelta | None = None,
    heartbeat_timeout: timedelta | None = None,
    queue: str = "",
    schedule_to_start_timeout: timedelta | None = None,
) -> Any:
    """Make a function a step: its outcome is journaled, and it may run again if it was not.

    Args:
        name: Under which outcomes are stored; the function's own by default.
        retry: Retries without end by default, with growing waits up to 100 s; programming errors are never retried.
        start_to_close_timeout: How long one attempt may take; no limit by default.
        raises: Exception types that reach the workflow as themselves; others arrive as `StepFailedError`.
        schedule_to_close_timeout: How long all attempts and the waits between them may take, from the call on, through restarts and
            outages; no limit by default. Over, the step fails by `TimeoutError`; a retry that would come later is not waited for.
        heartbeat_timeout: How long an attempt may be silent, see `outlast.heartbeat`; no limit by default. It counts on after
            `outlast.complete_later()`: see `Client.heartbeat`.
        queue: Run it in any worker that serves this queue (`outlast worker MODULE --queue gpu`, `outlast.open(queues=["gpu"])`); by
            default in the worker that has the run. That worker needs the step registered, and not the workflow.
        schedule_to_start_timeout: How long an attempt may wait for a worker of the queue; then the step fails with `TimeoutError`, and
            is not tried again. No limit by default.

    Raises:
        DefinitionError: It is a generator, lacks an annotation, or has a time that cannot be meant.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        @outlast.step(retry=outlast.RetryPolicy(maximum_attempts=3), start_to_close_timeout=timedelta(seconds=30))
        def count_words(text: str) -> int:  # plain functions run in threads
            return len(text.split())

        @outlast.workflow
        async def measure(text: str) -> int:
            return await count_words(text)

        async with outlast.open("memory://") as app:
            assert await app.run(measure("to be or not"), id="m") == 4
        ```

        In a worker that serves a queue:

        ```python
        from datetime import timedelta

        import outlast

        @outlast.step(queue="gpu", schedule_to_start_timeout=timedelta(minutes=5))
        def render(scene: str) -> str:
            return f"picture of {scene}"

        @outlast.workflow
        async def illustrate(scene: str) -> str:
            return await render(scene)

        async with outlast.open("memory://", queues=["gpu"]) as app:
            assert await app.run(illustrate("a harbour"), id="scene-1") == "picture of a harbour"
        ```
    """

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        policy = RetryPolicy() if retry is None else retry
        options = AttemptOptions(
            policy, start_to_close_timeout, raises, schedule_to_close_timeout, heartbeat_timeout
        )
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
    schedule_to_close_timeout: timedelta | None = ...,
    heartbeat_timeout: timedelta | None = ...,
    compensate: Effect[..., Any] | None = ...,
    idempotent_for: timedelta | None = ...,
    same_as: SameAs | None = ...,
    probe_retry: RetryPolicy | None = ...,
    probe_timeout: timedelta | None = ...,
    approval: Approval | None = ...,
    tool: ForeignTool | None = ...,
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
    schedule_to_close_timeout: timedelta | None = None,
    heartbeat_timeout: timedelta | None = None,
    compensate: Effect[..., Any] | None = None,
    idempotent_for: timedelta | None = None,
    same_as: SameAs | None = None,
    probe_retry: RetryPolicy | None = None,
    probe_timeout: timedelta | None = None,
    approval: Approval | None = None,
    tool: ForeignTool | None = None,
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
        schedule_to_close_timeout: How long all attempts and the waits between them may take, from the call on; no limit by default.
            Over, the effect fails by `TimeoutError`, but only where it is known that nothing happened. Else the declaration decides
            first: an idempotent effect is called a last time, a probe is asked, and what is unknown even then is in doubt.
        heartbeat_timeout: How long an attempt may be silent, see `outlast.heartbeat`; no limit by default.
        compensate: An effect that undoes it, see `outlast.saga`. It takes parameters of this one by name, and `result`, what this one
            returned; needs `start_to_close_timeout`.
        idempotent_for: How long the receiver of an idempotent effect remembers a key, as it publishes it; for ever by default. An effect
            that may have happened is not called again when an attempt could come later than that: it is in doubt. Needs
            `start_to_close_timeout`.
        same_as: What makes two calls the same purpose although their keys differ: a second one is refused, or a person is asked. See
            `outlast.SameAs`.
        probe_retry: When to ask the probe again that cannot say, or raised; five times by default, at first after half a second. A
            programming error of the probe is not repeated. After the last time the effect is in doubt.
        probe_timeout: How long the probe may take; by default as long as an attempt.
        approval: A person has to say yes to every call before it happens, see `outlast.Approval`.
        tool: The tool of an MCP server, or of another program, that it calls, see `outlast.policy.ForeignTool`: calls are judged as calls of
            that tool, also where there is no policy. What no rule decides asks a person, and so does a definition that is not pinned.

    Raises:
        DefinitionError: The declaration cannot keep its promise.

    Example:
        ```python
        from datetime import timedelta
        import outlast
        from outlast import Applied, NotApplied

        SENT: dict[str, str] = {}  # stands in for a mail server

        async def find_mail(to: str, text: str) -> Applied[str] | NotApplied:
            return Applied(SENT[to]) if to in SENT else NotApplied()

        @outlast.effect(probe=find_mail, start_to_close_timeout=timedelta(seconds=10))
        async def send_mail(to: str, text: str) -> str:
            SENT[to] = text
            return text

        @outlast.workflow
        async def welcome(to: str) -> str:
            return await send_mail(to, "welcome")

        async with outlast.open("memory://") as app:
            assert await app.run(welcome("ada"), id="welcome-ada") == "welcome"
        assert SENT == {"ada": "welcome"}
        ```
    """

    def decorate(function: Callable[..., Any]) -> Effect[..., Any]:
        rules = EffectOptions(
            idempotent=idempotent,
            probe=probe,
            settle=settle,
            not_applied=not_applied,
            repeats=repeats,
            key_on=key_on,
            version=version,
            idempotent_for=idempotent_for,
            compensate=compensate,
            same_as=same_as,
            probe_retry=probe_retry,
            probe_timeout=probe_timeout,
            approval=approval,
            tool=tool,
        )
        options = AttemptOptions(
            once_unless(rules, retry),
            start_to_close_timeout,
            raises,
            schedule_to_close_timeout,
            heartbeat_timeout,
        )
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
