"""The outboxes of a memory store, and who watches whom."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec.structs import replace

from outlast.store.change import OutboxItem, RunKey, Watch
from outlast.store.protocol import RELAY_AFTER


class MemoryOutbox:
    """What runs have to tell each other, and who is to be told of an end."""

    def __init__(self) -> None:
        self._items: dict[tuple[RunKey, int], tuple[datetime, OutboxItem]] = {}
        self._numbers: dict[RunKey, int] = {}
        self._watches: dict[RunKey, set[Watch]] = {}

    def add(self, run: RunKey, items: Iterable[OutboxItem], at: datetime) -> bool:
        """Add items of a run, and give them their numbers; whether there were any."""
        before = self._numbers.get(run, 0)
        for item in items:
            number = self._numbers[run] = self._numbers.get(run, 0) + 1
            self._items[run, number] = (at, replace(item, number=number))
        return self._numbers.get(run, 0) > before

    def clear(self, run: RunKey, numbers: Iterable[int]) -> None:
        """Remove items."""
        for number in numbers:
            self._items.pop((run, number), None)

    def list(
        self, limit: int, run: RunKey | None, age: timedelta, now: datetime
    ) -> list[tuple[RunKey, OutboxItem]]:
        """Return items; see `Store.outbox`."""
        found = sorted(
            (at, key, number, item)
            for (key, number), (at, item) in self._items.items()
            if run in (None, key) and (at <= now - age or at > now)
        )
        return [(key, item) for _, key, _, item in found[: max(limit, 0)]]

    def next_relay(self, now: datetime) -> datetime | None:
        """Return when the oldest item is anybody's; see `Claim`."""
        times = [at for at, _ in self._items.values()]
        if not times:
            return None
        return now if max(times) > now else min(times) + RELAY_AFTER

    def late(self, tenant: str, now: datetime) -> Iterable[datetime]:
        """Return since when those items wait that are anybody's, of one tenant or of all."""
        return (
            at
            for (key, _), (at, _) in self._items.items()
            if tenant in ("", key.tenant) and at <= now - RELAY_AFTER
        )

    def watch(self, run: RunKey, watch: Watch) -> None:
        """Let a watcher be told of the end of a run."""
        self._watches.setdefault(run, set()).add(watch)

    def unwatch(self, run: RunKey, watch: Watch) -> None:
        """Tell a watcher nothing more."""
        self._watches.get(run, set()).discard(watch)

    def take_watches(self, run: RunKey) -> list[Watch]:
        """Return who watches a run, in order, and forget them."""
        found = self._watches.pop(run, set())
        return sorted(found, key=lambda one: (one.watcher, one.generation, one.operation))
