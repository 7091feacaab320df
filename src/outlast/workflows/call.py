"""A call: what calling a decorated function gives. One value that is awaited, started, covered by an approval.

It happens once: when it is awaited, or when it is handed to a task. Until then it is only a description. One that nobody ever
used was most likely meant to happen, so it warns when it is thrown away, as Python's own coroutines do.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

from outlast.errors import DefinitionError
from outlast.replay.context import Context, current_context
from outlast.replay.guard import outside_replay
from outlast.replay.task import Startable, TaskLoop

R_co = TypeVar("R_co", covariant=True)


class Callee(Protocol):
    """What a call needs of the function that was called."""

    name: str
    kind: str

    def enter(self, context: Context, call: Call[Any]) -> Any:
        """Begin the operation in a workflow, and return the future of its outcome."""
        ...

    def outside(self, call: Call[Any]) -> Coroutine[Any, Any, Any]:
        """Return what awaiting the call means outside a workflow."""
        ...


class _Birthplace(NamedTuple):
    """Where a call was made that is to be used."""

    loop: asyncio.AbstractEventLoop | None
    file: str
    line: int


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_evicting(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether the run is leaving memory, or has: what its code drops then was not forgotten."""
    return isinstance(loop, TaskLoop) and loop.evicting


def _warn(text: str, born: _Birthplace) -> None:
    with outside_replay():
        warnings.warn_explicit(text, RuntimeWarning, born.file, born.line)


class Call(Startable[R_co]):
    """A call that has not happened yet; compared by identity, awaited once.

    Args:
        callee: The decorated function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Example:
        ```python
        import asyncio
        import outlast

        @outlast.step
        async def double(number: int) -> int:
            return 2 * number

        @outlast.workflow
        async def both() -> list[int]:
            call = double(4)  # nothing has happened yet
            return await asyncio.gather(call, double(5))

        async with outlast.open("memory://") as app:
            assert await app.run(both(), id="b") == [8, 10]
        ```
    """

    __slots__ = ("_awaitable", "_forgettable", "_iterator", "args", "callee", "kwargs")

    def __init__(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.callee = callee
        self.args = args
        self.kwargs = kwargs
        self._awaitable: Any = None
        self._iterator: Generator[Any, Any, R_co] | None = None
        self._forgettable = self._born()

    def use(self) -> None:
        """Note that the call serves as a description, in `covers=` say: it need not happen."""
        self._forgettable = None

    def begin(self) -> None:
        """Start the operation now, in the name of the current task.

        Raises:
            DefinitionError: It was started before.
        """
        self._forgettable = None
        if self._awaitable is not None:
            raise DefinitionError(
                f"this call of {self.callee.name!r} was used twice",
                step=self.callee.name,
                hint=f"a call happens once; write {self.callee.name}(…) again for another one",
            )
        context = current_context.get(None)
        if context is None:
            self._awaitable = self.callee.outside(self)
        else:
            self._awaitable = self.callee.enter(context, self)

    def __await__(self) -> Generator[Any, Any, R_co]:
        """Start the operation if need be, and wait for its outcome."""
        self.begin()
        return self._waiting()

    def send(self, value: Any) -> Any:
        """Advance, as a task does."""
        if self._awaitable is None:
            self.begin()
        return self._iterate().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise inside, as a task does to cancel; a call that was not started stays so."""
        self._forgettable = None
        return self._iterate().throw(*error)

    def close(self) -> None:
        """Give up waiting."""
        self._forgettable = None
        if self._iterator is not None:
            self._iterator.close()

    def __repr__(self) -> str:
        """Name the function, never its arguments: they may be secret."""
        return f"<Call of {self.callee.name}>"

    def __del__(self) -> None:
        """Warn when nobody ever used the call."""
        born = getattr(self, "_forgettable", None)
        if born is None or sys.is_finalizing() or _is_evicting(born.loop):
            return
        wanted = f"{self.callee.name}(…)"
        if self.callee.kind == "child":
            wanted = f"outlast.run_child({wanted})"
        text = (
            f"call of {self.callee.kind} {self.callee.name} was never awaited, so it did not happen; "
            f"write `await {wanted}`"
        )
        # The warning opens the source file to show the line, which workflow code may not.
        contextvars.Context().run(_warn, text, born)

    def _born(self) -> _Birthplace | None:
        """Return where the call was made, if throwing it away would be a mistake."""
        context = current_context.get(None)
        if self.callee.kind == "effect" or (
            self.callee.kind in ("step", "child") and context is not None
        ):
            frame = sys._getframe(3)  # pyright: ignore[reportPrivateUsage] - the frame that calls the decorated function
            return _Birthplace(_running_loop(), frame.f_code.co_filename, frame.f_lineno)
        return None

    def _iterate(self) -> Generator[Any, Any, R_co]:
        if self._iterator is None:
            self._iterator = self._waiting()
        return self._iterator

    def _waiting(self) -> Generator[Any, Any, R_co]:
        waiting: Generator[Any, Any, R_co] = self._awaitable.__await__()
        return (yield from waiting)


async def plain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a decorated function as the ordinary function that it is."""
    result: Any = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result
