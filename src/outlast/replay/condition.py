"""Conditions that the workflow waits for: predicates over its own variables.

Invariant: they are looked at when everything else of a turn has run, so all messages of one turn were handled by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
            if predicate():
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
                holds = predicate()
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
