"""Conditions that the workflow waits for: predicates over its own variables.

Invariant: they are looked at when everything else of a turn has run, so all messages of one turn were handled by then.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine

from outlast.errors import DefinitionError
from outlast.replay.task import TaskLoop


class Conditions:
    """The conditions of one run, in the order in which they were waited for.

    Args:
        loop: The loop of the run.
    """

    def __init__(self, loop: TaskLoop) -> None:
        self._loop = loop
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def __len__(self) -> int:
        """Return how many are waited for."""
        return len(self._waiting)

    async def wait(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate` is true; not at all when it is true already."""
        future: asyncio.Future[None] = self._loop.create_future()
        if not self._loop.evicting:
            if _holds(predicate):
                return
            self._waiting[future] = predicate
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def fire(self) -> bool:
        """Wake who waits for a condition that is true now; False when there is none."""
        fired = False
        for future, predicate in list(self._waiting.items()):
            try:
                holds = _holds(predicate)
            except Exception as error:  # noqa: BLE001 - the author's predicate; its error belongs to who waits
                future.set_exception(error)
            else:
                if not holds:
                    continue
                future.set_result(None)
            del self._waiting[future]
            fired = True
        return fired

    def clear(self) -> None:
        """Forget them: the body has ended."""
        self._waiting.clear()


def check_predicate(given: object) -> None:
    """Refuse what is no condition, before it is looked at.

    Raises:
        DefinitionError: It cannot be called, or it is async: what that returns is always true.
    """
    if not callable(given):
        raise DefinitionError(
            f"outlast.wait_condition was given {given!r}, which cannot be called",
            hint="give a function that looks: outlast.wait_condition(lambda: len(votes) == 2)",
        )
    if inspect.iscoroutinefunction(given):
        raise _not_plain()


def _holds(predicate: Callable[[], object]) -> bool:
    """Look at a condition.

    Raises:
        DefinitionError: It gave an awaitable.
        RuntimeError: It raised StopIteration, which no future can carry; as for a generator.
    """
    try:
        found = predicate()
    except StopIteration as error:
        message = (
            "the condition of outlast.wait_condition raised StopIteration; give next() a default"
        )
        raise RuntimeError(message) from error
    if inspect.isawaitable(found):
        if isinstance(found, Coroutine):
            found.close()
        raise _not_plain()
    return bool(found)


def _not_plain() -> DefinitionError:
    return DefinitionError(
        "the condition of outlast.wait_condition is async, and what that returns is always true",
        hint="give a plain function that looks at the workflow's variables; await steps in a task or handler that sets them",
    )
