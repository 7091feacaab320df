"""The outside world of a test: it counts what reached it and what it did."""

from __future__ import annotations

from collections import Counter
from typing import Any

from outlast.effects.intent import Applied, NotApplied


class Receiver:
    """Counts requests and what they changed, by idempotency key."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """How often each key was asked for."""
        self.changes: Counter[str] = Counter()
        """How often something happened under each key."""
        self.log: list[tuple[str, Any]] = []
        """What happened, in order."""
        self._results: dict[str, Any] = {}

    def forget(self) -> None:
        """Begin anew."""
        self.requests.clear()
        self.changes.clear()
        self.log.clear()
        self._results.clear()

    def apply(self, key: str, value: Any = None) -> Any:
        """Change the world, again if asked again."""
        self.requests[key] += 1
        self.changes[key] += 1
        self.log.append((key, value))
        return self._results.setdefault(key, value)

    def apply_once(self, key: str, value: Any = None) -> Any:
        """Change the world, or answer an equal key with the first result."""
        if key in self._results:
            self.requests[key] += 1
            return self._results[key]
        return self.apply(key, value)

    def find(self, key: str) -> Applied[Any] | NotApplied:
        """Say whether something happened under this key: a truthful probe."""
        return Applied(self._results[key]) if key in self._results else NotApplied()

    @property
    def total(self) -> int:
        """How often the world was changed."""
        return self.changes.total()
