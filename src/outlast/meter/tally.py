"""Numbers kept in the process: sums and summaries since it began, for whoever looks without any exporter."""

from __future__ import annotations

from bisect import bisect_left

import msgspec
from msgspec import Struct

from outlast.meter.instrument import COMMIT_SECONDS, Instrument
from outlast.store.figures import Figures

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of the classes of times: from a commit on a fast local disk to one that somebody must look at."""

SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Bounds of the classes of sizes, up to the largest batch of a writer."""


def bounds_of(histogram: Instrument) -> tuple[float, ...]:
    """Return the upper bounds of the classes into which values of this instrument fall."""
    return SECONDS if histogram.unit == COMMIT_SECONDS.unit else SIZES


class Summary(Struct, frozen=True):
    """What measured values came to, in the instrument's unit.

    Args:
        p99: No less than 99 of 100 values: the bound of their class, and never more than the largest.
    """

    count: int
    mean: float
    p99: float
    largest: float


class TallyReport(Struct, frozen=True):
    """What a tally holds, by the instruments' names; those with a label have a number for each of its values."""

    counts: dict[str, int | dict[str, int]] = msgspec.field(
        default_factory=dict[str, int | dict[str, int]]
    )
    measures: dict[str, Summary] = msgspec.field(default_factory=dict[str, Summary])


class _Classes(msgspec.Struct):
    bounds: tuple[float, ...]
    counts: list[int] = msgspec.field(default_factory=list[int])
    count: int = 0
    total: float = 0.0
    largest: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    def summary(self) -> Summary:
        wanted, seen = self.count * 0.99, 0
        bounds = (*self.bounds, self.largest)
        p99 = self.largest
        for bound, count in zip(bounds, tuple(self.counts), strict=True):
            seen += count
            if seen >= wanted:
                p99 = min(bound, self.largest)
                break
        return Summary(self.count, self.total / self.count, p99, self.largest)


class Tally:
    """Keeps sums and summaries. No lock: each instrument is counted by one thread, and a reader sees numbers of about one moment."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Instrument, str], int] = {}
        self._measures: dict[Instrument, _Classes] = {}
        self.figures: Figures | None = None
        """What was read last of the whole store; None where nobody reads it."""

    def add(self, counter: Instrument, number: int = 1, label: str = "") -> None:
        """Count something that happened."""
        place = counter, label
        self._counts[place] = self._counts.get(place, 0) + number

    def record(self, histogram: Instrument, value: float) -> None:
        """Take a measured value."""
        classes = self._measures.get(histogram)
        if classes is None:
            bounds = bounds_of(histogram)
            classes = self._measures[histogram] = _Classes(bounds, [0] * (len(bounds) + 1))
        classes.add(value)

    def observe(self, figures: Figures) -> None:
        """Keep what was read of the whole store."""
        self.figures = figures

    def count(self, counter: Instrument, label: str = "") -> int:
        """Return how often something happened."""
        return self._counts.get((counter, label), 0)

    def report(self) -> TallyReport:
        """Return all of it, from any thread."""
        counts: dict[str, int | dict[str, int]] = {}
        for (counter, label), number in dict(self._counts).items():
            if not counter.label:
                counts[counter.name] = number
                continue
            of_labels = counts.setdefault(counter.name, {})
            assert isinstance(of_labels, dict)
            of_labels[label] = number
        measures = {one.name: kept.summary() for one, kept in dict(self._measures).items()}
        return TallyReport(counts, measures)
