"""The outside world of a test: it counts what reached it and what it did."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections import Counter
from datetime import timedelta
from typing import Any

from outlast.effects.intent import Applied, NotApplied

_living: weakref.WeakSet[Receiver] = weakref.WeakSet()


def living_receivers() -> list[Receiver]:
    """Return every receiver that somebody still holds."""
    return list(_living)


class Receiver:
    """Counts requests and what they changed, by idempotency key.

    Which method stands for which remote system:

    | declared | the remote system | its double in a body |
    | --- | --- | --- |
    | `idempotent=True` | knows keys | `receiver.apply_once(outlast.idempotency_key(), value)` |
    | `probe=find` | does not know keys, can be asked | `receiver.apply(…)`, and `receiver.find(…)` in the probe |
    | neither | does not know keys | `receiver.apply(…)` |

    With `await receiver.apply_late(…)` in place of `apply`, a request is on its way for a while, and survives its sender.

    A key under which more than one change is counted was acted upon twice. May be called from any thread.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """How often each key was asked for, be it with or without a change."""
        self.changes: Counter[str] = Counter()
        """How often something happened under each key."""
        self.probes: Counter[str] = Counter()
        """How often it was asked whether something happened under each key."""
        self.log: list[tuple[str, Any]] = []
        """What happened, in order: key and value."""
        self._results: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._on_the_way: list[asyncio.Task[Any]] = []
        _living.add(self)

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self.requests.clear()
            self.changes.clear()
            self.probes.clear()
            self.log.clear()
            self._results.clear()
            self._on_the_way.clear()

    def apply(self, key: str, value: Any = None) -> Any:
        """Change the world, again if asked again, and return the first value under this key."""
        with self._lock:
            return self._apply(key, value)

    def apply_once(self, key: str, value: Any = None) -> Any:
        """Change the world, or answer an equal key with the first value."""
        with self._lock:
            if key in self._results:
                self.requests[key] += 1
                return self._results[key]
            return self._apply(key, value)

    async def apply_late(self, key: str, value: Any = None, *, after: timedelta) -> Any:
        """Change the world after a while, whether or not the process that asked lives then; and return as `apply` does.

        Args:
            after: At most the timeout of the effect and its `settle`, or nothing is promised.
        """

        async def travel() -> Any:
            await asyncio.sleep(after.total_seconds())
            return self.apply(key, value)

        # An empty context belongs to no simulated process.
        task = asyncio.get_running_loop().create_task(travel(), context=contextvars.Context())
        self._on_the_way.append(task)
        return await asyncio.shield(task)

    async def come_to_rest(self) -> None:
        """Return when no request is on its way any more."""
        while on_the_way := [one for one in self._on_the_way if not one.done()]:
            await asyncio.wait(on_the_way)

    def find(self, key: str) -> Applied[Any] | NotApplied:
        """Say whether something happened under this key: a truthful probe."""
        with self._lock:
            self.probes[key] += 1
            return Applied(self._results[key]) if key in self._results else NotApplied()

    @property
    def total(self) -> int:
        """How often the world was changed."""
        return self.changes.total()

    def _apply(self, key: str, value: Any) -> Any:
        self.requests[key] += 1
        self.changes[key] += 1
        self.log.append((key, value))
        return self._results.setdefault(key, value)
