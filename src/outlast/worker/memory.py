"""How long the receiver of an effect knows its key, and until when an attempt may still count on that.

Guards one promise: what may have happened is never called again when its receiver could take the old key for a new one.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from outlast.clock import Clock
from outlast.workflows.definition import Effect


class Memory:
    """The memory of one effect's receiver.

    Args:
        effect: Whose `idempotent_for` it is; None there means for ever.
        used_at: When the key may have been used first, by the store's clock; None where nobody knows.
    """

    def __init__(self, effect: Effect[..., object], clock: Clock, used_at: datetime | None) -> None:
        self._lasts = effect.rules.idempotent_for
        # An attempt may act as long as this after it has begun, and must find the key known until then.
        timeout = effect.options.start_to_close_timeout or timedelta(0)
        self._acts = timeout + effect.rules.settle
        self._clock = clock
        self._used_at = used_at
        self._until: float | None = None

    def is_over(self, now: datetime, *, after: timedelta = timedelta(0)) -> bool:
        """Whether an attempt that begins then might act when the receiver has forgotten the key.

        Args:
            now: The store's time.
            after: It begins that much later.
        """
        if self._lasts is None:
            return False
        left = self._left(now, self._lasts)
        self._until = self._clock.monotonic() + left.total_seconds()
        return after >= left

    def is_over_here(self) -> bool:
        """The same of this very moment, by the local clock, where it was asked before; from any thread."""
        return self._until is not None and self._clock.monotonic() >= self._until

    def why(self) -> str:
        """Return why nothing is called any more, in words."""
        used = (
            "when it was used first is not known"
            if self._used_at is None
            else f"it may have been used first at {self._used_at:%Y-%m-%d %H:%M:%S} UTC"
        )
        return f"its receiver forgets a key after {self._lasts}, and {used}; another attempt could make it happen a second time"

    def _left(self, now: datetime, lasts: timedelta) -> timedelta:
        if self._used_at is None:
            return timedelta(0)
        return lasts - self._acts - (now - self._used_at)
