"""What a worker counts and measures, and what its store holds, as instruments of OpenTelemetry.

Needs the extra `otel`: the API, and no SDK. Which SDK, exporter and interval there are is the application's to say.
"""

from importlib.util import find_spec as _find_spec

if _find_spec("opentelemetry") is None:
    raise ModuleNotFoundError(
        "outlast.integrations.opentelemetry needs opentelemetry-api: in a clone of Outlast, pip install '.[otel]'",
        name="opentelemetry",
    )

import time
from collections.abc import Callable, Iterator
from functools import partial

from opentelemetry.metrics import (
    CallbackOptions,
    Counter,
    Histogram,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from outlast.meter.gauge import gauges_of
from outlast.meter.instrument import INSTRUMENTS, Instrument
from outlast.meter.tally import bounds_of
from outlast.store.figures import Figures
from outlast.workflows.registry import library_version

__all__ = ["OpenTelemetryMeters"]

STALE_SECONDS = 60.0
"""Figures that are older are not told: a gauge that stands still where nobody reads would look like peace."""


class OpenTelemetryMeters:
    """Tells OpenTelemetry; to be given to `outlast.open(meters=…)`. One for each app.

    Counters and histograms are of this worker. Gauges are of the whole store, and each worker tells the same: take the largest over
    workers, never the sum.

    Args:
        provider: Whose instruments; the global one by default.
        monotonic: Returns seconds since a fixed moment.

    Example:
        ```python
        import outlast
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from outlast.integrations.opentelemetry import OpenTelemetryMeters

        @outlast.workflow
        async def greet(name: str) -> str:
            return f"hello {name}"

        reader = InMemoryMetricReader()  # in production: a PeriodicExportingMetricReader
        meters = OpenTelemetryMeters(MeterProvider([reader]))
        async with outlast.open("memory://", meters=meters) as app:
            await app.run(greet("Ada"), id="greet-ada")
        metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        assert "outlast.run.ended" in {one.name for one in metrics}
        ```
    """

    def __init__(
        self,
        provider: MeterProvider | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        meter = (provider or get_meter_provider()).get_meter("outlast", library_version())
        self._monotonic = monotonic
        self._observed_at = 0.0
        self._gauges: dict[Instrument, list[Observation]] = {}
        self._counters: dict[Instrument, Counter] = {}
        self._histograms: dict[Instrument, Histogram] = {}
        for one in INSTRUMENTS:
            match one.kind:
                case "counter":
                    self._counters[one] = meter.create_counter(one.name, one.unit, one.text)
                case "histogram":
                    self._histograms[one] = meter.create_histogram(
                        one.name,
                        one.unit,
                        one.text,
                        explicit_bucket_boundaries_advisory=bounds_of(one),
                    )
                case "gauge":
                    meter.create_observable_gauge(
                        one.name, [partial(self._read, one)], one.unit, one.text
                    )

    def add(self, counter: Instrument, number: int = 1, label: str = "") -> None:
        """Count something that happened."""
        self._counters[counter].add(number, _attributes(counter, label))

    def record(self, histogram: Instrument, value: float) -> None:
        """Take a measured value."""
        self._histograms[histogram].record(value)

    def observe(self, figures: Figures) -> None:
        """Keep what was read of the whole store, until an exporter asks."""
        gauges: dict[Instrument, list[Observation]] = {}
        for gauge, value, label in gauges_of(figures):
            gauges.setdefault(gauge, []).append(Observation(value, _attributes(gauge, label)))
        self._gauges, self._observed_at = gauges, self._monotonic()

    def _read(self, gauge: Instrument, _options: CallbackOptions) -> Iterator[Observation]:
        if self._monotonic() - self._observed_at <= STALE_SECONDS:
            yield from self._gauges.get(gauge, ())


def _attributes(instrument: Instrument, label: str) -> dict[str, str] | None:
    return {f"outlast.{instrument.label}": label} if instrument.label else None
