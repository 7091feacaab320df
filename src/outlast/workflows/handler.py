"""Handlers: what a workflow does with messages that come at any time, beside what its body does."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast, overload

from outlast.errors import DefinitionError
from outlast.replay.context import SignalHandler, UpdateHandler, context
from outlast.workflows.message import Signal, Update

T = TypeVar("T")
R = TypeVar("R")


@overload
def on_signal(signal: Signal[None], handler: Callable[[], object]) -> None: ...
@overload
def on_signal(signal: Signal[T], handler: Callable[[T], object]) -> None: ...
def on_signal(signal: Signal[Any], handler: Callable[..., object]) -> None:
    """Let `handler` have every message of this signal: those that came before at once, in order, then each as it comes.

    Each message is handled in a task of its own, which may await whatever the body may. All messages that came together are handed
    over before a condition is looked at. The run ends when its body and its handlers have ended: a handler in progress goes on when
    the body returns, and is cancelled when the body fails or the run is cancelled. An exception of a handler fails the run.

    Args:
        handler: Plain or async; called with the message's value. That of a signal without one may take nothing: `def stop(): …`.

    Raises:
        DefinitionError: The signal has a handler already, or is received (`outlast.receive`) in this run.

    Example:
        ```python
        import asyncio

        import outlast

        said = outlast.Signal("said", str)

        @outlast.workflow
        async def listen() -> list[str]:
            words: list[str] = []
            outlast.on_signal(said, words.append)
            await outlast.wait_condition(lambda: len(words) == 2)
            return words

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(listen(), id="listen-1")
                await handle.send(said, "hello")
                await handle.send(said, "world")
                assert await handle.result() == ["hello", "world"]

        asyncio.run(main())
        ```
    """
    current = context("outlast.on_signal")
    call = taking_a_value(handler, signal.type, f"the handler of signal {signal.name!r}")
    current.handle(SignalHandler(name=signal.name, decode=signal.codec.decode, call=call))


@overload
def on_update(
    update: Update[None, R],
    handler: Callable[[], R | Awaitable[R]],
    *,
    validator: Callable[[], object] | None = None,
) -> None: ...
@overload
def on_update(
    update: Update[T, R],
    handler: Callable[[T], R | Awaitable[R]],
    *,
    validator: Callable[[T], object] | None = None,
) -> None: ...
def on_update(
    update: Update[Any, Any],
    handler: Callable[..., Any],
    *,
    validator: Callable[..., object] | None = None,
) -> None:
    """Let `handler` answer every update of this name: with what it returns, or with the exception that it raises.

    What `on_signal` says of handlers holds here too, but for one thing: an exception of the handler is the sender's, and the run goes
    on. An update of a name without a handler waits while steps or effects go on, behind which it may get one, and is rejected when the
    run comes to rest without.

    Args:
        handler: Plain or async; called with the update's value. That of an update without one may take nothing.
        validator: Called with the value first. What it raises rejects the update, and nothing of it is done. A plain function that only
            looks: it may begin no step, timer or task. It is workflow code, and runs again in each replay; a rejection that is recorded
            stands then, whatever it says.

    Raises:
        DefinitionError: The update has a handler already.

    Example:
        ```python
        import asyncio

        import outlast

        raise_limit = outlast.Update("raise-limit", int, int)

        @outlast.workflow
        async def account() -> int:
            limit = 100

            def check(amount: int) -> None:
                if amount <= 0:
                    raise ValueError("a limit is raised by more than nothing")

            def change(amount: int) -> int:
                nonlocal limit
                limit += amount
                return limit

            outlast.on_update(raise_limit, change, validator=check)
            await outlast.wait_condition(lambda: limit > 100)
            return limit

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(account(), id="account-1")
                try:
                    await handle.update(raise_limit, -5)
                except outlast.UpdateRejectedError as error:
                    assert "more than nothing" in error.message
                assert await handle.update(raise_limit, 50) == 150

        asyncio.run(main())
        ```
    """
    current = context("outlast.on_update")
    call = taking_a_value(handler, update.type, f"the handler of update {update.name!r}")
    if validator is not None:
        what = f"the validator of update {update.name!r}"
        if inspect.iscoroutinefunction(validator):
            raise DefinitionError(
                f"{what} is async",
                hint="a validator is a plain function: it returns, or raises to say no",
            )
        validator = taking_a_value(validator, update.type, what)
    current.handle(
        UpdateHandler(
            name=update.name,
            decode=update.codec.decode,
            encode=update.answer.encode,
            call=call,
            validate=validator,
        )
    )


def taking_a_value(given: object, carried: object, what: str) -> Callable[[Any], Any]:
    """Return a function as one that is called with the value of a message; one that takes nothing is left without it.

    Args:
        carried: Type of the value; None for a message without one.
        what: Says what the function is, as `the handler of signal 'add'`.

    Raises:
        DefinitionError: It cannot be called so, which is said before a message comes.
    """
    if not callable(given):
        raise DefinitionError(
            f"{what} is {given!r}, which cannot be called",
            hint="give a function of one value, as on_update(add, put); plain or async",
        )
    call = cast("Callable[..., Any]", given)
    try:
        signature = inspect.signature(call)
    except ValueError:  # some of those written in C do not tell theirs
        return call
    if _binds(signature, None):
        return call
    if carried is None and _binds(signature):
        return lambda _: call()
    raise DefinitionError(
        f"{what} cannot be called with a value: its parameters are {signature}",
        hint="it is called with the value of the message: def handle(value); where the message carries none, it may take nothing",
    )


def _binds(signature: inspect.Signature, *values: object) -> bool:
    try:
        signature.bind(*values)
    except TypeError:
        return False
    return True
