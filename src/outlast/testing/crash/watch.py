"""Definitions whose bodies tell a watcher when they begin and end, and doubles that stand in for bodies.

The workflow and the worker's code know nothing of it: a copy of the definition is registered under the same name.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, cast

from msgspec.structs import replace

from outlast.errors import DefinitionError
from outlast.testing.crash.point import BodyCall, Kind
from outlast.testing.loop import current_process, halt_if_stopped
from outlast.workflows.attempt import current_attempt
from outlast.workflows.completion import HandedOut
from outlast.workflows.definition import Definition, Effect, Step, probe_function

D = TypeVar("D", bound=Definition[..., Any])


class Watcher(Protocol):
    """Is told of every call, in the process that makes it; may kill that process."""

    def began(self, call: BodyCall) -> int:
        """Note that a body is about to begin, and return which call of that body it is."""
        ...

    def waits(self, call: BodyCall, number: int) -> None:
        """Note that a body has come to its first wait."""
        ...

    def ended(self, call: BodyCall, number: int) -> None:
        """Note that a body has returned or raised, and nobody knows yet."""
        ...


class ProcessOverError(BaseException):
    """The simulated process was killed: the thread that runs here is gone."""


def watched(
    definitions: Iterable[Definition[..., Any]], watcher: Watcher
) -> list[Definition[..., Any]]:
    """Return the definitions with bodies and probes that tell the watcher."""
    return [_watched(one, watcher) for one in definitions]


def double(
    definition: D, body: Callable[..., Any], *, probe: Callable[..., Any] | None = None
) -> D:
    """Return a definition with another body; name, declaration, retries and timeouts stay.

    Args:
        definition: A step or effect, as it is decorated.
        body: Takes the same arguments; async or not.
        probe: Asked instead of the declared probe, which would ask the real system.

    Raises:
        DefinitionError: It is a workflow, or the effect's probe has no double, or one is given that nothing asks.
    """
    if not isinstance(definition, Step | Effect):
        raise DefinitionError(
            f"{definition!r} cannot have a double",
            step=definition.name,
            hint="only steps and effects reach the world; a workflow runs as it is",
        )
    has_probe = isinstance(definition, Effect) and definition.rules.probe is not None
    if has_probe is not (probe is not None):
        raise DefinitionError(
            f"{definition.kind} {definition.name} {'has a' if has_probe else 'has no'} probe, and its double "
            f"{'has none' if has_probe else 'has one'}",
            step=definition.name,
            hint="give a double of the probe with the double of a probed effect, and of no other",
        )
    return cast("D", _with_bodies(definition, body, probe))


def _with_bodies(
    definition: Definition[..., Any], body: Callable[..., Any], probe: Callable[..., Any] | None
) -> Definition[..., Any]:
    definition.resolve()  # what is stored follows from the annotations of the declared function
    other = copy.copy(definition)
    other.function = body
    if isinstance(other, Effect) and probe is not None:
        other.rules = replace(other.rules, probe=probe)
    return other


def _watched(definition: Definition[..., Any], watcher: Watcher) -> Definition[..., Any]:
    match definition:
        case Step():
            return _with_bodies(definition, _telling(definition.function, "step", watcher), None)
        case Effect():
            asks = definition.rules.probe is not None
            probe = _telling(probe_function(definition), "probe", watcher) if asks else None
            body = _telling(definition.function, "effect", watcher)
            return _with_bodies(definition, body, probe)
        case _:
            return definition


def _telling(function: Callable[..., Any], kind: Kind, watcher: Watcher) -> Callable[..., Any]:
    """Return a function that tells the watcher and stops where the watcher killed its process."""

    @functools.wraps(function)
    async def telling(*args: Any, **kwargs: Any) -> Any:
        call = _this_call(kind)
        number = watcher.began(call)
        await halt_if_stopped()
        # What follows runs at once, up to the body's first wait; only then comes this turn.
        first_wait = asyncio.get_running_loop().call_soon(watcher.waits, call, number)
        try:
            value = await function(*args, **kwargs)
        except (Exception, HandedOut):
            watcher.ended(call, number)
            await halt_if_stopped()
            raise
        finally:
            first_wait.cancel()
        watcher.ended(call, number)
        await halt_if_stopped()
        return value

    @functools.wraps(function)
    def telling_in_thread(*args: Any, **kwargs: Any) -> Any:
        call = _this_call(kind)
        number = watcher.began(call)
        _halt_thread_if_dead()
        try:
            value = function(*args, **kwargs)
        except (Exception, HandedOut):
            watcher.ended(call, number)
            _halt_thread_if_dead()
            raise
        watcher.ended(call, number)
        _halt_thread_if_dead()
        return value

    return telling if inspect.iscoroutinefunction(function) else telling_in_thread


def _this_call(kind: Kind) -> BodyCall:
    attempt = current_attempt.get()
    return BodyCall(kind, attempt.name, attempt.operation, attempt.number, attempt.key)


def _halt_thread_if_dead() -> None:
    process = current_process.get()
    if process is not None and process.stopped:
        raise ProcessOverError
