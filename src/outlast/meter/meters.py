"""Who is told the numbers. Told often, on the worker's event loop and from the thread of its lease: what it does must be quick, and never raise."""

from __future__ import annotations

import logging
from typing import Protocol

from outlast.meter.instrument import Instrument
from outlast.store.figures import Figures

logger = logging.getLogger("outlast")


class Meters(Protocol):
    """Takes numbers in.

    Example:
        ```python
        import outlast
        from outlast.meter import Instrument

        class Steps:
            done = 0

            def add(self, counter: Instrument, number: int = 1, label: str = "") -> None:
                self.done += counter.name == "outlast.step.outcomes" and label == "completed"

            def record(self, histogram: Instrument, value: float) -> None: ...

            def observe(self, figures) -> None: ...

        @outlast.step
        async def think() -> int:
            return 1

        @outlast.workflow
        async def muse() -> int:
            return await think()

        steps = Steps()
        async with outlast.open("memory://", meters=steps) as app:
            await app.run(muse(), id="m")
        assert steps.done == 1
        ```
    """

    def add(self, counter: Instrument, number: int = 1, label: str = "") -> None:
        """Count something that happened.

        Args:
            label: The value of the instrument's label; empty where it has none.
        """
        ...

    def record(self, histogram: Instrument, value: float) -> None:
        """Take a measured value, in the instrument's unit."""
        ...

    def observe(self, figures: Figures) -> None:
        """Take what was read of the whole store, every few seconds; each worker of a store sees the same."""
        ...


class _NoMeters:
    def add(self, counter: Instrument, number: int = 1, label: str = "") -> None:
        pass

    def record(self, histogram: Instrument, value: float) -> None:
        pass

    def observe(self, figures: Figures) -> None:
        pass


NO_METERS: Meters = _NoMeters()
"""Counts nothing."""


class Beside:
    """Tells somebody else what it tells `own`. What the other raises is logged once, and stops nothing that is being counted."""

    def __init__(self, own: Meters, other: Meters) -> None:
        self._own = own
        self._other = other
        self._has_failed = False

    def add(self, counter: Instrument, number: int = 1, label: str = "") -> None:
        """Count something that happened."""
        self._own.add(counter, number, label)
        try:
            self._other.add(counter, number, label)
        except Exception as error:  # noqa: BLE001 - whoever counts is not ours
            self._say(error)

    def record(self, histogram: Instrument, value: float) -> None:
        """Take a measured value."""
        self._own.record(histogram, value)
        try:
            self._other.record(histogram, value)
        except Exception as error:  # noqa: BLE001 - the same
            self._say(error)

    def observe(self, figures: Figures) -> None:
        """Take what was read of the whole store."""
        self._own.observe(figures)
        try:
            self._other.observe(figures)
        except Exception as error:  # noqa: BLE001 - the same
            self._say(error)

    def _say(self, error: Exception) -> None:
        if not self._has_failed:
            logger.error(
                "meters=%r raised; what it is told after this may be lost, too",
                self._other,
                exc_info=error,
            )
        self._has_failed = True
